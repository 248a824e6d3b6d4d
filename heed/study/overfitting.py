"""Overfitting: the gap between dev and train loss, and whether dev loss rises after its lowest.

Both losses are evaluated, without dropout and label smoothing, where the recipe sets
`train.evaluate_train`. Otherwise the train loss is the one while training, which has both: it is
labeled so, and its gap is not that of evaluated losses.

The step with the lowest dev loss of a run is chosen by that very loss, which is then too low there.
So the rise of one seed is taken from the step that the other seeds choose.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from statistics import fmean
from typing import Any

import numpy as np

from heed.runs.history import TRAIN_SET
from heed.stats.comparison import MIN_SEEDS, SumMetric
from heed.stats.variance import System
from heed.study.finding import Finding, describe_estimate, quote_name
from heed.study.scored_systems import Difference, Estimate, estimate_value, judge_systems
from heed.study.study_results import StudyResults

FIGURE = "train-dev-gap"
DEV_LOSS = "dev/loss"
EVALUATED, WHILE_TRAINING = f"{TRAIN_SET}/loss", "seen/loss"
LABELS = {
    EVALUATED: "evaluated train loss",
    WHILE_TRAINING: "the mean while training since the evaluation before, with dropout and label "
    "smoothing",
}


def _first(sums: np.ndarray[Any, np.dtype[np.float64]]) -> np.ndarray[Any, np.dtype[np.float64]]:
    return sums[..., 0]


LOSS = SumMetric("loss", _first, higher_is_better=False, digits=3, unit="nats")


@dataclass(frozen=True)
class RunGap:
    """Losses of one run at the step with its lowest dev loss and at its last evaluation."""

    system: str
    seed: int
    best_step: int
    last_step: int
    best_train: float
    best_dev: float
    last_train: float
    last_dev: float

    @property
    def best_gap(self) -> float:
        """dev - train loss at the step with the lowest dev loss."""
        return self.best_dev - self.best_train

    @property
    def last_gap(self) -> float:
        """dev - train loss at the last evaluation."""
        return self.last_dev - self.last_train


@dataclass(frozen=True)
class Gaps:
    """The gaps of all finished runs, on the same terms."""

    train_loss: str
    """The metric of the history that train loss is."""
    runs: list[RunGap]
    rises: dict[str, list[float]]
    """By system and seed: the rise of dev loss from the step that the other seeds choose."""

    @property
    def label(self) -> str:
        """What the train loss is."""
        return LABELS[self.train_loss]

    def of(self, system: str) -> list[RunGap]:
        """The runs of one system."""
        return [run for run in self.runs if run.system == system]


def measure_gaps(results: StudyResults) -> Gaps | None:
    """The gaps of the finished final trials; None where their histories have no losses."""
    histories = {
        (system.name, state.trial.seed): results.record(state.trial.name).history
        for system in results.systems
        for state in system.finished
    }
    for key in (EVALUATED, WHILE_TRAINING):
        points = {run: _loss_points(rows, key) for run, rows in histories.items()}
        if points and all(points.values()):
            break
    else:
        return None
    runs = [_run_gap(*run, steps) for run, steps in points.items()]
    rises: dict[str, list[float]] = {}
    for system in dict.fromkeys(name for name, _ in points):
        curves = [
            {step: dev for step, (dev, _) in steps.items()}
            for (name, _), steps in points.items()
            if name == system
        ]
        rises[system] = _rises(curves)
    return Gaps(key, runs, rises)


def find_overfitting(results: StudyResults, reference: str) -> list[Finding]:
    """Whether dev loss rises, for each system, and whether the last gap differs between systems."""
    gaps = measure_gaps(results)
    if gaps is None:
        return []
    findings = [
        _describe_rise(gaps, system, rises)
        for system, rises in gaps.rises.items()
        if len(rises) >= MIN_SEEDS
    ]
    for one in _gap_differences(gaps, reference):
        estimate = describe_estimate(one.value, one.interval, one.p, LOSS)
        a, b = quote_name(one.a), quote_name(one.b)
        text = f"Dev minus train loss at the end, of {a} minus that of {b}, is {estimate}."
        numbers = {"a": one.a, "b": one.b, "difference": one.value, "train_loss": gaps.train_loss}
        findings.append(Finding("overfit", text, FIGURE, numbers, one.interval, one.p))
    return findings


def _describe_rise(gaps: Gaps, system: str, rises: Sequence[float]) -> Finding:
    """The gaps of a system, and the rise of its dev loss; no test where no seed's rises."""
    runs = gaps.of(system)
    best, last = fmean(run.best_gap for run in runs), fmean(run.last_gap for run in runs)
    text = (
        f"{quote_name(system)}: dev loss is {best:+.3f} nats over train loss ({gaps.label}) at its "
        f"lowest, and {last:+.3f} at the end."
    )
    numbers: dict[str, Any] = {"system": system, "best_gap": best, "last_gap": last}
    numbers |= {"rise": fmean(rises), "train_loss": gaps.train_loss, "seeds": len(runs)}
    if not any(rises):
        text += " Dev loss is lowest at the end."
        return Finding("overfit", text, FIGURE, numbers)
    rise = _estimate(rises)
    estimate = describe_estimate(rise.value, rise.interval, rise.p, LOSS)
    text += f" From the lowest to the end, dev loss changes by {estimate}."
    return Finding("overfit", text, FIGURE, numbers, rise.interval, rise.p)


def _gap_differences(gaps: Gaps, reference: str) -> Sequence[Difference]:
    """Each system's last gap against that of the reference, over seeds."""
    names = list(gaps.rises)
    values = [[run.last_gap for run in gaps.of(name)] for name in names]
    if reference not in names or min(map(len, values)) < MIN_SEEDS:
        return []
    systems = [
        System(name, np.array(one)[:, None, None]) for name, one in zip(names, values, strict=True)
    ]
    return judge_systems(systems, LOSS.function, reference)


def _estimate(values: Sequence[float]) -> Estimate:
    """The mean of values over seeds, with Student's interval and p."""
    return estimate_value(np.array(values, dtype=np.float64)[:, None, None], _first)


def _loss_points(rows: Sequence[dict[str, Any]], train: str) -> dict[int, tuple[float, float]]:
    """(dev loss, train loss) by step, where both are finite."""
    points = {}
    for row in rows:
        dev, other = row.get(DEV_LOSS), row.get(train)
        if dev is not None and other is not None and isfinite(dev) and isfinite(other):
            points[int(row["step"])] = (float(dev), float(other))
    return points


def _run_gap(system: str, seed: int, points: dict[int, tuple[float, float]]) -> RunGap:
    best, last = min(points, key=lambda step: points[step][0]), max(points)
    (best_dev, best_train), (last_dev, last_train) = points[best], points[last]
    return RunGap(system, seed, best, last, best_train, best_dev, last_train, last_dev)


def _rises(curves: Sequence[dict[int, float]]) -> list[float]:
    """For each seed, the last dev loss minus that at the best step of the other seeds' mean."""
    if len(curves) < 2:
        return []
    rises = []
    for i, curve in enumerate(curves):
        others = [one for j, one in enumerate(curves) if j != i]
        steps = [step for step in curve if all(step in one for one in others)]
        if not steps:
            return []
        best = min(steps, key=lambda step: fmean(one[step] for one in others))
        rises.append(curve[max(curve)] - curve[best])
    return rises
