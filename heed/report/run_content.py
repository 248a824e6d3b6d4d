"""The content of a run folder, read once for its report; what cannot be read is a sentence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from heed.config import Recipe
from heed.data.corpus.lines import unescape_tsv
from heed.errors import HeedError
from heed.metrics.read_lines import read_raw_lines
from heed.runs.best_weights import describe_weights
from heed.runs.index import count_parameters
from heed.runs.results_file import (
    DOCUMENTS,
    OTHER_WEIGHTS,
    PREDICTIONS,
    TRANSLATIONS,
    Result,
    list_tables,
    read_results,
)
from heed.runs.run import Run

_T = TypeVar("_T")
TABLES = {"translate": TRANSLATIONS, "classify": PREDICTIONS, "generate": DOCUMENTS}
"""Folders of the tables with every text, by task."""


@dataclass(frozen=True)
class RunContent:
    """A run's recipe, history and results, and sentences about what could not be read."""

    run: Run
    recipe: Recipe
    environment: dict[str, Any]
    history: list[dict[str, Any]]
    results: dict[str, Result]
    """Results of the chosen weights by set: test first, then the others."""
    parameters: int | None
    weights: dict[str, Any] | None
    """Which weights training chose, and by what; None before the first evaluation."""
    problems: list[str] = field(default_factory=list)
    is_history_readable: bool = True
    """Whether `metrics.jsonl` could be read; if not, the history is empty."""

    @property
    def name(self) -> str:
        """The name of the folder."""
        return self.run.folder.resolve().name

    @property
    def evaluations(self) -> list[dict[str, Any]]:
        """The rows of the history that evaluate."""
        return [row for row in self.history if row["event"] == "evaluate"]

    @property
    def last(self) -> dict[str, Any]:
        """The last row of the history; empty before the first measurement."""
        return self.history[-1] if self.history else {}

    def read_table(self, set_name: str) -> list[dict[str, str]]:
        """The table of every text of an evaluated set; empty where there is none."""
        return read_table(self.run.folder, TABLES[self.recipe.task], set_name)


def read_table(folder: Path, kind: str, set_name: str) -> list[dict[str, str]]:
    """The table of every text of a set in a run folder, verified; empty where there is none.

    `kind` is the subfolder of the tables.
    """
    for path in list_tables(folder, kind):
        if path.stem == set_name:
            header, *rows = (line.rstrip("\r").split("\t") for line in read_raw_lines(path))
            names = [unescape_tsv(name) for name in header]
            return [
                dict(zip(names, map(unescape_tsv, row), strict=True))
                for row in rows
                if len(row) == len(header)
            ]
    return []


def read_run_content(folder: Path) -> RunContent:
    """Read a run folder. Only a recipe that cannot be read is an error."""
    run = Run.open(folder)
    recipe = run.recipe()
    problems: list[str] = []

    def attempt(read: Callable[[], _T], otherwise: _T) -> _T:
        try:
            return read()
        except HeedError as error:
            if str(error) not in problems:  # two parts may be read from one file
                problems.append(str(error))
            return otherwise

    history = attempt(lambda: run.history, None)

    return RunContent(
        run,
        recipe,
        run.environment(),
        history or [],
        attempt(lambda: _read_main_results(folder), {}),
        attempt(lambda: count_parameters(run), None),
        attempt(lambda: describe_weights(run, recipe), None),
        problems,
        is_history_readable=history is not None,
    )


def _read_main_results(folder: Path) -> dict[str, Result]:
    """The results of the chosen weights, test first."""
    results = {
        name: result for name, result in read_results(folder).items() if OTHER_WEIGHTS not in name
    }
    order = sorted(results, key=lambda name: (name != "test", name == "train", name == "dev"))
    return {name: results[name] for name in order}
