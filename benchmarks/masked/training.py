"""Pretrains, tries and trains by the real commands; what is there already is not made again."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from descent.systems import TASKS
from descent.training import dev_figure
from reading import evaluation, facts, spent
from running import (
    FINISHED,
    SPLITS,
    Outcome,
    Plan,
    all_of,
    command,
    learn,
    learnt,
    note,
    outcome,
    parameters,
    settings,
)

from heed.runs.run import Run
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
)

TASK = TASKS[0]
"""SST-2, judged by accuracy."""
PRETRAINED = f"pretrained-{FIRST_SEED}"
TEXT = "text.json"
"""What is noted of the text beside the runs."""


@dataclass(frozen=True)
class Job(Plan):
    """What was asked for; `changes` are of the classifiers."""

    text: Path
    text_name: str
    reading: Sequence[str]
    """Changes of the pretraining; those of its model and tokenizer are for all."""


def train(job: Job, after: Callable[[], None]) -> bool:
    """Make what is not there yet; whether all of it now is. `after` follows whatever ends."""
    whole = _begin(job, after)
    for wanted in (_trials, _chosen):
        if whole:
            makers = {one.name: partial(_classifier, job, one) for one in wanted(job)}
            whole = all_of(job.jobs, makers, after, _say)
    return whole


def _begin(job: Job, after: Callable[[], None]) -> bool:
    """Pretrain, and use the other cores: look through the text, try what begins from scratch.

    One trial at a time, so that little is taken from the pretraining. The first is always tried: it
    learns the tokenizer, which the others then find.
    """
    with ThreadPoolExecutor(2) as pool:
        pretraining = pool.submit(outcome, partial(_pretrained, job))
        looking = pool.submit(_look, job)
        for number, one in enumerate(sweep(SCRATCH)):
            if number and pretraining.done():
                break
            _say(one.name, outcome(partial(_classifier, job, one)))
            after()
        looking.result()
        _say(PRETRAINED, pretraining.result())
    after()
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


def _say(name: str, ended: Outcome) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {name}: {ended[1]}", flush=True)


# ------------------------------------------------------------------------------------- one run


def _pretrained(job: Job) -> str:
    """See that the pretraining is there; what there is to say of it."""
    run = Run(job.runs / PRETRAINED)
    if not run.finished or "ended" not in facts(run.folder):
        _pretrain(job, run)
    return _told(run.folder)


def _pretrain(job: Job, run: Run) -> None:
    """From the text alone; the tokenizer has seen the training set too, as from scratch."""
    changes = [*SHAPE, *READING, *job.reading, f"seed={FIRST_SEED}"]
    changes.append(f"tokenizer.text={json.dumps([str(job.data / 'train.tsv')])}")
    files = ("--train", str(job.text), "--dev", str(job.data / "dev.tsv"))
    learn(job, run, PRETRAIN, *files, *settings(changes))
    _note_end(job, run)


def _classifier(job: Job, one: Wanted) -> str:
    """See that a run of either way is there, and scored where it is to be; what to say of it."""
    run = Run(job.runs / one.name)
    if "ended" not in facts(run.folder):
        _classify(job, one, run)
    if one.tested and facts(run.folder)["ended"] == FINISHED:
        for split in SPLITS:
            if split not in evaluation(run.folder):
                words = ("--split", split, "--json")
                command(job, run, split, "evaluate", str(run.folder), *words)
    return _told(run.folder)


def _classify(job: Job, one: Wanted, run: Run) -> None:
    """Train a classifier, and note how it ended."""
    changes = [*begins(job, one.way), *TUNING, *job.changes]
    changes += [*one.trial.changes, f"seed={one.seed}"]
    ended = learnt(job, run, TUNE, "--data", str(job.data), *settings(changes))
    if ended == FINISHED:
        _note_end(job, run)
    else:
        note(run, {"ended": ended})


def begins(job: Job, way: str) -> list[str]:
    """What tells a way where to begin: the pretrained run has all else that it needs."""
    if way == TUNED:
        return [f"init.from={job.runs / PRETRAINED}"]
    text = f"tokenizer.text={json.dumps([str(job.text)])}"
    return [RANDOM, *shape([*SHAPE, *job.reading]), text]


def _note_end(job: Job, run: Run) -> None:
    """What tells that a run is there, and what shows that both ways have the same model."""
    mark = hashlib.sha256(run.tokenizer_path.read_bytes()).hexdigest()
    counted = {"parameters": parameters(run.weights_path), "tokenizer": mark}
    note(run, counted | {"jobs": job.jobs, "ended": FINISHED})
    shutil.rmtree(run.checkpoints, ignore_errors=True)  # large, and of no more use


def _told(folder: Path) -> str:
    """The last figures of a run."""
    noted = facts(folder)
    lines = [line["dev"] for line in Run(folder).metrics() if line["event"] == "evaluate"]
    figures = [f"dev loss {lines[-1]['loss']:.4f}"] if lines else []
    if lines and (figure := dev_figure(TASK, folder)) is not None:
        figures.append(f"accuracy {figure:.4f}")
    return f"{noted['ended']}, {', '.join(filter(None, [*figures, spent(noted)]))}"
