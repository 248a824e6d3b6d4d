"""Checksums: a file of a run or of the cache contains its own, which is verified when it is read.

A checksum is 32 hexadecimal digits, the BLAKE2b hash of the whole file with zeros in place of these
digits. So a file and its checksum are written at once and cannot be separated:

    JSON          the last key, "checksum"
    JSON lines    the same in each line
    TOML          a comment, the first line
    safetensors   the one metadata key of the header
    other files   in checksums.json beside them

A file without a checksum is not verified: leave it out of a file that you edit by hand. Damage to a
single place cannot remove it, since what is left is then still the content that was written.

BLAKE2b is the fastest hash of the standard library that needs no special instructions, and it runs
in as many threads as there are cores.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from pathlib import Path
from typing import Any

from heed.errors import RunError
from heed.files import open_regular, read_regular, write_atomic

KEY = "checksum"
DIGITS = 32
BLANK = "0" * DIGITS
"""In place of a checksum that is not computed yet."""
FIELD = re.compile(rb'checksum"? ?[:=] ?"([0-9a-f]{32})"')
"""A checksum in JSON, TOML or a safetensors header. Quotes in JSON strings are escaped, so none of
them can match."""
CHUNK, BLOCK = 1 << 24, 1 << 20
"""Bytes that one thread hashes, and bytes that it reads at once."""
MANIFEST = "checksums.json"
"""The file with the checksums of the files beside it."""
MAX_HEADER = 100_000_000
"""Bytes of the longest header that the safetensors library reads."""


class DamagedError(RunError):
    """A file whose content is not what was written."""


# ---------------------------------------------------------------------------------- text and JSON


def seal_text(text: str) -> str:
    """The text with its checksum in place of the blank one, which must be the last in it."""
    data = text.encode()
    *_, field = FIELD.finditer(data)
    return _fill(data, field.span(1), _hash(data)).decode()


def is_intact(data: bytes) -> bool:
    """Whether the content of a text file matches its checksum; True if it has none."""
    fields = [*FIELD.finditer(data)]
    if not fields:
        return True
    span = fields[-1].span(1)
    return _hash(_fill(data, span, BLANK)) == fields[-1][1].decode()


def dump_json(content: Mapping[str, Any]) -> str:
    """A JSON object as the text of a file, with its checksum."""
    text = json.dumps({**content, KEY: BLANK}, indent=1, ensure_ascii=False)
    return seal_text(f"{text}\n")


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON object with its checksum, atomically."""
    write_atomic(path, dump_json(content))


def read_json(path: Path, *, todo: str) -> dict[str, Any]:
    """Read a JSON object that `write_json` wrote; `todo` is the advice for a damaged file."""
    return parse_json(read_regular(path), where=str(path), todo=todo)


def parse_json(data: bytes, *, where: str, todo: str) -> dict[str, Any]:
    """The JSON object of this text, verified and without its checksum."""
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        what = "this file is damaged: it is not a JSON object."
        raise DamagedError(what, where=where, todo=todo)
    if not is_intact(data):
        raise damage(where, todo)
    content.pop(KEY, None)
    return content


def damage(where: str, todo: str) -> DamagedError:
    """The error for a file that does not match its checksum."""
    what = "this file was damaged or changed: its content does not match its checksum."
    return DamagedError(what, where=where, todo=todo)


def _fill(data: bytes, span: tuple[int, int], checksum: str) -> bytes:
    return data[: span[0]] + checksum.encode() + data[span[1] :]


def _hash(data: bytes) -> str:
    return blake2b(data, digest_size=DIGITS // 2).hexdigest()


# ------------------------------------------------------------------------------------------ files


def hash_file(path: Path, *, start: bytes = b"") -> str:
    """The hash of a file, with `start` in place of its first bytes.

    A large file is hashed in chunks, in parallel, and then the hashes of the chunks.
    """
    size = path.stat().st_size
    starts = range(0, max(size, 1), CHUNK)
    if len(starts) == 1:
        return _chunk_digest(path, 0, start).hex()
    with ThreadPoolExecutor(min(len(starts), os.cpu_count() or 1)) as pool:
        return _hash(b"".join(pool.map(lambda first: _chunk_digest(path, first, start), starts)))


def _chunk_digest(path: Path, first: int, start: bytes) -> bytes:
    """The hash of one chunk of a file. Reading and hashing release the interpreter lock."""
    digest = blake2b(start[first : first + CHUNK], digest_size=DIGITS // 2)
    left = CHUNK - len(start[first : first + CHUNK])
    with open_regular(path) as file:
        file.seek(first + CHUNK - left)
        while left > 0 and (block := file.read(min(left, BLOCK))):
            digest.update(block)
            left -= len(block)
    return digest.digest()


def write_manifest(folder: Path) -> None:
    """Write the checksums of all files of a folder beside them, where they have no place inside."""
    hashes = {path.name: hash_file(path) for path in sorted(folder.iterdir())}
    write_json(folder / MANIFEST, hashes)


def verify_manifest(folder: Path, *, todo: str) -> None:
    """Raise an error for the first file that does not match the checksum beside it."""
    for name, checksum in read_json(folder / MANIFEST, todo=todo).items():
        path = folder / name
        if not path.exists() or hash_file(path) != checksum:
            raise damage(str(path), todo)


def seal_safetensors(path: Path) -> None:
    """Write the checksum of a safetensors file into its header, over the blank one."""
    header = _read_header(path)
    field = FIELD.search(header)
    if field is None:
        raise ValueError(f"{path} has no place for a checksum")
    checksum = hash_file(path)
    with path.open("r+b") as file:
        file.seek(field.start(1))
        file.write(checksum.encode())


def is_intact_safetensors(path: Path) -> bool:
    """Whether a safetensors file matches its checksum; True if it has none."""
    header = _read_header(path)
    field = FIELD.search(header)
    if field is None:
        return True
    return hash_file(path, start=_fill(header, field.span(1), BLANK)) == field[1].decode()


def _read_header(path: Path) -> bytes:
    """The size and the header of a safetensors file."""
    with open_regular(path) as file:
        size = file.read(8)
        return size + file.read(min(int.from_bytes(size, "little"), MAX_HEADER))
