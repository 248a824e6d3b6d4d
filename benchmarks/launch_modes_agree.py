"""One recipe in every launch mode: the same losses, and in deterministic mode the same bits.

    python benchmarks/launch_modes_agree.py               kernel by kernel, and compiled, on the CPU
    python benchmarks/launch_modes_agree.py --device cuda as captured graphs as well

A translator and a language model learn the synthetic corpus for 200 updates from one seed, as
`heed train` trains, in temporary folders. The loss of every update is compared with that of the run
that launches kernel by kernel. Compiled blocks draw other random numbers for dropout, so there two
curves are compared: without dropout, update by update; with it, by their means over stretches.
"""

from __future__ import annotations

import argparse
import io
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from common import keep, table
from rich.console import Console

from heed.config import Recipe, apply_overrides
from heed.runs.run import Run
from heed.train import run as train_run
from heed.train.execution.choose import find_obstacle

STRETCH = 20
"""Steps whose losses are averaged where dropout differs."""
TOLERANCE = {"update": 0.02, "stretch": 0.05}
"""Largest difference of two losses, as a share of the loss, that counts as the same curve."""
TASKS: dict[str, dict[str, Any]] = {
    "translate": {
        "data": {"synthetic": 4000, "synthetic_test": 100, "max_length": 64},
        "tokenizer": {"kind": "bpe", "vocab_size": 1000},
        "train": {"batch_tokens": 1024, "lr": 2e-3},
    },
    "generate": {
        "data": {"synthetic": 2000, "synthetic_test": 100, "max_length": 64, "unit": "document"},
        "tokenizer": {"kind": "word"},
        "train": {"batch_tokens": 1024, "lr": 2e-3},
    },
}
MODEL = {"layers": 2, "width": 128, "heads": 4, "position": "rope"}


@dataclass(frozen=True)
class Outcome:
    """The result of a run, without times."""

    losses: list[float]
    """The loss of every step."""
    weights: bytes
    metrics: list[dict[str, Any]]


@dataclass(frozen=True)
class Row:
    """One launch mode of a recipe, compared with eager and with itself."""

    task: str
    dropout: float
    speed: str
    first: float
    last: float
    """Losses of the first and the last step."""
    deviation: float
    """The largest difference, as a share of the eager run's loss,"""
    over: str
    """of one step, or of the mean over a stretch."""
    tolerance: float
    same_bits: bool | None
    """Whether two runs in deterministic mode left the same weights and metrics; None: not tried."""

    @property
    def holds(self) -> bool:
        """Whether the losses agree and the bits repeat."""
        return self.deviation <= self.tolerance and self.same_bits is not False


def recipe(task: str, speed: str, *, dropout: float, steps: int, deterministic: bool) -> Recipe:
    """A small recipe that logs every loss."""
    tables = {"task": task, "model": {**MODEL, "dropout": dropout}, **TASKS[task]}
    settings = {
        "execution": speed,
        "steps": steps,
        "deterministic": str(deterministic).lower(),
        "log_every": 1,
        "evaluate_every": steps,
    }
    overrides = [f"train.{key}={value}" for key, value in settings.items()]
    return Recipe.of(apply_overrides(tables, overrides))


def outcome(recipe: Recipe, device: str) -> Outcome:
    """Train a recipe to the end."""
    with tempfile.TemporaryDirectory() as folder:
        quiet = Console(file=io.StringIO())
        run = train_run.start(recipe, Path(folder) / "run", device=device, console=quiet)
        return _read_outcome(run)


def _read_outcome(run: Run) -> Outcome:
    lines = [{k: v for k, v in line.items() if k != "time"} for line in run.metrics()]
    losses = [line["loss"] for line in lines if line["event"] == "train"]
    if None in losses:
        raise SystemExit("All updates of a line were skipped: there is no curve to compare.")
    return Outcome(losses, run.weights_path.read_bytes(), lines)


def deviation(losses: list[float], plain: list[float], *, stretch: int) -> float:
    """The largest relative difference between two curves, averaged over stretches."""
    pairs = zip(_means(losses, stretch), _means(plain, stretch), strict=True)
    return max(abs(a - b) / b for a, b in pairs)


def _means(losses: list[float], stretch: int) -> list[float]:
    return [fmean(losses[i : i + stretch]) for i in range(0, len(losses), stretch)]


def compare(task: str, dropout: float, speeds: list[str], steps: int, device: str) -> list[Row]:
    """Every launch mode of one recipe."""
    rows, plain = list[Row](), list[float]()
    for speed in speeds:
        torch.compiler.reset()  # what other recipes compiled would count towards its limit
        build = partial(recipe, task, speed, dropout=dropout, steps=steps)
        found = outcome(build(deterministic=False), device)
        # Dropout is what could differ from run to run: with it, the bits are worth comparing.
        twice = [outcome(build(deterministic=True), device) for _ in range(2 if dropout else 0)]
        plain = plain or found.losses
        over = "stretch" if speed == "compile" and dropout else "update"
        stretch = min(STRETCH, steps) if over == "stretch" else 1
        row = Row(
            task,
            dropout,
            speed,
            found.losses[0],
            found.losses[-1],
            deviation(found.losses, plain, stretch=stretch),
            over,
            TOLERANCE[over],
            twice[0] == twice[1] if twice else None,
        )
        print(f"{task}, dropout {dropout}, {speed}: {row.deviation:.1e}", flush=True)
        rows.append(row)
    return rows


def report(rows: list[Row], steps: int) -> str:
    """A line per launch mode."""
    cells = [
        [
            f"{row.task}, dropout {row.dropout:g}, {row.speed}",
            f"{row.first:.4f}",
            f"{row.last:.4f}",
            f"{row.deviation:.1e}",
            f"{row.tolerance:g} by {row.over}",
            {True: "the same", False: "DIFFER", None: ""}[row.same_bits],
            "holds" if row.holds else "FAILS",
        ]
        for row in rows
    ]
    columns = ["run", "first loss", "last loss", "deviation", "allowed", "bits of two runs", ""]
    title = (
        f"{steps} updates from one seed. Deviation: the largest difference from the eager curve, "
        f"as a share of its loss,\nby update or by the mean of {STRETCH} updates. "
        "Bits: weights and metrics of two runs in deterministic mode.\n"
    )
    return table(title, columns, cells)


def main() -> None:
    """Train, compare, print and save the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--speeds", nargs="+", default=["eager", "graphs", "compile"])
    parser.add_argument("--dropout", nargs="+", type=float, default=[0.0, 0.1])
    parser.add_argument("--jobs", type=int, default=1, help="recipes side by side")
    parser.add_argument("--out", type=Path, default=None, help="folder for results")
    options = parser.parse_args()
    some = recipe("translate", "auto", dropout=0.0, steps=1, deterministic=False)
    device = torch.device(options.device)
    speeds = [speed for speed in options.speeds if find_obstacle(some, speed, device) is None]
    alike = partial(compare, speeds=speeds, steps=options.steps, device=options.device)
    with ProcessPoolExecutor(options.jobs, get_context("spawn")) as pool:
        found = pool.map(alike, *zip(*product(TASKS, options.dropout), strict=True))
        rows = [row for several in found for row in several]
    text = report(rows, options.steps)
    figures = {"steps": options.steps, "rows": [asdict(row) | {"holds": row.holds} for row in rows]}
    keep(
        f"launch-modes-agree-{options.device}",
        text,
        figures,
        device=options.device,
        folder=options.out,
    )


if __name__ == "__main__":
    main()
