"""What a person sees when something is wrong.

Every error a person can mend is a `HeedError`: one sentence that says what is wrong, where,
and what to do. The command line prints it and exits with code 2; a library user catches it.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

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


def nearest(word: str, known: Sequence[str]) -> str:
    """' Did you mean ...?' for the known word closest to `word`, or nothing when none is close."""
    close = get_close_matches(word, known, n=1, cutoff=0.6)
    return f" Did you mean {close[0]!r}?" if close else ""
