"""Bytes to lines: opening, decompressing, decoding and splitting, one chunk at a time.

Nothing here holds more than one chunk and one line. A byte that is not UTF-8 becomes a lone
surrogate (Python's `surrogateescape`), which no valid text holds, so the line survives and
`invalid_at` can say where its first bad byte stands.
"""

from __future__ import annotations

import codecs
import gzip
import hashlib
import importlib
import io
import re
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from heed.errors import DataError

CHUNK = 1 << 18
BOM = "\ufeff"
COMPRESSED = (".gz", ".zst")
# Neither magic number is valid UTF-8, so no text file is taken for a compressed one.
GZIP_MAGIC, ZSTD_MAGIC = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


class Place(NamedTuple):
    """Where a record came from; `line` counts from 1 and is the first line of the record."""

    path: str
    line: int

    def __str__(self) -> str:
        return f"{printable(self.path)}:{self.line}"


class Fault(NamedTuple):
    """Why something cannot be read as it stands."""

    code: str
    message: str
    todo: str
    byte: int | None = None  # in the line, from 1, where one byte is to blame


def printable(text: str) -> str:
    """The text with lone surrogates spelt out, so that any stream can print it."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


ESCAPES = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"}
"""What would end a cell of a TSV, and how it is written there: as in C, the backslash first."""
UNESCAPED = {written: character for character, written in ESCAPES.items()}


def escaped(text: str) -> str:
    """The text as one cell of a TSV."""
    for character, written in ESCAPES.items():
        text = text.replace(character, written)
    return text


def unescaped(cell: str) -> str:
    """The text that a cell was made of."""
    return re.sub(r"\\[\\tnr]", lambda found: UNESCAPED[found[0]], cell)


def invalid_at(line: str) -> int | None:
    """The first byte of a decoded line that is not UTF-8, from 1; None for valid text."""
    if line.isascii():
        return None
    try:
        line.encode("utf-8")
    except UnicodeEncodeError as error:
        return len(line[: error.start].encode("utf-8")) + 1
    return None


def encoding_fault(line: str) -> Fault | None:
    """What to say about a line whose bytes are not UTF-8."""
    byte = invalid_at(line)
    if byte is None:
        return None
    message = f"byte {byte} of this line is not UTF-8."
    return Fault("invalid-utf8", message, "Save the file as UTF-8.", byte)


def shown(line: str) -> str:
    """The line with each undecodable byte replaced by U+FFFD."""
    return line.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def lines(path: str) -> Iterator[str]:
    r"""The lines of a file without their endings: `\n`, `\r\n` or `\r`, and no other.

    A leading byte order mark is dropped. A file that ends in a newline has no empty last line.
    """
    decoder = io.IncrementalNewlineDecoder(
        codecs.getincrementaldecoder("utf-8")("surrogateescape"), translate=True
    )
    unfinished: list[str] = []  # pieces of a line that runs over chunks
    at_start = True
    for chunk, final in _with_end(chunks(path)):
        text = decoder.decode(chunk, final)
        if at_start and text:
            text, at_start = text.removeprefix(BOM), False
        first, *rest = text.split("\n")
        unfinished.append(first)
        if rest:
            yield "".join(unfinished)
            yield from rest[:-1]
            unfinished = [rest[-1]]
    if last := "".join(unfinished):
        yield last


def _with_end(parts: Iterator[bytes]) -> Iterator[tuple[bytes, bool]]:
    for part in parts:
        yield part, False
    yield b"", True


def chunks(path: str) -> Iterator[bytes]:
    """The bytes of a file, decompressed where its first bytes or its name say so."""
    broken: tuple[type[Exception], ...] = (OSError, EOFError, zlib.error)
    try:
        with Path(path).open("rb") as raw:
            magic = raw.peek(4)[:4]  # a pipe cannot go back
            if magic.startswith(GZIP_MAGIC) or path.endswith(".gz"):
                with gzip.open(raw) as unzipped:
                    yield from _pieces(unzipped)
            elif magic == ZSTD_MAGIC or path.endswith(".zst"):
                zstd = _zstd(path)
                broken = (*broken, zstd.ZstdError)
                yield from _unzstd(zstd, raw)
            else:
                yield from _pieces(raw)
    except broken as error:
        raise _unreadable(path, error) from error


def _pieces(stream: io.BufferedIOBase | io.BufferedReader | gzip.GzipFile) -> Iterator[bytes]:
    while piece := stream.read1(CHUNK):
        yield piece


def _zstd(path: str) -> ModuleType:
    """Python 3.14's own module, or the `zstandard` package."""
    for name in ("compression.zstd", "zstandard"):
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    raise DataError(
        "this file is compressed with zstd, which this Python cannot read.",
        where=printable(path),
        todo="Run `pip install zstandard`, or decompress it with `zstd -d`.",
    )


def _unzstd(zstd: ModuleType, raw: io.BufferedReader) -> Iterator[bytes]:
    """Frame after frame. `zstandard`'s own reader says nothing when a file is cut short."""
    fresh = zstd.ZstdDecompressor
    package = hasattr(fresh, "decompressobj")
    frame = None
    while data := raw.read1(CHUNK):
        while data:
            frame = frame or (fresh().decompressobj() if package else fresh())
            yield frame.decompress(data)
            data = b""
            if frame.eof:
                data, frame = frame.unused_data, None
    if frame is not None:
        raise EOFError("the last frame is cut short")


def _unreadable(path: str, error: Exception) -> DataError:
    where = printable(path)
    if isinstance(error, FileNotFoundError):
        return DataError("there is no such file.", where=where, todo="Check its name.")
    if isinstance(error, IsADirectoryError):
        return DataError("this is a folder.", where=where, todo="Name the files in it.")
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return DataError(
        f"this file cannot be read: {printable(reason).rstrip('.')}.",
        where=where,
        todo="Check that it is whole and that you may read it.",
    )


def fingerprint(paths: Sequence[str]) -> str:
    """BLAKE2b of the raw bytes of each file, then of those digests in order: 32 hex digits."""
    whole = hashlib.blake2b(digest_size=16)
    for path in paths:
        try:
            with Path(path).open("rb") as raw:
                whole.update(hashlib.file_digest(raw, hashlib.blake2b).digest())
        except OSError as error:
            raise _unreadable(path, error) from error
    return whole.hexdigest()
