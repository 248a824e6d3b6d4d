"""Read files as bytes, chunk by chunk and decompressed; and hash them."""

from __future__ import annotations

import gzip
import hashlib
import importlib
import io
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

from heed.errors import DataError

CHUNK = 1 << 18
COMPRESSED = (".gz", ".zst")
# Neither magic number is valid UTF-8, so no text file is taken for a compressed one.
GZIP_MAGIC, ZSTD_MAGIC = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


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


def make_printable(text: str) -> str:
    """Escape lone surrogates, so that any stream can print the text."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
