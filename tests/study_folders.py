"""Study folders without training: declared, with states and records of simulated runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from heed import checksums
from heed.config import Recipe
from heed.config.task_metrics import TASK_METRICS
from heed.metrics.item_metrics import BLEU_COUNTS, item_metrics
from heed.runs.item_counts import IN_TRAIN, ItemCounts
from heed.study.run_records import SUFFIX, ScoredRun, write_record
from heed.study.study_config import StudyConfig
from heed.study.study_folder import create_study_folder
from heed.study.study_systems import expand_systems
from heed.study.trials import RECORDS, TRIALS, Trial, TrialState, write_state

ITEMS = 150
UNSEEN = {"bob": 0.2}
"""The share of words that train does not have, by set; 0.05 in others."""
RECIPES = {
    "translate": "demo-translate",
    "classify": "demo-classify",
    "generate": "demo-generate",
}


def make_items(
    random: np.random.Generator,
    quality: float,
    set_name: str,
    *,
    task: str = "translate",
    fall: float = 0.0,
    items: int = ITEMS,
) -> ItemCounts:
    """Item counts of a model of this quality, which falls by so much on the longest texts.

    Lengths and words of the texts are the same in every call for one set.
    """
    texts = np.random.default_rng(sum(map(ord, set_name)))
    words = texts.integers(4, 40, items).astype(float)
    unseen = texts.binomial(words.astype(int), UNSEEN.get(set_name, 0.05)).astype(float)
    share = quality - fall * (words - 4) / 36
    if task == "translate":
        length = words.astype(int) + 2
        share = np.clip(share + random.normal(0, 0.08, items), 0.05, 0.95)
        rows = [length, length, *(random.binomial(length - i, share ** (i + 1)) for i in range(4))]
        rows += [length - i for i in range(4)]
        columns = {f"bleu.{n}": r.astype(float) for n, r in zip(BLEU_COUNTS, rows, strict=True)}
    elif task == "classify":
        label = texts.integers(3, size=items)
        correct = random.random(items) < share
        columns = {
            "label": label.astype(float),
            "predicted": np.where(correct, label, (label + 1) % 3).astype(float),
            "log_probability": np.log(np.where(correct, 0.8, 0.1)),
        }
    else:
        tokens = words + 1
        # A word that is not in train costs three nats more.
        loss = tokens * (4 - share + random.normal(0, 0.1, items)) + 3 * unseen
        columns = {
            "loss": loss,
            "tokens": tokens,
            "words": words,
            "bytes": 5 * words,
            "correct": np.floor(tokens * share),
        }
    columns |= {
        "text.words": words,
        "text.unseen": unseen,
        "text.surprisal": np.round(1000 * (6 * words + 4 * unseen + texts.normal(0, 2, items))),
        "text.tokens": words + unseen,
        "text.unknown": np.zeros(items),
        IN_TRAIN: np.zeros(items),
    }
    return ItemCounts(
        task,
        set_name,
        f"text of {set_name}",
        columns,
        {"bleu": "tok:13a"} if task == "translate" else {},
        classes=("a", "b", "c") if task == "classify" else (),
        settings={"tokenizer": "t"} if task == "generate" else {},
    )


def make_history(
    random: np.random.Generator, level: float, *, rows: int = 20, overfit: float = 0.0
) -> list[dict[str, Any]]:
    """Rows of training and evaluation: dev loss falls to `level`, plus `overfit` at the end."""
    history: list[dict[str, Any]] = []
    evaluations = rows // 2
    for step in range(10, 10 * evaluations + 1, 10):
        share = step / (10 * evaluations)
        place = {"step": step, "epoch": share, "tokens": 100 * step, "seconds": float(step)}
        fallen = level + 3 * (1 - share) ** 2
        history.append({"event": "train", **place, "train/loss": fallen, "train/lr": 0.001})
        noise = random.normal(0, 0.01)
        dev = {"dev/loss": fallen + overfit * share**2 + noise}
        train = {"train-set/loss": fallen - 0.1 - overfit * share**2 + noise}
        seen = {"seen/loss": fallen + 0.2, "time/tokens_per_second": 1000.0}
        history.append({"event": "evaluate", **place, **dev, **train, **seen})
    return history


def write_study(
    folder: Path,
    qualities: Mapping[str, float] | Callable[[Mapping[str, Any]], float],
    *,
    task: str = "translate",
    spread: float = 0.005,
    fall: Mapping[str, float] | None = None,
    overfit: Mapping[str, float] | None = None,
    failed: Sequence[str] = (),
    waiting: Sequence[str] = (),
    items: int = ITEMS,
    rows: int = 20,
    **tables: Any,
) -> Path:
    """Write a study with finished final trials; returns its folder.

    `qualities` are by system, or a function of its changes. `failed` and `waiting` are trials.
    `rows` are those of a history. Further keys are those of the study file.
    """
    random = np.random.default_rng(1)
    tables = {
        "name": folder.name,
        "recipe": RECIPES[task],
        "metric": TASK_METRICS[task][0],
    } | tables
    tables.setdefault("sets", ["test"])
    if not callable(qualities) and "systems" not in tables and "grid" not in tables:
        tables["systems"] = [
            {"name": name, "set": {"model.width": 8 * number}}
            for number, name in enumerate(qualities, 4)
        ]
    config = StudyConfig.of(tables)
    create_study_folder(folder, config)
    (folder / TRIALS).mkdir()
    number = 0
    for seed in config.seeds:
        for system in expand_systems(config):
            changes, name = system.changes, f"{system.name}-seed{seed}"
            trial = Trial(name, number, system.name, changes, system.recipe, seed)
            number += 1
            if name in failed or name in waiting:
                status: Any = "failed" if name in failed else "waiting"
                write_state(
                    folder, TrialState(trial, status, "CUDA out of memory" * (name in failed))
                )
                continue
            mean = qualities(changes) if callable(qualities) else qualities[system.name]
            write_finished(
                folder,
                config,
                trial,
                random,
                mean + random.normal(0, spread),
                task=task,
                fall=(fall or {}).get(system.name, 0.0),
                overfit=(overfit or {}).get(system.name, 0.0),
                items=items,
                rows=rows,
            )
    return folder


@cache
def default_tables(task: str) -> dict[str, Any]:
    return Recipe.of({"task": task}).tables()


def write_finished(
    folder: Path,
    config: StudyConfig,
    trial: Trial,
    random: np.random.Generator,
    quality: float,
    *,
    task: str = "translate",
    fall: float = 0.0,
    overfit: float = 0.0,
    items: int = ITEMS,
    rows: int = 20,
    has_record: bool = True,
) -> None:
    """Write the state and the record of a finished trial; a trial of a search has dev alone."""
    sets = ["dev", *(config.sets if trial.stage == "final" else [])]
    evaluations = {
        name: make_items(random, quality, name, task=task, fall=fall, items=items) for name in sets
    }
    scores = {
        name: {key: one.value for key, one in item_metrics(counts).items()}
        for name, counts in evaluations.items()
    }
    metric = config.metric or TASK_METRICS[task][0]
    state = TrialState(
        trial,
        "finished",
        started=0.0,
        ended=60.0,
        minutes=1.0 + 0.01 * random.random(),
        tokens=10_000,
        steps=100,
        dev=scores["dev"][metric],
        scores=scores,
        parameters=1_000_000,
        peak_memory=100_000_000 + random.integers(1000).item(),
        machine="test",
        run=f"runs/{trial.name}",
    )
    write_state(folder, state)
    if not has_record:
        return
    recipe = deepcopy(default_tables(task)) | {"seed": trial.seed}
    for key, value in trial.changes.items():
        section, _, name = key.partition(".")
        recipe.setdefault(section, {})[name] = value
    run = ScoredRun(trial.name, recipe, {}, 1.0, evaluations, dict.fromkeys(sets, 1))
    path = write_record(run, folder / RECORDS)
    document = checksums.read_json(path, todo="")
    history = make_history(random, 4 - 3 * quality, rows=rows, overfit=overfit)
    environment = {"torch": "2.11", "steps_per_epoch": 5 * rows}
    document |= {"history": history, "environment": environment}
    assert path.name == f"{trial.name}{SUFFIX}"
    checksums.write_json(path, document)
