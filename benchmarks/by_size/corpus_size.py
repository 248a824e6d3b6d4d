"""Start-up time, memory and speed of the real `heed train` by corpus size, with an empty cache.

Pairs are generated and written before. The model is tiny, so that the data is measured: reading,
the doctor, the tokenizer, the token store, the batches. Memory is that of the training process.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import torch
from common import set_options
from process_monitor import Part, watch

from by_size.record import Load, Measurement, Point, Record
from by_size.turns import Plan
from heed.bench.timing import PROCESSOR
from heed.data import synthetic
from heed.runs.run import Run

HELD_OUT = 1000
BLOCK = 50_000
STEPS = 60
WARM = 10
"""Steps before speed is counted."""
SETTINGS = {
    "model.layers": 1,
    "model.width": 32,
    "model.heads": 2,
    "train.steps": STEPS,
    "train.log_every": 1,
    "train.evaluate_every": 10_000,
    "train.evaluate_batches": 1,
    "train.batch_tokens": 2048,
}
BEFORE_FIRST_STEP = ("imports", "doctor", "tokenizer", "store", "model, plan", "first step")
LIMIT = 16.0
"""Bytes of memory that each additional pair may cost."""


@dataclass(frozen=True)
class Sizes:
    """Corpus sizes in pairs, and how often each is measured."""

    pairs: tuple[int, ...]
    rounds: int
    held_out: int = HELD_OUT
    once_from: int = 10_000_000
    """A corpus of so many pairs takes a quarter of an hour, so it is measured once."""

    def rounds_of(self, pairs: int) -> int:
        """How often a corpus of this size is measured."""
        return 1 if pairs >= self.once_from else self.rounds


CPU = Sizes((10_000, 30_000, 100_000, 300_000, 1_000_000), rounds=5)
TINY = Sizes((200, 400, 800), rounds=1, held_out=50)


def measure_corpora(sizes: Sizes, record: Record, plan: Plan) -> None:
    """Train on each corpus, in turns."""
    points = {pairs: Point("corpus", "pairs", pairs) for pairs in sizes.pairs}
    wanted = {pairs: point for pairs, point in points.items() if record.needs(point, plan.clock)}
    if not wanted or plan.is_over:
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        dev = write_corpus(folder, "dev", sizes.held_out)
        trains = {pairs: write_corpus(folder, "train", pairs) for pairs in wanted}
        found = {
            pairs: Measurement(point, rounds=sizes.rounds_of(pairs), clock=plan.clock)
            for pairs, point in wanted.items()
        }
        starts: dict[int, list[dict[str, Part]]] = {pairs: [] for pairs in wanted}
        speeds: dict[int, list[float]] = {pairs: [] for pairs in wanted}
        loads = {pairs: Load() for pairs in wanted}
        for number in range(sizes.rounds):
            for pairs, one in found.items():
                if number >= one.rounds or plan.is_over:
                    continue
                loads[pairs].start()
                parts, speed = train_once(
                    folder, trains[pairs], dev, threads=torch.get_num_threads()
                )
                loads[pairs].stop()
                starts[pairs].append(parts)
                speeds[pairs].append(speed)
                _describe(one, starts[pairs], speeds[pairs])
                one.busy_elsewhere = loads[pairs].cores
                record.put(one)
                print(f"corpus, {pairs:,} pairs: first step after {one.seconds[-1]:.1f} s,", end="")
                print(f" {(one.memory or 0) / 1e6:.0f} MB, {speed:,.0f} tokens/s", flush=True)


def _describe(one: Measurement, starts: Sequence[dict[str, Part]], speeds: list[float]) -> None:
    """The measurement of a corpus from all its runs so far."""
    wall, processor = (
        [sum(getattr(parts[name], clock) for name in BEFORE_FIRST_STEP) for parts in starts]
        for clock in ("seconds", "processor")
    )
    one.seconds = processor if one.clock == PROCESSOR else wall
    one.memory = round(statistics.median(_peak(parts, "anonymous") for parts in starts))
    one.info = {
        "resident": round(statistics.median(_peak(parts, "resident") for parts in starts)),
        "tokens_per_second": speeds,
        "elapsed": wall,
        "processor": processor,
        "parts": {
            name: {
                "seconds": statistics.median(parts[name].seconds for parts in starts),
                "processor": statistics.median(parts[name].processor for parts in starts),
                "anonymous": round(statistics.median(parts[name].anonymous for parts in starts)),
            }
            for name in starts[0]
        },
    }


def _peak(parts: dict[str, Part], kind: str) -> int:
    return max(getattr(part, kind) for part in parts.values())


def train_once(
    folder: Path, train: list[Path], dev: list[Path], *, threads: int
) -> tuple[dict[str, Part], float]:
    """Run the training command with an empty cache: its parts, and tokens per second."""
    options = ["--task", "translate", "--device", "cpu", "--threads", str(threads)]
    for flag, paths in (("--train", train), ("--dev", dev)):
        options += [part for path in paths for part in (flag, str(path))]
    options += set_options(SETTINGS)
    run, cache = folder / "run", folder / "cache"
    parts = watch(options, folder=run, cache=cache, splits=2)
    speed, _ = training_speed(run, warm=WARM)
    shutil.rmtree(run)
    shutil.rmtree(cache)
    return parts, speed


def training_speed(run: Path, *, warm: int) -> tuple[float, int]:
    """Tokens per second after the first `warm` steps of a finished run, and all its tokens."""
    lines = [line for line in Run(run).metrics() if line["event"] == "train"]
    first, last = lines[warm - 1], lines[-1]
    elapsed = last["time"]["seconds"] - first["time"]["seconds"]
    return float((last["tokens"] - first["tokens"]) / elapsed), int(last["tokens"])


def write_corpus(folder: Path, split: str, pairs: int) -> list[Path]:
    """Write a corpus of independently drawn synthetic pairs; returns the paths of its two sides."""
    starts = range(0, pairs, BLOCK)
    sizes = [min(BLOCK, pairs - start) for start in starts]
    paths = [folder / f"{split}-{pairs}.{side}" for side in ("en", "fr")]
    with (
        paths[0].open("w", encoding="utf-8") as english,
        paths[1].open("w", encoding="utf-8") as french,
        ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("forkserver")) as pool,
    ):
        for left, right in pool.map(partial(_block, split), starts, sizes):
            english.write(left)
            french.write(right)
    return paths


def _block(split: str, start: int, size: int) -> tuple[str, str]:
    """Both sides of `size` pairs of a split, from pair `start` on."""
    block = list(synthetic.generate_sentences(split, size, start=start))
    sides = [p.english for p in block], [p.french for p in block]
    return "\n".join([*sides[0], ""]), "\n".join([*sides[1], ""])
