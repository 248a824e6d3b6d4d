"""Monitor real heed commands from outside: time, processor time and memory, `train`'s by part.

A part ends when its output exists: the run folder, a line on the console, a file. So heed itself
contains no code for it. A part's memory is anonymous memory, which cannot be dropped and read again
from a file, as Linux reports it (RssAnon), sampled fifty times a second.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from common import ROOT, environment

from heed.runs.run import Run

PAUSE = 0.02
LEARNING = (" tokenizer…", "Tokenizing the text…")
"""Messages of training after the doctor, while there is no tokenizer yet."""


@dataclass(frozen=True)
class Part:
    """Time and memory of one part."""

    seconds: float
    anonymous: int
    """Peak anonymous memory in bytes."""
    processor: float
    """Processor seconds of the process and of its children that have ended."""
    resident: int
    """Peak resident memory in bytes, with pages of files, which can be dropped."""


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
    spent = 0.0
    for name, done in _ends(Run(folder), cache, log, splits).items():
        anonymous = resident = 0
        used = spent
        while process.poll() is None and not done():
            now = read_memory(Path(f"/proc/{process.pid}/status"))
            anonymous = max(anonymous, now.get("RssAnon", 0))
            resident = max(resident, now.get("VmRSS", 0))
            spent = max(spent, processor_seconds(process.pid))
            time.sleep(PAUSE)
        ended = time.perf_counter()
        parts[name], last = Part(ended - last, anonymous, spent - used, resident), ended
    if process.wait():
        raise RuntimeError(log.read_text(encoding="utf-8"))
    return parts


@dataclass(frozen=True)
class CommandUsage:
    """What a command took, as the kernel counts it."""

    seconds: float
    processor: float
    """Processor seconds."""
    memory: int
    """Peak resident bytes."""
    code: int
    """The exit code."""


def run_command(arguments: Sequence[str], folder: Path, **variables: str) -> CommandUsage:
    """Run a heed command in a folder; its output goes to the file `out` there."""
    began = time.monotonic()
    with (folder / "out").open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "heed", *arguments],
            cwd=folder,
            env=environment(HEED_CACHE=str(folder / "cache"), **variables),
            stdout=out,
            stderr=subprocess.STDOUT,
        )
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return CommandUsage(
        time.monotonic() - began,
        usage.ru_utime + usage.ru_stime,
        usage.ru_maxrss * 1024,
        process.returncode,
    )


def _ends(run: Run, cache: Path, log: Path, splits: int) -> dict[str, Callable[[], bool]]:
    """For each part, a function that says whether it has ended."""

    def stores() -> bool:
        return len(list((cache / "store").glob("[!.]*/store.json"))) >= splits

    def first_line() -> bool:
        return run.metrics_path.exists() and run.metrics_path.stat().st_size > 0

    def said(messages: Sequence[str]) -> bool:
        text = log.read_text(encoding="utf-8")
        return any(message in text for message in messages)

    learning = run.tokenizer_path.exists
    return {
        "imports": run.recipe_path.exists,
        "doctor": lambda: learning() or said(LEARNING),
        "tokenizer": run.tokenizer_path.exists,
        "store": stores,
        "model, plan": run.environment_path.exists,
        "first step": first_line,
        "the rest": lambda: False,
    }


def read_memory(path: Path) -> dict[str, int]:
    """Bytes by name from `/proc/PID/status` or `/proc/meminfo`; {} if the process has ended."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    sizes = (line.partition(":") for line in lines if line.endswith(" kB"))
    return {name: int(size.removesuffix(" kB")) * 1024 for name, _, size in sizes}


def processor_seconds(process: int) -> float:
    """Processor seconds of a process and of its ended children; 0 of one that has just ended."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text(encoding="utf-8")
    except OSError:
        return 0.0
    # The name, in parentheses, may hold spaces; user and system time are fields 12 and 13 after it,
    # and those of ended children follow.
    return sum(map(int, stat.rpartition(")")[2].split()[11:15])) / os.sysconf("SC_CLK_TCK")


def descendants(process: int) -> list[int]:
    """The processes that this one started, and those that they started."""
    try:
        listed = Path(f"/proc/{process}/task/{process}/children").read_text(encoding="utf-8")
    except OSError:  # it has just ended
        return []
    children = [int(child) for child in listed.split()]
    return [*children, *(below for child in children for below in descendants(child))]
