"""Pretrains a model by masked language modelling, and holds it against the same from scratch.

    python benchmarks/pretraining.py train --data DIR --text FILE --runs RUNS --device cuda
    python benchmarks/pretraining.py report --runs RUNS

DIR has train.tsv, dev.tsv and test.tsv of SST-2; FILE is text without labels, a sentence a line.
The first goes by the real commands and does not make again what is there: one pretraining; both
ways at the same rates and dropouts with one seed; each at its best on dev with five fresh seeds.
The pack holds all that the second reads, and no weights. The second writes
`docs/results/pretraining.md` and `benchmarks/results/pretraining.json`, which has figures only: the
corpora stay where they are.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

from common import DOCS, RESULTS, machine
from descent.training import TABLES
from masked.figures import gather
from masked.page import Page
from masked.training import TASK, Job, train
from reading import MACHINE, rounded
from running import packing, settings


def report(runs: Path, out: Path, results: Path) -> None:
    """Read the runs, and write the figures and the page."""
    figures = rounded(gather(runs))
    for folder in (out, results):
        folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(figures, indent=1, ensure_ascii=False)
    (results / "pretraining.json").write_text(text + "\n", encoding="utf-8")
    page = Page(figures).text()
    (out / "pretraining.md").write_text(page, encoding="utf-8")
    print(page)


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    commands = parser.add_subparsers(dest="command", required=True)
    training = commands.add_parser("train", help="pretrain, train and score")
    training.add_argument("--data", type=Path, required=True, help="folder with SST-2")
    training.add_argument("--text", type=Path, required=True, help="what to pretrain on")
    training.add_argument("--text-name", default="Text without labels", help="what the page says")
    training.add_argument("--runs", type=Path, required=True, help="folder for the runs")
    training.add_argument("--jobs", type=int, default=1, help="classifiers side by side")
    training.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    training.add_argument("--minutes", type=float, default=600.0, help="begin nothing after these")
    training.add_argument(
        "--grace", type=float, default=0.5, help="minutes after these until runs are stopped"
    )
    training.add_argument(
        "--set-pretrain",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="of the pretraining; model.* and tokenizer.* are for all",
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
    job = Job(
        data=told.data.resolve(),
        runs=told.runs.resolve(),
        changes=told.set,
        device=told.device,
        jobs=told.jobs,
        deadline=deadline,
        stop=deadline + 60 * told.grace,
        text=told.text.resolve(),
        text_name=told.text_name,
        reading=told.set_pretrain,
    )
    job.runs.mkdir(parents=True, exist_ok=True)
    given = [word.replace("--set", "--set-pretrain") for word in settings(told.set_pretrain)]
    words = ["python benchmarks/pretraining.py train --data DIR --text FILE --runs RUNS"]
    words += ["--jobs", str(told.jobs), "--device", told.device, *given, *settings(told.set)]
    known = machine(told.device) | {
        "command": " ".join(words),
        "cores": os.cpu_count(),
        "jobs": told.jobs,
        "set": told.set,
        "set_pretrain": told.set_pretrain,
        "threads": int(os.environ["OMP_NUM_THREADS"]),
    }
    (job.runs / MACHINE).write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
    return train(job, packing(job.runs, told.pack, folders=(TABLES[TASK.name],)))


def main() -> None:
    """Train, or report."""
    told = options()
    if told.command == "report":
        report(told.runs, told.out, told.results)
        return
    raise SystemExit(0 if learn(told) else 1)


if __name__ == "__main__":
    main()
