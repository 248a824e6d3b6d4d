"""A classifier by class: the share of each class that is recognized, and where systems differ."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heed.metrics.item_metrics import ACCURACY
from heed.stats.intervals import Interval
from heed.stats.variance import System
from heed.study.finding import Finding, describe_estimate, quote_name
from heed.study.scored_systems import ScoredSystems, estimate_value, judge_differences

FIGURE = "by-class"
MIN_TEXTS = 10
"""A class with fewer texts is left out: so few do not tell systems apart."""
RECALL = "recall"


@dataclass(frozen=True)
class ClassScores:
    """The recall of every system on each class, in percent."""

    classes: list[str]
    texts: list[int]
    scores: dict[str, list[tuple[float, Interval | None]]]
    """By system: the mean over seeds for each class, and its interval over seeds and items."""


def score_by_class(scored: ScoredSystems) -> ClassScores | None:
    """The recall of each class of enough texts; None where the task has no classes."""
    counted = _count_classes(scored)
    if not counted:
        return None
    return ClassScores(
        list(counted),
        [int(rows.sum()) for rows, _ in counted.values()],
        {
            system.name: [
                (one.value, one.interval)
                for rows, systems in counted.values()
                for one in [estimate_value(systems[i].counts_snc, ACCURACY.function)]
            ]
            for i, system in enumerate(scored.systems)
        },
    )


def find_class_effects(scored: ScoredSystems) -> list[Finding]:
    """Where the recall of a class differs between a system and the reference."""
    if len(scored.systems) < 2 or not scored.compares_recipes:
        return []
    findings = []
    for name, (rows, systems) in _count_classes(scored).items():
        for one in judge_differences(scored, systems, ACCURACY, rows):
            estimate = describe_estimate(one.value, one.interval, one.p, ACCURACY)
            estimate = estimate.replace(ACCURACY.difference_unit, f"points of {RECALL}")
            pair = f"{quote_name(one.a)} − {quote_name(one.b)}"
            text = f"On class {name} ({int(rows.sum()):,} texts), {pair} is {estimate}."
            numbers = {"class": name, "a": one.a, "b": one.b, "difference": one.value}
            findings.append(Finding("class", text, FIGURE, numbers, one.interval, one.p))
    return findings


def _count_classes(
    scored: ScoredSystems,
) -> dict[str, tuple[np.ndarray[tuple[int, ...], np.dtype[np.bool_]], list[System]]]:
    """The rows of each class, and the counts (recognized, all) of every system on them."""
    counted = {}
    for index, name in enumerate(scored.items.classes):
        rows = scored.items.columns["label"] == index
        if rows.sum() < MIN_TEXTS:
            continue
        systems = []
        for system in scored.systems:
            hits = np.stack(
                [one.columns["predicted"][rows] == index for one in scored.runs[system.name]]
            ).astype(np.float64)
            systems.append(System(system.name, np.stack([hits, np.ones_like(hits)], axis=-1)))
        counted[name] = (rows, systems)
    return counted
