"""The history of a run: every line of metrics.jsonl as a flat row, for figures and tables.

A row has `event`, `step`, `epoch`, `tokens` and `seconds`, and then its metrics by name:

    train/loss, train/lr …    while training, since the row of this kind before
    seen/loss …               while training, since the evaluation before
    dev/loss, dev/bleu …      an evaluated set; `train-set/loss` is the evaluated training text
    average/dev/loss …        the averaged weights, evaluated at the end
    time/tokens_per_second    speed of training; evaluations and the first step not counted
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from heed.checksums import DamagedError
from heed.runs.run import RESTORE, Run

AXES = ("step", "epoch", "tokens", "seconds")
"""Columns that tell how far training was."""
PLACE = ("event", "step", "epoch", "tokens", "time")
"""Keys of a line of metrics.jsonl that are no metrics."""
CLOCK = ("unix", "tokens_per_second")
"""Keys under `time` that a row has as they are."""
TIMES = ("unix", "seconds", "tokens_per_second")
"""Keys under `time` that are numbers."""
MAX_STEP, MAX_FLOAT = 1 << 63, int(sys.float_info.max)
TRAIN_SET = "train-set"
"""The training text as an evaluated set. `train/loss` is the loss while training."""


def read_history(run: Run) -> list[dict[str, Any]]:
    """The rows of a run, also while it trains; empty before its first measurement.

    `epoch` is a fraction: 1.5 is in the middle of the second. `tokens` are without padding.
    `seconds` are of training and evaluations, without pauses before a `heed resume`.
    """
    lines, steps = run.metrics(), run.environment().get("steps_per_epoch")
    for number, line in enumerate(lines, 1):
        check_line(line, f"{run.metrics_path}:{number}")
    return build_history(lines, steps)


def check_line(line: Mapping[str, Any], where: str) -> None:
    """Raise an error for a line of metrics.jsonl that does not say when it was measured."""
    step, clock = line.get("step"), line.get("time", {})
    if not (isinstance(line.get("event"), str) and type(step) is int and 0 <= step < MAX_STEP):
        raise DamagedError("this line has no event or no step.", where=where, todo=RESTORE)
    places = [line.get("epoch"), line.get("tokens")]
    places += [clock.get(key) for key in TIMES] if isinstance(clock, Mapping) else [clock]
    if not all(place is None or is_number(place) for place in places):
        what = "this line has an epoch, tokens or a time that is no number."
        raise DamagedError(what, where=where, todo=RESTORE)


def is_number(value: object) -> TypeGuard[float]:
    """Whether a value from JSON is a number that a float holds; true and false are none."""
    if isinstance(value, float):
        return True
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= MAX_FLOAT


def build_history(
    lines: Sequence[Mapping[str, Any]], steps_per_epoch: int | None = None
) -> list[dict[str, Any]]:
    """The rows for lines of metrics.jsonl."""
    clock = TrainingClock()
    return [build_row(line, clock.advance(line), steps_per_epoch) for line in lines]


def build_row(
    line: Mapping[str, Any], seconds: float | None, steps_per_epoch: int | None
) -> dict[str, Any]:
    """The row for one line; `seconds` are of training up to it."""
    epoch = line["step"] / steps_per_epoch if steps_per_epoch else line.get("epoch")
    row = {"event": line["event"], "step": line["step"], "epoch": epoch}
    row |= {"tokens": line.get("tokens"), "seconds": seconds}
    metrics = {key: value for key, value in line.items() if key not in PLACE}
    clock = line.get("time", {})
    clock = {f"time/{key}": clock[key] for key in CLOCK if key in clock}
    return row | flatten_metrics(line["event"], metrics) | clock


def flatten_metrics(event: str, values: Mapping[str, Any]) -> dict[str, float]:
    """Metrics by name: {"dev": {"loss": 1}} is {"dev/loss": 1}. Texts and None are left out."""
    above = "average/" if event == "average" else ""
    named: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            part = above + (TRAIN_SET if key == "train" else key)
            named |= {f"{part}/{name}": number for name, number in value.items()}
        else:
            named[f"{event}/{key}"] = value
    return {name: one for name, one in named.items() if is_number(one) or isinstance(one, bool)}


def display_set_name(name: str) -> str:
    """The name of an evaluated set in a sentence: `train` is `train set`."""
    return "train set" if name in ("train", TRAIN_SET) else name


class TrainingClock:
    """Seconds of training over all sessions of a run, line by line.

    `seconds` of a line count from the start of its session. One that started after the line before
    was written is a new one.
    """

    def __init__(self) -> None:
        self._before, self._total = 0.0, 0.0
        self._last_unix: float | None = None

    def advance(self, line: Mapping[str, Any]) -> float | None:
        """Seconds up to this line, the next one; None where they are not recorded."""
        clock = line.get("time", {})
        if clock.get("seconds") is None or clock.get("unix") is None:
            return None
        if self._last_unix is not None and clock["unix"] - clock["seconds"] > self._last_unix:
            self._before = self._total
        self._total, self._last_unix = self._before + clock["seconds"], clock["unix"]
        return round(self._total, 3)
