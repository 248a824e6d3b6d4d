"""Launch everything a recipe launches on a fake GPU, where nothing is computed.

Only the code that launches kernels knows which kernels there are, and for which kinds of arguments
Triton compiles them. So that code is run: forward and backward through two layers, an evaluation,
and a few decoding steps. Its tensors have shapes but no memory (torch's meta device) and report
that they are on a GPU.
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
from heed.decode.batch_plan import bucket_size
from heed.decode.model_step import Prompt
from heed.decode.search import Search
from heed.decode.settings import build_strategy
from heed.models import Classifier, Model, Translator, build
from heed.models.inference import evaluating
from heed.nn.kernels import distance_attention
from heed.train.clipping import Clipping
from heed.train.counters import Counters
from heed.train.objective import Objective, loss
from heed.train.optimizers.build import muon_groups, optimizer_settings, parameter_groups
from heed.train.optimizers.custom import Muon
from heed.train.optimizers.fused_adamw import FusedAdam, FusedAdamW
from heed.train.precompile.start import KERNEL_OPTIMIZERS
from heed.train.prepare.text_cache import CHARACTERS_PER_TOKEN, MAX_VOCAB, MIN_VOCAB
from heed.train.validate import greedy_config

Hook = Callable[..., bool]
"""Called by Triton before it compiles a kernel; True: neither compile nor launch it."""
BATCH_SIZE, LAYERS = 2, 2
LENGTHS = {128: 65, 64: 33, 32: 1, 256: 129, 512: 512}
"""Sequence lengths that stand for all others, each used if `max_length` is at least its value:
short attention has three tile sizes, the largest slowest to compile; then SDPA; then distance
attention."""
PROMPT_LENGTHS = (32, 24)
"""Lengths of prompts and sources, beside the longest: a multiple of 16 and another."""
GET_DEVICE, GET_IS_CUDA = (getattr(Tensor, name).__get__ for name in ("device", "is_cuda"))
AUTOCAST_FUNCTIONS = {
    *(F.linear, F.scaled_dot_product_attention, torch.addmm, torch.baddbmm),
    *(torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.mm, Tensor.mm, torch.bmm, Tensor.bmm),
}
"""Functions that autocast runs in 16 bits on a GPU."""


def launch_training(recipe: Recipe, capability: int, hook: Hook) -> None:
    """Launch all kernels of training steps and validation; the hook is called for each."""
    precision, (round_size, odd_size) = recipe.train.precision, vocab_sizes(recipe)
    bf16 = precision == "bf16" or (precision == "auto" and capability >= 80)
    with fake_gpu(capability, hook):
        for vocab, lengths in ((round_size, batch_lengths(recipe)), (odd_size, [(32, 32)])):
            model = build_model(recipe, vocab)
            freeze_and_adapt(model, recipe)
            for length, source_length in lengths:
                batch = build_batch(recipe, BATCH_SIZE, length, source_length)
                with _ignore_errors():
                    train_step(model, recipe, batch, bf16=bf16)
                    optimizer_step(model, recipe)
                with _ignore_errors():
                    validation_step(model, batch, bf16=bf16)
        if recipe.model.bias and bf16:
            sum_gradients(recipe)


def launch_decoding(recipe: Recipe, capability: int, hook: Hook) -> None:
    """Launch all kernels of decoding, during training and after; the hook is called for each."""
    if recipe.task == "classify" or recipe.train.objective != "causal":
        return
    configs = [recipe.decode]
    if recipe.train.evaluate_bleu:
        configs.append(greedy_config(recipe.decode))
    with fake_gpu(capability, hook):
        for vocab in vocab_sizes(recipe):
            model = build_model(recipe, vocab)
            for config in configs:
                for length in (*PROMPT_LENGTHS, bucket_size(recipe.data.max_length)):
                    with _ignore_errors():
                        decode_step(model, config, BATCH_SIZE, length)


def batch_lengths(recipe: Recipe) -> list[tuple[int, int]]:
    """Lengths of batches and of their sources; all but the longest are multiples of 16."""
    longest = recipe.data.max_length
    even = [length for length, needed in LENGTHS.items() if needed <= longest]
    pairs = [(length, length) for length in even]
    if longest % 16:
        below = max([length for length in even if length <= longest], default=longest)
        pairs += [(longest, longest), (longest, below), (below, longest)]
    return pairs


def vocab_sizes(recipe: Recipe) -> tuple[int, int]:
    """About the size of the vocabulary: a multiple of 16, and a number that is not."""
    size = recipe.tokenizer.vocab_size
    if size is None:
        files = [Path(name) for name in recipe.data.train]
        size = sum(f.stat().st_size for f in files if f.is_file()) // CHARACTERS_PER_TOKEN
        size = min(MAX_VOCAB, max(MIN_VOCAB, size)) if files else MAX_VOCAB
    size = max(16, size // 16 * 16)
    return size, size + 1


def build_model(recipe: Recipe, vocab: int) -> Model:
    """The recipe's model with few layers."""
    config, most = recipe.model, layers_needed(recipe)
    layers = {
        name: min(most, count)
        for name in ("layers", "decoder_layers")
        if (count := getattr(config, name)) is not None
    }
    return build(
        recipe.task,
        config.model_copy(update=layers),
        vocab=vocab,
        classes=2,
        causal=recipe.train.objective == "causal",
    ).to("cuda")


def layers_needed(recipe: Recipe) -> int:
    """How many layers stand for any number: one more where some are frozen, which learns."""
    return LAYERS + isinstance(recipe.init.freeze, int)


def freeze_and_adapt(model: Model, recipe: Recipe) -> None:
    """Freeze parameters and add LoRA adapters: a frozen bias needs no sum of gradients."""
    init = recipe.init
    if init.freeze is None and init.lora is None:
        return
    from heed.train.prepare import init_from

    if isinstance(init.freeze, int):
        init = init.model_copy(update={"freeze": min(init.freeze, LAYERS)})
    init_from.freeze_and_adapt(model, init, (), lambda message: None)


def sum_gradients(recipe: Recipe) -> None:
    """The sum of a gradient that cuBLASLt computed, which a fake GPU does not have."""
    from heed.nn.kernels.triton.column_sum import column_sums

    with _ignore_errors():
        column_sums(torch.empty(BATCH_SIZE, recipe.model.width, dtype=torch.bfloat16))


def build_batch(recipe: Recipe, size: int, length: int, source_length: int) -> Batch:
    """A batch with the tensors that this recipe's batches have."""

    def side(length: int) -> tuple[Tensor, Tensor, Tensor]:
        ids = torch.ones(size, length, dtype=torch.int64, device="cuda")
        return ids, ids.bool(), torch.arange(length, device="cuda")[None]

    ids, real, positions = side(length)
    targets = ids[:, 0] if recipe.task == "classify" else ids
    batch = Batch(ids, targets, real, positions, size * length, ())
    if recipe.task == "translate":
        names = ("source", "source_mask", "source_positions")
        return batch.with_tensors(dict(zip(names, side(source_length), strict=True)))
    return batch


def train_step(model: Model, recipe: Recipe, batch: Batch, *, bf16: bool) -> None:
    """The forward and backward pass of a training step."""
    settings = recipe.train
    objective = Objective(
        model.train(),
        label_smoothing=settings.label_smoothing,
        rdrop=settings.rdrop,
        fp8_output=settings.fp8_output,
    )
    if recipe.data.pack:
        each = batch.positions.repeat(len(batch.ids), 1)
        batch = batch.with_tensors({"segments": batch.ids, "positions": each})
    with _autocast(bf16):
        total, _ = objective(batch)
    total.backward()


def optimizer_step(model: Model, recipe: Recipe) -> None:
    """Clipping and the optimizer's step after a training step, by those that have kernels."""
    clip, max_skipped = recipe.train.clip, recipe.train.max_skipped_steps
    grads = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    Clipping(clip, max_skipped).finish_step(grads, Counters(torch.device("cuda")))
    if recipe.train.optimizer not in KERNEL_OPTIMIZERS:
        return
    one, settings = torch.ones((), device="cuda"), optimizer_settings(recipe.train)
    optimizer: Any
    if settings.name == "muon":
        groups = muon_groups(model, settings)
        optimizer = Muon([group | {"lr": one} for group in groups], fused=True)
    else:
        groups = parameter_groups(model, weight_decay=settings.weight_decay)
        kind = FusedAdamW if settings.name == "adamw" else FusedAdam
        optimizer = kind([group | {"lr": one} for group in groups], fused=True)
    optimizer.grad_scale = optimizer.found_inf = one
    optimizer.step()


def validation_step(model: Model, batch: Batch, *, bf16: bool) -> None:
    """The forward pass of validation."""
    with evaluating(model), _autocast(bf16):
        loss(model, batch)


def decode_step(model: Model, config: DecodeConfig, size: int, length: int) -> None:
    """Encode prompts or sources of this length and decode their first tokens."""
    if isinstance(model, Classifier):
        raise TypeError("A classifier does not decode.")
    ids = torch.ones(size, length, dtype=torch.int64, device="cuda")
    if isinstance(model, Translator):
        prompt = Prompt(ids[:, :1], None, ids, ids.bool())
    else:
        prompt = Prompt(ids, ids.bool())
    Search([model], build_strategy(config, 1)).dry_step(prompt)


# -------------------------------------------------------------------------------------- fake GPU


class FakeGpuMode(TorchFunctionMode):
    """Tensors made on a GPU are made on the meta device, and report that they are on a GPU."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Torch calls this instead of each of its functions."""
        kwargs = dict(kwargs or {})
        if func == GET_DEVICE:
            return torch.device("cuda", 0)
        if func == GET_IS_CUDA:
            return True
        if func is Tensor.data_ptr:  # CUDA allocates at multiples of more than 16 bytes.
            return args[0].storage_offset() * args[0].element_size()
        if func is torch.ops.heed.distance_tile_plans.default:
            with self:  # Torch would only compute the plans' shapes.
                return distance_attention.launch_tile_plans(*args)
        if isinstance(kwargs.get("out"), Tensor):
            return kwargs["out"]
        if kwargs.get("device") is not None or func is torch.empty:
            kwargs["device"] = "meta"
        args = tuple(torch.device("meta") if isinstance(x, torch.device) else x for x in args)
        if func in AUTOCAST_FUNCTIONS and torch.is_autocast_enabled("cuda"):
            args = tuple(map(_to_autocast_dtype, args))
            kwargs = {name: _to_autocast_dtype(x) for name, x in kwargs.items()}
        return func(*args, **kwargs)


def _to_autocast_dtype(x: Any) -> Any:
    is_float32 = isinstance(x, Tensor) and x.dtype == torch.float32
    return x.to(torch.get_autocast_dtype("cuda")) if is_float32 else x


class FakeDriver:
    """The part of Triton's GPU driver that compilation uses."""

    def __init__(self, capability: int) -> None:
        self.capability = capability

    def get_current_device(self) -> str:
        """A name that no device has: Triton shares no compiled kernel with a real device."""
        return "fake"

    def get_current_stream(self, device: object) -> int:
        """The default stream; nothing is launched on it."""
        return 0

    def get_current_target(self) -> Any:
        """The compute capability to compile for."""
        return GPUTarget("cuda", self.capability, 32)


@contextmanager
def fake_gpu(capability: int, hook: Hook) -> Iterator[None]:
    """Pretend that there is a GPU: launches of kernels only call the hook."""
    properties = SimpleNamespace(multi_processor_count=1)
    with ExitStack() as stack:
        for owner, name, value in (
            (driver, "_active", FakeDriver(capability)),
            (knobs.runtime, "jit_cache_hook", hook),
            (torch.cuda, "get_device_properties", lambda device: properties),
            (torch.cuda, "get_device_capability", lambda device: divmod(capability, 10)),
            (torch.cuda, "is_current_stream_capturing", lambda: True),
            (torch.cuda, "graph_pool_handle", lambda: (0, 0)),
        ):
            stack.enter_context(patch.object(owner, name, value))
        stack.enter_context(FakeGpuMode())
        yield


@contextmanager
def _autocast(enabled: bool) -> Iterator[None]:
    """Like torch.autocast("cuda"), which refuses to work without a GPU."""
    torch.set_autocast_dtype("cuda", torch.bfloat16)
    torch.set_autocast_enabled("cuda", enabled)
    try:
        yield
    finally:
        torch.set_autocast_enabled("cuda", False)


@contextmanager
def _ignore_errors() -> Iterator[None]:
    """Ignore errors: what fails here fails again in training, which reports it."""
    try:
        yield
    except Exception:
        if os.environ.get("HEED_DEBUG"):
            traceback.print_exc()
