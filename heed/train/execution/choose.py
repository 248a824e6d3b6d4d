"""How updates are launched: one kernel at a time, as captured graphs, or compiled.

`train.execution = "auto"` chooses by what the machine has and by the work ahead, and says why.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import nn

from heed.config import Recipe
from heed.data.batching.batch import Batch
from heed.data.batching.length_buckets import BatchShape
from heed.errors import ConfigError
from heed.nn.stack import Block
from heed.train.execution.cuda_graphs import GraphStep, blank
from heed.train.optimizers.build import CAPTURABLE
from heed.train.state import State
from heed.train.step import Limits, Step

Say = Callable[[str], None]
KEPT = 2**30
"""Bytes of free memory that a CPU run does not hand back; also those that lie in one piece."""
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""What glibc's mallopt calls them."""


@dataclass(frozen=True)
class Ahead:
    """The work before a run: how many updates, and the shapes their batches have."""

    updates: int
    shapes: list[BatchShape]
    example: Batch
    """Any batch, on the device: its tensors are those of all."""


def build_step(
    recipe: Recipe,
    objective: nn.Module,
    state: State,
    ahead: Ahead,
    *,
    bf16: bool,
    say: Say,
) -> Step:
    """The step a recipe names; by `auto`, the one that will be done first.

    `objective` is the model's, where several ranks share it as they do.
    """
    if state.device.type == "cpu":
        keep_memory()
    make, speed = partial(_make, objective, recipe, state, ahead, bf16), recipe.train.execution
    if speed == "graphs" and state.world.several:
        speed = "auto"
    hindered = None if speed == "auto" else obstacle(recipe, speed, state.device)
    if hindered:
        raise ConfigError([f"[train] speed cannot be {speed!r}: {hindered}."])
    while True:
        try:
            return _choose(recipe, state, ahead, make, say) if speed == "auto" else make(speed)
        except torch.OutOfMemoryError:
            most = max(shape.batch_size for shape in ahead.shapes)
            if not recipe.train.split_on_oom or state.pieces_of_batch >= most:
                raise
        state.halve()
        say(f"A batch does not fit into memory: learning from it in {state.pieces_of_batch} parts.")


def keep_memory() -> None:
    """Let this process keep the memory that an update frees: the next one needs the same.

    glibc hands large pieces back to the system at once and has them given anew, zeroed page by
    page: a tenth of a translator's update on a CPU. Other C libraries are left alone.
    """
    if sys.platform != "linux":
        return
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        for option in (TRIM_THRESHOLD, MMAP_THRESHOLD):
            library.mallopt(option, KEPT)


def obstacle(recipe: Recipe, speed: str, device: torch.device) -> str | None:
    """Why updates cannot be launched this way here; None where they can."""
    if speed == "compile" and not _has_compiler(device):
        return "there is no C++ compiler here" if device.type == "cpu" else "Triton is missing"
    if speed == "graphs" and device.type != "cuda":
        return "graphs are for a GPU"
    if device.type == "cuda" and speed != "eager" and recipe.train.optimizer not in CAPTURABLE:
        return f"{recipe.train.optimizer} asks the host at every update"
    return None


def _has_compiler(device: torch.device) -> bool:
    if device.type == "cuda":
        from torch.utils._triton import has_triton

        return has_triton()
    return cpp_compiler() is not None


def cpp_compiler() -> str | None:
    """What compiles for a CPU here; None where nothing does."""
    named = os.environ.get("CXX")
    return next(filter(shutil.which, [named] if named else ["c++", "g++", "clang++"]), None)


def _choose(
    recipe: Recipe,
    state: State,
    ahead: Ahead,
    make: Callable[[str], Step],
    say: Say,
) -> Step:
    """Graphs on a GPU, for they pay at once. Compiled blocks never beat what `auto` takes here:
    our own kernels, captured, on a GPU, torch's on a CPU (docs/log.md); they can be asked for.
    """
    hindered = obstacle(recipe, "graphs", state.device)
    if state.world.several:
        hindered = "several ranks share the work"
    elif hindered is None and ahead.updates < 4 * len(ahead.shapes):
        hindered = f"{ahead.updates} updates are too few to capture {len(ahead.shapes)} shapes"
    if hindered is not None:
        say(f"Speed: one kernel at a time, because {hindered}.")
        return make("eager")
    began = time.perf_counter()
    try:
        step = make("graphs")
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        say(f"Speed: one kernel at a time; a graph cannot hold this: {str(error).splitlines()[0]}")
        return make("eager")
    took = time.perf_counter() - began
    say(f"Speed: {len(ahead.shapes)} shapes captured as graphs in {took:.1f} s.")
    return step


def _make(
    objective: nn.Module, recipe: Recipe, state: State, ahead: Ahead, bf16: bool, speed: str
) -> Step:
    settings, several = recipe.train, state.world.several
    if speed == "compile":
        # All blocks are one code to dynamo, which would give up after eight versions of it.
        blocks, versions = _blocks(objective), torch._dynamo.config.recompile_limit
        torch._dynamo.config.recompile_limit = max(versions, len(blocks) * len(ahead.shapes))
        settled = None
        if settings.deterministic:
            # A shape may fit several versions that earlier runs of this process left, and kernels
            # that are chosen by trying them out add up in another order in every run.
            torch.compiler.reset()
            settled = {"deterministic": True}
        for block in blocks:
            block.compile(dynamic=len(ahead.shapes) > 1, options=settled)
    # One rank cannot halve alone: the others would wait for what it takes back.
    limits = Limits(
        settings.clip, settings.max_skipped_steps, settings.split_on_oom and not several
    )
    if speed == "eager" or state.device.type == "cpu" or several:
        return Step(objective, state, limits, bf16=bf16)
    parts = state.pieces_of_batch
    shapes = [replace(shape, batch_size=-(-shape.batch_size // parts)) for shape in ahead.shapes]
    blanks = [blank(ahead.example, shape) for shape in shapes]
    whole = parts == 1 and settings.accumulate == 1
    return GraphStep(objective, state, limits, bf16=bf16, blanks=blanks, whole=whole)


def _blocks(model: nn.Module) -> list[nn.Module]:
    return [module for module in model.modules() if isinstance(module, Block)]
