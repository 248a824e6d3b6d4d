"""Run folders for the lab without training: recipes, metrics and scores that tests choose."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from study_folders import make_items

from heed.checksums import BLANK, KEY, seal_text
from heed.config import Recipe
from heed.runs.item_counts import write_items
from heed.runs.run import Run

HOSTILE = "<img src=x onerror=alert(1)>"


def write_run(
    folder: Path, *, position: str = "rope", seed: int = 0, steps: int = 5, layers: int = 1
) -> Run:
    """A run that was stopped, with a row of training and an evaluation at each of its steps."""
    recipe = Recipe.of(
        {
            "task": "translate",
            "seed": seed,
            "data": {"synthetic": 60},
            "model": {"layers": layers, "width": 16, "heads": 2, "position": position},
            "train": {"steps": 100, "log_every": 1},
        }
    )
    run = Run.create(folder, recipe)
    run.write_environment({"data": {"train": "a" * 32, "dev": "b" * 32}, "steps_per_epoch": 4})
    append_rows(run, range(1, steps + 1), level=1 + seed / 10)
    return run


def append_rows(run: Run, steps: Iterable[int], *, level: float = 1.0) -> None:
    """Append a row of training and an evaluation at each of these steps, as training does."""
    with run.metrics_path.open("a", encoding="utf-8") as file:
        for step in steps:
            loss = level + math.exp(-step / 7) + (step % 3) / 10
            place = {"step": step, "epoch": 1, "tokens": 10 * step}
            file.write(_seal({"event": "train", **place, "loss": loss, "lr": 0.001}, step))
            dev = {"loss": loss + 0.05, "accuracy": 1 / loss}
            file.write(_seal({"event": "evaluate", **place, "dev": dev}, step))


def _seal(line: dict[str, Any], seconds: float) -> str:
    clock = {"unix": 1e9 + seconds, "seconds": seconds, "tokens_per_second": 10.0, KEY: BLANK}
    return seal_text(json.dumps({**line, "time": clock})) + "\n"


def score_run(run: Run, quality: float, *, seed: int = 0) -> None:
    """Give a run item counts on test, as an evaluation of a model of this quality does."""
    random = np.random.default_rng(round(1000 * quality) + seed)
    write_items(run.folder, make_items(random, quality, "test"))


def write_seeds(folder: Path, *, seeds: int = 3) -> Path:
    """Two recipes with some seeds each, scored: rope is better than none."""
    for position, quality in (("rope", 0.8), ("none", 0.6)):
        for seed in range(seeds):
            run = write_run(folder / f"{position}-{seed}", position=position, seed=seed)
            score_run(run, quality, seed=seed)
    return folder
