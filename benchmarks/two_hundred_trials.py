"""Two hundred trials: how long the commands about a finished study take, and how large a report is.

    python benchmarks/two_hundred_trials.py

No model is trained: three studies of 200 trials are written with simulated item counts of 1,000
texts and histories of 150 rows. Then the commands are run as a user runs them, each in a process
of its own, start of Python included. CPU seconds are beside those on the clock, which other work on
the machine lengthens.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from common import keep, table
from process_monitor import run_command

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from study_folders import write_finished, write_study

from heed.study.study_folder import read_study_folder
from heed.study.trials import Trial

ITEMS = 1000
ROWS = 150
COMMANDS = {
    "status": ["study", "{}", "--status"],
    "compare": ["compare", "{}/records"],
    "report": ["report", "{}", "--out", "{}/report.html"],
}


def write_studies(folder: Path) -> dict[str, Path]:
    """A grid against a baseline, a grid of all pairs, and a search, of 200 trials each."""
    shape: dict[str, Any] = {"items": ITEMS, "rows": ROWS}
    widths = {"model.width": list(range(8, 328, 8))}
    seven = {name: 0.5 + 0.01 * i for i, name in enumerate("abcdefg")}
    studies = {
        "40 systems × 5 seeds, baseline": write_study(
            folder / "baseline",
            lambda changes: 0.5 + 0.0003 * changes["model.width"],
            grid=widths,
            baseline="width8",
            seeds=[0, 1, 2, 3, 4],
            **shape,
        ),
        "20 systems × 10 seeds, all pairs": write_study(
            folder / "pairs",
            lambda changes: 0.5 + 0.0003 * changes["model.width"],
            grid={"model.width": widths["model.width"][:20]},
            seeds=list(range(10)),
            **shape,
        ),
    }
    space = {
        "train.lr": {"low": 1e-4, "high": 1e-2, "log": True},
        "train.warmup": {"low": 10, "high": 1000, "log": True},
    }
    search = write_study(folder / "search", seven, search={"trials": 25, "space": space}, **shape)
    config, random = read_study_folder(search), np.random.default_rng(0)
    for number in range(200 - 3 * len(seven)):
        system = "abcdefg"[number % len(seven)]
        rate = float(10 ** random.uniform(-4, -2))
        changes = {"train.lr": rate, "train.warmup": int(random.integers(10, 1000))}
        name = f"{system}-trial{number:03}"
        trial = Trial(name, 100 + number, system, changes, "demo-translate", 99, "search")
        quality = seven[system] + 0.02 * np.log10(rate)
        write_finished(search, config, trial, random, quality, items=ITEMS, rows=ROWS)
    studies["7 systems: 179 search trials and 3 seeds each"] = search
    return studies


def measure(folder: Path) -> dict[str, float]:
    """Seconds of every command, and the bytes of the report."""
    figures: dict[str, float] = {}
    for name, words in COMMANDS.items():
        usage = run_command([word.format(folder) for word in words], folder.parent)
        if usage.code:
            raise SystemExit((folder.parent / "out").read_text(encoding="utf-8"))
        figures[name], figures[f"{name}_cpu"] = usage.seconds, usage.processor
    figures["bytes"] = (folder / "report.html").stat().st_size
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = {name: measure(path) for name, path in write_studies(Path(folder)).items()}
    rows = [
        [
            name,
            *(f"{one[f'{key}_cpu']:.1f} s ({one[key]:.1f})" for key in COMMANDS),
            f"{one['bytes'] / 1e6:.2f} MB",
        ]
        for name, one in figures.items()
    ]
    head = ["200 trials", *COMMANDS, "HTML"]
    text = table("Commands about a study of 200 trials: CPU seconds, and on the clock", head, rows)
    keep("two-hundred-trials", text, figures, device="cpu")


if __name__ == "__main__":
    main()
