"""The lock of a study: one runner at a time, which any process can find and stop."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from heed import checksums
from heed.errors import RunError
from heed.files import lock_file, make_folder, try_lock

LOCK, RUNNER = "study.lock", "runner.json"
"""The file whose lock the runner holds, and the file that says which process it is."""


@contextmanager
def study_lock(folder: Path) -> Iterator[None]:
    """Hold the lock of a study: a second runner in its folder gets an error."""
    make_folder(folder)
    with lock_file(folder / LOCK) as locked:
        if locked is False:
            raise RunError(
                "another process is running this study.",
                where=str(folder),
                todo=f"Look at it (heed study {folder} --status), or stop it (--stop).",
            )
        checksums.write_json(folder / RUNNER, {"pid": os.getpid(), "started": time.time()})
        yield


def is_running(folder: Path) -> bool:
    """Whether a runner holds the study's lock."""
    try:
        handle = os.open(folder / LOCK, os.O_RDONLY)  # the disk may be read-only
    except FileNotFoundError:
        return False
    try:
        return try_lock(handle) is False
    finally:
        os.close(handle)


def stop_study(folder: Path) -> bool:
    """Ask the runner of a study on this machine to stop; whether there was one."""
    if not is_running(folder):
        return False
    runner = checksums.read_json(folder / RUNNER, todo="Stop the process by hand.")
    try:
        os.kill(int(runner["pid"]), signal.SIGTERM)
    except ProcessLookupError:
        raise RunError(
            "the process that runs this study is on another machine.",
            where=str(folder),
            todo="Stop it there.",
        ) from None
    return True
