"""Errors for the user: what is wrong, where, and what to do.

Every error that a user can fix is a `HeedError`. The command line prints its message and exits
with code 2; library code can catch it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches

UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
"""Control characters, which a terminal obeys, and lone surrogates, which no stream can encode."""
STOPPED = 130
"""Exit code of work stopped by Ctrl-C: 128 + SIGINT."""


class HeedError(Exception):
    """An error with what is wrong, where (file and line, or recipe key), and what to do."""

    def __init__(self, what: str, *, where: str | None = None, todo: str | None = None) -> None:
        self.what, self.where, self.todo = what, where, todo
        message = f"{make_printable(where)}: {what}" if where else what
        message = f"{message} {todo}" if todo else message
        super().__init__(make_printable(message, multiline=True))


class ConfigError(HeedError, ValueError):
    """An invalid recipe or option. Holds every complaint, not only the first."""

    def __init__(self, complaints: Sequence[str], *, where: str | None = None) -> None:
        self.complaints = list(complaints)
        super().__init__("\n".join(self.complaints), where=where)


class DataError(HeedError, ValueError):
    """Text, labels or ids that cannot be used."""


class NumberError(HeedError):
    """A layer or head that does not exist, counted from 0 as in Python.

    `from_one` is the same error as the command line counts.
    """

    def __init__(
        self,
        kind: str,
        number: int | str,
        has: str,
        count: int,
        *,
        others: str = "",
        first: int = 0,
    ) -> None:
        self._arguments = kind, number, has, count
        self._others = others
        shown = number + first if isinstance(number, int) else number
        super().__init__(
            f"there is no {kind} {shown}: {has}.",
            todo=f"Choose {first} to {count - 1 + first}{others}.",
        )

    def from_one(self) -> NumberError:
        """This error with numbers that count from 1."""
        return NumberError(*self._arguments, others=self._others, first=1)


class StoppedError(HeedError):
    """Work that was stopped on request and has saved its state. `code` is the exit code."""

    def __init__(
        self, what: str, *, where: str | None = None, todo: str | None = None, code: int = STOPPED
    ) -> None:
        super().__init__(what, where=where, todo=todo)
        self.code = code


class RunError(HeedError):
    """A run folder that cannot be used."""


class HeedWarning(UserWarning):
    """A problem worth reporting that does not stop the work."""


UNREACHABLE = ("ConnectError", "ConnectionError", "ConnectTimeout", "LocalEntryNotFoundError")
NOT_ON_HUB = ("RepositoryNotFoundError", "DatasetNotFoundError", "RevisionNotFoundError")


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or the kind of an error without one."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def describe_hub_error(error: BaseException) -> tuple[str, str]:
    """What went wrong with the Hugging Face hub, and what to do, without its class names."""
    names: set[str] = set()
    cause: BaseException | None = error
    while cause is not None:
        names |= {kind.__name__ for kind in type(cause).__mro__}
        cause = cause.__cause__ or cause.__context__
    if "GatedRepoError" in names:
        return "the hub refuses access to it.", "Ask for access there, then run `hf auth login`."
    if names & {*NOT_ON_HUB}:
        return "it is not on the hub, or it is private.", "Check its name."
    if names & {*UNREACHABLE} or "OfflineModeIsEnabled" in names:
        todo = "Check the network, or copy it from another machine and name its folder."
        return "the hub cannot be reached, and there is no copy of it here.", todo
    return f"{first_line(error).rstrip('.')}.", "Check its name and the network."


def install_command(extra: str) -> str:
    """The command that installs one of heed's extras, in the folder of heed's source."""
    return f"pip install '.[{extra}]'"


def install_hint(extra: str, *, count: int = 1) -> str:
    """The sentence that says how to install one of heed's extras, so many libraries."""
    them = "it" if count == 1 else "them"
    return f"Install {them} with: {install_command(extra)} (in the folder of heed's source)."


def nearest(word: str, known: Sequence[str]) -> str:
    """` Did you mean …?` with the known word closest to `word`; empty when none is close."""
    reordered = [one for one in known if sorted(one) == sorted(word)]
    matches = reordered or get_close_matches(word, known, n=1, cutoff=0.6)
    return f" Did you mean {matches[0]!r}?" if matches else ""


def make_printable(text: str, *, multiline: bool = False) -> str:
    r"""Escape control characters and lone surrogates as \x1b or \udc80, for any terminal.

    Names of files, labels and texts may contain them. A multiline text keeps newlines and tabs.
    """

    def escape(match: re.Match[str]) -> str:
        character = match[0]
        if multiline and character in "\n\t":
            return character
        code = ord(character)
        return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"

    return UNPRINTABLE.sub(escape, text)
