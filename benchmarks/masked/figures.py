"""Everything there is to tell of the runs, as plain values without a word of the corpora."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from descent import paired
from descent.figures import tables_of
from reading import MACHINE, Facts, environments, evaluation, facts, read, spread
from ted.joined import welch

from heed.runs.run import Run
from masked.systems import (
    FIRST_SEED,
    PRETRAIN,
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
    lasting,
)
from masked.training import PRETRAINED, TASK, TEXT, tried


def gather(folder: Path) -> Facts:
    """All figures of the runs in a folder."""
    ways = {way: _way(folder, way) for way in WAYS}
    machine = read(folder / MACHINE)
    return {
        "machine": machine,
        "text": read(folder / TEXT),
        "pretraining": _pretraining(folder / PRETRAINED, machine.get("set_pretrain", [])),
        "tuning": {"recipe": TUNE, "changes": lasting(TUNING, machine.get("set", []))},
        "ways": ways,
        "same": _same(folder),
        "compared": _compared(folder, ways),
        "environment": environments(sorted(folder.glob("*/environment.json"))),
    }


def _pretraining(folder: Path, given: Sequence[str]) -> Facts:
    """How the guessing of hidden tokens went, evaluation by evaluation."""
    noted = facts(folder)
    if "ended" not in noted:
        return {}
    lines = [line for line in Run(folder).metrics() if line["event"] == "evaluate"]
    return {
        "recipe": PRETRAIN,
        "changes": lasting(SHAPE, READING, given),
        "parameters": noted["parameters"],
        "seconds": noted["seconds"]["train"],
        "curve": [
            {
                "epoch": line["epoch"],
                "step": line["step"],
                "train_loss": line["seen"]["loss"],
                "dev_loss": line["dev"]["loss"],
                "dev_accuracy": line["dev"]["accuracy"],
            }
            for line in lines
        ],
    }


def _way(folder: Path, way: str) -> Facts:
    """One way: all its trials, and what fresh seeds did at its best."""
    found = tried(folder, way)
    own = best(found)
    ends = {trial: _ended(folder, way, trial) for trial in TRIALS}
    told: Facts = {
        "label": WAYS[way],
        "trials": [
            {"rate": trial.rate, "dropout": trial.dropout, "dev": found.get(trial, end)}
            for trial, end in ends.items()
            if end is not None
        ],
        "best": None if own is None else {"rate": own.rate, "dropout": own.dropout},
        "at_edge": own is not None and own.at_edge,
    }
    return told | ({} if own is None else _fresh(_folders(folder, way, own)))


def _ended(folder: Path, way: str, trial: Trial) -> str | None:
    return facts(folder / Wanted(way, trial, FIRST_SEED).name).get("ended")


def _folders(folder: Path, way: str, trial: Trial) -> dict[int, Path]:
    """Of the fresh seeds that were scored."""
    paths = {one.seed: folder / one.name for one in fresh(way, trial)}
    return {seed: path for seed, path in paths.items() if {"dev", "test"} <= set(evaluation(path))}


def _fresh(folders: Mapping[int, Path]) -> Facts:
    """What the seeds did that the choice has not seen."""
    if not folders:
        return {}
    noted = [facts(path) for path in folders.values()]
    dev, test = (
        [evaluation(path)[split] for path in folders.values()] for split in ("dev", "test")
    )
    low, high = paired.span(tables_of(TASK, folders))
    return {
        "seeds": list(folders),
        "parameters": noted[0]["parameters"],
        "seconds": spread(one["seconds"]["train"] for one in noted),
        "dev": _accuracy(dev),
        "test": _accuracy(test) | {"low": low, "high": high},
        "clean": _accuracy(one["clean"] or one for one in test),
        "test_set": {key: test[0][key] for key in ("texts", "in_train", "hash")},
    }


def _accuracy(scores: Iterable[Facts]) -> Facts:
    return spread(one[TASK.metric] for one in scores)


def _same(folder: Path) -> Facts:
    """Whether all classifiers have as many weights, and all runs the very same tokenizer."""
    noted = {way: [facts(path) for path in sorted(folder.glob(f"{way}-*/"))] for way in WAYS}
    ended = [one for way in WAYS for one in noted[way] if "tokenizer" in one]
    marks = {one["tokenizer"] for one in [*ended, facts(folder / PRETRAINED)] if "tokenizer" in one}
    return {
        "runs": len(ended),
        "parameters": len({one["parameters"] for one in ended}) == 1,
        "tokenizer": len(marks) == 1,
    }


def _compared(folder: Path, ways: Mapping[str, Facts]) -> Facts:
    """Pretrained against from scratch, where each has two seeds or more."""
    if any(len(own.get("seeds", ())) < 2 for own in ways.values()):
        return {}
    tables = []
    for way in (TUNED, SCRATCH):
        own = _folders(folder, way, Trial(**ways[way]["best"]))
        tables.append(tables_of(TASK, own))
    found = paired.against(TASK, *tables)
    told = asdict(found) | {"p": found.p}
    for name in ("dev", "clean"):
        mine, theirs = ways[TUNED][name], ways[SCRATCH][name]
        told[name] = {
            "gain": mine["mean"] - theirs["mean"],
            "p_seeds": welch(mine["each"], theirs["each"]),
        }
    return told
