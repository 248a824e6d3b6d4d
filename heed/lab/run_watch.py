"""The runs and studies of a lab as they change: read once, and then only what is new.

`refresh` looks at the files, as often as a page asks. It reads for a bounded time: the first look
at hundreds of runs is shared by several calls, and runs that wait have the status `reading`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from threading import RLock
from typing import Any

from heed.config import Recipe
from heed.config.train import LAST
from heed.files import locked_inodes
from heed.lab.event_log import EventLog
from heed.lab.metrics_file import MetricsFile
from heed.lab.run_folder import NOT_AS_WRITTEN, RunFolder, describe_damage
from heed.plugins import PluginError
from heed.runs.best_weights import chosen_evaluation
from heed.runs.groups import RunGroup, comparable_recipes, group_runs
from heed.runs.history import flatten_metrics, is_number
from heed.runs.index import TEST_METRIC, describe_run
from heed.runs.results_file import RESULTS
from heed.runs.run import LOCK, Run, refuse_unsafe_entries
from heed.study.trials import TRIALS
from heed.train.optimizers.schedules import count_steps

TRAINING, FINISHED, STOPPED, DAMAGED = "training", "finished", "stopped", "damaged"
PRUNED = "pruned"
"""The status of a run that the search of its study ended early: it is not resumed."""
READING = "reading"
"""The status of a run that was not read yet."""
NOTES = "notes.txt"
"""The notes on a run, in its folder."""
FIRST_LOOK_SECONDS = 0.25
"""The time that an answer waits for runs to be read; a page is told of the others later."""
LOOK_SECONDS = 0.5
"""Files are looked at again after this time at the earliest."""
SEARCH_SECONDS = 2.0
"""New runs are looked for after this time at the earliest."""
ELSEWHERE_SECONDS = 30.0
"""A run that grew within this time trains on another machine, if no process here has its lock."""
MOST_ROWS = 100
"""New rows of a run in one event."""
KEYS = (
    *("name", "study", "status", "problem", "task", "model", "parameters", "steps", "test", "sets"),
    *("seed", "total_steps", "seconds_left", "rows", "metrics", "has_notes", "has_weights"),
    *("updated", "best", "last"),
)
"""What the list has of every run; None where it is not known."""
Stamp = tuple[Any, ...]
Entry = dict[str, Any]


class WatchedRun:
    """One run: its recipe, its metrics as columns, and what the list shows of it."""

    def __init__(self, name: str, folder: Path, study: str | None) -> None:
        self.name, self.study = name, study
        self.run = Run(folder)
        self.metrics = MetricsFile(self.run)
        self.recipe: Recipe | None = None
        self.data: dict[str, str] = {}
        """Hashes of the training and dev text."""
        self.entry: Entry = dict.fromkeys(KEYS)
        self.entry |= {"name": name, "study": study, "status": READING, "rows": 0, "metrics": []}
        self.stamp: Stamp | None = None
        self.recipe_stamp: Stamp | None = None
        self._steps_per_epoch: int | None = None
        self._had_lock_here = False
        self._grew_at = -math.inf

    def look(self, locked: frozenset[int] | None) -> Stamp:
        """What tells whether any file of the run has changed."""
        run = self.run
        files = (run.recipe_path, run.environment_path, run.metrics_path, run.weights_path)
        others = (run.checkpoints, run.folder / RESULTS, run.folder / NOTES)
        trial = () if self.study is None or run.trial_path is None else (run.trial_path,)
        return (*map(_stamp_file, (*files, *others, *trial)), self._is_training(locked))

    def _is_training(self, locked: frozenset[int] | None) -> bool:
        """Whether a process trains in the folder, by its lock, else by growing metrics."""
        if locked is not None:
            lock = _stamp_file(self.run.folder / LOCK)
            if lock is not None and lock[0] in locked:
                self._had_lock_here = True
                return True
            if self._had_lock_here:
                return False
        return time.monotonic() - self._grew_at < ELSEWHERE_SECONDS

    def read(self, stamp: Stamp) -> tuple[list[dict[str, Any]], bool]:
        """Read what has changed: the new rows, and whether the metrics are others than before."""
        is_first = not self.stamp
        try:
            rows, is_replaced = self._read(stamp, is_first=is_first)
        except NOT_AS_WRITTEN as error:
            self.metrics.forget()
            self.recipe_stamp = None
            self.recipe = None
            problem = str(describe_damage(error, self.name))
            status = error.need if isinstance(error, PluginError) else DAMAGED
            self.entry |= {"status": status, "problem": problem, "rows": 0, "metrics": []}
            rows, is_replaced = [], True
        # A file that is read in parts has the stamp of none, so that it is looked at again.
        self.stamp = stamp if self.metrics.is_complete else ()
        return rows, is_replaced or is_first

    def _read(self, stamp: Stamp, *, is_first: bool) -> tuple[list[dict[str, Any]], bool]:
        run, recipe_stamp = self.run, stamp[:2]
        refuse_unsafe_entries(run.folder)  # each time: files may be replaced by links
        if self.recipe is None or recipe_stamp != self.recipe_stamp:
            self.recipe = Run.open(run.folder).recipe()
            environment = run.environment()
            hashes = environment.get("data", {}).items()
            self.data = {split: one for split, one in hashes if isinstance(one, str)}
            self._steps_per_epoch = environment.get("steps_per_epoch")
            self.recipe_stamp = recipe_stamp
        rows, is_replaced = self.metrics.read_on(self._steps_per_epoch, wants_rows=not is_first)
        if rows:
            self._grew_at = time.monotonic()
        recipe = self.recipe
        at_rest = FINISHED if run.finished or run.has_deleted_weights else STOPPED
        if run.find_pruning_study() is not None:
            at_rest = PRUNED
        listed = describe_run(run, recipe, self.metrics.lines)
        del listed["settings"], listed["best"], listed["dev"]
        status, total = TRAINING if stamp[-1] else at_rest, self._count_steps(recipe)
        left = _seconds_left(self.metrics.last_line, total) if status == TRAINING else None
        self.entry = {
            "name": self.name,
            "study": self.study,
            "status": status,
            "problem": None,
            **listed,
            "seed": recipe.tables().get("seed"),
            "total_steps": total,
            "seconds_left": left,
            "rows": self.metrics.rows,
            "metrics": self.metrics.metrics,
            "has_notes": stamp[-2] is not None,
            "has_weights": run.finished or run.weight_files.best_path is not None,
            "updated": ((self.metrics.last_line or {}).get("time") or {}).get("unix"),
            **_describe_scores(recipe, self.metrics),
        }
        if self.entry["test"] is not None:
            metric = TEST_METRIC[recipe.task]
            self.entry["test"] = {"metric": metric, "value": self.entry["test"].get(metric)}
        return rows, is_replaced

    def _count_steps(self, recipe: Recipe) -> int | None:
        """The steps of the whole training; None where they depend on text that was not read yet."""
        per_epoch = self._steps_per_epoch or 0
        return count_steps(recipe.train, per_epoch) if per_epoch > 0 else recipe.train.steps


class RunWatch:
    """All runs of a folder, what is known of them, and the log of their changes."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.log = EventLog()
        self.lock = RLock()
        self.runs: dict[str, WatchedRun] = {}
        self.studies: dict[str, Stamp] = {}
        self._looked = self._searched = -math.inf
        self._groups: tuple[Stamp, list[tuple[str | None, RunGroup]]] | None = None

    def refresh(self, seconds: float = math.inf) -> int:
        """Look at the files, and read for at most about this long; the runs that wait."""
        with self.lock:
            now = time.monotonic()
            waiting = [run for run in self.runs.values() if not run.stamp]
            if now - self._looked < LOOK_SECONDS and not waiting:
                return 0
            if now - self._searched >= SEARCH_SECONDS:
                self._search()
            self._looked = time.monotonic()
            locked, end = locked_inodes(), self._looked + seconds
            for run in sorted(self.runs.values(), key=lambda run: bool(run.stamp)):
                stamp = run.look(locked)
                if stamp[:2] == (None, None):  # neither a recipe nor an environment
                    self._drop(run.name)
                    continue
                if stamp != run.stamp:
                    self._read(run, stamp)
                    if time.monotonic() > end:
                        break
            return sum(not run.stamp for run in self.runs.values())

    def _search(self) -> None:
        """Find runs that are new, and forget those that are gone."""
        self._searched = time.monotonic()
        studies = self.folder.study_names()
        names = self.folder.run_names()
        for name in self.runs.keys() - set(names):
            self._drop(name)
        for name in names:
            if name not in self.runs:
                study = _study_of(name, studies)
                self.runs[name] = WatchedRun(name, self.folder.root / name, study)
        stamps = {name: stamp_study(self.folder.root / name) for name in studies}
        for name in {*stamps, *self.studies}:
            if stamps.get(name) != self.studies.get(name):
                self.log.add("study", {"study": name})
        self.studies = stamps

    def _drop(self, name: str) -> None:
        """Forget a run that is gone."""
        del self.runs[name]
        self.log.add("gone", {"run": name})

    def _read(self, run: WatchedRun, stamp: Stamp) -> None:
        rows, is_replaced = run.read(stamp)
        self.log.add("run", {"run": run.entry, "is_replaced": is_replaced})
        for first in range(0, len(rows), MOST_ROWS):
            part = rows[first : first + MOST_ROWS]
            start = run.metrics.rows - len(rows) + first
            self.log.add("rows", {"run": run.name, "first": start, "rows": part})

    def find(self, name: str) -> WatchedRun:
        """A run, read as it is now; an error if there is none of this name."""
        with self.lock:
            name = self.folder.name_of(self.folder.resolve(name))
            if name not in self.runs:
                self._search()
            if name not in self.runs:
                self.folder.run(name)  # says what is missing
                self.runs[name] = WatchedRun(name, self.folder.root / name, None)
            run = self.runs[name]
            stamp = run.look(locked_inodes())
            if stamp != run.stamp:
                self._read(run, stamp)
                while not run.metrics.is_complete:
                    self._read(run, stamp)
            return run

    def groups(self) -> list[tuple[str | None, RunGroup]]:
        """The readable runs by recipe, each group with its study; seeds of one recipe are one.

        Runs of different studies and tasks are never one group, so that a group is named by the
        keys that differ within its own study.
        """
        recipes = {
            name: run.recipe for name, run in sorted(self.runs.items()) if run.recipe is not None
        }
        stamp = tuple((name, self.runs[name].recipe_stamp) for name in recipes)
        if self._groups is None or self._groups[0] != stamp:
            scopes: dict[tuple[str, str], dict[str, WatchedRun]] = {}
            for name, recipe in recipes.items():
                run = self.runs[name]
                scopes.setdefault((run.study or "", recipe.task), {})[name] = run
            groups = [
                (study or None, group)
                for (study, _), runs in scopes.items()
                for group in _group(runs.values())
            ]
            self._groups = stamp, groups
        return self._groups[1]


def _group(runs: Iterable[WatchedRun]) -> list[RunGroup]:
    recipes = {run.name: (run.recipe.tables(), run.data) for run in runs if run.recipe is not None}
    return group_runs(comparable_recipes(recipes))


def _stamp_file(path: Path) -> tuple[int, int, int] | None:
    """What tells whether a file was written; None if there is none."""
    with suppress(OSError):
        stat = path.stat()
        return stat.st_ino, stat.st_size, stat.st_mtime_ns
    return None


def stamp_study(folder: Path) -> Stamp:
    """What tells whether a study's declaration or one of its trials has changed."""
    return _stamp_file(folder / "study.toml"), _stamp_file(folder / TRIALS)


def _study_of(name: str, studies: list[str]) -> str | None:
    """The study that a run belongs to: the innermost one whose folder it is in."""
    around = [study for study in studies if name.startswith(f"{study}/")]
    return max(around, key=len, default=None)


def _seconds_left(line: dict[str, Any] | None, total: int | None) -> float | None:
    """Seconds of training to the last step, without evaluations, as `heed train` prints them.

    `line` is the last one of metrics.jsonl: its speed is that of the process that trains now.
    """
    if line is None or total is None or not line["step"]:
        return None
    tokens, speed = line.get("tokens"), (line.get("time") or {}).get("tokens_per_second")
    if not tokens or not speed:
        return None
    seconds = tokens / line["step"] / speed * (total - line["step"])
    return max(0.0, seconds) if math.isfinite(seconds) else None


def _describe_scores(recipe: Recipe, metrics: MetricsFile) -> Entry:
    """The best and the last value of the metric that chooses the weights.

    Before the first evaluation, the last value is the loss while training.
    """
    metric = recipe.train.best_metric
    chosen = chosen_evaluation(metrics.evaluations, metric)
    metric = "dev/loss" if metric == LAST else metric
    scored = [line for line in metrics.evaluations if line["event"] == "evaluate"]
    best = None if chosen is None else _score(chosen, metric)
    last = next((one for line in reversed(scored) if (one := _score(line, metric))), None)
    if last is None and metrics.last_line is not None:
        last = _score(metrics.last_line, "train/loss")
    return {"best": best, "last": last}


def _score(line: dict[str, Any], metric: str) -> Entry | None:
    """The value of a metric in a line of metrics.jsonl, and its step."""
    values = {key: value for key, value in line.items() if key not in ("event", "time")}
    named = flatten_metrics(line["event"], values)
    value = named.get(metric, named.get(f"average/{metric}"))
    if not is_number(value) or not math.isfinite(value):
        return None
    return {"metric": metric, "value": value, "step": line["step"]}
