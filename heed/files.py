"""Atomic writes of files and folders, strict JSON, and messages for operating-system errors."""

from __future__ import annotations

import errno
import json
import math
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from typing import Any

from heed.errors import HeedError

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
OS_ERRORS = {
    errno.EACCES: "you have no permission to open or write this.",
    errno.EPERM: "you have no permission to open or write this.",
    errno.EROFS: "this file system is read-only.",
    errno.ENOENT: "there is no such file or folder.",
    errno.ENOTDIR: "a part of this path is a file, not a folder.",
    errno.EISDIR: "this is a folder, not a file.",
    errno.EEXIST: "there is something else here already.",
} | dict.fromkeys(DISK_FULL, "the disk is full.")
"""The message for each error number of the operating system."""


@contextmanager
def naming_path(path: Path) -> Iterator[None]:
    """Make an `OSError` raised in this block name `path`.

    It would otherwise name the temporary file beside `path` (a name that begins with a dot), or no
    file at all, as the error of a full disk does.
    """
    try:
        yield
    except OSError as error:
        named = path if error.filename is None else Path(str(error.filename))
        beside = named.is_relative_to(path.parent) and named != path.parent
        temporary = beside and named.relative_to(path.parent).parts[0].startswith(".")
        if error.errno is None or not (temporary or error.filename is None):
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def write_atomic(path: Path, content: str | bytes) -> None:
    """Write a file atomically: after a crash or power cut it is complete or absent.

    The temporary file is opened like any new file, under a unique name, so that its permissions
    follow the umask.
    """
    data = content.encode() if isinstance(content, str) else content
    temporary = path.with_name(f".{path.name}-{token_hex(6)}")
    with naming_path(path):
        try:
            with temporary.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


@contextmanager
def temporary_folder(folder: Path) -> Iterator[Path]:
    """Yield an empty folder to fill and then rename to `folder`; leftovers are deleted on exit.

    `tempfile` makes a folder that only its owner can read, so the folder to rename, which others
    may read, is made inside it.
    """
    if folder.name in ("", ".."):  # the current folder or its parent cannot be replaced by a rename
        todo = f"Name a new one, such as {folder / 'model'}."
        raise HeedError("this folder cannot be written as a whole.", where=str(folder), todo=todo)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (
        naming_path(folder),
        tempfile.TemporaryDirectory(prefix=".draft-", dir=folder.parent) as outer,
    ):
        inner = Path(outer) / folder.name
        inner.mkdir()
        yield inner


def describe_os_error(
    error: OSError, *, where: str | None = None, todo: str | None = None
) -> HeedError | None:
    """The `HeedError` for an `OSError` about a file or folder; None for any other error.

    `where` is used when the error names no file; `todo` replaces the default advice.
    """
    where = where if error.filename is None else str(error.filename)
    if where is None:
        return None
    what = OS_ERRORS.get(error.errno or 0, f"{error.strerror or error}.")
    default = "Name another place, or check your permissions here."
    if error.errno in DISK_FULL:
        default = "Free some space, or name another place; then try again."
    return HeedError(what, where=where, todo=todo or default)


def to_json(value: object, *, indent: int | None = None) -> str:
    """Strict JSON, on one line unless indented. Numbers that are not finite become null."""
    return json.dumps(_finite(value), ensure_ascii=False, allow_nan=False, indent=indent)


def _finite(value: Any) -> Any:
    """A copy with None for every float that is infinite or NaN."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
