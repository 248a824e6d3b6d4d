"""Executors launch the command lines of trials: here as processes of this machine.

A Ray cluster is another executor (`ray_cluster`).
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Protocol

from heed.study.launch import launch_process
from heed.study.trials import LOGS

STOP_SECONDS = 120.0
"""Seconds that a trial gets to save a checkpoint, before its process is killed."""


class Handle(Protocol):
    """A launched trial process."""

    reason: str | None
    """What befell it, where that is known to be neither its own doing nor a signal."""

    def poll(self) -> int | None:
        """Its exit code, or None while it runs; below 0 it was killed by that signal."""

    def stop(self) -> None:
        """Ask it to save a checkpoint and to end."""


class Executor(Protocol):
    """Launches trial processes somewhere."""

    jobs: int
    """Number of trials at a time that there is room for."""

    def submit(self, command: list[str], name: str) -> Handle:
        """Launch the command line of a trial."""


class LocalExecutor:
    """Launches trial processes on this machine. What they print goes to logs/NAME.log."""

    def __init__(self, folder: Path, threads: int = 1, jobs: int = 1) -> None:
        self.folder, self.threads, self.jobs = folder, threads, jobs

    def submit(self, command: list[str], name: str) -> Handle:
        """Launch a trial in a session of its own: Ctrl-C on the terminal reaches the runner."""
        log = self.folder / LOGS / f"{name}.log"
        environment = os.environ | {"OMP_NUM_THREADS": str(self.threads)}
        process = launch_process(command, log, environment)
        return LocalHandle(process)


class LocalHandle:
    """A trial process on this machine."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.reason: str | None = None
        self._stopped_at: float | None = None

    def poll(self) -> int | None:
        """Its exit code, or None while it runs."""
        if self._stopped_at is not None and time.monotonic() - self._stopped_at > STOP_SECONDS:
            self.process.kill()
        return self.process.poll()

    def stop(self) -> None:
        """Ask it to save a checkpoint and to end; it is killed if it does not."""
        if self._stopped_at is None:
            self._stopped_at = time.monotonic()
            self.process.send_signal(signal.SIGTERM)
