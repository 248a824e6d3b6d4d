"""A process of its own for each measured system: start it, ask it, answer from it, end it.

The measuring process writes a line for each request to the standard input of the system's process,
and reads an answer, a line of JSON, from its standard output.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import IO, Any, TextIO, cast

from heed.child_process import child_environment

ENDING = 30.0
"""Seconds that a process may take to end after it has closed its pipe."""


class Worker:
    """The process of one system, and its answers."""

    def __init__(self, command: Sequence[str], errors: IO[bytes]) -> None:
        """Start the process; without HEED_DEBUG its standard error goes to the file `errors`."""
        self._errors = errors
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None if os.environ.get("HEED_DEBUG") else errors,
            env=child_environment(),
            start_new_session=True,  # Ctrl-C reaches the measuring process, which ends this one
        )
        self._answers: queue.Queue[bytes] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Number of the process."""
        return self._process.pid

    def _read(self) -> None:
        """Pass lines on, then an empty one: a pipe alone cannot be read with a time limit."""
        for line in cast("IO[bytes]", self._process.stdout):
            self._answers.put(line)
        self._answers.put(b"")

    def ask(self, line: str, limit: float) -> dict[str, Any]:
        """Send a line and return the answer; a process that ended or hangs has failed."""
        pipe = cast("IO[bytes]", self._process.stdin)
        try:
            pipe.write(f"{line}\n".encode())
            pipe.flush()
            answer = self._answers.get(timeout=limit)
        except queue.Empty:
            return _failure(f"it did not answer within {limit / 60:g} minutes.")
        except OSError:
            answer = b""
        return json.loads(answer) if answer else self._describe_end()

    def _describe_end(self) -> dict[str, Any]:
        """Why the process ended without an answer."""
        try:
            code = self._process.wait(timeout=ENDING)
        except subprocess.TimeoutExpired:
            return _failure("its process closed the pipe and did not end.")
        if code == -signal.SIGKILL:
            return _failure("the system killed its process: out of memory?", out_of_memory=True)
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines() or [""]
        return _failure(f"its process ended with code {code}: {lines[-1]}".rstrip(": "))

    def close(self) -> None:
        """End the process, and the compile processes it has started."""
        with suppress(OSError):
            cast("IO[bytes]", self._process.stdin).close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=5)
        with suppress(ProcessLookupError):  # all of its group have ended
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join()
        cast("IO[bytes]", self._process.stdout).close()


def _failure(reason: str, *, out_of_memory: bool = False) -> dict[str, Any]:
    return {"event": "failed", "reason": reason, "out_of_memory": out_of_memory}


@contextmanager
def worker_process(command: Sequence[str]) -> Iterator[Worker]:
    """A process that is ended in any case."""
    with tempfile.TemporaryFile() as errors:
        worker = Worker(command, errors)
        try:
            yield worker
        finally:
            worker.close()


# ---------------------------------------------------------------------------- in the process itself


def open_answers() -> TextIO:
    """Standard output for answers alone: what libraries print there goes to standard error."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return answers


def send_answer(answers: TextIO, event: str, **values: object) -> None:
    """Answer a request: an event, `failed` among them, and its values."""
    with suppress(BrokenPipeError):  # the measuring process has ended
        print(json.dumps({"event": event, **values}), file=answers, flush=True)
