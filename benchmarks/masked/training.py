"""Pretrains, tries and trains by the real commands; what is there already is not made again."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from descent.systems import TASKS
from descent.training import NOT_FINITE, dev_figure
from ted.training import (
    SPLITS,
    FailedError,
    Plan,
    StoppedError,
    command,
    evaluation,
    facts,
    note,
    parameters,
)

from heed.runs import Run
from masked.overlap import described
from masked.systems import (
    FIRST_SEED,
    PRETRAIN,
    RANDOM,
    READING,
    SCRATCH,
    SHAPE,
    TRIALS,
    TUNE,
    TUNED,
    TUNING,
    WAYS,
    Trial,
    Wanted,
    best,
    fresh,
    shape,
    sweep,
    told,
)

TASK = TASKS[0]
"""SST-2, judged by accuracy."""
PRETRAINED = f"pretrained-{FIRST_SEED}"
TEXT = "text.json"
"""What is noted of the text beside the runs."""
Outcome = tuple[bool, str]
"""Whether a run is there, and what became of it in words."""


@dataclass(frozen=True)
class Job(Plan):
    """What was asked for; `changes` are of the classifiers."""

    text: Path
    text_name: str
    reading: Sequence[str]
    """Changes of the pretraining; those of its model and tokenizer are for all."""


def train(job: Job, after: Callable[[], None]) -> bool:
    """Make what is not there yet; whether all of it now is. `after` is called now and then."""
    job.runs.mkdir(parents=True, exist_ok=True)
    whole = _begin(job)
    after()
    for wanted in (_trials, _chosen):
        whole = whole and _all(job, wanted(job))
        after()
    return whole


def _begin(job: Job) -> bool:
    """Pretrain, and use the other cores: look through the text, try what begins from scratch.

    One trial at a time, so that little is taken from the pretraining. The first is always tried: it
    learns the tokenizer, which the others then find.
    """
    with ThreadPoolExecutor(2) as pool:
        pretraining = pool.submit(_outcome, job, PRETRAINED, _pretrain)
        looking = pool.submit(_look, job)
        for number, one in enumerate(sweep(SCRATCH)):
            if number and pretraining.done():
                break
            _say(one.name, _classifier(job, one))
        looking.result()
        _say(PRETRAINED, pretraining.result())
    return pretraining.result()[0]


def _look(job: Job) -> None:
    """Note what the text is, once."""
    path = job.runs / TEXT
    if not path.exists():
        known = {"name": job.text_name} | described(job.text, job.data / "test.tsv")
        path.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")


def _trials(job: Job) -> list[Wanted]:
    return [one for way in WAYS for one in sweep(way)]


def _chosen(job: Job) -> list[Wanted]:
    """Both ways at their best, in turns."""
    at = {way: best(tried(job.runs, way)) for way in WAYS}
    lists = [fresh(way, trial) for way, trial in at.items() if trial is not None]
    return [one for both in zip(*lists, strict=True) for one in both]


def tried(runs: Path, way: str) -> dict[Trial, float]:
    """The figures on dev; a trial that ended in numbers that are none is left out."""
    found = {
        trial: dev_figure(TASK, runs / Wanted(way, trial, FIRST_SEED).name) for trial in TRIALS
    }
    return {trial: figure for trial, figure in found.items() if figure is not None}


def _all(job: Job, todo: Sequence[Wanted]) -> bool:
    """Several runs at a time; whether all of them are there."""
    with ThreadPoolExecutor(job.jobs) as pool:
        futures: dict[Future[Outcome], str] = {
            pool.submit(_classifier, job, one): one.name for one in todo
        }
        for future in as_completed(futures):
            _say(futures[future], future.result())
    return all(future.result()[0] for future in futures)


def _say(name: str, outcome: Outcome) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {name}: {outcome[1]}", flush=True)


# ------------------------------------------------------------------------------------- one run


def _outcome(job: Job, name: str, make: Callable[[Job, Run], None]) -> Outcome:
    """Make a run that is not there, and say how that ended."""
    run = Run(job.runs / name)
    try:
        make(job, run)
        return True, _told(run.folder)
    except StoppedError as stopped:
        return False, str(stopped)
    except FailedError as failure:
        return False, f"FAILED: {failure}"
    except (OSError, ValueError) as error:  # of one run: it shall not stop the others
        return False, f"FAILED: {error!r}"


def _pretrain(job: Job, run: Run) -> None:
    """From the text alone; the tokenizer has seen the training set too, as from scratch."""
    if run.finished and "ended" in facts(run.folder):
        return
    changes = [*SHAPE, *READING, *job.reading, f"seed={FIRST_SEED}"]
    changes.append(f"tokenizer.text={json.dumps([str(job.data / 'train.tsv')])}")
    files = ("--train", str(job.text), "--dev", str(job.data / "dev.tsv"))
    _learn(job, run, PRETRAIN, *files, *told(changes))
    _note_end(job, run)


def _classifier(job: Job, one: Wanted) -> Outcome:
    """One run of either way."""

    def make(job: Job, run: Run) -> None:
        if "ended" not in facts(run.folder):
            _classify(job, one, run)
        if one.tested and facts(run.folder)["ended"] == "finished":
            for split in SPLITS:
                if split not in evaluation(run.folder):
                    words = ("--split", split, "--json")
                    command(job, run, split, "evaluate", str(run.folder), *words)

    return _outcome(job, one.name, make)


def _classify(job: Job, one: Wanted, run: Run) -> None:
    """Train a classifier, and note how it ended: too high a rate is a result."""
    try:
        changes = [*begins(job, one.way), *TUNING, *job.changes]
        changes += [*one.trial.changes, f"seed={one.seed}"]
        _learn(job, run, TUNE, "--data", str(job.data), *told(changes))
    except FailedError:
        log = run.folder.with_name(f"{run.folder.name}.log").read_text(encoding="utf-8")
        if NOT_FINITE not in " ".join(log.split()):
            raise
        run.folder.mkdir(exist_ok=True)  # of a run that had learnt nothing there is none
        note(run, {"ended": "diverged"})
        return
    _note_end(job, run)


def begins(job: Job, way: str) -> list[str]:
    """What tells a way where to begin: the pretrained run has all else that it needs."""
    if way == TUNED:
        return [f"init.from={job.runs / PRETRAINED}"]
    text = f"tokenizer.text={json.dumps([str(job.text)])}"
    return [RANDOM, *shape([*SHAPE, *job.reading]), text]


def _learn(job: Job, run: Run, *words: str) -> None:
    """Train or resume."""
    folder = str(run.folder)
    if not run.finished and any(run.checkpoints.glob("step-*")):
        command(job, run, "train", "resume", folder)
    elif not run.finished:
        shutil.rmtree(folder, ignore_errors=True)  # of one that never began to learn
        command(job, run, "train", "train", *words, "--run", folder)


def _note_end(job: Job, run: Run) -> None:
    """What tells that a run is there, and what shows that both ways have the same model."""
    mark = hashlib.sha256(run.tokenizer_path.read_bytes()).hexdigest()
    counted = {"parameters": parameters(run.weights_path), "tokenizer": mark}
    note(run, counted | {"jobs": job.jobs, "ended": "finished"})
    shutil.rmtree(run.checkpoints, ignore_errors=True)  # large, and of no more use


def _told(folder: Path) -> str:
    """The last figures of a run."""
    noted: Mapping[str, Any] = facts(folder)
    lines = [line["dev"] for line in Run(folder).metrics() if line["event"] == "evaluate"]
    figures = [f"dev loss {lines[-1]['loss']:.4f}"] if lines else []
    if lines and (figure := dev_figure(TASK, folder)) is not None:
        figures.append(f"accuracy {figure:.4f}")
    spent = [f"{stage} {value:.0f} s" for stage, value in noted.get("seconds", {}).items()]
    return f"{noted['ended']}, {', '.join([*figures, *spent])}"
