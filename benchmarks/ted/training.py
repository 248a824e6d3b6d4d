"""Trains the systems by the real commands, and packs what a report needs of their run folders.

A machine that is lent for a while is thrown away after: no run is begun after the deadline, one
that still goes on a little later is stopped (it saves itself, and is resumed the next time), and
the pack is written anew whenever a run ends.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from safetensors.numpy import load_file

from heed.runs import Run
from ted.systems import GROUPS, System

ROOT = Path(__file__).resolve().parents[2]
SPLITS = ("test", "dev")
FACTS = "benchmark.json"
"""What only the trainer knows: seconds of each command, parameters, runs side by side."""
EVALUATION = "evaluation.json"
PACKED = ("recipe.toml", "metrics.jsonl", "environment.json", EVALUATION, FACTS)
PACKED_FOLDERS = ("translations", "figures")
SAVES_WITHIN = 20.0
"""Seconds that a run gets to save itself when it is stopped."""


class StoppedError(Exception):
    """There was no time left for a command."""


class FailedError(Exception):
    """A command ended with an error: its last words."""


@dataclass(frozen=True)
class Plan:
    """What was asked for."""

    data: Path
    runs: Path
    changes: Sequence[str]
    device: str
    jobs: int
    deadline: float
    """On the clock of `time.monotonic`: begin nothing after it,"""
    stop: float
    """and stop what still runs."""


def wanted(groups: Sequence[str], seeds: int) -> list[tuple[System, int]]:
    """The runs in order: a group after the other, in each all systems before the next seed."""
    listed = [
        (system, seed)
        for group in GROUPS
        if group in groups
        for seed in range(seeds)
        for system in GROUPS[group]
    ]
    return list(dict.fromkeys(listed))  # a system may stand in two groups


def train(plan: Plan, todo: Sequence[tuple[System, int]], pack_to: Path | None) -> bool:
    """Train what is not trained yet; whether all of it now is."""
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
            if pack_to is not None and done:
                pack(plan.runs, pack_to)
    if pack_to is not None:
        pack(plan.runs, pack_to)
    return whole


def _outcome(plan: Plan, system: System, seed: int) -> tuple[bool, str]:
    """Whether a run is there, trained and scored, and what became of it in words."""
    run = Run(plan.runs / f"{system.name}-{seed}")
    try:
        if _missing(run):
            _complete(plan, system, seed, run)
            return True, _told(run)
        return True, f"there already, {_told(run)}"
    except StoppedError as stopped:
        return False, str(stopped)
    except FailedError as failure:
        return False, f"FAILED: {failure}"
    except (OSError, ValueError) as error:  # of one run: it shall not stop the others
        return False, f"FAILED: {error!r}"


def _missing(run: Run) -> list[str]:
    """The splits that a run has no score for."""
    return [split for split in SPLITS if split not in evaluation(run.folder)]


def evaluation(folder: Path) -> dict[str, Any]:
    """What `heed evaluate` kept, by split."""
    path = folder / EVALUATION
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def _complete(plan: Plan, system: System, seed: int, run: Run) -> None:
    """Train or resume a run, score it, and keep what a report needs."""
    folder = str(run.folder)
    if not run.finished and any(run.checkpoints.glob("step-*")):
        command(plan, run, "train", "resume", folder)
    elif not run.finished:
        shutil.rmtree(folder, ignore_errors=True)  # of one that failed before it learnt anything
        changes = [f"seed={seed}", *plan.changes, *system.changes]
        told = [word for change in changes for word in ("--set", change)]
        data = ("--data", str(plan.data))
        command(plan, run, "train", "train", system.recipe, *data, "--run", folder, *told)
    for split in _missing(run):
        command(plan, run, split, "evaluate", folder, "--split", split, "--json")
    note(run, {"parameters": parameters(run.weights_path), "jobs": plan.jobs})
    shutil.rmtree(run.checkpoints, ignore_errors=True)  # large, and of no more use


def command(plan: Plan, run: Run, stage: str, *arguments: str) -> None:
    """One heed command; its output goes to a file beside the run, its seconds to the facts."""
    began = time.monotonic()
    if began > (plan.deadline if stage == "train" else plan.stop):
        raise StoppedError(f"no time is left to begin with {stage}")
    log = run.folder.with_name(f"{run.folder.name}.log")
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    with log.open("a", encoding="utf-8") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "heed", *arguments, "--device", plan.device],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            stdout=file,
            stderr=subprocess.STDOUT,
        )
        ended_early = stopped(process, plan.stop)
    if run.folder.exists():
        spent = facts(run.folder).get("seconds", {})
        spent[stage] = round(spent.get(stage, 0.0) + time.monotonic() - began, 1)
        if run.metrics_path.exists():  # a folder that holds nothing else is a new one to `train`
            note(run, {"seconds": spent})
    if ended_early:
        raise StoppedError(f"stopped while at {stage}: no time is left")
    if process.returncode:
        last = log.read_text(encoding="utf-8").strip().splitlines()[-1:]
        raise FailedError(" ".join([f"{stage} ended with {process.returncode}:", *last]))


def stopped(process: subprocess.Popen[bytes], stop: float) -> bool:
    """Wait for a process; whether it had to be stopped."""
    try:
        process.wait(timeout=max(0.0, stop - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(timeout=SAVES_WITHIN)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        return process.returncode != 0
    return False


def facts(folder: Path) -> dict[str, Any]:
    """What the trainer noted of a run."""
    path = folder / FACTS
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def note(run: Run, more: dict[str, Any]) -> None:
    """Add to what is noted of a run."""
    text = json.dumps(facts(run.folder) | more, indent=1)
    (run.folder / FACTS).write_text(text + "\n", encoding="utf-8")


def parameters(weights: Path) -> int:
    """How many numbers a file of weights holds."""
    return sum(array.size for array in load_file(weights).values())


def _told(run: Run) -> str:
    seconds = facts(run.folder).get("seconds", {})
    score = evaluation(run.folder)["test"]["bleu"]
    spent = ", ".join(f"{stage} {value:.0f} s" for stage, value in seconds.items())
    return f"test BLEU {score:.2f}" + (f" ({spent})" if spent else "")


def pack(
    runs: Path,
    path: Path,
    files: Sequence[str] = PACKED,
    folders: Sequence[str] = PACKED_FOLDERS,
) -> None:
    """All run folders without their weights, in one file that is there whole or as it was."""
    mode: Literal["w:xz", "w:gz"] = "w:xz" if path.suffix == ".xz" else "w:gz"
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".draft-{path.name}")
    with tarfile.open(draft, mode) as archive:
        for file in _worth_keeping(runs, files, folders):
            archive.add(file, arcname=file.relative_to(runs).as_posix())
    draft.replace(path)


def _worth_keeping(runs: Path, files: Sequence[str], folders: Sequence[str]) -> Iterator[Path]:
    yield from sorted([*runs.glob("*.log"), *runs.glob("*.json")])
    for folder in sorted({path.parent for name in files for path in runs.glob(f"*/{name}")}):
        yield from (folder / name for name in files if (folder / name).exists())
        for below in folders:
            yield from sorted((folder / below).glob("[!.]*"))  # no drafts
