"""Trains the models by the real command, several at a time, and has each judged.

What is there already is not made again; a run that was stopped is resumed.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from ted.systems import System
from ted.training import (
    ROOT,
    FailedError,
    Plan,
    StoppedError,
    command,
    facts,
    note,
    pack,
    parameters,
    stopped,
)

from heed.runs import Run
from nanolm.systems import GROUPS

SCRIPT = ROOT / "benchmarks" / "nano.py"
JUDGED = "judged"


def wanted(groups: Sequence[str], seeds: int) -> list[tuple[System, int]]:
    """The runs in order: all systems before the next seed, so that each has as many."""
    listed = [
        (system, seed)
        for seed in range(seeds)
        for group in GROUPS
        if group in groups
        for system in GROUPS[group]
    ]
    return list(dict.fromkeys(listed))  # a system may stand in two groups


def train(plan: Plan, todo: Sequence[tuple[System, int]], pack_to: Path | None) -> bool:
    """Train and judge what is not there yet; whether all of it now is."""
    plan.runs.mkdir(parents=True, exist_ok=True)
    began, whole = time.monotonic(), True
    with ThreadPoolExecutor(plan.jobs) as pool:
        futures = {
            pool.submit(_outcome, plan, system, seed): f"{system.name}-{seed}"
            for system, seed in todo
        }
        for number, future in enumerate(as_completed(futures), 1):
            done, words = future.result()
            whole &= done
            minutes = (time.monotonic() - began) / 60
            said = f"{number}/{len(todo)}  {minutes:5.1f} min  {futures[future]}: {words}"
            print(said, flush=True)
    if pack_to is not None:
        pack(plan.runs, pack_to, folders=())
    return whole


def _outcome(plan: Plan, system: System, seed: int) -> tuple[bool, str]:
    """Whether a run is there, trained and judged, and what became of it in words."""
    run = Run(plan.runs / f"{system.name}-{seed}")
    try:
        before = "there already, " if JUDGED in facts(run.folder) else ""
        if not before:
            _complete(plan, system, seed, run)
        noted = facts(run.folder)
        seconds = ", ".join(f"{name} {spent:.0f} s" for name, spent in noted["seconds"].items())
        return True, f"{before}dev loss {noted[JUDGED]['batched']:.4f} ({seconds})"
    except StoppedError as late:
        return False, str(late)
    except FailedError as failure:
        return False, f"FAILED: {failure}"
    except (OSError, ValueError, KeyError) as error:  # of one run: it shall not stop the others
        return False, f"FAILED: {error!r}"


def _complete(plan: Plan, system: System, seed: int, run: Run) -> None:
    """Train or resume a run, and have it judged."""
    folder = str(run.folder)
    if not run.finished and any(run.checkpoints.glob("step-*")):
        command(plan, run, "train", "resume", folder)
    elif not run.finished:
        shutil.rmtree(folder, ignore_errors=True)  # of one that failed before it learnt anything
        changes = [f"seed={seed}", *system.changes, *plan.changes]
        told = [word for change in changes for word in ("--set", change)]
        data = ("--data", str(plan.data))
        command(plan, run, "train", "train", system.recipe, *data, "--run", folder, *told)
    mark = hashlib.sha256(run.weights_path.read_bytes()).hexdigest()
    note(run, {"parameters": parameters(run.weights_path), "jobs": plan.jobs, "weights": mark})
    _judge(plan, run)  # last: a run that was judged is complete
    shutil.rmtree(run.checkpoints, ignore_errors=True)  # large, and of no more use


def _judge(plan: Plan, run: Run) -> None:
    """In a process of its own, for it takes a core as training does."""
    began = time.monotonic()
    if began > plan.stop:
        raise StoppedError("no time is left to judge it")
    log = run.folder.with_name(f"{run.folder.name}.log")
    with log.open("a", encoding="utf-8") as file:
        words = [sys.executable, str(SCRIPT), "judge", str(run.folder), "--device", plan.device]
        process = subprocess.Popen(words, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT)
        too_late = stopped(process, plan.stop)
    if too_late:
        raise StoppedError("stopped while it was judged: no time is left")
    if process.returncode:
        last = log.read_text(encoding="utf-8").strip().splitlines()[-1:]
        raise FailedError(" ".join([f"judging ended with {process.returncode}:", *last]))
    spent = {"judge": round(time.monotonic() - began, 1)}
    note(run, {"seconds": facts(run.folder).get("seconds", {}) | spent})
