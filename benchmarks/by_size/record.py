"""The record of measured points: one JSON file, saved after every round, and continued."""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from common import machine

from heed.bench.timing import WALL
from heed.files import to_json, write_atomic

SAME = ("python", "torch", "gpu", "cpu", "cores", "threads")
"""What must not change between the points of one record."""


@dataclass(frozen=True)
class Point:
    """What is measured: one size on one curve of one question."""

    question: str
    curve: str
    size: int


@dataclass
class Measurement:
    """What was measured at a point."""

    point: Point
    seconds: list[float] = field(default_factory=list)
    """Of one call, a value per turn."""
    tokens: int = 0
    """Tokens that a call processes."""
    memory: int | None = None
    """Peak bytes that the work added; None if unknown."""
    rounds: int = 0
    """Turns that complete the point."""
    busy_elsewhere: float = 0.0
    """Processor cores that other processes kept busy meanwhile, on average."""
    clock: str = WALL
    """The clock of its seconds: one of `heed.bench.timing.CLOCKS`."""
    info: dict[str, Any] = field(default_factory=dict)
    """The shape, and what only this question measures."""
    failed: str | None = None
    """Why there is no result: `out of memory`, or the error."""

    @property
    def is_complete(self) -> bool:
        """Whether the next run need not measure it again."""
        return self.failed is not None or (self.rounds > 0 and len(self.seconds) >= self.rounds)

    @property
    def median(self) -> float:
        """Median seconds of a call."""
        return statistics.median(self.seconds)

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second by the median."""
        return self.tokens / self.median


class Record:
    """Measurements by point, on one machine."""

    def __init__(self, path: Path, device: str, *, again: Collection[str] = ()) -> None:
        """Measurements in the file are kept, but those of the questions `again`.

        Measurements of another machine are refused.
        """
        self.path, self.machine = path, machine(device)
        of_session = {key: self.machine.pop(key) for key in ("command", "commit")}
        self.measurements: dict[Point, Measurement] = {}
        self.sessions: list[dict[str, Any]] = []
        if path.exists():
            self._load(again)
        if hasattr(os, "getloadavg"):
            load = round(os.getloadavg()[0], 2)
            self.sessions.append(of_session | {"load_at_start": load})

    def _load(self, again: Collection[str]) -> None:
        content = json.loads(self.path.read_text(encoding="utf-8"))
        kept = {
            point: one
            for point, one in read_measurements(content).items()
            if point.question not in again
        }
        if not kept:
            return
        for key in SAME:
            before, now = content["machine"].get(key), self.machine.get(key)
            if before != now:
                raise SystemExit(
                    f"{self.path.name} was measured with {key} {before}, this is {now}: "
                    "use --again to measure all of it anew, or --out for another folder."
                )
        self.measurements, self.sessions = kept, content["sessions"]

    def needs(self, point: Point, clock: str) -> bool:
        """Whether a point is still to be measured by a clock."""
        one = self.measurements.get(point)
        return one is None or not one.is_complete or (not one.failed and one.clock != clock)

    def keep_tokens(self, question: str, curve: str, tokens: int) -> None:
        """Drop the points of a curve whose steps have another number of tokens."""
        self.measurements = {
            point: one
            for point, one in self.measurements.items()
            if (point.question, point.curve) != (question, curve) or one.tokens == tokens
        }

    def put(self, measurement: Measurement) -> None:
        """Add or replace a measurement, and save all."""
        self.measurements[measurement.point] = measurement
        self.save()

    def save(self) -> None:
        """Write the file."""
        points = [
            asdict(one.point) | {k: v for k, v in asdict(one).items() if k != "point"}
            for one in self.measurements.values()
        ]
        content = {"machine": self.machine, "sessions": self.sessions, "points": points}
        write_atomic(self.path, to_json(content, indent=1) + "\n")


def read_measurements(content: dict[str, Any]) -> dict[Point, Measurement]:
    """The measurements of a record's JSON."""
    measurements = {}
    for one in content["points"]:
        fields = dict(one)
        point = Point(*(fields.pop(key) for key in ("question", "curve", "size")))
        measurements[point] = Measurement(point, **fields)
    return measurements


class Load:
    """How many cores other processes keep busy, from Linux's counters; 0 where there are none."""

    def __init__(self) -> None:
        self.elapsed = self.others = 0.0
        self.start()

    def start(self) -> None:
        """Begin a stretch of work."""
        self._began, self._busy, self._own = time.perf_counter(), _busy_seconds(), _own_seconds()

    def stop(self) -> None:
        """End the stretch."""
        self.elapsed += time.perf_counter() - self._began
        others = _busy_seconds() - self._busy - (_own_seconds() - self._own)
        self.others += max(0.0, others)

    @property
    def cores(self) -> float:
        """Cores that others kept busy over all stretches, on average."""
        return round(self.others / self.elapsed, 2) if self.elapsed else 0.0


def _busy_seconds() -> float:
    """Seconds that all cores were busy since the machine started."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return 0.0
    user, nice, system, _, _, irq, softirq, *_ = map(
        int, stat.read_text().split("\n")[0].split()[1:]
    )
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def _own_seconds() -> float:
    """Processor seconds of this process and of children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
