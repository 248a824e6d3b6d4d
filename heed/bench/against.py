"""`heed bench --against`: a recipe, or the standard shapes, compared with a peer like for like."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from heed.bench.like_for_like import TURN, TURNS, Options, SpeedComparison, System, compare
from heed.bench.peer_step import MODES
from heed.bench.peers import PEERS, refuse_unlike, require_peer
from heed.bench.standard_shapes import Setting, settings_for
from heed.bench.workload import Workload
from heed.config import Recipe
from heed.device import wants_bf16
from heed.errors import ConfigError
from heed.runs.run import Run
from heed.terminal import Say
from heed.train.loader import Loader
from heed.train.prepare.setup import prepare, validate_recipe

CPU = torch.device("cpu")
STEPS = 8
"""Training steps of a recipe on which systems are compared, unless named otherwise."""
LARGE_LOGITS = 2**31
"""Logits in a batch above which a GPU may have no room for several systems at once: peers store
all logits, in float32, with gradients. A peer is then also measured with half the batch."""


def peer_modes(device: torch.device, *, compiled: bool = True) -> list[str]:
    """The launch modes of a peer on a device: a CPU has no CUDA graphs to capture."""
    modes = [mode for mode in MODES if "captured" not in mode or device.type == "cuda"]
    return [mode for mode in modes if compiled or "compiled" not in mode]


def build_systems(
    workload: Workload,
    library: str,
    *,
    precision: str,
    modes: Sequence[str],
    execution: str = "auto",
) -> list[System]:
    """heed and a peer in its launch modes, all on one workload in one precision."""
    heed = System("heed", execution, precision, workload)
    return [heed, *(System(library, mode, precision, workload) for mode in modes)]


def standard_workload(setting: Setting, changes: Sequence[str] = ()) -> Workload:
    """The workload of a standard shape: one batch of random tokens without padding."""
    steps = [[setting.batch(CPU)]]
    recipe = setting.recipe(changes)
    return Workload(setting.name, recipe, setting.vocab, steps, setting.source_vocab)


def recipe_workload(recipe: Recipe, name: str, steps: int, *, say: Say) -> Workload:
    """The workload of a recipe: its own text, tokenizer and first batches."""
    refuse_unlike(recipe)
    with tempfile.TemporaryDirectory() as folder:
        validate_recipe(recipe)
        setup = prepare(recipe, Run.create(Path(folder) / "bench", recipe), device=CPU, say=say)
        loader = Loader(setup.train, accumulate=recipe.train.accumulate, device=CPU)
        staged = [loader.micro_batches(step) for step in range(steps)]
    return Workload(name, recipe, setup.tokenizer.vocab_size, staged)


def compare_with(
    workloads: Sequence[Workload],
    library: str,
    *,
    device: torch.device,
    compiled: bool = True,
    turns: int | None = None,
    say: Say,
) -> list[SpeedComparison]:
    """Compare heed with a library's model on each workload; `auto` adds float32 to bfloat16."""
    found = []
    for workload in workloads:
        say(f"{workload.name}, {workload.describe()}:")
        options = Options(
            device, turns or TURNS, TURN[device.type], alone=_is_large(workload, device)
        )
        systems = _systems(workload, library, device, compiled=compiled)
        found.append(compare(workload.name, systems, options, say=say))
    return found


def _systems(
    workload: Workload, library: str, device: torch.device, *, compiled: bool
) -> list[System]:
    """In the precision of the recipe: all modes. Where `auto` is bfloat16: float32 eager, too."""
    wanted = workload.recipe.train.precision
    precision = "bf16" if wants_bf16(wanted, device) else "float32"
    execution = workload.recipe.train.execution
    modes = peer_modes(device, compiled=compiled)
    build = partial(build_systems, workload, library, execution=execution)
    systems = build(precision=precision, modes=modes)
    if _is_large(workload, device):
        half = halve_batches(workload)
        label = f"{len(half.batches[0].ids)} texts"
        systems += [System(library, mode, precision, half, label=label) for mode in modes]
    if wanted == "auto" and precision == "bf16":
        systems += build(precision="float32", modes=["eager"])
    return systems


def _is_large(workload: Workload, device: torch.device) -> bool:
    cells = max(batch.ids.numel() for batch in workload.batches)
    return device.type == "cuda" and cells * workload.vocab > LARGE_LOGITS


def halve_batches(workload: Workload) -> Workload:
    """The workload with half the sequences of each batch."""
    steps = []
    for step in workload.steps:
        halves = []
        for batch in step:
            rows = max(1, len(batch.ids) // 2)
            tensors = {name: t[:rows] for name, t in batch.row_tensors().items()}
            count = int((tensors["targets"] >= 0).sum())
            halves.append(batch.with_tensors(tensors, count=count, rows=batch.rows[:rows]))
        steps.append(halves)
    return replace(workload, steps=steps)


def standard_workloads(
    library: str, device: torch.device, changes: Sequence[str]
) -> list[Workload]:
    """The standard shapes of a device for which a library has a peer."""
    require_peer(library)
    settings = [s for s in settings_for(device) if s.task in PEERS[library]]
    workloads = [standard_workload(setting, changes) for setting in settings]
    for workload in workloads:
        refuse_unlike(workload.recipe)
    if not workloads:
        raise ConfigError([f"--against {library}: no standard shape here has such a peer."])
    return workloads
