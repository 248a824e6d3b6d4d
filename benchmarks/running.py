"""Makes run folders by the real commands, several at a time, and packs what a report needs of them.

A machine that is lent for a while is thrown away after: no run is begun after the deadline, one
that still goes on a little later is stopped (it saves itself, and is resumed the next time), and
the pack is written anew whenever a run ends.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Literal

from reading import EVALUATION, FACTS, facts
from safetensors.numpy import load_file

from heed.runs.run import Run

ROOT = Path(__file__).resolve().parents[1]
SPLITS = ("test", "dev")
PACKED = ("recipe.toml", "metrics.jsonl", "environment.json", EVALUATION, FACTS)
SAVES_WITHIN = 20.0
"""Seconds that a run gets to save itself when it is stopped."""
NOT_FINITE = "not finite"
"""In the last words of a run that a rate was too high for."""
FINISHED, DIVERGED = "finished", "diverged"
"""How learning ends, as it is noted."""
Outcome = tuple[bool, str]
"""Whether a run is there, and what became of it in words."""


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


# ----------------------------------------------------------------------------------- several runs


def all_of(
    jobs: int,
    todo: Mapping[str, Callable[[], str]],
    after: Callable[[], None],
    say: Callable[[str, Outcome], None] | None = None,
) -> bool:
    """Make runs, by name, so many at a time; whether all of them are there.

    `after` is called whenever one is there, and at the end; those that end meanwhile share a call.
    """
    whole, say = True, say or _counted(len(todo))
    with ThreadPoolExecutor(jobs) as pool:
        names = {pool.submit(outcome, make): name for name, make in todo.items()}
        going = set(names)
        while going:
            ended, going = wait(going, return_when=FIRST_COMPLETED)
            for future in ended:
                say(names[future], future.result())
            there = [future.result()[0] for future in ended]
            whole &= all(there)
            if any(there):
                after()
    after()  # one that failed has left its last words
    return whole


def _counted(total: int) -> Callable[[str, Outcome], None]:
    """Says what became of a run, with its number and the minutes since the first began."""
    began, numbers = time.monotonic(), count(1)

    def say(name: str, ended: Outcome) -> None:
        minutes = (time.monotonic() - began) / 60
        print(f"{next(numbers)}/{total}  {minutes:5.1f} min  {name}: {ended[1]}", flush=True)

    return say


def outcome(make: Callable[[], str]) -> Outcome:
    """Make a run, which tells of itself; what goes wrong with it shall not stop the others."""
    try:
        return True, make()
    except StoppedError as late:
        return False, str(late)
    except FailedError as failure:
        return False, f"FAILED: {failure}"
    except (OSError, ValueError, KeyError) as error:
        return False, f"FAILED: {error!r}"


# ---------------------------------------------------------------------------------------- one run


def learn(plan: Plan, run: Run, *words: str) -> None:
    """Train a run, as `heed train` is told by the words; or resume it; or find it finished."""
    folder = str(run.folder)
    if not run.finished and any(run.checkpoints.glob("step-*")):
        command(plan, run, "train", "resume", folder)
    elif not run.finished:
        shutil.rmtree(folder, ignore_errors=True)  # of one that failed before it learnt anything
        command(plan, run, "train", "train", *words, "--run", folder)


def learnt(plan: Plan, run: Run, *words: str) -> str:
    """The same, and how it ended: too high a rate is a result."""
    log = log_of(run)
    before = log.stat().st_size if log.exists() else 0  # what earlier trials said
    try:
        learn(plan, run, *words)
    except FailedError:
        said = log.read_bytes()[before:].decode("utf-8", "replace")
        if NOT_FINITE not in " ".join(said.split()):
            raise
        run.folder.mkdir(exist_ok=True)  # of a run that had learnt nothing there is none
        return DIVERGED
    return FINISHED


def settings(changes: Iterable[str]) -> list[str]:
    """Changes of a recipe as the command line has them."""
    return [word for change in changes for word in ("--set", change)]


def command(plan: Plan, run: Run, stage: str, *arguments: str) -> None:
    """One heed command for a run."""
    spawn(plan, run, stage, "-m", "heed", *arguments, "--device", plan.device)


def spawn(plan: Plan, run: Run, stage: str, *arguments: str) -> None:
    """A Python of its own; its output goes to a file beside the run, its seconds to the facts."""
    began = time.monotonic()
    if began > (plan.deadline if stage == "train" else plan.stop):
        raise StoppedError(f"no time is left to begin with {stage}")
    with log_of(run).open("a", encoding="utf-8") as file:
        begun = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=ROOT,
            env=environment(),
            stdout=file,
            stderr=subprocess.STDOUT,
        )
        ended_early = stopped(begun, plan.stop)
    if run.metrics_path.exists():  # a folder that holds nothing else is a new one to `train`
        seconds = facts(run.folder).get("seconds", {})
        seconds[stage] = round(seconds.get(stage, 0.0) + time.monotonic() - began, 1)
        note(run, {"seconds": seconds})
    if ended_early:
        raise StoppedError(f"stopped while at {stage}: no time is left")
    if begun.returncode:
        last = log_of(run).read_text(encoding="utf-8").strip().splitlines()[-1:]
        raise FailedError(" ".join([f"{stage} ended with {begun.returncode}:", *last]))


def environment(**more: str) -> dict[str, str]:
    """For a process that shall find this checkout first, and all that this one finds."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **more}


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


def log_of(run: Run) -> Path:
    """Where the output of a run's commands is."""
    return run.folder.with_name(f"{run.folder.name}.log")


def note(run: Run, more: Mapping[str, Any]) -> None:
    """Add to what is noted of a run; a pack that is written meanwhile has the old or the new."""
    draft = run.folder / f".draft-{FACTS}"
    draft.write_text(json.dumps({**facts(run.folder), **more}, indent=1) + "\n", encoding="utf-8")
    draft.replace(run.folder / FACTS)


def parameters(weights: Path) -> int:
    """How many numbers a file of weights holds."""
    return sum(array.size for array in load_file(weights).values())


# --------------------------------------------------------------------------------------- the pack


def packing(runs: Path, path: Path | None, folders: Sequence[str] = ()) -> Callable[[], None]:
    """What writes the pack anew at every call, where one is asked for."""

    def keep() -> None:
        if path is not None:
            pack(runs, path, folders)

    return keep


def pack(runs: Path, path: Path, folders: Sequence[str] = ()) -> None:
    """All run folders without their weights, in one file that is there whole or as it was."""
    mode: Literal["w:xz", "w:gz"] = "w:xz" if path.suffix == ".xz" else "w:gz"
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".draft-{path.name}")
    with tarfile.open(draft, mode) as archive:
        for file in _worth_keeping(runs, folders):
            _add(archive, file, file.relative_to(runs).as_posix())
    draft.replace(path)


def _add(archive: tarfile.TarFile, file: Path, name: str) -> None:
    """Add what is there at one moment: other runs go on, and may write to it or begin anew."""
    try:
        info, content = archive.gettarinfo(file, name), file.read_bytes()
    except FileNotFoundError:
        return
    info.size = len(content)
    archive.addfile(info, io.BytesIO(content))


def _worth_keeping(runs: Path, folders: Sequence[str]) -> Iterator[Path]:
    yield from sorted([*runs.glob("*.log"), *runs.glob("*.json")])
    for folder in sorted({path.parent for name in PACKED for path in runs.glob(f"*/{name}")}):
        yield from (folder / name for name in PACKED if (folder / name).exists())
        for below in folders:
            yield from sorted((folder / below).glob("[!.]*"))  # no drafts
