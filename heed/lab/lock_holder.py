"""The process that holds the lock of a training, and the signal that asks it to save and end.

A process id alone may have been given to another process since. Linux lists the open files of a
process: one that has the lock's file open and is `heed train` or `heed resume` is meant.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

PROCESSES = Path("/proc")
COMMANDS = ("train", "resume")
"""Commands of `heed` that save a checkpoint on SIGTERM and end."""


def has_process_list() -> bool:
    """Whether this system lists processes and their open files."""
    return (PROCESSES / "self" / "fd").is_dir()


def find_holders(lock: Path) -> list[int]:
    """The processes of `heed train` and `heed resume` that have this file open."""
    try:
        wanted = lock.stat(follow_symlinks=False)
    except OSError:
        return []
    ids = (int(path.name) for path in PROCESSES.iterdir() if path.name.isdecimal())
    return [pid for pid in ids if is_training_command(pid) and _has_open(pid, wanted)]


def _has_open(pid: int, wanted: os.stat_result) -> bool:
    """Whether a process has a file open."""
    return any(os.path.samestat(one, wanted) for one in _open_files(pid))


def _open_files(pid: int) -> Iterator[os.stat_result]:
    """What is known of the open files of a process; nothing if it is another user's."""
    with suppress(OSError):
        for handle in (PROCESSES / str(pid) / "fd").iterdir():
            with suppress(OSError):  # it was closed meanwhile
                yield handle.stat()


def is_training_command(pid: int) -> bool:
    """Whether a process is `heed train` or `heed resume`."""
    try:
        text = (PROCESSES / str(pid) / "cmdline").read_bytes().decode("utf-8", "surrogateescape")
    except OSError:
        return False
    return is_training(text.rstrip("\0").split("\0"))


def is_training(arguments: list[str]) -> bool:
    """Whether a command line is `heed train` or `heed resume`, by script or by `python -m`."""
    for index, argument in enumerate(arguments[:8]):
        is_module = arguments[max(index - 1, 0)] == "-m" and argument == "heed"
        if is_module or (index < 2 and Path(argument).name == "heed"):
            command = next((one for one in arguments[index + 1 :] if not one.startswith("-")), "")
            return command in COMMANDS
    return False


def ask_to_stop(pid: int, lock: Path) -> bool:
    """Ask a process to save a checkpoint and to end; False if it no longer holds the lock."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        # The id is of one process from here on, so it is checked now.
        if pid not in find_holders(lock):
            return False
        signal.pidfd_send_signal(process, signal.SIGTERM)
    except ProcessLookupError:
        return False
    finally:
        os.close(process)
    return True
