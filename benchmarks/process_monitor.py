"""Monitor a real `heed train` from outside: time and memory of each part.

A part ends when its output exists: the run folder, a line on the console, a file. So heed itself
contains no code for it. Memory is anonymous memory, which cannot be dropped and read again from a
file, as Linux reports it (RssAnon), sampled fifty times a second.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from common import ROOT, environment

from heed.runs.run import Run

PAUSE = 0.02
LEARNING = "Learning a "
"""The message of training after the doctor, while there is no tokenizer yet."""


@dataclass(frozen=True)
class Part:
    """Time and memory of one part."""

    seconds: float
    anonymous: int
    """Peak anonymous memory in bytes."""


def watch(options: Sequence[str], *, folder: Path, cache: Path, splits: int) -> dict[str, Part]:
    """Run the real training command with these options; returns its parts in order."""
    log = folder.with_suffix(".log")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w", encoding="utf-8") as output:
        last = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-m", "heed", "train", *options, "--run", str(folder)],
            cwd=ROOT,
            env=environment(HEED_CACHE=str(cache)),
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    parts: dict[str, Part] = {}
    for name, done in _ends(Run(folder), cache, log, splits).items():
        most = 0
        while process.poll() is None and not done():
            most = max(most, _anonymous(process.pid))
            time.sleep(PAUSE)
        now = time.perf_counter()
        parts[name], last = Part(now - last, most), now
    if process.wait():
        raise RuntimeError(log.read_text(encoding="utf-8"))
    return parts


def _ends(run: Run, cache: Path, log: Path, splits: int) -> dict[str, Callable[[], bool]]:
    """For each part, a function that says whether it has ended."""

    def stores() -> bool:
        return len(list((cache / "store").glob("[!.]*/store.json"))) >= splits

    def first_line() -> bool:
        return run.metrics_path.exists() and run.metrics_path.stat().st_size > 0

    learning = run.tokenizer_path.exists
    return {
        "imports": run.recipe_path.exists,
        "doctor": lambda: learning() or LEARNING in log.read_text(encoding="utf-8"),
        "tokenizer": run.tokenizer_path.exists,
        "store": stores,
        "model, plan": run.environment_path.exists,
        "first step": first_line,
        "the rest": lambda: False,
    }


def _anonymous(process: int) -> int:
    try:
        status = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    except OSError:  # the process has just ended
        return 0
    kilobytes = [line.split()[1] for line in status.splitlines() if line.startswith("RssAnon")]
    return int(kilobytes[0]) * 1024 if kilobytes else 0
