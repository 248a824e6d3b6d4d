"""What a system wrote, from whatever holds it: plain lines, a table of `heed evaluate`, a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from heed.data.corpus.text_files import unescaped
from heed.errors import ConfigError, DataError
from heed.metrics.read_lines import read_lines, whole_lines

TABLES = "translations"
"""The folder of a run in which `heed evaluate` keeps them."""
COLUMNS = ("source", "reference", "hypothesis")


@dataclass(frozen=True)
class System:
    """Translations, one a line; of a table also what they were held against."""

    name: str
    texts: list[str]
    references: list[str] | None = None
    sources: list[str] | None = None


def read_system(path: Path, references: Sequence[Sequence[str]]) -> System:
    """A file or a run folder. Of a run's tables, the one that has these references."""
    if not path.is_dir():
        return read_table(path) or System(str(path), read_lines(path))
    tables = sorted((path / TABLES).glob("*.tsv"))
    if not tables:
        what = "there are no translations here."
        raise DataError(what, where=str(path), todo=f"Make them first: heed evaluate {path}")
    found = [system for table in tables if (system := read_table(table)) is not None]
    if references:
        found = [system for system in found if system.references in references]
    if not found or any(system.texts != found[0].texts for system in found):
        wrong = "several of its tables fit" if found else "none of its tables has these references"
        known = ", ".join(map(str, tables))
        raise DataError(f"{wrong}.", where=str(path), todo=f"Name one of {known}.")
    return System(str(path), found[0].texts, found[0].references, found[0].sources)


def read_table(path: Path) -> System | None:
    """A table as `heed evaluate` and `--sentences` write it; None for any other file."""
    if path.suffix != ".tsv":
        return None
    head, *rows = (line.rstrip("\r").split("\t") for line in whole_lines(path))
    if not {*COLUMNS} <= {*head}:
        return None
    if not rows:
        raise DataError("this table has no rows.", where=str(path), todo="Write the table anew.")
    for number, row in enumerate(rows, 2):
        if len(row) != len(head):
            what = f"this row has {len(row)} columns, the header {len(head)}."
            raise DataError(what, where=f"{path}:{number}", todo="Write the table anew.")
    source, reference, hypothesis = (
        [_text(row[head.index(name)]) for row in rows] for name in COLUMNS
    )
    return System(str(path), hypothesis, reference, source if any(source) else None)


def _text(cell: str) -> str:
    """A cell as the text it was; white space at its end does not count, as in a file of lines."""
    return unescaped(cell).rstrip()


def shared_references(systems: Sequence[System]) -> list[list[str]]:
    """Where none are named: what all these tables were held against."""
    first = systems[0].references
    if first is None or any(system.references != first for system in systems):
        what = "The references are not known: name them with --ref."
        raise ConfigError([f"{what} Only tables of `heed evaluate` on one set bring their own."])
    return [first]
