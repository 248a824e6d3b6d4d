"""Compare optimizers with the same number of trials each, and write the results page.

    python benchmarks/optimizers.py train --data DIR --runs RUNS --jobs 14 --device cpu
    python benchmarks/optimizers.py report --runs RUNS

The first uses the real commands and skips finished runs: every optimizer at the same learning rates
with one seed; then each at its best rate with fresh seeds, and all at one rate. The pack holds
everything that the second reads, and no weights. The second writes `docs/results/optimizers.md`
with its figure, and `benchmarks/results/optimizers.json`, which has numbers only and no text of the
corpora.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from descent.figures import gather
from descent.page import Page
from descent.pictures import draw_all
from descent.training import TABLES, train
from running import Plan, packing
from study import command_line, note_machine, obey, planned, publish


def report(runs: Path, out: Path, results: Path) -> None:
    """Read the runs, and write the numbers, the figure and the page."""
    publish("optimizers", gather(runs), lambda x, to: Page(x, draw_all(x, to)).text(), out, results)


def options() -> argparse.Namespace:
    """The command line."""
    data = "folder with sst2/ and tinyshakespeare.txt"
    return command_line(__doc__, train="train and score", data=data).parser.parse_args()


def learn(arguments: argparse.Namespace) -> bool:
    """Train, record the machine, and pack; returns whether every run is finished."""
    # Small models: several runs at once are faster.
    threads = int(os.environ.setdefault("OMP_NUM_THREADS", "1"))
    plan = planned(arguments, Plan)
    note_machine(plan, "optimizers", [], cores=os.cpu_count(), threads=threads)
    return train(plan, packing(plan.runs, arguments.pack, folders=tuple(TABLES.values())))


if __name__ == "__main__":
    obey(options(), learn, report)
