"""Compares optimizers fairly, and makes the page of results.

    python benchmarks/optimizers.py train --data DIR --runs RUNS --jobs 14 --device cpu
    python benchmarks/optimizers.py report --runs RUNS

The first goes by the real commands and does not train again what is there: every optimizer at the
same learning rates with one seed; then each at its best with fresh seeds, and all at one rate. The
pack holds all that the second reads, and no weights. The second writes `docs/results/optimizers.md`
with its figure, and `benchmarks/results/optimizers.json`, which has figures only: the corpora stay
where they are.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

from common import DOCS, RESULTS, machine
from descent.figures import gather
from descent.page import Page
from descent.pictures import draw_all
from descent.training import TABLES, train
from reading import MACHINE, rounded
from running import Plan, packing

DEVICES = ("cpu", "cuda")


def report(runs: Path, out: Path, results: Path) -> None:
    """Read the runs, and write the figures, the picture and the page."""
    figures = rounded(gather(runs))
    for folder in (out, results):
        folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(figures, indent=1, ensure_ascii=False)
    (results / "optimizers.json").write_text(text + "\n", encoding="utf-8")
    page = Page(figures, draw_all(figures, out)).text()
    (out / "optimizers.md").write_text(page, encoding="utf-8")
    print(page)


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    commands = parser.add_subparsers(dest="command", required=True)
    training = commands.add_parser("train", help="train and score")
    training.add_argument(
        "--data", type=Path, required=True, help="folder with sst2/ and tinyshakespeare.txt"
    )
    training.add_argument("--runs", type=Path, required=True, help="folder for the runs")
    training.add_argument("--jobs", type=int, default=1, help="runs side by side")
    training.add_argument("--device", default="cpu", choices=DEVICES)
    training.add_argument("--minutes", type=float, default=600.0, help="begin nothing after these")
    training.add_argument(
        "--grace", type=float, default=0.5, help="minutes after these until runs are stopped"
    )
    training.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    training.add_argument("--pack", type=Path, help="a .tar.xz or .tar.gz to keep")
    telling = commands.add_parser("report", help="make the page of results")
    telling.add_argument("--runs", type=Path, required=True)
    telling.add_argument("--out", type=Path, default=DOCS, help="folder for the page")
    telling.add_argument("--results", type=Path, default=RESULTS, help="folder for the JSON")
    return parser.parse_args()


def learn(told: argparse.Namespace) -> bool:
    """Train, note the machine beside the runs, and pack; whether everything is there."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # small models: runs side by side are faster
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
    given = " ".join(f"--set {change}" for change in told.set)
    command = f"python benchmarks/optimizers.py train --data DIR --runs RUNS --jobs {told.jobs}"
    facts = machine(told.device) | {
        "command": f"{command} --device {told.device} {given}".strip(),
        "cores": os.cpu_count(),
        "jobs": told.jobs,
        "threads": int(os.environ["OMP_NUM_THREADS"]),
    }
    (plan.runs / MACHINE).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    return train(plan, packing(plan.runs, told.pack, folders=tuple(TABLES.values())))


def main() -> None:
    """Train, or report."""
    told = options()
    if told.command == "report":
        report(told.runs, told.out, told.results)
        return
    raise SystemExit(0 if learn(told) else 1)


if __name__ == "__main__":
    main()
