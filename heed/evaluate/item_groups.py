"""Groups of test texts: the talk, document or speaker that each text belongs to.

Texts of one group resemble each other, so a test set of ten talks says less than as many unrelated
sentences. Comparisons then take the variance over groups.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from heed.config import Recipe
from heed.data.corpus import Corpus, Record
from heed.data.corpus.lines import read_lines
from heed.data.corpus.rows import read_rows
from heed.errors import DataError, make_printable, nearest


def find_groups(
    recipe: Recipe, requested: str | None, corpus: Corpus, records: Sequence[Record]
) -> list[int] | None:
    """The groups that an option names, or the column that the recipe names; None without either."""
    name = requested or (recipe.data.groups if corpus.layout is not None else None)
    return None if name is None else read_groups(name, corpus, records)


def read_groups(name: str, corpus: Corpus, records: Sequence[Record]) -> list[int]:
    """The group of each record, numbered from 0 in order of appearance.

    `name` is a column of the corpus's tables, or a file with a group's name for each line of the
    corpus's files.
    """
    if _has_column(corpus, name):
        names = {(path, line): group for path, line, group in _read_column(corpus, name)}
        groups = [names[record.place.path, record.place.line] for record in records]
    else:
        _check_file(name, corpus)
        groups = _read_file(name, corpus, records)
    for record, group in zip(records, groups, strict=True):
        if not group:
            raise DataError(
                "this text has no group.",
                where=str(record.place),
                todo=f"Name one for every text in {name}.",
            )
    numbers = {group: number for number, group in enumerate(dict.fromkeys(groups))}
    return [numbers[group] for group in groups]


def _has_column(corpus: Corpus, name: str) -> bool:
    return corpus.layout is not None and name in corpus.layout.names


def _read_column(corpus: Corpus, name: str) -> Iterator[tuple[str, int, str]]:
    """The file, line and group of every row of the tables."""
    for path in corpus.paths:
        index: int | None = None
        for row in read_rows(path, corpus.file_format):
            if isinstance(row.cells, Mapping):
                yield path, row.line, _to_name(row.cells.get(name))
            elif index is None and row.cells:
                header = [cell.strip() for cell in row.cells]
                if name not in header:
                    raise DataError(
                        f"the header has no column {name!r}.{nearest(name, header)}",
                        where=make_printable(path),
                        todo=f"Its columns are {', '.join(header)}.",
                    )
                index = header.index(name)
            elif index is not None:
                yield path, row.line, row.cells[index].strip() if len(row.cells) > index else ""


def _to_name(value: object) -> str:
    return "" if value is None else str(value).strip()


def _check_file(name: str, corpus: Corpus) -> None:
    if Path(name).is_file():
        return
    columns = () if corpus.layout is None else corpus.layout.names
    known = f" The columns are {', '.join(columns)}." if columns else ""
    what = "there is no such file" + (" or column" if columns else "")
    raise DataError(
        f"{what}.{nearest(name, columns)}",
        where=make_printable(name),
        todo=f"Name a file with a group for each line of the test files.{known}",
    )


def _read_file(name: str, corpus: Corpus, records: Sequence[Record]) -> list[str]:
    """Groups by line: line n of the file belongs to line n of the corpus's files together."""
    groups = [group.strip() for group in read_lines(name)]
    # Both sides of parallel files have the same lines; other files follow one another.
    paths = (
        corpus.paths[:1] if corpus.layout is None and corpus.task == "translate" else corpus.paths
    )
    starts, lines = {}, 0
    for path in paths:
        starts[path] = lines
        lines += sum(1 for _ in read_lines(path))
    if lines != len(groups):
        raise DataError(
            f"{make_printable(name)} has {len(groups):,} lines, the test files {lines:,}.",
            todo="Line n must name the group of line n of the test text.",
        )
    return [groups[starts[record.place.path] + record.place.line - 1] for record in records]
