"""Trains the models by the real command, several at a time, and has each judged.

What is there already is not made again; a run that was stopped is resumed.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from reading import facts, spent
from running import ROOT, Plan, all_of, learn, note, packing, parameters, settings, spawn
from ted.systems import System

from heed.runs.run import Run
from nanolm.systems import GROUPS

SCRIPT = ROOT / "benchmarks" / "nano.py"
JUDGED = "judged"


def wanted(groups: Sequence[str], seeds: int) -> list[tuple[System, int]]:
    """The runs in order: all systems before the next seed, so that each has as many."""
    listed = [
        (system, seed)
        for seed in range(seeds)
        for group in GROUPS
        if group in groups
        for system in GROUPS[group]
    ]
    return list(dict.fromkeys(listed))  # a system may stand in two groups


def train(plan: Plan, todo: Sequence[tuple[System, int]], pack_to: Path | None) -> bool:
    """Train and judge what is not there yet; whether all of it now is."""
    makers = {f"{own.name}-{seed}": partial(_made, plan, own, seed) for own, seed in todo}
    return all_of(plan.jobs, makers, packing(plan.runs, pack_to))


def _made(plan: Plan, system: System, seed: int) -> str:
    """See that a run is there, trained and judged; what there is to say of it."""
    run = Run(plan.runs / f"{system.name}-{seed}")
    before = "there already, " if JUDGED in facts(run.folder) else ""
    if not before:
        _complete(plan, system, seed, run)
    noted = facts(run.folder)
    return f"{before}dev loss {noted[JUDGED]['batched']:.4f} ({spent(noted)})"


def _complete(plan: Plan, system: System, seed: int, run: Run) -> None:
    """Train or resume a run, and have it judged."""
    changes = settings([f"seed={seed}", *system.changes, *plan.changes])
    learn(plan, run, system.recipe, "--data", str(plan.data), *changes)
    mark = hashlib.sha256(run.weights_path.read_bytes()).hexdigest()
    note(run, {"parameters": parameters(run.weights_path), "jobs": plan.jobs, "weights": mark})
    # Last: a run that was judged is complete. In a process of its own, for it takes a core as
    # training does.
    spawn(plan, run, "judge", str(SCRIPT), "judge", str(run.folder), "--device", plan.device)
    shutil.rmtree(run.checkpoints, ignore_errors=True)  # large, and of no more use
