"""Read files as lines: open, decompress, decode and split, one chunk at a time.

Memory is one chunk and one line. A byte that is not UTF-8 becomes a lone surrogate (Python's
`surrogateescape`), which no valid text contains. So the line survives, and `first_invalid_byte` can
say where its first bad byte is.
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


def make_printable(text: str) -> str:
    """Escape lone surrogates, so that any stream can print the text."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


ESCAPES = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"}
"""Characters that would end a cell of a TSV file, and their escapes as in C; the backslash comes
first."""
UNESCAPED = {escape: character for character, escape in ESCAPES.items()}


def escape_tsv(text: str) -> str:
    """Escape a text as one cell of a TSV file."""
    for character, escape in ESCAPES.items():
        text = text.replace(character, escape)
    return text


def unescape_tsv(cell: str) -> str:
    """Undo `escape_tsv`."""
    return re.sub(r"\\[\\tnr]", lambda match: UNESCAPED[match[0]], cell)


def first_invalid_byte(line: str) -> int | None:
    """Offset, from 1, of the first byte of a decoded line that is not UTF-8; None for valid
    text."""
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


def read_lines(path: str) -> Iterator[str]:
    r"""Lines of a file without their endings: `\n`, `\r\n` or `\r`, and no other.

    A leading byte order mark is dropped. A file that ends in a newline has no empty last line.
    """
    decoder = io.IncrementalNewlineDecoder(
        codecs.getincrementaldecoder("utf-8")("surrogateescape"), translate=True
    )
    unfinished: list[str] = []  # parts of a line that spans chunks
    at_start = True
    for chunk, final in _mark_last(read_chunks(path)):
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


def _mark_last(chunks: Iterator[bytes]) -> Iterator[tuple[bytes, bool]]:
    for chunk in chunks:
        yield chunk, False
    yield b"", True


def read_chunks(path: str) -> Iterator[bytes]:
    """Bytes of a file, decompressed if its first bytes or its name say so."""
    broken: tuple[type[Exception], ...] = (OSError, EOFError, zlib.error)
    try:
        with Path(path).open("rb") as raw:
            magic = raw.peek(4)[:4]  # a pipe cannot seek
            if magic.startswith(GZIP_MAGIC) or path.endswith(".gz"):
                with gzip.open(raw) as unzipped:
                    yield from _read_stream(unzipped)
            elif magic == ZSTD_MAGIC or path.endswith(".zst"):
                zstd = _import_zstd(path)
                broken = (*broken, zstd.ZstdError)
                yield from _decompress_zstd(zstd, raw)
            else:
                yield from _read_stream(raw)
    except broken as error:
        raise _read_error(path, error) from error


def _read_stream(stream: io.BufferedIOBase | io.BufferedReader | gzip.GzipFile) -> Iterator[bytes]:
    while chunk := stream.read1(CHUNK):
        yield chunk


def _import_zstd(path: str) -> ModuleType:
    """Python 3.14's own zstd module, or the `zstandard` package."""
    for name in ("compression.zstd", "zstandard"):
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    raise DataError(
        "this file is compressed with zstd, which this Python cannot read.",
        where=make_printable(path),
        todo="Run `pip install zstandard`, or decompress it with `zstd -d`.",
    )


def _decompress_zstd(zstd: ModuleType, raw: io.BufferedReader) -> Iterator[bytes]:
    """Decompress frame by frame. `zstandard`'s own reader does not report a truncated file."""
    decompressor = zstd.ZstdDecompressor
    is_package = hasattr(decompressor, "decompressobj")
    frame = None
    while data := raw.read1(CHUNK):
        while data:
            frame = frame or (decompressor().decompressobj() if is_package else decompressor())
            yield frame.decompress(data)
            data = b""
            if frame.eof:
                data, frame = frame.unused_data, None
    if frame is not None:
        raise EOFError("the last frame is cut short")


def _read_error(path: str, error: Exception) -> DataError:
    where = make_printable(path)
    if isinstance(error, FileNotFoundError):
        return DataError("there is no such file.", where=where, todo="Check the path.")
    if isinstance(error, IsADirectoryError):
        return DataError("this is a folder, not a file.", where=where, todo="Name the files in it.")
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return DataError(
        f"this file cannot be read: {make_printable(reason).rstrip('.')}.",
        where=where,
        todo="Check that it is complete and that you have permission to read it.",
    )


def hash_files(paths: Sequence[str]) -> str:
    """BLAKE2b of the raw bytes of each file, then of those digests in order: 32 hex digits."""
    total = hashlib.blake2b(digest_size=16)
    for path in paths:
        try:
            with Path(path).open("rb") as raw:
                total.update(hashlib.file_digest(raw, hashlib.blake2b).digest())
        except OSError as error:
            raise _read_error(path, error) from error
    return total.hexdigest()
