"""How cost grows: training steps, start-up, decoding and ranks by size, with fitted exponents.

    python benchmarks/growth.py                          this CPU, about half an hour
    python benchmarks/growth.py --device cuda --minutes 4
    python benchmarks/growth.py --only length --longest 32768 --positions rope none
    python benchmarks/growth.py --only corpus --pairs 10000000
    python benchmarks/growth.py --tiny --out DIR         a trial in a minute
    python benchmarks/growth.py --pages                  text, figures and docs/speed.md from JSON

Every point is a median over turns, and the points of a curve take turns (`by_size/turns.py`). The
record is saved after every round. What it has is not measured again unless by another clock, with
`--again`, which drops the questions of `--only`, or with `--longest`, whose steps have more tokens
at every length. `--minutes`
ends the measurement when the time is spent, most important points first. Then fits, tables and
figures are made from all points of the record.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import torch
from by_size import corpus_size, decoding_steps, training_steps, two_ranks
from by_size.figures import draw_figures
from by_size.page import read_record, write_page
from by_size.record import Record
from by_size.summary import describe
from by_size.turns import Plan, measure_group
from common import RESULTS, ROOT

from heed.bench.timing import PROCESSOR, WALL
from heed.files import write_atomic

QUESTIONS = ("length", "width", "depth", "vocabulary", "decoding", "corpus", "ranks")
IMAGES = ROOT / "docs" / "images"
TURNS = {"cpu": (5, 0.1), "cuda": (7, 0.05)}
"""Rounds, and the shortest turn in seconds."""


def measure(options: argparse.Namespace, record: Record) -> None:
    """Measure what the record lacks, the most important curves first."""
    device, tiny = torch.device(options.device), options.tiny
    cuda = device.type == "cuda"
    rounds, turn = (2, 0.0) if tiny else TURNS[device.type]
    clock = PROCESSOR if options.cpu_time else WALL
    plan = Plan(device, rounds, turn, time.monotonic() + 60 * options.minutes, clock)
    steps = training_steps.TINY if tiny else training_steps.CUDA if cuda else training_steps.CPU
    if options.positions:
        steps = replace(steps, positions=tuple(options.positions))
    if options.longest:
        steps = replace(steps, lengths=(steps.lengths[0], options.longest))
    only, positions = set(options.only), list(steps.positions)

    def by_length(chosen: list[str]) -> None:
        for position in chosen if "length" in only and not plan.is_over else []:
            if options.longest:
                record.keep_tokens("length", position, steps.lengths[1])
            measure_group(training_steps.jobs_by_length(steps, position, device), record, plan)

    by_length(positions[:1])
    for question in ("width", "depth", "vocabulary"):
        if question in only:
            measure_group(training_steps.jobs_by_shape(steps, question, device), record, plan)
    if "ranks" in only and cuda:
        measure_group(training_steps.jobs_by_share(device), record, plan)
    if "decoding" in only:
        modes = decoding_steps
        grid = modes.TINY if tiny else modes.CUDA if cuda else modes.CPU
        measure_group(modes.decoding_jobs(grid, device), record, plan)
    by_length(positions[1:])
    if cuda:  # what follows is the same on any machine: data on the host, and two processes
        return
    if "ranks" in only:
        two_ranks.measure_ranks(two_ranks.SHORT if tiny else two_ranks.CPU, record, plan)
    if "corpus" in only:
        sizes = corpus_size.TINY if tiny else corpus_size.CPU
        if options.pairs:
            sizes = replace(sizes, pairs=tuple(options.pairs))
        corpus_size.measure_corpora(sizes, record, plan)


def write_results(path: Path, images: Path) -> str:
    """Write a record's text and figures; returns the text."""
    content, measured = read_record(path)
    text = describe(content["machine"], content["sessions"], measured)
    write_atomic(path.with_suffix(".txt"), text + "\n")
    if find_spec("matplotlib") is None:
        print("Without matplotlib no figures are drawn: run --pages where it is installed.")
    else:
        draw_figures(measured, images, path.stem.removeprefix("growth-"))
    return text


def main() -> None:
    """Measure, then write tables, figures and the page from all that was measured."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--only", nargs="+", choices=QUESTIONS, default=QUESTIONS)
    parser.add_argument(
        "--positions",
        nargs="+",
        choices=training_steps.POSITIONS,
        help="positions by length, default: all; without a bias memory is linear in the length",
    )
    parser.add_argument(
        "--longest",
        type=int,
        help="the longest sequence, and the tokens of a step by length; a curve is measured anew",
    )
    parser.add_argument("--pairs", nargs="+", type=int, help="corpus sizes instead of the default")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="time to measure")
    parser.add_argument("--threads", type=int, help="CPU threads")
    parser.add_argument(
        "--cpu-time",
        action="store_true",
        help="processor time of one thread instead of elapsed time, on a machine that is busy",
    )
    parser.add_argument("--again", action="store_true", help="measure all of --only anew")
    parser.add_argument("--tiny", action="store_true", help="a minute, to try the script")
    parser.add_argument("--out", type=Path, help="folder for results and figures")
    parser.add_argument("--pages", action="store_true", help="measure nothing")
    options = parser.parse_args()
    if options.tiny and options.out is None:
        parser.error("--tiny needs --out: its figures are not for the docs.")
    if options.pages:
        for path in sorted(RESULTS.glob("growth-*.json")):
            write_results(path, IMAGES)
        write_page(ROOT / "docs" / "speed.md", RESULTS)
        return
    if options.cpu_time and options.device == "cuda":
        parser.error("--cpu-time is for a CPU: a GPU works while the processor waits.")
    if options.device == "cuda" and set(options.only) <= {"corpus"}:
        parser.error("a corpus is read by the CPU: leave out --device cuda.")
    if options.cpu_time or options.threads:
        torch.set_num_threads(1 if options.cpu_time else options.threads)
    path = (options.out or RESULTS) / f"growth-{options.device}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    again = [*options.only, *(["share"] if "ranks" in options.only else [])]
    record = Record(path, options.device, again=again if options.again else ())
    measure(options, record)
    record.save()
    print(f"\n{write_results(path, options.out or IMAGES)}")


if __name__ == "__main__":
    main()
