"""Lines and rows to records: two sides, plain text, tables."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice, zip_longest
from math import ceil
from typing import NamedTuple

from heed.data.corpus.columns import Key, Layout
from heed.data.corpus.rows import Row, rows
from heed.data.corpus.text_files import (
    Fault,
    Place,
    encoding_fault,
    invalid_at,
    lines,
    printable,
    shown,
)
from heed.errors import DataError


class Record(NamedTuple):
    """One example and where it came from."""

    texts: tuple[str, ...]  # one text, or two: source and target, or a pair to classify
    label: str | None  # None where the task has no labels, "" where the label is missing
    place: Place
    fault: Fault | None = None  # only `Corpus.scan` yields records that have one


def two_sides(source: str, target: str) -> Iterator[Record]:
    """Line by line. Sides of different length end with one record at fault, which counts them."""
    number = paired = 0
    for left, right in zip_longest(lines(source), lines(target)):
        number += 1
        if left is None or right is None:
            continue
        paired = number
        place, fault = Place(source, number), encoding_fault(left)
        if fault is None and (fault := encoding_fault(right)):
            place = Place(target, number)
        if fault is not None:
            left, right = shown(left), shown(right)
        yield Record((left, right), None, place, fault)
    if number > paired:
        yield _uneven(source, target, number, paired, source_is_longer=right is None)


def _uneven(
    source: str, target: str, longer: int, shorter: int, *, source_is_longer: bool
) -> Record:
    counts = (longer, shorter) if source_is_longer else (shorter, longer)
    message = (
        f"the two sides differ in length: {printable(source)} has {counts[0]:,} lines, "
        f"{printable(target)} {counts[1]:,}."
    )
    todo = "Line n of one must be the translation of line n of the other."
    place = Place(source if source_is_longer else target, shorter + 1)
    return Record((), None, place, Fault("sides-differ", message, todo))


Span = tuple[float, float]
"""A part of a file: from this share of its lines up to that one."""


def plain(path: str, unit: str, span: Span | None = None) -> Iterator[Record]:
    """Lines; or documents, which blank lines part; or the whole file as one record."""
    numbered = enumerate(lines(path), 1) if span is None else _within(path, span)
    if unit == "line":
        for number, line in numbered:
            fault = encoding_fault(line)
            text = shown(line) if fault else line
            yield Record((text,), None, Place(path, number), fault)
        return
    held: list[str] = []
    start = 1
    for number, line in numbered:
        if unit == "document" and not line.strip():
            yield from _block(path, start, held)
            held = []
            continue
        if not held:
            start = number
        held.append(line)
    yield from _block(path, start, held)


def _within(path: str, span: Span) -> Iterator[tuple[int, str]]:
    """The lines of a part of a file, numbered as in the whole."""
    count = sum(1 for _ in lines(path))
    if count < 2:
        raise DataError(
            "this file has a single line, so none can be set aside.",
            where=printable(path),
            todo="Name files for dev.",
        )
    ends = {0.0: 0, 1.0: count}  # a part that ends in between leaves a line to the next
    first, stop = (ends.get(share, min(ceil(share * count), count - 1)) for share in span)
    yield from islice(enumerate(lines(path), 1), first, stop)


def _block(path: str, start: int, held: list[str]) -> Iterator[Record]:
    """Several lines as one record; at fault, the place is the line that is."""
    if not held:
        return
    for number, line in enumerate(held, start):
        if fault := encoding_fault(line):
            text = shown("\n".join(held))
            yield Record((text,), None, Place(path, number), fault)
            return
    yield Record(("\n".join(held),), None, Place(path, start))


def table(path: str, form: str, layout: Layout) -> Iterator[Record]:
    """The rows of one file as records. A header is read anew: columns may change places."""
    found = rows(path, form)
    if layout.header:
        first = next((row for row in found if row.cells or row.fault), None)
        if first is not None and first.fault is not None:
            yield Record((), None, Place(path, first.line), first.fault)
            return
        layout = _headed(first, path, layout)
    empty = ("",) * len(layout.texts)
    unlabelled = None if layout.label is None else ""
    for row in found:
        place = Place(path, row.line)
        if row.fault is not None:
            yield Record(empty, unlabelled, place, row.fault)
        elif not row.cells:
            yield Record(empty, unlabelled, place)
        else:
            yield _record(row, place, layout)


def _headed(first: Row | None, path: str, layout: Layout) -> Layout:
    """The layout with its columns where this file's header has them."""
    names = [] if first is None or not isinstance(first.cells, list) else first.cells
    places = {name.strip(): index for index, name in reversed(list(enumerate(names)))}

    def moved(key: Key) -> int:
        name, own = layout.names[int(key)], names[int(key) : int(key) + 1]
        if [name] == [cell.strip() for cell in own]:  # two columns may have one name
            return int(key)
        if name not in places:
            raise DataError(
                f"the header has no column {name!r}.",
                where=printable(path),
                todo=f"Name its columns {', '.join(layout.names)}.",
            )
        return places[name]

    label = None if layout.label is None else moved(layout.label)
    return replace(layout, texts=tuple(map(moved, layout.texts)), label=label, width=len(names))


def _record(row: Row, place: Place, layout: Layout) -> Record:
    if isinstance(row.cells, Mapping):
        return _keyed(row.cells, place, layout)
    cells = row.cells
    if len(cells) != layout.width:
        message = f"this row has {len(cells)} cells where {layout.width} are expected."
        todo = "Check its separators, and that no text holds one."
        return Record(("",) * len(layout.texts), None, place, Fault("ragged", message, todo))
    texts = tuple(cells[int(key)] for key in layout.texts)
    label = None if layout.label is None else cells[int(layout.label)].strip()
    return Record(texts, label, place)


def _keyed(cells: Mapping[str, object], place: Place, layout: Layout) -> Record:
    """From a mapping, whose values may be anything JSON has."""
    values = [cells.get(str(key)) for key in layout.texts]
    texts = tuple(value if isinstance(value, str) else "" for value in values)
    label = None if layout.label is None else _as_label(cells.get(str(layout.label)))
    fault = None
    for key, value in zip(layout.texts, values, strict=True):
        if not isinstance(value, str):
            found = "is missing" if value is None else f"is {json_kind(value)}, not text"
            todo = "Give every row the same keys, with strings for text."
            fault = Fault("not-text", f"{key!r} {found}.", todo)
    if any(invalid_at(text) for text in (*texts, label or "")):
        todo = "Escape a character beyond U+FFFF as a pair of surrogates, or not at all."
        fault = Fault("lone-surrogate", "half a character stands in this text.", todo)
        texts, label = tuple(map(printable, texts)), printable(label or "")
    return Record(texts, label, place, fault)


def json_kind(value: object) -> str:
    """What JSON calls a value."""
    kinds = {bool: "true or false", int: "a number", float: "a number", list: "a list"}
    return kinds.get(type(value), "an object")


def _as_label(value: object) -> str:
    """A label as a string: words as they are, numbers and truth values as JSON writes them."""
    if value is None or isinstance(value, str):
        return (value or "").strip()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return json.dumps(value, ensure_ascii=False, default=str)
