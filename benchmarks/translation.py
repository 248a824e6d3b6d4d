"""Trains every translation system the results tell of, and makes the page of results.

    python benchmarks/translation.py train --data DIR --runs RUNS --device cuda --pack RUNS.tar.xz
    python benchmarks/translation.py report [--runs RUNS]

The first goes by the real commands, the most important systems first, and does not train again what
is there. The pack holds all that the second reads, and no weights. The second makes a record of
each run in `benchmarks/results/translation/` and, from all records there are, the page
`docs/results/translation.md` with its pictures, and `benchmarks/results/translation.json`. Records
have figures only: the corpus stays where it is.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from running import Plan
from study import command_line, obey, planned, publish, some_seeds
from ted.figures import gather
from ted.page import Page
from ted.pictures import draw_all
from ted.records import keep
from ted.systems import GROUPS, SYSTEMS
from ted.training import train, wanted

NAME = "translation"


def report(runs: Path | None, out: Path, results: Path) -> None:
    """Keep records of the runs; write the figures, the pictures and the page of all records."""
    for line in keep(runs, results / NAME) if runs else []:
        print(f"Not kept: {line}")
    figures = gather(results / NAME)
    publish(NAME, figures, lambda x, to: Page(x, draw_all(x, to)).text(), out, results)


def options() -> argparse.Namespace:
    """The command line."""
    told = command_line(
        __doc__,
        train="train and score systems",
        data="folder with the TED files",
        devices=("auto", "cpu", "cuda"),
        records=True,
    )
    systems = [system.name for system in SYSTEMS]
    some_seeds(told.training, list(dict.fromkeys([*GROUPS, *systems])))
    return told.parser.parse_args()


def learn(told: argparse.Namespace) -> bool:
    """Train all that was asked for; whether all of it is there."""
    return train(planned(told, Plan), wanted(told.only, told.seeds), told.pack)


if __name__ == "__main__":
    obey(options(), learn, report)
