"""The supervisor of a trial: a place is checked, and a trial ends with the worker above it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from killing import FOUND

from heed import __version__
from heed.files import lock_file
from heed.study import trial_supervisor as supervisor
from heed.study.trial_supervisor import MARKER, NO_LOCKS, OTHER_FOLDER, OTHER_VERSION

MARK = "0123"
SAVING = (
    "import signal, sys, time\n"
    "def save(*_): print('saved', flush=True); sys.exit(143)\n"
    "signal.signal(signal.SIGTERM, save)\n"
    "print('begun', flush=True)\n"
    "time.sleep(60)"
)
"""A trial that saves when it is asked to end."""


@contextmanager
def marked(study: Path) -> Iterator[None]:
    """A study's folder with the marker of a runner that lives."""
    (study / MARKER).write_text(MARK, encoding="utf-8")
    with lock_file(study / MARKER):
        yield


def supervised(study: Path, *command: str) -> subprocess.Popen[bytes]:
    """A supervisor as a worker of a cluster launches it: with a pipe as its input."""
    module = [sys.executable, "-m", "heed.study.trial_supervisor"]
    return subprocess.Popen(
        [*module, str(study), MARK, __version__, str(study / "logs" / "a.log"), *command],
        stdin=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": FOUND},
    )


def test_place_is_checked(tmp_path: Path) -> None:
    """A different folder, one without the runner's lock and another version are distinguished."""
    assert supervisor.check_place(tmp_path / "none", MARK, __version__) == OTHER_FOLDER
    with marked(tmp_path):
        assert supervisor.check_place(tmp_path, MARK, __version__) == 0
        assert supervisor.check_place(tmp_path, "other", __version__) == OTHER_FOLDER
        assert supervisor.check_place(tmp_path, MARK, "0.0") == OTHER_VERSION
        place = [str(tmp_path), MARK, __version__]
        assert supervisor.main(place) == 0  # no command: the check is all
        assert supervisor.main([*place[:2], "0.0", "log", "never run"]) == OTHER_VERSION
    assert supervisor.check_place(tmp_path, MARK, __version__) == NO_LOCKS


@pytest.mark.parametrize(
    ("program", "code"),
    [("raise SystemExit(3)", 3), ("import os; os.kill(os.getpid(), 9)", 128 + signal.SIGKILL)],
)
def test_code_of_the_trial(tmp_path: Path, program: str, code: int) -> None:
    """The exit code of the trial is that of its supervisor, signals included."""
    with marked(tmp_path), supervised(tmp_path, sys.executable, "-c", program) as process:
        assert process.wait(60) == code


def test_trial_ends_with_its_worker(tmp_path: Path) -> None:
    """When the worker's end of the pipe is closed, as by its death, the trial saves and ends."""
    log = tmp_path / "logs" / "a.log"
    with marked(tmp_path), supervised(tmp_path, sys.executable, "-c", SAVING) as process:
        deadline = time.monotonic() + 60
        while not (log.exists() and b"begun" in log.read_bytes()):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(60) == 143
    assert log.read_text().split() == ["begun", "saved"]
