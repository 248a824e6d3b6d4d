"""Kernels made before they are needed.

A kernel of ours is compiled when it first runs on a machine, which takes about a second, and is kept
on disk. The first run on a fresh machine would wait for two dozen of them, one after another.
So a small model of the same kind learns once on another thread while the text is read, and what
differs by shape is then compiled for all shapes side by side.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Thread

import torch
from torch import nn

from heed.config import Recipe
from heed.data.batch import Batch
from heed.models import build
from heed.nn.kernels import HAS_TRITON
from heed.nn.short import backward_too
from heed.score.objective import Objective

TEXTS, LENGTH, VOCAB = 2, 32, 8000


@contextmanager
def kindled(recipe: Recipe, device: torch.device, *, bf16: bool) -> Iterator[None]:
    """Meanwhile, on another thread, compile what every batch of this recipe will need.

    The thread draws from the GPU's generator. Whoever seeds it in between finds it as seeded.
    """
    if device.type != "cuda" or not HAS_TRITON or recipe.model.family == "lstm":
        yield
        return
    thread = Thread(target=_learn_once, args=(recipe, device, bf16), daemon=True)
    thread.start()
    yield
    thread.join()
    torch.cuda.manual_seed(recipe.seed)


def kindle_shapes(objective: nn.Module, batches: Sequence[Batch], *, bf16: bool) -> None:
    """Compile the kernels of batches of many shapes, on as many threads as there are cores."""

    def run(batch: Batch) -> None:
        few = {name: t[:TEXTS] for name, t in batch.tensors().items()}
        with backward_too(), torch.autocast(batch.ids.device.type, torch.bfloat16, enabled=bf16):
            objective(batch.with_tensors(few))

    if HAS_TRITON and len(batches) > 1:
        with ThreadPoolExecutor(min(len(batches), os.cpu_count() or 1)) as pool:
            list(pool.map(run, batches))


def _learn_once(recipe: Recipe, device: torch.device, bf16: bool) -> None:
    """One pass forward and back of one layer over a batch like those to come."""
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
    objective = Objective(model, label_smoothing=recipe.train.label_smoothing)
    with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
        total, _ = objective(_batch(recipe, device))
    total.backward()


def _batch(recipe: Recipe, device: torch.device) -> Batch:
    length = min(LENGTH, recipe.data.max_length)
    ids = torch.ones(TEXTS, length, dtype=torch.int64, device=device)
    real, positions = ids.bool(), torch.arange(length, device=device)[None]
    targets = ids[:, 0] if recipe.task == "classify" else ids
    batch = Batch(ids, targets, real, positions, TEXTS * length, ())
    if recipe.task != "translate":
        return batch
    return batch.with_tensors({"source": ids, "source_mask": real, "source_positions": positions})
