"""What a person sees when something is wrong.

Every error a person can mend is a `HeedError`: one sentence that says what is wrong, where,
and what to do. The command line prints it and exits with code 2; a library user catches it.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path

STOPPED = 130
"""The exit code of work that was stopped by Ctrl-C: 128 and the number of the signal."""


class HeedError(Exception):
    """What is wrong, where it is (a file and line, or a recipe key), and what to do about it."""

    def __init__(self, what: str, *, where: str | None = None, todo: str | None = None) -> None:
        self.what, self.where, self.todo = what, where, todo
        head = f"{where}: {what}" if where else what
        super().__init__(f"{head} {todo}" if todo else head)


class ConfigError(HeedError, ValueError):
    """A recipe that makes no sense: every complaint about it, not only the first."""

    def __init__(self, complaints: Sequence[str], *, where: str | None = None) -> None:
        self.complaints = list(complaints)
        super().__init__("\n".join(self.complaints), where=where)


class DataError(HeedError, ValueError):
    """Text, labels or ids that cannot be used as asked."""


class StoppedError(HeedError):
    """Work that was asked to stop, and has saved where it is. `code` is what to exit with."""

    def __init__(
        self, what: str, *, where: str | None = None, todo: str | None = None, code: int = STOPPED
    ) -> None:
        super().__init__(what, where=where, todo=todo)
        self.code = code


class RunError(HeedError):
    """A run folder that cannot be used as asked."""


class HeedWarning(UserWarning):
    """What a person should know, though the work goes on."""


# ------------------------------------------------------------------------- files and folders

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


def nearest(word: str, known: Sequence[str]) -> str:
    """' Did you mean ...?' for the known word closest to `word`, or nothing when none is close."""
    close = get_close_matches(word, known, n=1, cutoff=0.6)
    return f" Did you mean {close[0]!r}?" if close else ""
