"""Evaluation from Python: files or lists of texts in, a dict that prints itself out."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from heed.config.data import names_a_file
from heed.config.task_metrics import TASK_METRICS
from heed.data.corpus import file_names
from heed.data.in_memory import Data, encode_texts, names_files
from heed.errors import ConfigError, DataError, nearest
from heed.evaluate.evaluate_run import evaluate_run
from heed.evaluate.job import Options
from heed.evaluate.score_files import check_resamples
from heed.evaluate.tables import ROWS, format_metric, render_evaluation
from heed.notebook import render_table
from heed.runs.run import Run
from heed.terminal import PlainConsole

WIDTH = 80
"""Columns of the tables that `print` shows."""


class EvaluationResult(dict[str, Any]):
    """The result of an evaluation: all values that `heed evaluate --json` prints, by name.

    Its `repr` is one line of scores; `print` shows the tables of the command.
    """

    shown: tuple[str, ...] = ()
    """The metrics that were asked for; all of the task by default."""

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics by name, the primary one first."""
        names = self.shown or TASK_METRICS[self["task"]]
        return {name: self[name] for name in names if name in self}

    def rows(self) -> list[dict[str, Any]]:
        """One row per metric with its 95% interval, as pandas takes them."""
        intervals = self.get("interval", {})
        return [
            {"set": self["split"], "texts": self["texts"], "metric": name, "value": value}
            | {end: (intervals.get(name) or {}).get(end) for end in ("low", "high")}
            for name, value in self.metrics.items()
        ]

    def __repr__(self) -> str:
        scores = ", ".join(
            f"{ROWS[name][0].partition(',')[0]} {' '.join(format_metric(self, name).split())}"
            for name in self.metrics
        )
        texts = f"{self['texts']:,} text{'s' * (self['texts'] != 1)}"
        return f"EvaluationResult({self['run']} on {self['split']}, {texts}: {scores})"

    def _repr_html_(self) -> str:
        rows = [{k: v for k, v in row.items() if k not in ("set", "texts")} for row in self.rows()]
        texts = f"{self['texts']:,} text{'s' * (self['texts'] != 1)}"
        return render_table(rows, caption=f"{self['run']} on {self['split']}, {texts}")

    def __str__(self) -> str:
        console = PlainConsole(width=WIDTH, force_jupyter=False)
        with console.capture() as capture:
            console.print(render_evaluation(self))
        return capture.get().rstrip()


def evaluate_data(
    folder: Path,
    test: Data | None,
    options: Options,
    *,
    name: str | None = None,
    metric: str | Sequence[str] | None = None,
    device: str,
) -> EvaluationResult:
    """Evaluate a run on files, on lists of texts, or on the set of `options`.

    The result is saved in the run folder, as `heed evaluate` saves it. Lists are written into its
    `data/` first, under `name`.
    """
    run = Run.open(folder)
    task = run.recipe().task
    shown = _check_metrics(metric, task)
    check_resamples(options.resamples)
    if shown and task == "translate":
        options = replace(options, metrics=shown)
    if test is not None:
        options = replace(options, test=_test_files(run, test, task, name))
    elif name is not None:
        raise ConfigError(["name is for a test set that is given as lists: give them as test."])
    notify = PlainConsole(file=sys.stderr, force_jupyter=False).print
    result = EvaluationResult(evaluate_run(folder, options, device=device, notify=notify))
    result.shown = shown
    return result


def _check_metrics(metric: str | Sequence[str] | None, task: str) -> tuple[str, ...]:
    """The names of metrics, in the order of the task; an error for one that it does not have."""
    if metric is None:
        return ()
    known, names = TASK_METRICS[task], [metric] if isinstance(metric, str) else list(metric)
    wrong = [one for one in names if one not in known]
    if wrong or not names:
        name = str(wrong[0]) if wrong else ""
        options = f"choose from {', '.join(known)}.{nearest(name, known)}"
        raise ConfigError([f"There is no metric {name!r} of task {task!r}: {options}"])
    return tuple(one for one in known if one in names)


def _test_files(run: Run, test: Data, task: str, name: str | None) -> list[str]:
    """The files of a test set; lists of texts are written into the run folder."""
    if not names_files(test, task):
        name = "test" if name is None else name
        if not names_a_file(name):
            what = f"name cannot be {name!r}: files are named after it."
            raise ConfigError([f"{what} Choose one without a slash or a dot at its start."])
        content = encode_texts(test, task, "test")
        return [str(run.write_data(f"{name}.jsonl", content))]
    if name is not None:
        raise ConfigError(["name is for lists; a test set of files has the name of its files."])
    if files := file_names(test):
        return files
    raise DataError("this list has no text.", where="test", todo="Give at least one text.")
