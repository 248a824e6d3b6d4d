"""`heed train --dry-run`: parameters, memory and time, estimated from a few real steps."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console

from heed.config import Recipe
from heed.data.batching.bucketed import BucketedBatches
from heed.data.batching.packing import PackedBatches
from heed.device import choose_device
from heed.errors import ConfigError
from heed.models.build import describe_model
from heed.runs.run import Run
from heed.train import precompile
from heed.train.distributed.ranks import is_torchrun, rank0_error_only
from heed.train.loop import Loop
from heed.train.optimizers.build import describe_rates
from heed.train.prepare.init_from import resolve_init
from heed.train.prepare.setup import (
    Say,
    TrainingSetup,
    prepare,
    validate_recipe,
)
from heed.train.progress import format_duration
from heed.train.run import build_loop, oom_guard

TIMED_STEPS = 5
"""Steps that are timed, after one to warm up."""


@dataclass(frozen=True)
class TrainingEstimate:
    """A recipe as it would be trained, and what a few real steps of it took."""

    recipe: Recipe
    """The recipe with the shape of the model that it starts from."""
    setup: TrainingSetup
    loop: Loop
    seconds_per_step: float

    @property
    def parameters(self) -> int:
        """The number of the model's parameters."""
        return sum(p.numel() for p in self.setup.model.parameters())

    @property
    def seconds(self) -> float:
        """Seconds of training, without evaluation."""
        return self.seconds_per_step * self.loop.steps


@rank0_error_only()
def dry_run(recipe: Recipe, *, device: str, console: Console) -> Recipe:
    """Print parameters, memory and time, from a few steps in a temporary folder.

    Returns the recipe with the shape of the model that it starts from.
    """
    if is_torchrun():
        raise ConfigError(["--dry-run estimates one process: call heed without torchrun."])

    def say(text: str) -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    estimate = measure_recipe(recipe, device=device, say=say)
    recipe, setup, loop = estimate.recipe, estimate.setup, estimate.loop
    say(f"model       {describe_model(setup.model, recipe.task, recipe.model)}")
    say(f"rates       {describe_rates(loop.state.optimizer, recipe.train.lr)}")
    say(f"vocabulary  {setup.tokenizer.vocab_size:,}")
    counts = [f"{_count_texts(split)} in {name}" for name, split in setup.sets.items()]
    say(f"texts       {', '.join([f'{_count_texts(setup.train)} to learn from', *counts])}")
    say(f"memory      {_describe_memory(estimate.parameters, setup.device)}")
    say(f"steps       {loop.steps:,}, {loop.loader.steps_per_epoch:,} an epoch")
    say(
        f"time        about {format_duration(estimate.seconds)}, without evaluation "
        f"({estimate.seconds_per_step * 1e3:.0f} ms a step)"
    )
    return recipe


def measure_recipe(recipe: Recipe, *, device: str, say: Say) -> TrainingEstimate:
    """Prepare a recipe in a temporary folder and time a few steps of its training."""
    torch_device = choose_device(device)
    pretrained = None
    if recipe.init.from_model is not None:
        recipe, pretrained = resolve_init(recipe)
    validate_recipe(recipe, pretrained)
    with tempfile.TemporaryDirectory() as folder:
        run = Run.create(Path(folder) / "dry", recipe)
        with oom_guard(recipe, run, preparing=True):
            setup = prepare(recipe, run, device=torch_device, say=say, pretrained=pretrained)
        precompile.stop_compiling()
        seconds = []
        with oom_guard(recipe, run):
            loop = build_loop(setup, run, say=say)
            for batches in loop.loader.iterate(0, min(TIMED_STEPS + 1, loop.steps)):
                began = time.perf_counter()
                loop.update(batches)
                if torch_device.type == "cuda":
                    torch.cuda.synchronize()
                seconds.append(time.perf_counter() - began)
    timed = sorted(seconds[1:] or seconds)
    return TrainingEstimate(recipe, setup, loop, timed[len(timed) // 2])


def _count_texts(split: BucketedBatches | PackedBatches) -> str:
    """The number of texts, and of windows where a language model reads long texts in several."""
    texts, windows = split.example_count, len(split.rows)
    return f"{texts:,} ({windows:,} windows)" if windows > texts else f"{texts:,}"


def _describe_memory(parameters: int, device: torch.device) -> str:
    if device.type == "cuda":
        return f"{torch.cuda.max_memory_allocated() / 2**30:.2f} GiB at the peak"
    size = parameters * 16 / 2**20
    return f"{size:.0f} MiB for weights, gradients and optimizer, without activations"
