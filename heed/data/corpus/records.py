"""Build records from lines and rows: parallel text, plain text, tables."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice, zip_longest
from math import ceil
from typing import NamedTuple

from heed.data.corpus.columns import ColumnLayout, Key
from heed.data.corpus.lines import (
    Fault,
    Place,
    encoding_fault,
    first_invalid_byte,
    read_lines,
    replace_invalid_bytes,
)
from heed.data.corpus.rows import Row, read_rows
from heed.data.raw_files import MAX_LINE
from heed.errors import DataError, make_printable


class Record(NamedTuple):
    """One example and where it came from."""

    texts: tuple[str, ...]  # one text, or two: source and target, or a pair to classify
    label: str | None  # None where the task has no labels, "" where the label is missing
    place: Place
    fault: Fault | None = None  # only `Corpus.scan` yields records with one


def read_parallel(source: str, target: str) -> Iterator[Record]:
    """Records of two parallel files; if one is longer, the last record is a fault."""
    number = complete = 0
    for left, right in zip_longest(read_lines(source), read_lines(target)):
        number += 1
        if left is None or right is None:
            continue
        complete = number
        place, fault = Place(source, number), encoding_fault(left)
        if fault is None and (fault := encoding_fault(right)):
            place = Place(target, number)
        if fault is not None:
            left, right = replace_invalid_bytes(left), replace_invalid_bytes(right)
        yield Record((left, right), None, place, fault)
    if number > complete:
        yield _length_mismatch(source, target, number, complete, source_is_longer=right is None)


def _length_mismatch(
    source: str, target: str, longer: int, shorter: int, *, source_is_longer: bool
) -> Record:
    counts = (longer, shorter) if source_is_longer else (shorter, longer)
    message = (
        f"the two sides differ in length: {make_printable(source)} has {counts[0]:,} lines, "
        f"{make_printable(target)} {counts[1]:,}."
    )
    todo = "Line n of one must be the translation of line n of the other."
    place = Place(source if source_is_longer else target, shorter + 1)
    return Record((), None, place, Fault("sides-differ", message, todo))


LineRange = tuple[float, float]
"""Part of a file: from this share of its lines to that."""


MAX_TEXT = 1 << 28
"""Longest document or file that is one example, in characters: it is read as a whole."""


def read_plain(path: str, unit: str, line_range: LineRange | None = None) -> Iterator[Record]:
    """Records of plain text: lines, documents separated by blank lines, or the whole file."""
    limit = MAX_TEXT if unit == "file" else MAX_LINE
    lines = read_lines(path, limit=limit)
    numbered: Iterator[tuple[int, str]] = enumerate(lines, 1)
    if line_range is not None:
        numbered = _lines_in_range(path, line_range, limit)
    if unit == "line":
        for number, line in numbered:
            fault = encoding_fault(line)
            text = replace_invalid_bytes(line) if fault else line
            yield Record((text,), None, Place(path, number), fault)
        return
    buffer: list[str] = []
    start, length = 1, 0
    for number, line in numbered:
        if unit == "document" and not line.strip():
            yield from _join_lines(path, start, buffer)
            buffer, length = [], 0
            continue
        if not buffer:
            start = number
        buffer.append(line)
        length += len(line) + 1
        if length > MAX_TEXT:
            raise DataError(
                f"this {unit} has more than {MAX_TEXT:,} characters.",
                where=f"{make_printable(path)}:{start}",
                todo="Split it into several files or documents.",
            )
    yield from _join_lines(path, start, buffer)


def _lines_in_range(path: str, line_range: LineRange, limit: int) -> Iterator[tuple[int, str]]:
    """Lines in part of a file, numbered as in the whole."""
    count = sum(1 for _ in read_lines(path, limit=limit))
    if count < 2:
        raise DataError(
            "this file has a single line, so no lines can be held out for dev.",
            where=make_printable(path),
            todo="Name dev files.",
        )
    ends = {0.0: 0, 1.0: count}  # a range that ends in between leaves the next at least one line
    first, stop = (ends.get(share, min(ceil(share * count), count - 1)) for share in line_range)
    yield from islice(enumerate(read_lines(path, limit=limit), 1), first, stop)


def _join_lines(path: str, start: int, buffer: list[str]) -> Iterator[Record]:
    """Several lines as one record; a faulty record is placed at the faulty line."""
    if not buffer:
        return
    for number, line in enumerate(buffer, start):
        if fault := encoding_fault(line):
            text = replace_invalid_bytes("\n".join(buffer))
            yield Record((text,), None, Place(path, number), fault)
            return
    yield Record(("\n".join(buffer),), None, Place(path, start))


def read_table(path: str, file_format: str, layout: ColumnLayout) -> Iterator[Record]:
    """Records of one table. Its own header is read, since columns may be in another order."""
    rows = read_rows(path, file_format)
    if layout.header:
        first = next((row for row in rows if row.cells or row.fault), None)
        if first is not None and first.fault is not None:
            yield Record((), None, Place(path, first.line), first.fault)
            return
        layout = _match_header(first, path, layout)
    empty = ("",) * len(layout.texts)
    unlabeled = None if layout.label is None else ""
    for row in rows:
        place = Place(path, row.line)
        if row.fault is not None:
            yield Record(empty, unlabeled, place, row.fault)
        elif not row.cells:
            yield Record(empty, unlabeled, place)
        else:
            yield _record(row, place, layout)


def _match_header(first: Row | None, path: str, layout: ColumnLayout) -> ColumnLayout:
    """The layout with the columns where this file's header has them."""
    names = [] if first is None or not isinstance(first.cells, list) else first.cells
    places = {name.strip(): index for index, name in reversed(list(enumerate(names)))}

    def find_column(key: Key) -> int:
        name, cells = layout.names[int(key)], names[int(key) : int(key) + 1]
        if [name] == [cell.strip() for cell in cells]:  # two columns may share a name
            return int(key)
        if name not in places:
            raise DataError(
                f"the header has no column {name!r}.",
                where=make_printable(path),
                todo=f"Name its columns {', '.join(layout.names)}.",
            )
        return places[name]

    label = None if layout.label is None else find_column(layout.label)
    return replace(
        layout, texts=tuple(map(find_column, layout.texts)), label=label, width=len(names)
    )


def _record(row: Row, place: Place, layout: ColumnLayout) -> Record:
    if isinstance(row.cells, Mapping):
        return _record_from_mapping(row.cells, place, layout)
    cells = row.cells
    if len(cells) != layout.width:
        count = f"{len(cells)} cell{'s' * (len(cells) != 1)}"
        message = f"this row has {count} where {layout.width} are expected."
        todo = "Check its separators, and that no text holds one."
        return Record(("",) * len(layout.texts), None, place, Fault("ragged", message, todo))
    texts = tuple(cells[int(key)] for key in layout.texts)
    label = None if layout.label is None else cells[int(layout.label)].strip()
    return Record(texts, label, place)


def _record_from_mapping(cells: Mapping[str, object], place: Place, layout: ColumnLayout) -> Record:
    """A record from a mapping, whose values may be any JSON value."""
    values = [cells.get(str(key)) for key in layout.texts]
    texts = tuple(value if isinstance(value, str) else "" for value in values)
    label = None if layout.label is None else _as_label(cells.get(str(layout.label)))
    fault = None
    for key, value in zip(layout.texts, values, strict=True):
        if not isinstance(value, str):
            problem = "is missing" if value is None else f"is {json_kind(value)}, not text"
            todo = "Give every row the same keys, with strings for text."
            fault = Fault("not-text", f"{key!r} {problem}.", todo)
    if any(first_invalid_byte(text) for text in (*texts, label or "")):
        todo = "Escape a character beyond U+FFFF as a pair of surrogates, or not at all."
        fault = Fault(
            "lone-surrogate", "this text contains a lone surrogate, half of a character.", todo
        )
        texts, label = tuple(map(_escape_surrogates, texts)), _escape_surrogates(label or "")
    return Record(texts, label, place, fault)


def _escape_surrogates(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def json_kind(value: object) -> str:
    """Name of a value's JSON type."""
    kinds = {bool: "true or false", int: "a number", float: "a number", list: "a list"}
    return kinds.get(type(value), "an object")


def _as_label(value: object) -> str:
    """A label as a string: numbers and booleans as JSON writes them."""
    if value is None or isinstance(value, str):
        return (value or "").strip()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return json.dumps(value, ensure_ascii=False, default=str)
