"""Train `lm/nano` with other positions and head merges, and write the results page.

    python benchmarks/nano.py train --data DIR --runs RUNS --jobs 14 --threads 1 --device cpu
    python benchmarks/nano.py report --runs RUNS

The first uses the real command and skips finished runs; DIR has tinyshakespeare.txt. The second
writes `docs/results/nano.md` with its figure, and `benchmarks/results/nano.json`, which has numbers
only and no text of the corpus.
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
    """Read the runs, and write the numbers, the figure and the page."""
    publish("nano", gather(runs), lambda x, to: Page(x, draw_all(x, to)).text(), out, results)


def options() -> argparse.Namespace:
    """The command line."""
    parsers = command_line(__doc__, train="train and score models", data="with tinyshakespeare.txt")
    some_seeds(parsers.training, list(GROUPS))
    parsers.training.add_argument("--threads", type=int, default=1, help="CPU threads of each run")
    judging = parsers.add("judge", help="score one run; `train` does this")
    judging.add_argument("run", type=Path)
    judging.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    return parsers.parser.parse_args()


def learn(arguments: argparse.Namespace) -> bool:
    """Train the selected systems; returns whether every run is finished."""
    # Set for every process begun from here: so many threads of torch and of the tokenizer.
    os.environ |= {
        name: str(arguments.threads) for name in ("OMP_NUM_THREADS", "RAYON_NUM_THREADS")
    }
    plan = planned(arguments, Plan)
    words = ["--threads", str(arguments.threads), "--seeds", str(arguments.seeds)]
    note_machine(plan, "nano", words, threads=arguments.threads)
    return train(plan, wanted(arguments.only, arguments.seeds), arguments.pack)


def main() -> None:
    """Train, judge or report."""
    arguments = options()
    if arguments.command == "judge":
        note(Run(arguments.run), {JUDGED: judged(arguments.run, arguments.device)})
    else:
        obey(arguments, learn, report)


if __name__ == "__main__":
    main()
