"""Read files as bytes, chunk by chunk and decompressed; and hash them."""

from __future__ import annotations

import gzip
import hashlib
import importlib
import io
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType

from heed.errors import DataError, make_printable

CHUNK = 1 << 18
ZSTD_CHUNK = 1 << 10
"""Bytes of a zstd file that are decompressed at once: four bytes can hold 128 KiB of zeros, so
this many give at most 32 MiB."""
MAX_LINE = 1 << 24
"""Longest line that heed reads, in bytes or characters: a novel has a million. A longer one is
refused before it is complete in memory."""
COMPRESSED = (".gz", ".zst")
TABLES = {".tsv": "tsv", ".tab": "tsv", ".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl"}
"""Formats of tables by suffix."""
HUB_PREFIX = "hf:"
SAVED_SPLITS = "dataset_dict.json"
"""The file of a saved Hugging Face dataset with named splits."""
SAVED_DATASET = (SAVED_SPLITS, "state.json")
"""Files that mark a folder as a saved dataset; each split has the second."""
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
    while data := raw.read(ZSTD_CHUNK):
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


def split_lines(blocks: Iterable[bytes], path: str) -> Iterator[bytes]:
    """The lines of a stream of bytes, without the line feed that ends each.

    A stream that ends in a line feed has no empty last line. `path` names it in errors.
    """
    for lines in split_blocks(blocks, path):
        yield from lines


def split_blocks(blocks: Iterable[bytes], path: str) -> Iterator[list[bytes]]:
    """The complete lines of a stream of bytes, in lists of those that arrived together."""
    partial, length, number = list[bytes](), 0, 1
    for block in blocks:
        first, *others = block.split(b"\n")
        partial.append(first)
        length += len(first)
        if length > MAX_LINE:
            raise long_line_error(path, number)
        if not others:
            continue  # a long line: joined once, when its end has arrived
        yield [b"".join(partial), *others[:-1]]
        partial, length, number = others[-1:], len(others[-1]), number + len(others)
    if rest := b"".join(partial):
        yield [rest]


def is_hub_name(path: str) -> bool:
    """Whether this is the name of a dataset on the Hugging Face hub."""
    return path.startswith(HUB_PREFIX)


def is_dataset(path: str) -> bool:
    """Whether this names a Hugging Face dataset rather than a file."""
    return is_hub_name(path) or any((Path(path) / name).is_file() for name in SAVED_DATASET)


def table_format(path: str) -> str | None:
    """The format of a table by the suffix of its name, compressed or not; None for other files."""
    name = Path(path)
    suffix = Path(name.stem).suffix if name.suffix.lower() in COMPRESSED else name.suffix
    return TABLES.get(suffix.lower())


def long_line_error(path: str, line: int, limit: int = MAX_LINE) -> DataError:
    """The error of a line that is longer than `limit`."""
    return DataError(
        f"this line has more than {limit:,} characters.",
        where=f"{make_printable(path)}:{line}",
        todo="Check that it is text, and break it into lines.",
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
