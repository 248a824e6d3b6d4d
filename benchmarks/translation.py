"""Train every translation system of the results, and write the results page.

    python benchmarks/translation.py train --data DIR --runs RUNS --device cuda --pack RUNS.tar.xz
    python benchmarks/translation.py report [--runs RUNS]

The first uses the real commands, most important systems first, and skips finished runs. The pack
holds everything that the second reads, and no weights. The second makes a record of each run in
`benchmarks/results/translation/` and, from all records, the page `docs/results/translation.md` with
its figures, and `benchmarks/results/translation.json`. Records have numbers only and no text of the
corpus.
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
    """Save records of the runs; write the numbers, the figures and the page of all records."""
    for line in keep(runs, results / NAME) if runs else []:
        print(f"Not kept: {line}")
    figures = gather(results / NAME)
    publish(NAME, figures, lambda x, to: Page(x, draw_all(x, to)).text(), out, results)


def options() -> argparse.Namespace:
    """The command line."""
    parsers = command_line(
        __doc__,
        train="train and score systems",
        data="folder with the TED files",
        devices=("auto", "cpu", "cuda"),
        records=True,
    )
    systems = [system.name for system in SYSTEMS]
    some_seeds(parsers.training, list(dict.fromkeys([*GROUPS, *systems])))
    return parsers.parser.parse_args()


def learn(arguments: argparse.Namespace) -> bool:
    """Train the selected systems; returns whether every run is finished."""
    return train(planned(arguments, Plan), wanted(arguments.only, arguments.seeds), arguments.pack)


if __name__ == "__main__":
    obey(options(), learn, report)
