"""Points measured in turns: all of a group are built, then each takes its turn in every round.

So drift of the machine (heat, other work) does not become a slope. The order changes by round.
Out of memory ends a curve; a point that fits only alone is measured alone.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from by_size.record import Load, Measurement, Point, Record
from heed.bench.timing import WALL, Work, seconds
from heed.device import is_out_of_memory

OUT_OF_MEMORY = "out of memory"


@dataclass(frozen=True)
class Job:
    """How a point is measured."""

    point: Point
    build: Callable[[], Work]
    """Builds what is timed."""
    tokens: int
    info: dict[str, Any] = field(default_factory=dict)
    peak: Callable[[], int] | None = None
    """Peak bytes in a process of its own, for devices whose allocator does not count them."""


@dataclass(frozen=True)
class Plan:
    """Where, how often and until when."""

    device: torch.device
    rounds: int
    turn: float
    """The shortest turn in seconds."""
    deadline: float = float("inf")
    """By `time.monotonic`: nothing is built after it, and what is built is timed."""
    clock: str = WALL
    """`processor` measures this process's processor time, for a machine that others use too."""

    @property
    def is_over(self) -> bool:
        """Whether the time is spent."""
        return time.monotonic() > self.deadline


def measure_group(jobs: Iterable[Job], record: Record, plan: Plan) -> None:
    """Measure what is missing of these points, in turns."""
    wanted = [job for job in jobs if record.needs(job.point, plan.clock)]
    postponed = _measure_together(sorted(wanted, key=lambda job: job.point.size), record, plan)
    for job in postponed:
        if record.needs(job.point, plan.clock) and not _has_failed(job, record):
            _measure_together([job], record, plan)


def _measure_together(jobs: list[Job], record: Record, plan: Plan) -> list[Job]:
    """Measure these points; returns those that do not fit beside the others."""
    runs: dict[Point, Work] = {}
    calls: dict[Point, int] = {}
    measured: dict[Point, Measurement] = {}
    loads: dict[Point, Load] = {}
    postponed: list[Job] = []
    for job in jobs:
        if plan.is_over:
            break
        if postponed or _has_failed(job, record):
            postponed += [job] if postponed else []
            continue
        measurement = Measurement(
            job.point, tokens=job.tokens, rounds=plan.rounds, clock=plan.clock, info=job.info
        )
        failed = _build(job, measurement, runs, calls, plan)
        if failed is None:
            measured[job.point], loads[job.point] = measurement, Load()
            continue
        runs.pop(job.point, None)
        _free(plan.device)
        if failed == OUT_OF_MEMORY and measured:
            postponed.append(job)
            continue
        print(f"{_name(job.point)}: {failed}", flush=True)
        record.put(Measurement(job.point, tokens=job.tokens, info=job.info, failed=failed))
    order = list(measured)
    for number in range(plan.rounds if order else 0):
        random.Random(number).shuffle(order)
        for point in order:
            loads[point].start()
            taken = seconds(runs[point], plan.device, calls=calls[point], clock=plan.clock)
            measured[point].seconds.append(taken)
            loads[point].stop()
            measured[point].busy_elsewhere = loads[point].cores
            record.measurements[point] = measured[point]
        record.save()
    for point, measurement in measured.items():
        print(_line(point, measurement), flush=True)
    runs.clear()
    _free(plan.device)
    return postponed


def _build(
    job: Job,
    measurement: Measurement,
    runs: dict[Point, Work],
    calls: dict[Point, int],
    plan: Plan,
) -> str | None:
    """Build one point, warm it up and measure its memory; returns why it failed, if it did.

    The error itself is not kept: its traceback would hold the tensors that did not fit.
    """
    before = _reset_peak(plan.device)
    try:
        if job.peak is not None:
            measurement.memory = job.peak()
        runs[job.point] = run = job.build()
        run()
        once = seconds(run, plan.device, clock=plan.clock)
    except Exception as error:  # one point must not end the measurement of all others
        if is_out_of_memory(error):
            return OUT_OF_MEMORY
        return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"
    if before is not None:
        measurement.memory = torch.cuda.max_memory_allocated(plan.device) - before
    calls[job.point] = max(1, round(plan.turn / once))
    return None


def _has_failed(job: Job, record: Record) -> bool:
    """Whether a smaller size of this curve failed: a larger one will not fit either."""
    return any(
        one.failed is not None
        and (point.question, point.curve) == (job.point.question, job.point.curve)
        and point.size <= job.point.size
        for point, one in record.measurements.items()
    )


def _reset_peak(device: torch.device) -> int | None:
    """Forget the GPU's peak; the bytes in use now, None on a CPU."""
    gc.collect()
    if device.type != "cuda":
        return None
    torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.memory_allocated(device)


def _free(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _name(point: Point) -> str:
    return f"{point.question}, {point.curve}, {point.size:,}"


def _line(point: Point, measurement: Measurement) -> str:
    if not measurement.seconds:
        return f"{_name(point)}: no turn"
    low, high = min(measurement.seconds), max(measurement.seconds)
    memory = "" if measurement.memory is None else f", {measurement.memory / 2**20:,.0f} MiB"
    return (
        f"{_name(point)}: {measurement.median * 1e3:.2f} ms "
        f"({low * 1e3:.2f} to {high * 1e3:.2f}){memory}"
    )
