"""The supervisor of one trial on a machine of a cluster: it ends the trial when the cluster does.

    python -m heed.study.trial_supervisor STUDY MARK VERSION [LOG COMMAND…]

The cluster's worker launches it and holds the other end of its standard input. When the worker dies
or is canceled, the input ends: the trial is then asked to save a checkpoint, and killed if it does
not end. Without a command only the place is checked: that this machine sees the study's folder, its
locks, and the same version of heed. Imports nothing heavy, for it lives as long as its trial.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from heed import __version__
from heed.files import lock_file
from heed.study.launch import launch_process

MARKER = "study.cluster"
"""A file in the study's folder with a random mark of the runner, which holds its lock."""
OTHER_FOLDER, NO_LOCKS, OTHER_VERSION = 81, 82, 83
"""Exit codes: what hinders a trial on this machine."""
STOP_SECONDS = 120.0
"""Seconds that a trial gets to save a checkpoint, before its process is killed."""
POLL_SECONDS = 0.2


def main(arguments: Sequence[str]) -> int:
    """Check the place, then carry out the command, if there is one; returns the exit code."""
    study, mark, version, *job = arguments
    code = check_place(Path(study), mark, version)
    if code != 0 or not job:
        return code
    log, *command = job
    return supervise(command, Path(log))


def check_place(study: Path, mark: str, version: str) -> int:
    """0 if a trial of this study can be carried out on this machine, else what hinders it."""
    marker = study / MARKER
    if not marker.is_file() or marker.read_text(encoding="utf-8") != mark:
        return OTHER_FOLDER
    if version != __version__:
        return OTHER_VERSION
    with lock_file(marker) as locked:  # False: the lock of the runner is seen from here
        return 0 if locked is False else NO_LOCKS


def supervise(command: Sequence[str], log: Path) -> int:
    """Run a command until it ends or standard input does; the code is 128 + N after signal N."""
    process = launch_process(command, log)
    while process.poll() is None:
        if _has_input_ended(POLL_SECONDS):
            _stop(process)
    code = process.returncode
    return code if code >= 0 else 128 - code


def _has_input_ended(seconds: float) -> bool:
    """Whether standard input ends within so many seconds."""
    readable, _, _ = select.select([0], [], [], seconds)
    return bool(readable) and os.read(0, 1024) == b""


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Ask a process to save and end, and kill it if it does not."""
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
