"""Scored runs to compare, from run folders or from records.

A record is one small JSON file with what a comparison needs of a run: its recipe, how long it
trained, and the item counts of its evaluations. It holds no text and no weights.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from heed import checksums
from heed.checksums import DamagedError
from heed.runs.best_weights import describe_weights
from heed.runs.discovery import expand_pattern, no_run_error, runs_below
from heed.runs.groups import comparable_recipes
from heed.runs.item_counts import (
    ItemCounts,
    decode_items,
    encode_items,
    read_items,
    set_names,
)
from heed.runs.results_file import OTHER_WEIGHTS, count_looks, read_results
from heed.runs.run import Run

FORMAT = 1
SUFFIX = ".record.json"
RESTORE = "Restore it from a copy, or write it again: heed compare RUN --records FOLDER"


@dataclass(frozen=True)
class ScoredRun:
    """One run and the item counts of its evaluations, by the name of the set."""

    name: str
    recipe: dict[str, Any]
    data: dict[str, str]
    """Hashes of the training and dev text."""
    minutes: float | None
    """How long it took, as far as it is known: a trial of a study from the start of its process to
    its last score, any other run from its first step to the end of training, with evaluations."""
    evaluations: Mapping[str, ItemCounts] = field(default_factory=dict)
    looks: dict[str, int] = field(default_factory=dict)
    """How often the run was evaluated on each set, with any of its weights."""


def open_scored_runs(names: Iterable[str | Path]) -> list[ScoredRun]:
    """Open run folders, folders of runs or records, record files, and globs of all these."""
    runs: dict[Path, ScoredRun] = {}
    for name in map(str, names):
        paths = expand_pattern(name)
        folders = [run.folder for path in paths for run in runs_below(path)]
        records = [record for path in paths for record in _records_at(path)]
        if not folders and not records:
            raise no_run_error(name)
        for path in (*folders, *records):
            if path.resolve() not in runs:
                runs[path.resolve()] = read_record(path) if path.is_file() else read_run(path)
    names_of_runs = Counter(run.name for run in runs.values())
    return [  # records of two studies may have the same name
        run if names_of_runs[run.name] == 1 else replace(run, name=str(path))
        for path, run in runs.items()
    ]


def _records_at(path: Path) -> list[Path]:
    """The record that a path names, or those in a folder and below it."""
    return [path] if path.is_file() else sorted(path.rglob(f"*{SUFFIX}"))


def read_run(folder: Path) -> ScoredRun:
    """A run folder as a scored run."""
    run = Run.open(folder)
    recipe = run.recipe()
    evaluations, step = {}, (describe_weights(run, recipe) or {}).get("step")
    for name in set_names(folder):
        items = read_items(folder, name)
        if items is None or OTHER_WEIGHTS in name:
            continue
        # A run that trained on after it was evaluated has other weights now.
        if items.checkpoint is None or items.checkpoint.get("step") == step:
            evaluations[name] = items
    results = read_results(folder)
    return ScoredRun(
        str(folder),
        recipe.tables(),
        run.environment().get("data", {}),
        _training_minutes(run),
        evaluations,
        {name: count_looks(results, name) for name in evaluations},
    )


def write_record(run: ScoredRun, folder: Path, *, details: Mapping[str, Any] | None = None) -> Path:
    """Write a run as a record into a folder, with what else is known of it; returns its path."""
    path = folder / f"{_file_name(run.name)}{SUFFIX}"
    document = {
        "format": FORMAT,
        "name": run.name,
        "recipe": run.recipe,
        "data": run.data,
        "minutes": run.minutes,
        "evaluations": {
            name: base64.b64encode(encode_items(items)).decode()
            for name, items in run.evaluations.items()
        },
        "looks": run.looks,
        **(details or {}),
    }
    folder.mkdir(parents=True, exist_ok=True)
    checksums.write_json(path, document)
    return path


def read_record(path: Path) -> ScoredRun:
    """A record as a scored run."""
    return parse_record(checksums.read_json(path, todo=RESTORE), str(path))


def parse_record(document: Mapping[str, Any], where: str) -> ScoredRun:
    """The content of a record as a scored run. Item counts are decoded when they are used."""
    try:
        if document["format"] != FORMAT:
            raise ValueError("another format")
        contents = {
            str(name): base64.b64decode(content, validate=True)
            for name, content in document["evaluations"].items()
        }
        recipe, data = dict(document["recipe"]), dict(document["data"])
        name, minutes = str(document["name"]), document["minutes"]
        looks = {str(key): int(value) for key, value in document.get("looks", {}).items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DamagedError("this is no record of a run.", where=where, todo=RESTORE) from error
    return ScoredRun(name, recipe, data, minutes, StoredEvaluations(contents, where), looks)


class StoredEvaluations(Mapping[str, ItemCounts]):
    """The evaluations of a record: each is decoded once, when it is first used."""

    def __init__(self, contents: Mapping[str, bytes], where: str) -> None:
        self._contents, self._where = contents, where
        self._decoded: dict[str, ItemCounts] = {}

    def __getitem__(self, name: str) -> ItemCounts:
        if name not in self._decoded:
            self._decoded[name] = decode_items(self._contents[name], self._where)
        return self._decoded[name]

    def __contains__(self, name: object) -> bool:
        return name in self._contents

    def __iter__(self) -> Iterator[str]:
        return iter(self._contents)

    def __len__(self) -> int:
        return len(self._contents)


def mean_minutes(runs: Iterable[ScoredRun]) -> float | None:
    """Mean minutes of these runs: what one more is taken to cost, wherever that is told."""
    known = [run.minutes for run in runs if run.minutes is not None]
    return fmean(known) if known else None


def recipes_to_group(runs: Sequence[ScoredRun]) -> dict[str, Mapping[str, Any]]:
    """The recipes by run, without what does not change the weights."""
    return comparable_recipes({run.name: (run.recipe, run.data) for run in runs})


def _training_minutes(run: Run) -> float | None:
    """Minutes that the run trained, without pauses before a resume."""
    seconds = [row["seconds"] for row in run.history if row.get("seconds") is not None]
    return seconds[-1] / 60 if seconds else None


def _file_name(name: str) -> str:
    """A run's path as one file name: runs/ted/a as runs-ted-a."""
    parts = [part for part in Path(name).parts if part not in ("/", ".", "..")]
    return "-".join(parts) or "run"
