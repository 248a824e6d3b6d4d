"""Trains `lm/nano` with other positions and other merges, and makes the page of results.

    python benchmarks/nano.py train --data DIR --runs RUNS --jobs 14 --threads 1 --device cpu
    python benchmarks/nano.py report --runs RUNS

The first goes by the real command, and does not train again what is there; DIR has
tinyshakespeare.txt. The second writes `docs/results/nano.md` with its figure, and
`benchmarks/results/nano.json`, which has figures only: the corpus stays where it is.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

from common import DOCS, RESULTS, machine
from nanolm.figures import gather
from nanolm.judging import judged
from nanolm.page import Page
from nanolm.pictures import draw_all
from nanolm.systems import GROUPS
from nanolm.training import JUDGED, train, wanted
from reading import MACHINE, rounded
from running import Plan, note

from heed.runs import Run


def report(runs: Path, out: Path, results: Path) -> None:
    """Read the runs, and write the figures, the picture and the page."""
    figures = rounded(gather(runs))
    for folder in (out, results):
        folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(figures, indent=1, ensure_ascii=False)
    (results / "nano.json").write_text(text + "\n", encoding="utf-8")
    page = Page(figures, draw_all(figures, out)).text()
    (out / "nano.md").write_text(page, encoding="utf-8")
    print(page)


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    commands = parser.add_subparsers(dest="command", required=True)
    training = commands.add_parser("train", help="train and judge models")
    training.add_argument("--data", type=Path, required=True, help="with tinyshakespeare.txt")
    training.add_argument("--runs", type=Path, required=True, help="folder for the runs")
    training.add_argument("--only", nargs="+", choices=list(GROUPS), default=list(GROUPS))
    training.add_argument("--seeds", type=int, default=3)
    training.add_argument("--jobs", type=int, default=1, help="runs side by side")
    training.add_argument("--threads", type=int, default=1, help="of each run")
    training.add_argument("--minutes", type=float, default=600.0, help="begin nothing after these")
    training.add_argument(
        "--grace", type=float, default=0.5, help="minutes after these until runs are stopped"
    )
    training.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    training.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    training.add_argument("--pack", type=Path, help="a .tar.xz or .tar.gz to keep")
    judging = commands.add_parser("judge", help="judge one run; `train` does it")
    judging.add_argument("run", type=Path)
    judging.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    telling = commands.add_parser("report", help="make the page of results")
    telling.add_argument("--runs", type=Path, required=True)
    telling.add_argument("--out", type=Path, default=DOCS, help="folder for the page")
    telling.add_argument("--results", type=Path, default=RESULTS, help="folder for the JSON")
    return parser.parse_args()


def learn(told: argparse.Namespace) -> bool:
    """Train all that was asked for; whether all of it is there."""
    # Set for every process begun from here: so many threads of torch and of the tokenizer.
    os.environ |= {name: str(told.threads) for name in ("OMP_NUM_THREADS", "RAYON_NUM_THREADS")}
    deadline = time.monotonic() + 60 * told.minutes
    plan = Plan(
        data=told.data.resolve(),
        runs=told.runs.resolve(),
        changes=told.set,
        device=told.device,
        jobs=told.jobs,
        deadline=deadline,
        stop=deadline + 60 * told.grace,
    )
    plan.runs.mkdir(parents=True, exist_ok=True)
    text = json.dumps(machine(told.device) | {"threads": told.threads}, indent=1)
    (plan.runs / MACHINE).write_text(text + "\n", encoding="utf-8")
    return train(plan, wanted(told.only, told.seeds), told.pack)


def main() -> None:
    """Train, judge or report."""
    told = options()
    if told.command == "report":
        report(told.runs, told.out, told.results)
    elif told.command == "judge":
        note(Run(told.run), {JUDGED: judged(told.run, told.device)})
    else:
        sys.exit(0 if learn(told) else 1)


if __name__ == "__main__":
    main()
