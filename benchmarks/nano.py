"""Trains `lm/nano` with other positions and other merges, and makes the page of results.

    python benchmarks/nano.py train --data DIR --runs RUNS --jobs 14 --threads 1 --device cpu
    python benchmarks/nano.py report --runs RUNS

The first goes by the real command, and does not train again what is there; DIR has
tinyshakespeare.txt. The second writes `docs/results/nano.md` with its figure, and
`benchmarks/results/nano.json`, which has figures only: the corpus stays where it is.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from nanolm.figures import gather
from nanolm.judging import judged
from nanolm.page import Page
from nanolm.pictures import draw_all
from nanolm.systems import GROUPS
from nanolm.training import JUDGED, train, wanted
from running import Plan, note
from study import command_line, note_machine, obey, planned, publish, some_seeds

from heed.runs.run import Run


def report(runs: Path, out: Path, results: Path) -> None:
    """Read the runs, and write the figures, the picture and the page."""
    publish("nano", gather(runs), lambda x, to: Page(x, draw_all(x, to)).text(), out, results)


def options() -> argparse.Namespace:
    """The command line."""
    told = command_line(__doc__, train="train and judge models", data="with tinyshakespeare.txt")
    some_seeds(told.training, list(GROUPS))
    told.training.add_argument("--threads", type=int, default=1, help="of each run")
    judging = told.add("judge", help="judge one run; `train` does it")
    judging.add_argument("run", type=Path)
    judging.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    return told.parser.parse_args()


def learn(told: argparse.Namespace) -> bool:
    """Train all that was asked for; whether all of it is there."""
    # Set for every process begun from here: so many threads of torch and of the tokenizer.
    os.environ |= {name: str(told.threads) for name in ("OMP_NUM_THREADS", "RAYON_NUM_THREADS")}
    plan = planned(told, Plan)
    words = ["--threads", str(told.threads), "--seeds", str(told.seeds)]
    note_machine(plan, "nano", words, threads=told.threads)
    return train(plan, wanted(told.only, told.seeds), told.pack)


def main() -> None:
    """Train, judge or report."""
    told = options()
    if told.command == "judge":
        note(Run(told.run), {JUDGED: judged(told.run, told.device)})
    else:
        obey(told, learn, report)


if __name__ == "__main__":
    main()
