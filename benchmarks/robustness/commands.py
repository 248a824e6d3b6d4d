"""Run commands of heed in forked processes: torch is imported once, so each takes a second."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

IMPORTED_ONCE = (
    "torch._dynamo",
    "matplotlib.backends.backend_agg",
    "matplotlib.backends.backend_svg",
    "matplotlib.figure",
    "sacrebleu",
    "heed.cli.main",
    "heed.evaluate.after_training",
    "heed.export.huggingface",
    "heed.train.run",
    "heed.train.resolve",
)
"""What commands import, and children inherit."""


@dataclass(frozen=True)
class Ended:
    """How a command ended: its exit code (negative: the signal that killed it) and its output."""

    code: int
    output: str

    @property
    def has_traceback(self) -> bool:
        """Whether it printed a traceback."""
        return "Traceback (most recent call last)" in self.output


def import_once() -> None:
    """Import what commands need, before the first is forked."""
    import torch

    torch.set_num_threads(1)
    for name in IMPORTED_ONCE:
        import_module(name)


def run_heed(
    arguments: Sequence[str], *, cache: Path, prepare: Callable[[], None] | None = None
) -> Ended:
    """Run a command with this cache in a child; `prepare` is called in the child before it."""
    sys.stdout.flush()
    sys.stderr.flush()
    with tempfile.TemporaryFile() as output:
        child = os.fork()
        if child == 0:
            _run_in_child(arguments, cache, prepare, output.fileno())
        _, status = os.waitpid(child, 0)
        output.seek(0)
        text = output.read().decode(errors="replace")
    return Ended(os.waitstatus_to_exitcode(status), text)


def run_in_parallel(jobs: int, work: Callable[[int], Any]) -> list[Any]:
    """Call a function with 0, 1, … in as many forked processes; what they return, as JSON."""
    with tempfile.TemporaryDirectory() as name:
        paths = [Path(name) / str(number) for number in range(jobs)]
        children = [_fork_worker(work, number, path) for number, path in enumerate(paths)]
        for child in children:
            os.waitpid(child, 0)
        return [json.loads(path.read_text(encoding="utf-8")) for path in paths]


def _fork_worker(work: Callable[[int], Any], number: int, path: Path) -> int:
    """Fork a process that writes what `work` returns to a file; its number."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            path.write_text(json.dumps(work(number)), encoding="utf-8")
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return child


def _run_in_child(
    arguments: Sequence[str], cache: Path, prepare: Callable[[], None] | None, output: int
) -> None:
    """The child: the real entry point of the command line. It never returns."""
    code = 1
    try:
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.stdout = sys.stderr = os.fdopen(1, "w", encoding="utf-8", closefd=False)
        os.environ["HEED_CACHE"] = str(cache)
        from heed import plot
        from heed.cli.main import main

        plot.PNG_DPI = 16  # full figures would take half of the time
        if prepare is not None:
            prepare()
        sys.argv = ["heed", *arguments]
        main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(Exception):
            sys.stdout.flush()
        os._exit(code)
