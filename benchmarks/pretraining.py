"""Pretrain by masked language modeling, fine-tune, and compare with the model from scratch.

    python benchmarks/pretraining.py train --data DIR --text FILE --runs RUNS --device cuda
    python benchmarks/pretraining.py report --runs RUNS

DIR has train.tsv, dev.tsv and test.tsv of SST-2; FILE is text without labels, a sentence per line.
The first uses the real commands and skips finished runs: one pretraining; both models at the same
learning rates and dropouts with one seed; each at its best on dev with five fresh seeds. The pack
holds everything that the second reads, and no weights. The second writes
`docs/results/pretraining.md` and `benchmarks/results/pretraining.json`, which has numbers only and
no text of the corpora.
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
    """Read the runs, and write the numbers and the page."""
    publish("pretraining", gather(runs), lambda x, _: Page(x).text(), out, results)


def options() -> argparse.Namespace:
    """The command line."""
    parsers = command_line(
        __doc__,
        train="pretrain, train and score",
        data="folder with SST-2",
        jobs="classifiers at once",
    )
    add = parsers.training.add_argument
    add("--text", type=Path, required=True, help="text to pretrain on")
    add("--text-name", default="Text without labels", help="name of the text on the page")
    add(
        "--set-pretrain",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="recipe key of the pretraining; model.* and tokenizer.* apply to all",
    )
    return parsers.parser.parse_args()


def learn(arguments: argparse.Namespace) -> bool:
    """Train, record the machine, and pack; returns whether every run is finished."""
    # Small models: several runs at once are faster.
    threads = int(os.environ.setdefault("OMP_NUM_THREADS", "1"))
    reading = arguments.set_pretrain
    job = planned(
        arguments,
        Job,
        text=arguments.text.resolve(),
        text_name=arguments.text_name,
        reading=reading,
    )
    given = [word.replace("--set", "--set-pretrain") for word in settings(reading)]
    known = {
        "cores": os.cpu_count(),
        "threads": threads,
        "set": arguments.set,
        "set_pretrain": reading,
    }
    note_machine(job, "pretraining", ["--text", "FILE", *given], **known)
    return train(job, packing(job.runs, arguments.pack, folders=(TABLES[TASK.name],)))


if __name__ == "__main__":
    obey(options(), learn, report)
