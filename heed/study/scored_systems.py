"""The systems of a study on one set, ready for exploratory questions about its items."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from heed.arrays import Floats, Ints
from heed.metrics.item_metrics import ItemMetric, item_metrics
from heed.runs.item_counts import ItemCounts
from heed.stats.comparison import MIN_SEEDS, SumMetric
from heed.stats.families import judge_family
from heed.stats.intervals import Interval
from heed.stats.variance import Metric, System, estimate_variances
from heed.study.comparability import common_groups
from heed.study.study_results import StudyResults

Rows = NDArray[np.bool_]
LEVEL = 0.05
"""Exploratory intervals are 95% ones."""


@dataclass(frozen=True)
class Estimate:
    """A number with its 95% interval and p-value, of one question alone."""

    value: float
    interval: Interval
    p: float


@dataclass(frozen=True)
class Difference(Estimate):
    """The difference of two systems in something, a minus b."""

    a: str
    b: str


@dataclass(frozen=True)
class ScoredSystems:
    """The item counts of every system on one set, for one metric."""

    set_name: str
    metric_name: str
    metric: SumMetric
    systems: list[System]
    items: ItemCounts
    """Of one run: what does not depend on the run, such as lengths and labels."""
    runs: dict[str, list[ItemCounts]]
    """The item counts of every run, by system."""
    clusters: Ints | None
    reference: str
    """The system that others are compared with: the baseline, else the best on dev."""
    paired_seeds: bool

    @property
    def compares_recipes(self) -> bool:
        """Whether every system has enough seeds for questions about recipes."""
        return min(system.seeds for system in self.systems) >= MIN_SEEDS

    @cached_property
    def others(self) -> list[str]:
        """The systems beside the reference."""
        return [system.name for system in self.systems if system.name != self.reference]

    def mean(self, name: str, rows: Rows) -> float:
        """The mean score of a system over its seeds, on some of the items."""
        [system] = [one for one in self.systems if one.name == name]
        return float(self.metric.function(system.counts_snc[:, rows].sum(axis=1)).mean())


def open_scored_systems(
    results: StudyResults, *, metric: str | None = None, set_name: str | None = None
) -> ScoredSystems | None:
    """The systems of a study's comparison; None before one is possible."""
    comparison = results.comparison
    if comparison is None:
        return None
    set_name = set_name or comparison.set_name
    metric = metric or comparison.metric_name
    runs: dict[str, list[ItemCounts]] = {}
    counts: dict[str, list[ItemMetric]] = {}
    for group in comparison.groups:
        items = [results.record(run).run.evaluations.get(set_name) for run in group.runs]
        known = [one for one in items if one is not None]
        if len(known) < len(items) or any(metric not in item_metrics(one) for one in known):
            return None
        runs[group.name] = known
        counts[group.name] = [item_metrics(one)[metric] for one in known]
    names = list(runs)
    reference = comparison.whole.pairs[0].b if comparison.whole.pairs else names[0]
    if results.config.baseline not in names and results.best in names:
        reference = str(results.best)
    flat = {f"{name} {i}": one for name, group in runs.items() for i, one in enumerate(group)}
    return ScoredSystems(
        set_name,
        metric,
        counts[names[0]][0].metric,
        [
            System(name, np.stack([one.counts_nc for one in group]))
            for name, group in counts.items()
        ],
        runs[names[0]][0],
        runs,
        common_groups(flat),
        reference,
        comparison.whole.paired_seeds,
    )


def estimate_value(
    counts_snc: Floats, metric: Metric, clusters: Ints | None = None, *, questions: int = 1
) -> Estimate:
    """A metric of one system, mean over seeds, with its interval over seeds and items.

    The p-value is that of the true value being 0. Interval and p are corrected for so many
    `questions` by Bonferroni's method.
    """
    variances = estimate_variances([System("", counts_snc)], metric, clusters=clusters)
    [judged] = judge_family(variances, [np.ones(1)], alpha=LEVEL / questions)
    half = judged.critical * judged.standard_error
    interval = Interval.around(judged.difference, half)
    return Estimate(judged.difference, interval, min(1.0, questions * judged.p))


def estimate_score(
    scored: ScoredSystems, system: System, rows: Rows
) -> tuple[float, Interval | None]:
    """The score of a system on some of the items, and its interval."""
    clusters = None if scored.clusters is None else scored.clusters[rows]
    one = estimate_value(system.counts_snc[:, rows], scored.metric.function, clusters)
    return one.value, one.interval


def judge_differences(
    scored: ScoredSystems, systems: Sequence[System], metric: SumMetric, rows: Rows | None = None
) -> list[Difference]:
    """Each system against the reference by some metric, each question alone.

    `rows` are the items that the systems have counts of, if not all.
    """
    clusters = scored.clusters
    if clusters is not None and rows is not None:
        clusters = clusters[rows]
    return judge_systems(
        systems, metric.function, scored.reference, clusters, paired=scored.paired_seeds
    )


def judge_systems(
    systems: Sequence[System],
    metric: Metric,
    reference: str,
    clusters: Ints | None = None,
    *,
    paired: bool = False,
) -> list[Difference]:
    """Each system against the reference, each question alone."""
    variances = estimate_variances(systems, metric, clusters=clusters, paired=paired)
    names = [system.name for system in systems]
    base = names.index(reference)
    differences = []
    for index, name in enumerate(names):
        if index != base:
            [judged] = judge_family(variances, [variances.contrast(index, base)])
            half = judged.critical * judged.standard_error
            interval = Interval.around(judged.difference, half)
            differences.append(Difference(judged.difference, interval, judged.p, name, reference))
    return differences
