"""Read files as lines: decode and split, one chunk at a time.

Memory is one chunk and one line, and no line is longer than `MAX_LINE`. A byte that is not UTF-8
becomes a lone surrogate (Python's `surrogateescape`), which no valid text contains. So the line
survives, and `first_invalid_byte` can say where its first bad byte is.
"""

from __future__ import annotations

import codecs
import io
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from heed.data.raw_files import MAX_LINE, long_line_error, read_chunks
from heed.errors import make_printable

BOM = "\ufeff"


class Place(NamedTuple):
    """Source of a record; `line` counts from 1 and is the first line of the record."""

    path: str
    line: int

    def __str__(self) -> str:
        return f"{make_printable(self.path)}:{self.line}"


class Fault(NamedTuple):
    """Why a line or record cannot be read."""

    code: str
    message: str
    todo: str
    byte: int | None = None  # offset in the line, from 1, of the byte at fault


ESCAPES = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"}
"""Characters that would end a cell of a TSV file, and their escapes as in C; the backslash comes
first."""
UNESCAPED = {escape: character for character, escape in ESCAPES.items()}


def escape_tsv(text: str) -> str:
    """Escape a text as one cell of a TSV file."""
    for character, escape in ESCAPES.items():
        text = text.replace(character, escape)
    return text


def format_tsv(rows: Iterable[Iterable[str]]) -> str:
    """The text of a TSV file with these rows, each cell escaped."""
    return "".join("\t".join(map(escape_tsv, row)) + "\n" for row in rows)


def unescape_tsv(cell: str) -> str:
    """Undo `escape_tsv`."""
    return re.sub(r"\\[\\tnr]", lambda match: UNESCAPED[match[0]], cell)


def first_invalid_byte(line: str) -> int | None:
    """Offset, from 1, of the first byte of a line that is not UTF-8; None if all are."""
    if line.isascii():
        return None
    try:
        line.encode("utf-8")
    except UnicodeEncodeError as error:
        return len(line[: error.start].encode("utf-8")) + 1
    return None


def encoding_fault(line: str) -> Fault | None:
    """The fault of a line whose bytes are not UTF-8, or None."""
    byte = first_invalid_byte(line)
    if byte is None:
        return None
    message = f"byte {byte} of this line is not UTF-8."
    return Fault("invalid-utf8", message, "Save the file as UTF-8.", byte)


def replace_invalid_bytes(line: str) -> str:
    """Replace each undecodable byte by U+FFFD."""
    return line.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def read_lines(path: str, *, limit: int = MAX_LINE) -> Iterator[str]:
    r"""Lines of a file without their endings: `\n`, `\r\n` or `\r`, and no other.

    A leading byte order mark is dropped. A file that ends in a newline has no empty last line. A
    line of more characters than `limit` is an error as soon as it is that long.
    """
    decoder = io.IncrementalNewlineDecoder(
        codecs.getincrementaldecoder("utf-8")("surrogateescape"), translate=True
    )
    unfinished: list[str] = []  # parts of a line that spans chunks
    length, number = 0, 1  # of that line: characters so far, and which it is
    at_start = True
    for chunk, final in _mark_last(read_chunks(path)):
        text = decoder.decode(chunk, final)
        if at_start and text:
            text, at_start = text.removeprefix(BOM), False
        first, *rest = text.split("\n")
        unfinished.append(first)
        length += len(first)
        if length > limit:
            raise long_line_error(path, number, limit)
        if rest:
            yield "".join(unfinished)
            yield from rest[:-1]
            unfinished, length, number = [rest[-1]], len(rest[-1]), number + len(rest)
    if last := "".join(unfinished):
        yield last


def _mark_last(chunks: Iterator[bytes]) -> Iterator[tuple[bytes, bool]]:
    for chunk in chunks:
        yield chunk, False
    yield b"", True
