"""`metrics.jsonl` of a run as columns, read once and then only as far as it grew.

A lab looks at hundreds of runs every second, with thousands of rows each. Rows of `read_history`,
the plain twin, would take ten times the memory and three times as long.
"""

from __future__ import annotations

import json
import math
from array import array
from pathlib import Path
from typing import Any

import numpy as np

from heed.arrays import Floats, Ints
from heed.checksums import KEY, DamagedError, is_intact
from heed.files import open_regular
from heed.runs.history import (
    AXES,
    CLOCK,
    PLACE,
    TrainingClock,
    build_row,
    check_line,
    flatten_metrics,
)
from heed.runs.metric_plot import MetricSeries
from heed.runs.run import RESTORE, Run

CHUNK = 32 << 20
"""Bytes that are read at once: a longer file is read by several calls."""
TRAIN = "train"
"""The event of the lines that are many."""
Row = dict[str, Any]
Line = dict[str, Any]


class MetricsFile:
    """The metrics of one run: a column for each axis and each metric."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.forget()

    def forget(self) -> None:
        """Begin anew: the next call reads the file from its start."""
        self._inode: int | None = None
        self._offset = 0
        self._has_more = False
        self._clock = TrainingClock()
        self._steps_per_epoch: int | None = None
        self._steps = array("q")
        self._axes = {name: array("d") for name in AXES if name != "step"}
        self._metrics: dict[str, tuple[array[int], array[float]]] = {}
        self.rows = 0
        """The lines that were read."""
        self.evaluations: list[Line] = []
        """The lines that are not about training steps, as they are in the file."""
        self.last_line: Line | None = None

    @property
    def metrics(self) -> list[str]:
        """The names of all metrics that can be drawn."""
        return sorted(self._metrics)

    @property
    def lines(self) -> list[Line]:
        """The evaluations and the last line, which say how far training is and which was best."""
        return [*self.evaluations, *([self.last_line] if self.last_line else [])]

    def read_on(self, steps_per_epoch: int | None, *, wants_rows: bool) -> tuple[list[Row], bool]:
        """Read what is new: the new rows, if they are wanted, and whether the file was replaced.

        A file that is shorter than before, or another one of the same name, is read anew: a resumed
        run drops lines after its checkpoint.
        """
        counted = self.run.counted_lines()
        is_replaced = self._forget_if_replaced(self.run.metrics_path, steps_per_epoch)
        lines = self._parse(self._read_lines(self.run.metrics_path))
        start = len(self._steps)
        self._add(lines)
        if self.is_complete:
            self.run.check_line_count(self.rows, counted)
        if is_replaced or not wants_rows:
            return [], is_replaced
        seconds = (None if math.isnan(one) else one for one in self._axes["seconds"][start:])
        rows = zip(lines, seconds, strict=True)
        return [build_row(line, one, steps_per_epoch) for line, one in rows], False

    @property
    def is_complete(self) -> bool:
        """Whether the whole file was read, as it was when it was last looked at."""
        return not self._has_more

    def _forget_if_replaced(self, path: Path, steps_per_epoch: int | None) -> bool:
        """Forget everything if the file is another one than before; whether it is."""
        stat = path.stat() if path.exists() else None
        inode, size = (stat.st_ino, stat.st_size) if stat else (None, 0)
        was_read = self._inode is not None
        is_other = inode != self._inode or size < self._offset
        if is_other or steps_per_epoch != self._steps_per_epoch:
            self.forget()
            self._inode, self._steps_per_epoch = inode, steps_per_epoch
            return was_read
        return False

    def _read_lines(self, path: Path) -> list[bytes]:
        """The complete lines after those that were read."""
        self._has_more = False
        if self._inode is None:
            return []
        with open_regular(path) as file:
            file.seek(self._offset)
            data = file.read(CHUNK)
        end = data.rfind(b"\n") + 1
        self._has_more = len(data) == CHUNK
        if self._has_more and not end:
            what = "this file is damaged: it has a line that does not end."
            raise DamagedError(what, where=str(path), todo=RESTORE)
        self._offset += end
        return data[:end].split(b"\n")[:-1]

    def _parse(self, lines: list[bytes]) -> list[Line]:
        """The content of lines, verified; the parser of all files says what is wrong with one."""
        contents = []
        for number, data in enumerate(lines, self.rows + 1):
            content = _scan(data)
            if content is None or not is_intact(data):
                content = self.run.parse_metrics_line(data, number)
            content.pop(KEY, None)
            check_line(content, f"{self.run.metrics_path}:{number}")
            contents.append(content)
        return contents

    def _add(self, lines: list[Line]) -> None:
        """Append lines to the columns. Those of training have one shape, and are added at once."""
        start = len(self._steps)
        self.rows += len(lines)
        steps = [line["step"] for line in lines]
        self._steps.extend(steps)
        epochs = self._steps_per_epoch
        self._axes["epoch"].extend(
            [step / epochs for step in steps]
            if epochs
            else [_to_float(line.get("epoch")) for line in lines]
        )
        self._axes["tokens"].extend([_to_float(line.get("tokens")) for line in lines])
        self._axes["seconds"].extend([_to_float(self._clock.advance(line)) for line in lines])
        shape = next((line.keys() for line in lines if line["event"] == TRAIN), None)
        alike: list[int] = []
        for place, line in enumerate(lines):
            if line["event"] == TRAIN and line.keys() == shape:
                alike.append(place)
                continue
            row = build_row(line, None, epochs)
            for name, value in row.items():
                self._add_values(name, [start + place], [value])
            if line["event"] != TRAIN:
                self.evaluations.append(line)
        self._add_alike(lines, alike, start)
        if lines:
            self.last_line = lines[-1]

    def _add_alike(self, lines: list[Line], alike: list[int], start: int) -> None:
        """Append lines of training with the same keys, a column at a time."""
        if not alike:
            return
        places = [start + place for place in alike]
        columns = {key: [lines[place][key] for place in alike] for key in lines[alike[0]]}
        clocks = columns.get("time", [])
        for key in CLOCK:
            if clocks:
                columns[f"time/{key}"] = [clock.get(key) for clock in clocks]
        for key, values in columns.items():
            if key in PLACE:
                continue
            if any(type(value) is dict for value in values):
                for place, value in zip(places, values, strict=True):
                    for name, one in flatten_metrics(TRAIN, {key: value}).items():
                        self._add_values(name, [place], [one])
            else:
                name = key if key.startswith("time/") else f"{TRAIN}/{key}"
                self._add_values(name, places, values)

    def _add_values(self, name: str, places: list[int], values: list[Any]) -> None:
        """Append values of a metric; what is no number is left out."""
        if "/" not in name or name == "time/unix":
            return
        if not {*map(type, values)} <= {int, float}:
            known = [(p, v) for p, v in zip(places, values, strict=True) if type(v) in (int, float)]
            if not known:
                return
            places, values = map(list, zip(*known, strict=True))
        columns = self._metrics.setdefault(name, (array("q"), array("d")))
        columns[0].extend(places)
        columns[1].extend(map(_to_float, values) if int in {*map(type, values)} else values)

    def series(self, metric: str, x: str) -> MetricSeries:
        """The values of a metric by step, epoch, tokens or seconds, in the order of steps."""
        columns = self._metrics.get(metric, (array("q"), array("d")))
        places, values = np.array(columns[0], dtype=np.int64), np.array(columns[1])
        if np.any(np.diff(places) < 0):  # lines of one shape are added before others
            order = np.argsort(places, kind="stable")
            places, values = places[order], values[order]
        steps: Ints = np.array(self._steps, dtype=np.int64)[places]
        at: Floats = steps.astype(np.float64) if x == "step" else np.array(self._axes[x])[places]
        known = ~np.isnan(at)
        steps, at, values = steps[known], at[known], values[known]
        if np.any(np.diff(steps) <= 0):  # measured twice, after a resume: the last value counts
            steps, last = np.unique(steps[::-1], return_index=True)
            at, values = at[::-1][last], values[::-1][last]
        return MetricSeries(steps, at, values.astype(np.float64))


_decoder = json.JSONDecoder()


def _scan(data: bytes) -> Line | None:
    """The JSON object that a line is; None for anything else."""
    try:
        text = data.decode()
        content, end = _decoder.raw_decode(text)
    except (ValueError, RecursionError):
        return None
    return content if end == len(text) and type(content) is dict else None


def _to_float(value: Any) -> float:
    """A number; NaN for everything else and for what is not finite."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.nan
