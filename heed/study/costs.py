"""What each system costs beside what it scores: time, speed, memory and parameters."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import exp, log
from statistics import fmean

import numpy as np

from heed.stats.comparison import MIN_SEEDS
from heed.stats.intervals import Interval
from heed.stats.variance import System
from heed.stats.verdicts import format_p
from heed.study.finding import Finding, quote_name
from heed.study.scored_systems import judge_systems
from heed.study.study_results import StudyResults
from heed.study.system_results import SystemResults

FIGURE = "costs"
SPEED = "time/tokens_per_second"


@dataclass(frozen=True)
class SystemCosts:
    """The mean costs of a system's finished runs; None where they were not recorded."""

    system: str
    minutes: float | None
    tokens_per_second: float | None
    peak_memory: float | None
    """Bytes."""
    parameters: float | None
    score: float | None
    """The mean score on the primary set."""


def measure_costs(results: StudyResults) -> list[SystemCosts]:
    """The costs of every system with a finished run."""
    scores = {}
    if results.comparison is not None:
        scores = {name: float(v.mean()) for name, v in results.comparison.whole.systems.items()}
    return [
        SystemCosts(
            system.name,
            _mean(state.minutes for state in system.finished),
            _mean(_speeds(results, system)),
            _mean(state.peak_memory for state in system.finished),
            _mean(state.parameters for state in system.finished),
            scores.get(system.name),
        )
        for system in results.systems
        if system.finished
    ]


def find_cost_differences(results: StudyResults, reference: str) -> list[Finding]:
    """How much longer each system trains than the reference, as a ratio of geometric means.

    The logarithm of a time is less skewed than the time, which matters for so few seeds.
    """
    minutes = {
        system.name: [log(s.minutes) for s in system.finished if s.minutes and s.minutes > 0]
        for system in results.systems
    }
    minutes = {name: values for name, values in minutes.items() if len(values) >= MIN_SEEDS}
    if reference not in minutes or len(minutes) < 2:
        return []
    machines = {
        state.machine for system in results.systems for state in system.finished if state.machine
    }
    where = " (on several machines)" if len(machines) > 1 else ""
    systems = [System(name, np.array(one)[:, None, None]) for name, one in minutes.items()]
    findings = []
    for one in judge_systems(systems, lambda sums: sums[..., 0], reference):
        low, ratio, high = (exp(x) for x in (one.interval.low, one.value, one.interval.high))
        text = (
            f"A run of {quote_name(one.a)} takes {ratio:.2f} times as long as one of "
            f"{quote_name(one.b)}{where} "
            f"(geometric means over seeds; 95% interval {low:.2f} to {high:.2f}, "
            f"p {format_p(one.p)})."
        )
        numbers = {"a": one.a, "b": one.b, "ratio": ratio}
        findings.append(Finding("cost", text, FIGURE, numbers, Interval(low, high), one.p))
    return findings


def _speeds(results: StudyResults, system: SystemResults) -> list[float]:
    """The mean speed of each finished run, evaluations not counted."""
    speeds = []
    for state in system.finished:
        rows = results.record(state.trial.name).history
        values = [row[SPEED] for row in rows if row.get(SPEED)]
        speeds += [fmean(values)] if values else []
    return speeds


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
