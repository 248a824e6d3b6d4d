"""Trains the systems by the real commands and scores them; what is there is not made again."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from reading import evaluation, facts, spent
from running import SPLITS, Plan, all_of, command, learn, note, packing, parameters, settings

from heed.runs.run import Run
from ted.systems import GROUPS, SCORED_ON_DEV, System

PACKED_FOLDERS = ("translations", "figures")


def wanted(names: Sequence[str], seeds: int) -> list[tuple[System, int]]:
    """The runs of groups and systems in order: in each group all systems before the next seed."""
    listed = [
        (system, seed)
        for group, systems in GROUPS.items()
        for seed in range(seeds)
        for system in systems
        if group in names or system.name in names
    ]
    return list(dict.fromkeys(listed))  # a system may stand in two groups


def train(plan: Plan, todo: Sequence[tuple[System, int]], pack_to: Path | None) -> bool:
    """Train what is not trained yet; whether all of it now is."""
    makers = {f"{own.name}-{seed}": partial(_made, plan, own, seed) for own, seed in todo}
    return all_of(plan.jobs, makers, packing(plan.runs, pack_to, folders=PACKED_FOLDERS))


def _made(plan: Plan, system: System, seed: int) -> str:
    """See that a run is there, trained and scored; what there is to say of it."""
    run = Run(plan.runs / f"{system.name}-{seed}")
    if not _missing(system, run):
        return f"there already, {_told(run)}"
    _complete(plan, system, seed, run)
    return _told(run)


def _missing(system: System, run: Run) -> list[str]:
    """The splits that a run has no score for."""
    asked = SPLITS if any(system in GROUPS[group] for group in SCORED_ON_DEV) else ("test",)
    return [split for split in asked if split not in evaluation(run.folder)]


def _complete(plan: Plan, system: System, seed: int, run: Run) -> None:
    """Train or resume a run, score it, and keep what a report needs."""
    changes = settings([f"seed={seed}", *system.changes, *plan.changes])
    learn(plan, run, system.recipe, "--data", str(plan.data), *changes)
    for split in _missing(system, run):
        command(plan, run, split, "evaluate", str(run.folder), "--split", split, "--json")
    note(run, {"parameters": parameters(run.weights_path), "jobs": plan.jobs})
    shutil.rmtree(run.checkpoints, ignore_errors=True)  # large, and of no more use


def _told(run: Run) -> str:
    score, seconds = evaluation(run.folder)["test"]["bleu"], spent(facts(run.folder))
    return f"test BLEU {score:.2f}" + (f" ({seconds})" if seconds else "")
