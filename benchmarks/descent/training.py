"""Trains by the real commands: all rates with one seed, then what was chosen with fresh ones."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ted.training import FailedError, Plan, StoppedError, command, evaluation, facts, note

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
from heed.runs import Run

PLAY, CORPUS, TEXT = "tinyshakespeare.txt", "sst2", "text"
PARTS = {"train": (0.0, 0.9), "dev": (0.9, 0.95), "test": (0.95, 1.0)}
"""Shares of the plays' speeches, in their order."""
TABLES = {"classify": "predictions", "generate": "documents"}
"""The folders in which `heed evaluate` keeps its answer to every text."""
NOT_FINITE = "not finite"
"""In the last words of a run that a rate was too high for."""


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
    """Train what is not trained yet; whether all of it now is. `after` is called now and then."""
    plan.runs.mkdir(parents=True, exist_ok=True)
    split_plays(plan.data / PLAY, plan.runs / TEXT)
    for wanted in _rounds(plan.runs):
        whole = _all(plan, wanted)
        after()
        if not whole:
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
    if facts(folder).get("ended") != "finished":
        return None
    lines = [line for line in Run(folder).metrics() if line["event"] == "evaluate"]
    figures = [line["dev"][task.metric] for line in lines if _finite(line["dev"]["loss"])]
    return (max if task.rises else min)(figures, default=None)


def _finite(value: float) -> bool:
    return abs(value) < float("inf")  # of nan nothing is true


def split_plays(play: Path, folder: Path) -> None:
    """The first speeches to learn from, then those to choose by, the last to test on."""
    folder.mkdir(exist_ok=True)
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
    return [word for part, files in named.items() for word in ("--set", f"data.{part}={files}")]


def _all(plan: Plan, todo: Sequence[Wanted]) -> bool:
    """A round, several runs at a time; whether all of them are there."""
    began, whole = time.monotonic(), True
    with ThreadPoolExecutor(plan.jobs) as pool:
        futures = {pool.submit(_outcome, plan, one): one.name for one in todo}
        for number, future in enumerate(as_completed(futures), 1):
            done, words = future.result()
            whole &= done
            minutes = (time.monotonic() - began) / 60
            said = f"{number}/{len(todo)}  {minutes:5.1f} min  {futures[future]}: {words}"
            print(said, flush=True)
    return whole


def _outcome(plan: Plan, one: Wanted) -> tuple[bool, str]:
    """Whether a run is there, and what became of it in words."""
    run = Run(plan.runs / one.name)
    try:
        if "ended" not in facts(run.folder):
            _learn(plan, one, run)
        noted = facts(run.folder)
        if one.tested and noted["ended"] == "finished" and "test" not in evaluation(run.folder):
            command(plan, run, "test", "evaluate", str(run.folder), "--split", "test", "--json")
        return True, _told(one.task, run.folder, noted)
    except StoppedError as stopped:
        return False, str(stopped)
    except FailedError as failure:
        return False, f"FAILED: {failure}"
    except (OSError, ValueError) as error:  # of one run: it shall not stop the others
        return False, f"FAILED: {error!r}"


def _learn(plan: Plan, one: Wanted, run: Run) -> None:
    """Train or resume a run, and note how it ended: too high a rate is a result."""
    folder, ended = str(run.folder), "finished"
    try:
        if not run.finished and any(run.checkpoints.glob("step-*")):
            command(plan, run, "train", "resume", folder)
        elif not run.finished:
            shutil.rmtree(folder, ignore_errors=True)  # of one that never began to learn
            changes = [*one.task.changes, *one.rule.changes, *plan.changes]
            changes += [f"train.lr={rate(one.half):g}", f"seed={one.seed}"]
            told = [word for change in changes for word in ("--set", change)]
            files = _files(plan, one.task)
            command(plan, run, "train", "train", one.task.recipe, *files, "--run", folder, *told)
    except FailedError:
        log = run.folder.with_name(f"{run.folder.name}.log").read_text(encoding="utf-8")
        if NOT_FINITE not in " ".join(log.split()):
            raise
        ended = "diverged"
        run.folder.mkdir(exist_ok=True)  # of a run that had learnt nothing there is none
    note(run, {"ended": ended, "jobs": plan.jobs})
    shutil.rmtree(run.checkpoints, ignore_errors=True)  # large, and of no more use


def _told(task: Task, folder: Path, noted: Mapping[str, Any]) -> str:
    figure = dev_figure(task, folder)
    words = noted["ended"] if figure is None else f"dev {task.metric} {figure:.4f}"
    spent = [f"{stage} {value:.0f} s" for stage, value in noted.get("seconds", {}).items()]
    return words + (f" ({', '.join(spent)})" if spent else "")
