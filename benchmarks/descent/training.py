"""Trains by the real commands: all rates with one seed, then what was chosen with fresh ones."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from reading import evaluation, facts, spent
from running import FINISHED, Plan, all_of, command, learnt, note, settings

from descent.systems import (
    BEYOND,
    FIRST_SEED,
    FRESH_SEEDS,
    RULES,
    SHARED,
    TASKS,
    Rule,
    Task,
    best,
    folder_name,
    grid,
    rate,
)
from heed.runs.run import Run

PLAY, CORPUS, TEXT = "tinyshakespeare.txt", "sst2", "text"
PARTS = {"train": (0.0, 0.9), "dev": (0.9, 0.95), "test": (0.95, 1.0)}
"""Shares of the plays' speeches, in their order."""
TABLES = {"classify": "predictions", "generate": "documents"}
"""The folders in which `heed evaluate` keeps its answer to every text."""


@dataclass(frozen=True)
class Wanted:
    """One run."""

    task: Task
    rule: Rule
    half: int
    seed: int
    tested: bool = False
    """Whether it is to be scored on test: only at the rate that dev chose."""

    @property
    def name(self) -> str:
        """Of its folder."""
        return folder_name(self.task, self.rule, self.half, self.seed)


def train(plan: Plan, after: Callable[[], None]) -> bool:
    """Train what is not trained yet; whether all of it now is. `after` follows whatever ends."""
    split_plays(plan.data / PLAY, plan.runs / TEXT)
    for wanted in _rounds(plan.runs):
        if not all_of(plan.jobs, {one.name: partial(_made, plan, one) for one in wanted}, after):
            return False
    return True


def _rounds(runs: Path) -> Iterator[list[Wanted]]:
    """All rates; a rate more as long as an edge wins; fresh seeds. Each hangs on those before."""
    added = {task.name: (0, 0) for task in TASKS}
    yield [one for task in TASKS for one in sweep(task, grid())]
    while True:
        more = {task.name: widened(runs, task, added[task.name]) for task in TASKS}
        if more == added:
            break
        added = more
        yield [one for task in TASKS for one in sweep(task, grid(added[task.name]))]
    yield [one for task in TASKS for one in fresh(task, chosen(runs, task, grid(added[task.name])))]


def sweep(task: Task, halves: Sequence[int]) -> list[Wanted]:
    """Every rule at every rate."""
    return [Wanted(task, rule, half, FIRST_SEED) for half in halves for rule in RULES]


def fresh(task: Task, at: Mapping[str, int | None]) -> list[Wanted]:
    """Every rule at its own rate, to be tested, and at the one for all."""
    found = []
    for seed in FRESH_SEEDS:
        for rule in RULES:
            own = at[rule.name]
            if own is not None:
                found.append(Wanted(task, rule, own, seed, tested=True))
            if own != SHARED:
                found.append(Wanted(task, rule, SHARED, seed))
    return found


def widened(runs: Path, task: Task, added: tuple[int, int]) -> tuple[int, int]:
    """How many rates to add below and above, after those that were: one where an edge won."""
    halves = grid(added)
    won = chosen(runs, task, halves).values()
    below, above = added
    below += halves[0] in won and below < BEYOND
    above += halves[-1] in won and above < BEYOND
    return below, above


def chosen(runs: Path, task: Task, halves: Sequence[int]) -> dict[str, int | None]:
    """The best rate on dev of every rule."""
    return {rule.name: best(task, swept(runs, task, rule, halves)) for rule in RULES}


def swept(runs: Path, task: Task, rule: Rule, halves: Sequence[int]) -> dict[int, float]:
    """The figures on dev by rate; those that ended in numbers that are none are left out."""
    found = {}
    for half in halves:
        figure = dev_figure(task, runs / folder_name(task, rule, half, FIRST_SEED))
        if figure is not None:
            found[half] = figure
    return found


def dev_figure(task: Task, folder: Path) -> float | None:
    """The best evaluation of a run, which is the one whose weights were kept."""
    if facts(folder).get("ended") != FINISHED:
        return None
    lines = [line for line in Run(folder).metrics() if line["event"] == "evaluate"]
    figures = [line["dev"][task.metric] for line in lines if _finite(line["dev"]["loss"])]
    return (max if task.rises else min)(figures, default=None)


def _finite(value: float) -> bool:
    return abs(value) < float("inf")  # of nan nothing is true


def split_plays(play: Path, folder: Path) -> None:
    """The first speeches to learn from, then those to choose by, the last to test on."""
    folder.mkdir(parents=True, exist_ok=True)
    told = play.read_text(encoding="utf-8").split("\n\n")
    speeches = [text.strip("\n") for text in told if text.strip()]
    for name, (start, end) in PARTS.items():
        part = speeches[round(start * len(speeches)) : round(end * len(speeches))]
        (folder / f"{name}.txt").write_text("\n\n".join(part) + "\n", encoding="utf-8")


def _files(plan: Plan, task: Task) -> list[str]:
    """What tells a run where its text is."""
    if task.name == "classify":
        return ["--data", str(plan.data / CORPUS)]
    named = {part: json.dumps([str(plan.runs / TEXT / f"{part}.txt")]) for part in PARTS}
    return settings(f"data.{part}={files}" for part, files in named.items())


def _made(plan: Plan, one: Wanted) -> str:
    """See that a run is there, and scored where it is to be; what there is to say of it."""
    run = Run(plan.runs / one.name)
    if "ended" not in facts(run.folder):
        _complete(plan, one, run)
    noted = facts(run.folder)
    if one.tested and noted["ended"] == FINISHED and "test" not in evaluation(run.folder):
        command(plan, run, "test", "evaluate", str(run.folder), "--split", "test", "--json")
    return _told(one.task, run.folder, noted)


def _complete(plan: Plan, one: Wanted, run: Run) -> None:
    """Train or resume a run, and note how it ended."""
    changes = [*one.task.changes, *one.rule.changes, *plan.changes]
    changes += [f"train.lr={rate(one.half):g}", f"seed={one.seed}"]
    ended = learnt(plan, run, one.task.recipe, *_files(plan, one.task), *settings(changes))
    note(run, {"ended": ended, "jobs": plan.jobs})
    shutil.rmtree(run.checkpoints, ignore_errors=True)  # large, and of no more use


def _told(task: Task, folder: Path, noted: Mapping[str, Any]) -> str:
    figure, seconds = dev_figure(task, folder), spent(noted)
    words = noted["ended"] if figure is None else f"dev {task.metric} {figure:.4f}"
    return words + (f" ({seconds})" if seconds else "")
