"""Read a system's translations: a file of lines, a table of `heed evaluate`, or a run folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from heed.data.corpus.lines import unescape_tsv
from heed.errors import ConfigError, DataError
from heed.metrics.read_lines import read_lines, read_raw_lines
from heed.runs.results_file import (
    DOCUMENTS,
    OTHER_WEIGHTS,
    PREDICTIONS,
    TRANSLATIONS,
    list_tables,
)
from heed.runs.run import Run

COLUMNS = ("source", "reference", "hypothesis")
OTHER_TASKS = {
    "classify": ("classifier", "accuracy", PREDICTIONS),
    "generate": ("language model", "perplexity", DOCUMENTS),
}
"""Tasks without translations: the kind of model, its metric, the folder of its tables."""


@dataclass(frozen=True)
class SystemOutput:
    """A system's translations; from a table, also their references and sources."""

    name: str
    texts: list[str]
    references: list[str] | None = None
    sources: list[str] | None = None


Tables = Mapping[str, SystemOutput]
"""Systems by the name of the test set that they translated."""


def read_systems(paths: Sequence[Path], references: Sequence[list[str]]) -> list[SystemOutput]:
    """The translations of files and run folders.

    Of a run's tables, the one with these references is used. Without references, it is the table
    of the one test set that all systems have translated.
    """
    candidates = {path: _read_candidates(path) for path in paths}
    if not references and any(path.is_dir() for path in paths):
        references = [_common_references(candidates)]
    return [_choose_table(path, candidates[path], references) for path in paths]


def _read_candidates(path: Path) -> Tables:
    """A run's tables of its best weights, by test set; of a file, its only system."""
    if not path.is_dir():
        return {"": read_table(path) or SystemOutput(str(path), read_lines(path))}
    files = list_tables(path, TRANSLATIONS)
    files = [file for file in files if OTHER_WEIGHTS not in file.stem]
    tables = {file.stem: table for file in files if (table := read_table(file)) is not None}
    if not tables:
        _refuse_other_task(path)
        what = "there are no translations here."
        raise DataError(what, where=str(path), todo=f"Make them first: heed evaluate {path}")
    return tables


def _refuse_other_task(folder: Path) -> None:
    """For a classifier or a language model, raise an error that says what serves instead."""
    run = Run(folder)
    task = run.recipe().task if run.recipe_path.exists() else "translate"
    if task != "translate":
        kind, metric, tables = OTHER_TASKS[task]
        raise DataError(
            f"`heed score` compares translations, and this run is a {kind}.",
            where=str(folder),
            todo=f"`heed evaluate {folder}` gives its {metric} with an interval, and writes the "
            f"result of every text to {tables}/NAME.tsv there; `heed compare` compares runs.",
        )


def _common_references(candidates: Mapping[Path, Tables]) -> list[str]:
    """The references of the one test set that all systems have translated."""
    known = {path: tables for path, tables in candidates.items() if _has_references(tables)}
    first, *others = known.values()
    common = {
        name: table.references
        for name, table in first.items()
        if all(table.references in [one.references for one in other.values()] for other in others)
    }
    texts = [references for references in common.values() if references is not None]
    if texts and all(one == texts[0] for one in texts):
        return texts[0]
    where, name = ", ".join(map(str, candidates)), next(iter(common), "")
    if not texts:
        raise DataError(
            "no test set was translated by all of these.",
            where=where,
            todo="Evaluate the runs on the same files: heed evaluate RUN --test FILE",
        )
    raise DataError(
        f"several test sets were translated by all of these: {', '.join(common)}.",
        where=where,
        todo=f"Choose one with --ref FILE, or name tables: RUN/{TRANSLATIONS}/{name}.tsv",
    )


def _has_references(tables: Tables) -> bool:
    return any(table.references is not None for table in tables.values())


def _choose_table(path: Path, tables: Tables, references: Sequence[list[str]]) -> SystemOutput:
    """A file's system, or the run's translations with one of these references."""
    if not path.is_dir():
        return tables[""]
    fitting = {name: table for name, table in tables.items() if table.references in references}
    texts = [table.texts for table in fitting.values()]
    if not texts or any(one != texts[0] for one in texts):
        what = "several of its tables fit" if fitting else "none of its tables has these references"
        known = ", ".join(str(path / TRANSLATIONS / f"{name}.tsv") for name in fitting or tables)
        raise DataError(f"{what}.", where=str(path), todo=f"Name one of {known}.")
    table = next(iter(fitting.values()))
    return SystemOutput(str(path), table.texts, table.references, table.sources)


def read_table(path: Path) -> SystemOutput | None:
    """A table written by `heed evaluate` or `--sentences`; None for any other file."""
    if path.suffix != ".tsv":
        return None
    header, *rows = (line.rstrip("\r").split("\t") for line in read_raw_lines(path))
    if not {*COLUMNS} <= {*header}:
        return None
    if not rows:
        raise DataError("this table has no rows.", where=str(path), todo="Write the table again.")
    for number, row in enumerate(rows, 2):
        if len(row) != len(header):
            what = f"this row has {len(row)} columns, the header {len(header)}."
            raise DataError(what, where=f"{path}:{number}", todo="Write the table again.")
    source, reference, hypothesis = (
        [_read_cell(row[header.index(name)]) for row in rows] for name in COLUMNS
    )
    return SystemOutput(str(path), hypothesis, reference, source if any(source) else None)


def _read_cell(cell: str) -> str:
    """The text of a cell, without white space at its end, as in a file of lines."""
    return unescape_tsv(cell).rstrip()


def shared_references(systems: Sequence[SystemOutput]) -> list[list[str]]:
    """The references that all tables share, for use without `--ref`."""
    first = systems[0].references
    if first is None or any(system.references != first for system in systems):
        what = "The references are not known: name them with --ref."
        raise ConfigError([f"{what} Only tables of `heed evaluate` on one set contain them."])
    return [first]
