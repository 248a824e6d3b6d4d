"""Two ranks against one on this machine, by torchrun and the real `heed train`."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from common import ROOT, environment, set_options
from process_monitor import PAUSE, descendants, processor_seconds

from by_size.corpus_size import training_speed
from by_size.record import Load, Measurement, Point, Record
from by_size.turns import Plan
from heed.bench.timing import PROCESSOR
from heed.runs.run import Run

RECIPE = "demo-translate"
SETTINGS = {
    "model.width": 256,
    "train.steps": 30,
    "train.log_every": 1,
    "train.batch_tokens": 4096,
    "train.evaluate_every": 10_000,
    "train.evaluate_batches": 1,
}
WARM = 5
TINY = {"model.width": 32, "train.steps": 6, "train.batch_tokens": 512, "data.synthetic": 300}


@dataclass(frozen=True)
class Ranks:
    """A number of ranks, each with so many threads."""

    ranks: int
    threads: int

    @property
    def point(self) -> Point:
        """What is measured; its size is the number of ranks."""
        return Point(
            "ranks", f"{self.threads} {'thread' if self.threads == 1 else 'threads'}", self.ranks
        )


SYSTEMS = (Ranks(1, 1), Ranks(2, 1), Ranks(1, 2))
"""Two ranks share two cores, so they are compared with one rank on one core, and on both."""


@dataclass(frozen=True)
class RanksPlan:
    """How often, and with which settings."""

    rounds: int = 5
    systems: tuple[Ranks, ...] = SYSTEMS
    settings: dict[str, int] = field(default_factory=dict)


CPU = RanksPlan()
SHORT = RanksPlan(rounds=1, systems=SYSTEMS[:2], settings=TINY)


def measure_ranks(how: RanksPlan, record: Record, plan: Plan) -> None:
    """Train the same recipe with each number of ranks, in turns.

    By the processor's clock, seconds are those of all ranks together. Threads that wait for each
    other spin, so there ranks have one thread each.
    """
    by_processor = plan.clock == PROCESSOR
    systems = [one for one in how.systems if one.threads == 1 or not by_processor]
    wanted = [system for system in systems if record.needs(system.point, plan.clock)]
    settings = SETTINGS | how.settings
    found = {}
    for system in wanted:
        begun = record.measurements.get(system.point)
        if begun is not None and (begun.clock, begun.info["settings"]) == (plan.clock, settings):
            found[system] = begun
            continue
        found[system] = Measurement(
            system.point,
            tokens=settings["train.batch_tokens"],
            rounds=how.rounds,
            clock=plan.clock,
            info={"recipe": RECIPE, "settings": settings, "tokens_per_second": []},
        )
    loads = {system: Load() for system in wanted}
    with tempfile.TemporaryDirectory() as name:
        for _ in range(how.rounds):
            for system, one in found.items():
                if plan.is_over:
                    return
                if one.is_complete:
                    continue
                loads[system].start()
                speed, processor, one.info["tokens"] = _train(system, settings, Path(name))
                loads[system].stop()
                one.busy_elsewhere = loads[system].cores
                one.info["tokens_per_second"].append(speed)
                one.seconds.append(processor if by_processor else one.tokens / speed)
                record.put(one)
                what = f"ranks {system.ranks}, threads each {system.threads}"
                print(
                    f"{what}: {one.seconds[-1]:.3f} s per step, {speed:,.0f} tokens/s", flush=True
                )


def _train(system: Ranks, settings: dict[str, int], folder: Path) -> tuple[float, float, int]:
    """Tokens per second of a run, processor seconds of a step of all its ranks, and its tokens."""
    run, log, steps = folder / "run", folder / "log", settings["train.steps"]
    warm = min(WARM, steps // 2)
    options = [RECIPE, "--run", str(run), "--device", "cpu", "--threads", str(system.threads)]
    options += set_options(settings)
    start = [sys.executable, "-m"]
    if system.ranks > 1:
        torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node"]
        start += [*torchrun, str(system.ranks), "-m", "--"]
    with log.open("w", encoding="utf-8") as output:
        process = subprocess.Popen(
            [*start, "heed", "train", *options],
            cwd=ROOT,
            env=environment(HEED_CACHE=str(folder / "cache"), OMP_NUM_THREADS=str(system.threads)),
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    spent = []
    for step in (warm, steps):
        seconds = 0.0
        while True:
            now = sum(map(processor_seconds, [process.pid, *descendants(process.pid)]))
            seconds = max(seconds, now)  # of a process that has just ended nothing is known
            if process.poll() is not None or _count_lines(Run(run).metrics_path) >= step:
                break
            time.sleep(PAUSE)
        spent.append(seconds)
    if process.wait():
        raise RuntimeError(log.read_text(encoding="utf-8"))
    speed, tokens = training_speed(run, warm=warm)
    shutil.rmtree(run)
    return speed, (spent[1] - spent[0]) / (steps - warm), tokens


def _count_lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0
