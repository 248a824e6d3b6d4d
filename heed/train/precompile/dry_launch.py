"""Launching all that a recipe launches, without a GPU and without anything being computed.

Which kernels there are, and for which kinds of numbers Triton compiles them, only the code knows
that launches them. So it is run: forward and back through two layers, then forward to evaluate,
and a few tokens are written, over tensors that have shapes but no memory (torch's meta device) and
say that they are on a GPU.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver

from heed.config import DecodeConfig, Recipe
from heed.data.batching.batch import Batch
from heed.decode.batch_plan import rung
from heed.decode.model_step import Prompt
from heed.decode.search import Search
from heed.models import Classifier, Model, Translator, build
from heed.models.inference import evaluating
from heed.nn.kernels import distance_attention
from heed.pipelines.translate import strategy
from heed.train.dev_bleu import greedy
from heed.train.objective import Objective, loss
from heed.train.prepare.run_tokenizer import CHARACTERS_A_PIECE, FEWEST_PIECES, MOST_PIECES

Hook = Callable[..., bool]
"""What Triton calls before it compiles; True tells it not to, and not to launch."""
TEXTS, LAYERS = 2, 2
LENGTHS = {128: 65, 64: 33, 32: 1, 256: 129, 512: 512}
"""They stand for all, each where the longest text is that long or more: short attention has three
sizes, the largest slowest to compile, then comes SDPA, then kernels for long texts."""
READ = (32, 24)
"""Lengths of what is read before one writes, with the longest: multiples of 16 and others."""
DEVICE, IS_CUDA = (getattr(Tensor, name).__get__ for name in ("device", "is_cuda"))
NARROWED = {
    *(F.linear, F.scaled_dot_product_attention, torch.addmm, torch.baddbmm),
    *(torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.mm, Tensor.mm, torch.bmm, Tensor.bmm),
}
"""What autocast does in 16 bits on a GPU."""


def rehearse(recipe: Recipe, capability: int, hook: Hook) -> None:
    """Launch what updates and losses will launch: the hook is told of each kernel."""
    precision, (round_size, odd_size) = recipe.train.precision, vocabularies(recipe)
    bf16 = precision == "bf16" or (precision == "auto" and capability >= 80)
    with pretending(capability, hook):
        for vocab, some in ((round_size, shapes(recipe)), (odd_size, [(32, 32)])):
            model = model_of(recipe, vocab)
            for length, source_length in some:
                batch = batch_of(recipe, TEXTS, length, source_length)
                with _trying():
                    learn(model, recipe, batch, bf16=bf16)
                with _trying():
                    evaluate(model, batch, bf16=bf16)


def rehearse_writing(recipe: Recipe, capability: int, hook: Hook) -> None:
    """The same for what this model will write, while it learns and after."""
    if recipe.task == "classify" or recipe.train.objective != "next":
        return
    ways = [recipe.decode]
    if recipe.train.evaluate_bleu:
        ways.append(greedy(recipe.decode))
    with pretending(capability, hook):
        for vocab in vocabularies(recipe):
            model = model_of(recipe, vocab)
            for how in ways:
                for length in (*READ, rung(recipe.data.max_length)):
                    with _trying():
                        write(model, how, TEXTS, length)


def shapes(recipe: Recipe) -> list[tuple[int, int]]:
    """Lengths to rehearse with, and their sources' lengths. All are round but for the longest."""
    longest = recipe.data.max_length
    even = [length for length, needed in LENGTHS.items() if needed <= longest]
    pairs = [(length, length) for length in even]
    if longest % 16:
        below = max([length for length in even if length <= longest], default=longest)
        pairs += [(longest, longest), (longest, below), (below, longest)]
    return pairs


def vocabularies(recipe: Recipe) -> tuple[int, int]:
    """About as many pieces as there will be: a round number, and one that is not."""
    size = recipe.tokenizer.vocab_size
    if size is None:
        files = [Path(name) for name in recipe.data.train]
        size = sum(f.stat().st_size for f in files if f.is_file()) // CHARACTERS_A_PIECE
        size = min(MOST_PIECES, max(FEWEST_PIECES, size)) if files else MOST_PIECES
    size = max(16, size // 16 * 16)
    return size, size + 1


def model_of(recipe: Recipe, vocab: int) -> Model:
    """The recipe's model, but for its depth."""
    config = recipe.model
    deep = {
        name: min(LAYERS, layers)
        for name in ("layers", "decoder_layers")
        if (layers := getattr(config, name)) is not None
    }
    return build(
        recipe.task,
        config.model_copy(update=deep),
        vocab=vocab,
        classes=2,
        causal=recipe.train.objective == "next",
    ).to("cuda")


def batch_of(recipe: Recipe, texts: int, length: int, source_length: int) -> Batch:
    """What a batch of this recipe holds."""

    def side(length: int) -> tuple[Tensor, Tensor, Tensor]:
        ids = torch.ones(texts, length, dtype=torch.int64, device="cuda")
        return ids, ids.bool(), torch.arange(length, device="cuda")[None]

    ids, real, positions = side(length)
    targets = ids[:, 0] if recipe.task == "classify" else ids
    batch = Batch(ids, targets, real, positions, texts * length, ())
    if recipe.task == "translate":
        names = ("source", "source_mask", "source_positions")
        return batch.with_tensors(dict(zip(names, side(source_length), strict=True)))
    return batch


def learn(model: Model, recipe: Recipe, batch: Batch, *, bf16: bool) -> None:
    """What an update does to find gradients."""
    settings = recipe.train
    objective = Objective(
        model.train(), label_smoothing=settings.label_smoothing, rdrop=settings.rdrop
    )
    if recipe.data.pack:
        each = batch.positions.repeat(len(batch.ids), 1)
        batch = batch.with_tensors({"segments": batch.ids, "positions": each})
    with _autocast(bf16):
        total, _ = objective(batch)
    total.backward()


def evaluate(model: Model, batch: Batch, *, bf16: bool) -> None:
    """What evaluation does."""
    with evaluating(model), _autocast(bf16):
        loss(model, batch)


def write(model: Model, how: DecodeConfig, texts: int, length: int) -> None:
    """What a search does to read texts of this length and write the first tokens."""
    if isinstance(model, Classifier):
        raise TypeError("A classifier writes nothing.")
    ids = torch.ones(texts, length, dtype=torch.int64, device="cuda")
    if isinstance(model, Translator):
        reading = Prompt(ids[:, :1], None, ids, ids.bool())
    else:
        reading = Prompt(ids, ids.bool())
    Search([model], strategy(how, 1)).try_out(reading)


# -------------------------------------------------------------------------------------- pretence


class FakeGpuMode(TorchFunctionMode):
    """Whatever is made on a GPU is made of nothing, and says that it is on a GPU."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Torch asks here before it does anything."""
        kwargs = dict(kwargs or {})
        if func == DEVICE:
            return torch.device("cuda", 0)
        if func == IS_CUDA:
            return True
        if func is Tensor.data_ptr:  # CUDA gives memory at multiples of more than 16 bytes
            return args[0].storage_offset() * args[0].element_size()
        if func is torch.ops.heed.relative_plans.default:  # torch would only ask for its shapes
            with self:
                return distance_attention._plans._init_fn(*args)
        if isinstance(kwargs.get("out"), Tensor):
            return kwargs["out"]
        if kwargs.get("device") is not None or func is torch.empty:
            kwargs["device"] = "meta"
        args = tuple(torch.device("meta") if isinstance(x, torch.device) else x for x in args)
        if func in NARROWED and torch.is_autocast_enabled("cuda"):
            args = tuple(map(_narrow, args))
            kwargs = {name: _narrow(x) for name, x in kwargs.items()}
        return func(*args, **kwargs)


def _narrow(x: Any) -> Any:
    wide = isinstance(x, Tensor) and x.dtype == torch.float32
    return x.to(torch.get_autocast_dtype("cuda")) if wide else x


class Driver:
    """As much of a GPU's driver as compiling asks for."""

    def __init__(self, capability: int) -> None:
        self.capability = capability

    def get_current_device(self) -> str:
        """What is kept for this one is for no other."""
        return "pretence"

    def get_current_stream(self, device: object) -> int:
        """Nothing waits in it."""
        return 0

    def get_current_target(self) -> Any:
        """What to compile for."""
        return GPUTarget("cuda", self.capability, 32)


@contextmanager
def pretending(capability: int, hook: Hook) -> Iterator[None]:
    """There is a GPU; what is launched on it is only told to the hook."""
    properties = SimpleNamespace(multi_processor_count=1)
    with ExitStack() as stack:
        for place, name, value in (
            (driver, "_active", Driver(capability)),
            (knobs.runtime, "jit_cache_hook", hook),
            (torch.cuda, "get_device_properties", lambda device: properties),
            (torch.cuda, "is_current_stream_capturing", lambda: True),
            (torch.cuda, "graph_pool_handle", lambda: (0, 0)),
        ):
            stack.enter_context(patch.object(place, name, value))
        stack.enter_context(FakeGpuMode())
        yield


@contextmanager
def _autocast(on: bool) -> Iterator[None]:
    """As torch.autocast has it, which will not believe in a GPU."""
    torch.set_autocast_dtype("cuda", torch.bfloat16)
    torch.set_autocast_enabled("cuda", on)
    try:
        yield
    finally:
        torch.set_autocast_enabled("cuda", False)


@contextmanager
def _trying() -> Iterator[None]:
    """What fails here fails again where it is needed, and is told there."""
    try:
        yield
    except Exception:
        if os.environ.get("HEED_DEBUG"):
            traceback.print_exc()
