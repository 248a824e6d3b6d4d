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
import os
from pathlib import Path

from descent.training import TABLES
from masked.figures import gather
from masked.page import Page
from masked.training import TASK, Job, train
from running import packing, settings
from study import command_line, note_machine, obey, planned, publish


def report(runs: Path, out: Path, results: Path) -> None:
    """Read the runs, and write the figures and the page."""
    publish("pretraining", gather(runs), lambda x, _: Page(x).text(), out, results)


def options() -> argparse.Namespace:
    """The command line."""
    told = command_line(
        __doc__,
        train="pretrain, train and score",
        data="folder with SST-2",
        jobs="classifiers side by side",
    )
    add = told.training.add_argument
    add("--text", type=Path, required=True, help="what to pretrain on")
    add("--text-name", default="Text without labels", help="what the page says")
    add(
        "--set-pretrain",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="of the pretraining; model.* and tokenizer.* are for all",
    )
    return told.parser.parse_args()


def learn(told: argparse.Namespace) -> bool:
    """Train, note the machine beside the runs, and pack; whether everything is there."""
    # Small models: runs side by side are faster.
    threads = int(os.environ.setdefault("OMP_NUM_THREADS", "1"))
    reading = told.set_pretrain
    job = planned(told, Job, text=told.text.resolve(), text_name=told.text_name, reading=reading)
    given = [word.replace("--set", "--set-pretrain") for word in settings(reading)]
    known = {"cores": os.cpu_count(), "threads": threads, "set": told.set, "set_pretrain": reading}
    note_machine(job, "pretraining", ["--text", "FILE", *given], **known)
    return train(job, packing(job.runs, told.pack, folders=(TABLES[TASK.name],)))


if __name__ == "__main__":
    obey(options(), learn, report)
