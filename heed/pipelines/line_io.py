"""Text in, text out: the line-by-line loop of `heed translate`, `classify` and `generate`.

Lines come from arguments, a file or a pipe, in groups that are there at the same time. A task turns
each group into results, and every result is written before the next group is read, so memory does
not grow with the input.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol, TypeVar

from heed.data.raw_files import read_chunks, split_blocks, table_format
from heed.errors import DataError, make_printable

T = TypeVar("T")
FIRST_GROUP, MAX_GROUP = 16, 1024
"""Lines per group: few at first, so that the first results come soon, then more and more."""
READ_BYTES = 1 << 16
STANDARD_INPUT, PIPE_NAME = 0, "standard input"
END_OF_INPUT = "Ctrl-Z and Enter" if sys.platform == "win32" else "Ctrl-D"
"""What ends the input at a terminal."""

LineGroups = Iterable[list[str]]
"""Lines in groups: those of a group are there at the same time."""


@dataclass(frozen=True)
class LineResult:
    """What one input line gives: lines to write, and a warning if there is one."""

    lines: Sequence[str]
    warning: str | None = None


class LineTask(Protocol):
    """What a command does with a group of lines."""

    def run(self, lines: Sequence[str], *, first: int) -> Iterable[LineResult]:
        """One result per line, in order; `first` is how many lines came before this group."""

    def summary(self) -> str | None:
        """A message for the end of the input, if there is something to report."""


def run_lines(
    groups: LineGroups, task: LineTask, *, out: BinaryIO, warn: Callable[[str], None]
) -> int:
    """Run a task over all lines, and write its results and warnings; returns the line count."""
    count = 0
    for group in groups:
        for result in task.run(group, first=count):
            for line in result.lines:
                write_line(out, line)
            if result.warning is not None:
                out.flush()
                warn(result.warning)
        count += len(group)
        out.flush()
    summary = task.summary()
    if summary is not None:
        warn(summary)
    return count


def open_lines(
    texts: Sequence[str] | None,
    file: Path | None,
    *,
    columns: int = 1,
    notify: Callable[[str], None] | None = None,
) -> LineGroups:
    """The lines of a file, compressed or not, or of given texts, or of standard input (file -).

    A line has so many `columns` of text. A table with others, such as labels, is an error.
    `notify` gets a sentence where a person has to type the lines, and at the end of the input one
    about lines that are not UTF-8.
    """
    if texts and file is not None:
        raise DataError("there are texts and --file: give one of them.", where=str(file))
    if file is not None and str(file) != "-":
        groups = group_lines(read_chunks(str(file)), str(file), notify)
        return _refuse_table(groups, str(file), columns)
    if texts:
        return [[decode_line(os.fsencode(text)) for text in texts]]
    if sys.stdin is None:  # descriptor 0 may belong to another file by now
        raise DataError(
            "there is no text: standard input is closed.", todo="Give texts, --file or a pipe."
        )
    if notify is not None and sys.stdin.isatty():
        notify(f"Type a text and press Enter; {END_OF_INPUT} ends.")
    return group_lines(read_pipe(STANDARD_INPUT), notify=notify)


def _refuse_table(groups: LineGroups, path: str, columns: int) -> Iterator[list[str]]:
    """The lines of a file; an error if it is a table, whose labels would be read as text."""
    kind, number = table_format(path), 0
    for group in groups:
        for line in group:
            number += 1
            cells = line.count("\t") + 1
            if kind in ("csv", "jsonl") or (kind == "tsv" and cells > columns):
                what = f"has {cells} columns" if kind == "tsv" else f"is {kind.upper()}"
                unit = "one text" if columns == 1 else f"{columns} texts"
                raise DataError(
                    f"this line {what}, and every line is read as {unit}.",
                    where=f"{make_printable(path)}:{number}",
                    todo="Give a file of texts alone; heed evaluate --test reads labeled tables.",
                )
        yield group


def lines_or_default(groups: LineGroups, default: str) -> Iterator[list[str]]:
    """These groups of lines, or one group with a default line if there are none."""
    empty = True
    for group in groups:
        empty = False
        yield group
    if empty:
        yield [default]


def read_pipe(descriptor: int) -> Iterator[bytes]:
    """The bytes of a pipe, as soon as they arrive."""
    while data := os.read(descriptor, READ_BYTES):
        yield data


def group_lines(
    blocks: Iterable[bytes], name: str = PIPE_NAME, notify: Callable[[str], None] | None = None
) -> Iterator[list[str]]:
    """The lines of a stream of bytes, in groups of those that have arrived, of bounded size.

    Only a newline ends a line. Bytes that are not UTF-8 become replacement characters; at the end
    `notify` gets one sentence about all lines that have such bytes.
    """
    size, count, invalid, place = FIRST_GROUP, 0, 0, ""
    for lines in split_blocks(blocks, name):
        first = 0
        while first < len(lines):
            group = lines[first : first + size]
            for number, line in enumerate(group, count + 1):
                byte = find_invalid_byte(line)
                if byte is not None:
                    invalid += 1
                    place = place or f"{make_printable(name)}:{number}: byte {byte} of this line"
            yield [decode_line(line) for line in group]
            count += len(group)
            first, size = first + size, min(2 * size, MAX_GROUP)
    if invalid and notify is not None:
        lines_in_all = f"{invalid:,} line{'s have' if invalid > 1 else ' has'}"
        notify(
            f"{place} is not UTF-8. {lines_in_all} such bytes, which were read as replacement "
            "characters. Save the text as UTF-8."
        )


def find_invalid_byte(line: bytes) -> int | None:
    """Offset, from 1, of the first byte of a line that is not UTF-8; None if all are."""
    try:
        line.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.start + 1
    return None


def decode_line(line: bytes) -> str:
    """The text of a line, without a byte order mark before it or a carriage return after it."""
    return line.decode("utf-8", "replace").removeprefix("\ufeff").rstrip("\r")


def write_line(out: BinaryIO, text: str) -> None:
    """Write one line; a lone surrogate, half an emoji say, becomes a question mark."""
    out.write(text.encode("utf-8", "replace") + b"\n")


def require_texts(texts: Iterable[T], *, pairs: bool = False) -> list[T]:
    """Texts as a list; with `pairs`, a text may be a pair. Anything else is an error."""
    checked = list(require_iterable(texts))
    for number, text in enumerate(checked, 1):
        parts = text if pairs and isinstance(text, tuple | list) else [text]
        if wrong := [part for part in parts if not isinstance(part, str)]:
            what = f"text {number} is {wrong[0]!r}, which is not a string."
            raise DataError(what, todo='Use "" for a text that is missing.')
    return checked


def require_text(text: T, *, pairs: bool = False, blank: bool = True) -> T:
    """One text; with `pairs` it may be a pair, without `blank` it must have a word."""
    parts = text if pairs and isinstance(text, tuple | list) else [text]
    if wrong := [part for part in parts if not isinstance(part, str)]:
        kinds = "one text or pair" if pairs else "one text"
        raise DataError(f"there is {wrong[0]!r} where {kinds} belongs.", todo='Give a string: "…".')
    if not blank and not any(str(part).strip() for part in parts):
        raise DataError("there is no text to look at.", todo="Give a text that is not blank.")
    return text


def require_iterable(texts: Iterable[T]) -> Iterable[T]:
    """Raise an error for a single string, which would be read letter by letter."""
    if isinstance(texts, str) or not isinstance(texts, Iterable):
        kind = "one string" if isinstance(texts, str) else repr(texts)
        raise DataError(
            f"there is {kind} where a list of texts belongs.", todo='Give a list: ["…"].'
        )
    return texts
