"""Kernels made before they are needed.

A kernel of ours is compiled when it first runs on a machine, which takes about a second; then it
is on disk. The first run on a fresh machine would wait for two dozen of them, one after another.
So other threads run each once, on next to nothing, while the text is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import torch
from torch import nn

from heed.config import ModelConfig, Recipe
from heed.data.batch import Batch
from heed.models import build
from heed.nn import heads
from heed.nn.kernels import HAS_TRITON
from heed.nn.masks import Mask
from heed.nn.positions import build_position
from heed.nn.short import LazyTurn, attend_short, backward_too
from heed.score.objective import Objective

TEXTS, VOCAB = 2, 8000
SIZES = (32, 64, 128)
"""What attention over short texts is compiled for."""


@contextmanager
def kindled(recipe: Recipe, device: torch.device, *, bf16: bool) -> Iterator[None]:
    """Meanwhile, on other threads, compile what the batches of this recipe will need.

    They draw from the GPU's generator, which is seeded again after.
    """
    if device.type != "cuda" or not HAS_TRITON or recipe.model.family == "lstm":
        yield
        return
    with ThreadPoolExecutor(1 + len(SIZES)) as pool:
        dtype, longest = torch.bfloat16 if bf16 else torch.float32, recipe.data.max_length
        waiting = [pool.submit(_learn_once, recipe, device, bf16)]
        waiting += [
            pool.submit(_attend_once, recipe, size, device, dtype)
            for size in SIZES[1:]
            if size < 2 * longest
        ]
        yield
        for one in waiting:
            one.exception()  # What fails here fails again where it is needed, and is told there.
    torch.cuda.manual_seed(recipe.seed)


def _learn_once(recipe: Recipe, device: torch.device, bf16: bool) -> None:
    """One pass forward and back of one layer over a short batch like those to come."""
    config = recipe.model.model_copy(update={"layers": 1, "decoder_layers": None})
    with torch.device("meta"):  # so that no weight is drawn from the generator of the run
        model = build(
            recipe.task,
            config,
            vocab=recipe.tokenizer.vocab_size or VOCAB,
            classes=2,
            causal=recipe.train.objective == "next",
        )
    model.to_empty(device=device).train()
    for parameter in model.parameters():
        nn.init.constant_(parameter, 0.01)
    torch.optim.SGD(model.parameters())  # The first optimizer imports a compiler: seconds.
    objective = Objective(model, label_smoothing=recipe.train.label_smoothing)
    with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
        total, _ = objective(_batch(recipe, device))
    total.backward()


def _batch(recipe: Recipe, device: torch.device) -> Batch:
    length = min(SIZES[0], recipe.data.max_length)
    ids = torch.ones(TEXTS, length, dtype=torch.int64, device=device)
    real, positions = ids.bool(), torch.arange(length, device=device)[None]
    targets = ids[:, 0] if recipe.task == "classify" else ids
    batch = Batch(ids, targets, real, positions, TEXTS * length, ())
    if recipe.task != "translate":
        return batch
    return batch.with_tensors({"source": ids, "source_mask": real, "source_positions": positions})


def _attend_once(recipe: Recipe, size: int, device: torch.device, dtype: torch.dtype) -> None:
    """Attention over texts of this length, forward and back, of every kind the task has."""
    config = recipe.model
    shared = config.kv_heads or config.heads
    width = config.head_width or config.width // config.heads
    counts, places = (config.heads, shared, shared), torch.arange(size, device=device)[None]
    position = build_position(config, causal=True).to(device)
    turn = None if position.frequencies() is None else LazyTurn(position, places, places)
    real = torch.ones(TEXTS, size, dtype=torch.bool, device=device)
    padded, causal = Mask(size, size, device, real_bm=real), Mask(size, size, device, causal=True)
    for mask, turned in _kinds(recipe, padded, causal, turn):
        packed = torch.zeros(TEXTS, size, sum(counts) * width, dtype=dtype, device=device)
        q, k, v = heads.split(packed, counts, width)
        with backward_too():
            attend_short(q, k, v, mask=mask, turn=turned, scale=_scale(config, width))


def _kinds(
    recipe: Recipe, padded: Mask, causal: Mask, turn: LazyTurn | None
) -> list[tuple[Mask, LazyTurn | None]]:
    """Who sees whom: an encoder, a decoder, and a decoder that looks at a source."""
    if recipe.task == "translate":
        return [(padded, turn), (causal, turn), (padded, None)]
    return [(causal if recipe.task == "generate" else padded, turn)]


def _scale(config: ModelConfig, width: int) -> float:
    return width**-0.5 if config.scale is None else config.scale
