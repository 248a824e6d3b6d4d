"""Trains every translation system the results tell of, and makes the page of results.

    python benchmarks/translation.py train --data DIR --runs RUNS --device cuda --pack RUNS.tar.xz
    python benchmarks/translation.py report --runs RUNS

The first goes by the real commands, the most important systems first, and does not train again what
is there. The pack holds all that the second reads, and no weights. The second writes
`docs/results/translation.md` with its figures, and `benchmarks/results/translation.json`, which has
figures only: the corpus stays where it is.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from common import DOCS, RESULTS
from reading import rounded
from running import Plan
from ted.figures import gather
from ted.page import Page
from ted.pictures import draw_all
from ted.systems import GROUPS
from ted.training import train, wanted


def report(runs: Path, out: Path, results: Path) -> None:
    """Read the runs, and write the figures, the pictures and the page."""
    figures = rounded(gather(runs))
    for folder in (out, results):
        folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(figures, indent=1, ensure_ascii=False)
    (results / "translation.json").write_text(text + "\n", encoding="utf-8")
    page = Page(figures, draw_all(figures, out)).text()
    (out / "translation.md").write_text(page, encoding="utf-8")
    print(page)


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    commands = parser.add_subparsers(dest="command", required=True)
    training = commands.add_parser("train", help="train and score systems")
    training.add_argument("--data", type=Path, required=True, help="folder with the TED files")
    training.add_argument("--runs", type=Path, required=True, help="folder for the runs")
    training.add_argument("--only", nargs="+", choices=list(GROUPS), default=list(GROUPS))
    training.add_argument("--seeds", type=int, default=3)
    training.add_argument("--jobs", type=int, default=1, help="runs side by side")
    training.add_argument("--minutes", type=float, default=600.0, help="begin nothing after these")
    training.add_argument(
        "--grace", type=float, default=0.5, help="minutes after these until runs are stopped"
    )
    training.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    training.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    training.add_argument("--pack", type=Path, help="a .tar.xz or .tar.gz to keep")
    telling = commands.add_parser("report", help="make the page of results")
    telling.add_argument("--runs", type=Path, required=True)
    telling.add_argument("--out", type=Path, default=DOCS, help="folder for the page")
    telling.add_argument("--results", type=Path, default=RESULTS, help="folder for the JSON")
    return parser.parse_args()


def main() -> None:
    """Train, or report."""
    told = options()
    if told.command == "report":
        report(told.runs, told.out, told.results)
        return
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
    whole = train(plan, wanted(told.only, told.seeds), told.pack)
    raise SystemExit(0 if whole else 1)


if __name__ == "__main__":
    main()
