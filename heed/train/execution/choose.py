"""Choose how training steps are launched: eagerly, as captured CUDA graphs, or compiled.

`train.execution = "auto"` chooses by the machine and by the number of steps, and says why.
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
from heed.device import is_out_of_memory
from heed.errors import ConfigError, first_line
from heed.nn.stack import Block
from heed.terminal import Say
from heed.train.execution.cuda_graphs import GraphStep, blank_batch
from heed.train.objective import find_fp8_obstacle
from heed.train.optimizers.build import CAPTURABLE
from heed.train.state import State
from heed.train.step import Limits, Step

KEPT_BYTES = 2**30
"""Free memory that a CPU run does not return to the system, in total and in one allocation."""
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Options of glibc's mallopt."""


@dataclass(frozen=True)
class PlannedWork:
    """The steps still to train, and the shapes of their batches."""

    steps: int
    shapes: list[BatchShape]
    example: Batch
    """Any batch, on the device: all batches have the same tensors."""


def build_step(
    recipe: Recipe,
    objective: nn.Module,
    state: State,
    work: PlannedWork,
    *,
    bf16: bool,
    say: Say,
) -> Step:
    """The step of a recipe; `auto` takes CUDA graphs on one GPU, else eager steps.

    `objective` is replicated or sharded where there are several ranks.
    """
    if state.device.type == "cpu" and not recipe.train.split_on_oom:
        keep_freed_memory()  # a batch to be split needs what the whole one has freed
    if recipe.train.fp8_output:
        obstacle = find_fp8_obstacle(state.model, state.device, bf16=bf16)
        if obstacle:
            precision = "bf16" if bf16 else "float32"
            say(f"Output layer: in {precision} in spite of fp8_output, because {obstacle}.")
    build, mode = partial(_build, objective, recipe, state, work, bf16), recipe.train.execution
    if mode == "graphs" and state.world.is_distributed:
        mode = "auto"
    obstacle = None if mode == "auto" else find_obstacle(recipe, mode, state.device)
    if obstacle:
        raise ConfigError([f"[train] execution cannot be {mode!r}: {obstacle}."])
    while True:
        try:
            return _choose(recipe, state, work, build, say) if mode == "auto" else build(mode)
        except (RuntimeError, MemoryError) as error:
            largest = max(shape.batch_size for shape in work.shapes)
            can_split = recipe.train.split_on_oom and state.batch_splits < largest
            if not (can_split and is_out_of_memory(error)):
                raise
        state.double_batch_splits()
        say(f"A batch does not fit into memory: training on it in {state.batch_splits} parts.")


def keep_freed_memory() -> None:
    """Keep memory that a step frees in this process, because the next step needs as much.

    glibc returns large allocations to the system at once and gets them back zeroed page by page:
    a tenth of a translation model's step on a CPU. Other C libraries are left alone.
    """
    if sys.platform != "linux":
        return
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        for option in (M_TRIM_THRESHOLD, M_MMAP_THRESHOLD):
            library.mallopt(option, KEPT_BYTES)


def find_obstacle(recipe: Recipe, mode: str, device: torch.device) -> str | None:
    """Why steps cannot be launched in this mode on this device; None where they can."""
    if mode == "compile" and not _has_compiler(device):
        return "there is no C++ compiler here" if device.type == "cpu" else "Triton is missing"
    if mode == "graphs" and device.type != "cuda":
        return "CUDA graphs need a GPU"
    if device.type == "cuda" and mode != "eager" and recipe.train.optimizer not in CAPTURABLE:
        return f"{recipe.train.optimizer} waits for the host at every step"
    return None


def _has_compiler(device: torch.device) -> bool:
    if device.type == "cuda":
        from torch.utils._triton import has_triton

        return has_triton()
    return cpp_compiler() is not None


def cpp_compiler() -> str | None:
    """The C++ compiler of this machine; None where there is none."""
    preferred = os.environ.get("CXX")
    return next(filter(shutil.which, [preferred] if preferred else ["c++", "g++", "clang++"]), None)


def _choose(
    recipe: Recipe,
    state: State,
    work: PlannedWork,
    build: Callable[[str], Step],
    say: Say,
) -> Step:
    """CUDA graphs on a GPU, because they pay at once; otherwise eager.

    Compiled blocks were never faster (docs/log.md) than heed's kernels in CUDA graphs on a GPU, or
    torch's kernels on a CPU. `train.execution = "compile"` still selects them.
    """
    obstacle = find_obstacle(recipe, "graphs", state.device)
    if state.world.is_distributed:
        obstacle = "several ranks share the work"
    elif obstacle is None and work.steps < 4 * len(work.shapes):
        obstacle = f"{work.steps} steps are too few to capture {len(work.shapes)} shapes"
    if obstacle is not None:
        say(f"Execution: eager, because {obstacle}.")
        return build("eager")
    began = time.perf_counter()
    try:
        step = build("graphs")
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        say(f"Execution: eager, because capture failed: {first_line(error)}")
        return build("eager")
    seconds = time.perf_counter() - began
    say(f"Execution: {len(work.shapes)} shapes captured as CUDA graphs in {seconds:.1f} s.")
    return step


def _build(
    objective: nn.Module, recipe: Recipe, state: State, work: PlannedWork, bf16: bool, mode: str
) -> Step:
    """The step in one launch mode."""
    settings, several = recipe.train, state.world.is_distributed
    if mode == "compile":
        # All blocks share one code object, of which dynamo would compile at most eight versions.
        blocks, versions = _blocks(objective), torch._dynamo.config.recompile_limit
        torch._dynamo.config.recompile_limit = max(versions, len(blocks) * len(work.shapes))
        options = None
        if settings.deterministic:
            # Versions that earlier runs of this process compiled may fit a shape, too. And kernels
            # chosen by timing them add up in a different order in every run.
            torch.compiler.reset()
            options = {"deterministic": True}
        for block in blocks:
            block.compile(dynamic=len(work.shapes) > 1, options=options)
    # One rank cannot split a batch alone: the others would wait for it.
    limits = Limits(
        settings.clip, settings.max_skipped_steps, settings.split_on_oom and not several
    )
    precision = {"bf16": bf16, "copy_weights": mode != "compile"}  # a compiler narrows by itself
    if mode == "eager" or state.device.type == "cpu" or several:
        return Step(objective, state, limits, **precision)
    parts = state.batch_splits
    shapes = [replace(shape, batch_size=-(-shape.batch_size // parts)) for shape in work.shapes]
    blanks = [blank_batch(work.example, shape) for shape in shapes]
    whole_step = parts == 1 and settings.accumulate == 1
    return GraphStep(objective, state, limits, **precision, blanks=blanks, whole_step=whole_step)


def _blocks(model: nn.Module) -> list[nn.Module]:
    return [module for module in model.modules() if isinstance(module, Block)]
