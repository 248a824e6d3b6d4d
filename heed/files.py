"""Atomic writes, strict JSON, and a sentence for every error of the operating system."""

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

FULL = (errno.ENOSPC, errno.EDQUOT)
TROUBLE = {
    errno.EACCES: "this may not be opened or written by you.",
    errno.EPERM: "this may not be opened or written by you.",
    errno.EROFS: "the disk here can only be read.",
    errno.ENOENT: "there is no such file or folder.",
    errno.ENOTDIR: "a part of this path is a file, not a folder.",
    errno.EISDIR: "this is a folder, not a file.",
    errno.EEXIST: "there is something else here already.",
} | dict.fromkeys(FULL, "the disk is full.")
"""What a person reads for an error of the operating system."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """An error of the disk in here tells of `path`, where it would name a draft beside it (a name
    with a dot before it), or nothing at all, as that of a full disk does."""
    try:
        yield
    except OSError as problem:
        named = path if problem.filename is None else Path(str(problem.filename))
        beside = named.is_relative_to(path.parent) and named != path.parent
        draft = beside and named.relative_to(path.parent).parts[0].startswith(".")
        if problem.errno is None or not (draft or problem.filename is None):
            raise
        raise OSError(problem.errno, problem.strerror, str(path)) from problem


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file so that it is there whole or not at all, also after a power cut.

    Who may read it is as for any new file: the draft is opened as such, under a name of its own.
    """
    data = content.encode() if isinstance(content, str) else content
    draft = path.with_name(f".{path.name}-{token_hex(6)}")
    with writing(path):
        try:
            with draft.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise


@contextmanager
def drafted(folder: Path) -> Iterator[Path]:
    """An empty folder to fill and then rename to `folder`; what is left of it goes away.

    A temporary folder is its owner's alone, so what others may read is made inside one.
    """
    if folder.name in ("", ".."):  # one that is being stood in cannot be put in place whole
        todo = f"Name a new one, such as {folder / 'model'}."
        raise HeedError("this folder cannot be written as a whole.", where=str(folder), todo=todo)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with writing(folder), tempfile.TemporaryDirectory(prefix=".draft-", dir=folder.parent) as own:
        draft = Path(own) / folder.name
        draft.mkdir()
        yield draft


def of_the_disk(
    problem: OSError, *, where: str | None = None, todo: str | None = None
) -> HeedError | None:
    """A sentence about a file or folder that cannot be used; None for any other error.

    `where` is for one that names no file, `todo` for who knows better what to do.
    """
    where = where if problem.filename is None else str(problem.filename)
    if where is None:
        return None
    what = TROUBLE.get(problem.errno or 0, f"{problem.strerror or problem}.")
    usual = "Name another place, or see that you may use this one."
    if problem.errno in FULL:
        usual = "Free some space, or name another place; then do this again."
    return HeedError(what, where=where, todo=todo or usual)


def to_json(value: object, *, indent: int | None = None) -> str:
    """JSON by its standard, on one line unless indented; a number that is not finite is null."""
    return json.dumps(_finite(value), ensure_ascii=False, allow_nan=False, indent=indent)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
