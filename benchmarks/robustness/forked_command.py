"""Run the command line in a forked child under limits of time and memory, and classify its end.

The parent imports heed once, so a child costs only what its command does. Fork is safe because the
parent runs no thread: it computes nothing.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

OUTCOMES = ("answer", "sentence", "findings", "memory", "time", "traceback", "signal", "other")
"""How a command can end. Of these, `traceback`, `signal` and `other` are faults of heed."""
FAULTS = ("traceback", "signal", "other")
MAX_SENTENCE = 4000
"""Characters of an error message: it is a sentence, not a dump of its input."""
TRACEBACK = "Traceback (most recent call last)"
OUTPUT_BYTES = 1 << 24
"""Largest output that is read back."""
IMPORTED_ONCE = (
    *("torch._dynamo", "sacrebleu", "matplotlib.figure"),
    *("matplotlib.backends.backend_agg", "matplotlib.backends.backend_svg"),
    *("heed.api", "heed.cli.main", "heed.data.doctor", "heed.runs.index"),
    *("heed.evaluate.after_training", "heed.evaluate.score_files", "heed.evaluate.tables"),
    *("heed.export.huggingface", "heed.train.estimate", "heed.train.resolve", "heed.train.run"),
)
"""What commands import, and children inherit."""


@dataclass(frozen=True)
class Result:
    """How a command ended, and what it wrote."""

    outcome: str
    code: int
    """The exit code, or the number of the signal with a minus sign."""
    out: str
    err: str
    seconds: float

    @property
    def output(self) -> str:
        """All that it wrote."""
        return self.out + self.err

    @property
    def has_traceback(self) -> bool:
        """Whether it wrote a traceback."""
        return TRACEBACK in self.err


def import_commands() -> None:
    """Import all that commands import, so that forked children need not."""
    import torch

    torch.set_num_threads(1)
    for name in IMPORTED_ONCE:
        import_module(name)


def run_command(
    arguments: Sequence[str],
    folder: Path,
    *,
    stdin: bytes = b"",
    seconds: float = 30.0,
    memory: int = 6 << 30,
    environment: Mapping[str, str] | None = None,
    prepare: Callable[[], None] | None = None,
) -> Result:
    """Run `heed ARGUMENTS` in a folder, with an address space of `memory` bytes.

    `environment` is added to the child's; `prepare` is called in the child before the command.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    with TemporaryDirectory() as name:
        files = {stream: Path(name) / stream for stream in ("in", "out", "err")}
        files["in"].write_bytes(stdin)
        began = time.monotonic()
        child = os.fork()
        if child == 0:
            os.environ.update(environment or {})
            _run_child(arguments, folder, files, memory, prepare)
        code = _wait(child, began + seconds)
        out, err = (_read_text(files[stream]) for stream in ("out", "err"))
    return Result(_classify(code, out, err), code, out, err, time.monotonic() - began)


def _run_child(
    arguments: Sequence[str],
    folder: Path,
    files: dict[str, Path],
    memory: int,
    prepare: Callable[[], None] | None,
) -> None:
    """Become the command: never returns."""
    code = 70
    try:
        os.chdir(folder)
        for number, name in enumerate(("in", "out", "err")):
            flags = os.O_RDONLY if name == "in" else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
            os.dup2(os.open(files[name], flags), number)
        for number, mode in enumerate("rww"):
            stream = open(number, mode, encoding="utf-8", closefd=False)  # noqa: SIM115
            setattr(sys, ("stdin", "stdout", "stderr")[number], stream)
        faulthandler.disable()  # pytest's would write into the output
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, 1 << 30))
        sys.argv = ["heed", *arguments]
        from heed import plot
        from heed.cli.main import main

        plot.PNG_DPI = 16  # full figures would take half of the time
        try:
            if prepare is not None:
                prepare()
            main()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        traceback.print_exc()
        code = 1
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _wait(child: int, deadline: float) -> int:
    """The exit code of a child, or minus its signal; it is killed at the deadline."""
    pause, killed = 0.002, False
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return -signal.SIGKILL if killed else os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            killed = True
        time.sleep(pause)
        pause = min(0.05, pause * 1.5)


def _read_text(path: Path) -> str:
    if not path.exists():
        return ""
    with path.open("rb") as file:
        return file.read(OUTPUT_BYTES).decode("utf-8", "replace")


def _classify(code: int, out: str, err: str) -> str:
    if code == -signal.SIGKILL:
        return "time"
    if code < 0:
        return "signal"
    if TRACEBACK in err:
        return "memory" if err.rstrip().splitlines()[-1].startswith("MemoryError") else "traceback"
    if code == 0:
        return "answer"
    if code == 1 and not err.strip() and out.strip():  # heed check has found errors
        return "findings"
    if code == 2 and err.strip() and len(err) < MAX_SENTENCE:
        return "sentence"
    return "other"
