"""Read a system's translations: a file of lines, a table of `heed evaluate`, or a run folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from heed.data.corpus.lines import unescape_tsv
from heed.errors import ConfigError, DataError
from heed.metrics.read_lines import read_lines, read_raw_lines
from heed.runs.results_file import TRANSLATIONS

COLUMNS = ("source", "reference", "hypothesis")


@dataclass(frozen=True)
class System:
    """A system's translations; from a table, also their references and sources."""

    name: str
    texts: list[str]
    references: list[str] | None = None
    sources: list[str] | None = None


def read_system(path: Path, references: Sequence[Sequence[str]]) -> System:
    """The translations of a file or run folder; a run's table is found by these references."""
    if not path.is_dir():
        return read_table(path) or System(str(path), read_lines(path))
    tables = sorted((path / TRANSLATIONS).glob("*.tsv"))
    if not tables:
        what = "there are no translations here."
        raise DataError(what, where=str(path), todo=f"Make them first: heed evaluate {path}")
    systems = [system for table in tables if (system := read_table(table)) is not None]
    if references:
        systems = [system for system in systems if system.references in references]
    if not systems or any(system.texts != systems[0].texts for system in systems):
        what = "several of its tables fit" if systems else "none of its tables has these references"
        known = ", ".join(map(str, tables))
        raise DataError(f"{what}.", where=str(path), todo=f"Name one of {known}.")
    return System(str(path), systems[0].texts, systems[0].references, systems[0].sources)


def read_table(path: Path) -> System | None:
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
    return System(str(path), hypothesis, reference, source if any(source) else None)


def _read_cell(cell: str) -> str:
    """The text of a cell, without white space at its end, as in a file of lines."""
    return unescape_tsv(cell).rstrip()


def shared_references(systems: Sequence[System]) -> list[list[str]]:
    """The references that all tables share, for use without `--ref`."""
    first = systems[0].references
    if first is None or any(system.references != first for system in systems):
        what = "The references are not known: name them with --ref."
        raise ConfigError([f"{what} Only tables of `heed evaluate` on one set contain them."])
    return [first]
