"""Intervals of single scores: Wilson's for shares, Student's for means and for ratios of sums.

All are 95% intervals. An interval states how far the score may be from its value on unlimited items
of the same kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from heed.stats.distributions import normal_quantile, student_t_quantile

Floats = NDArray[np.float64]

LEVEL = 0.95
Z = normal_quantile((1 + LEVEL) / 2)
MIN_ITEMS = 10
"""Items below which a ratio gets no interval: so few do not show how much they differ."""


@dataclass(frozen=True)
class Interval:
    """A 95% confidence interval."""

    low: float
    high: float

    @classmethod
    def around(cls, mean: float, half_width: float) -> Interval:
        """The symmetric interval mean ± half width."""
        mean, half_width = float(mean), float(half_width)
        return cls(mean - half_width, mean + half_width)

    @property
    def center(self) -> float:
        """The middle of the interval; for sacreBLEU's, the mean of the bootstrap samples."""
        return (self.low + self.high) / 2


def wilson_interval(successes: float, items: float) -> Interval | None:
    """The interval of a share (Wilson 1927); None without items.

    Unlike an interval by resampling it has a width at 0 and 1, where no sample would ever differ.
    """
    if items <= 0:
        return None
    share, square = successes / items, Z * Z / items
    half_width = Z * sqrt(share * (1 - share) / items + square / (4 * items)) / (1 + square)
    center = (share + square / 2) / (1 + square)
    # Rounding must not exclude the share itself, at 0 and 1 above all.
    low, high = center - half_width, center + half_width
    return Interval(max(0.0, min(low, share)), min(1.0, max(high, share)))


def mean_interval(values: Floats) -> Interval | None:
    """The interval of the mean of items by Student's t; None for fewer than two."""
    items = len(values)
    if items < 2:
        return None
    error = float(values.std(ddof=1)) / sqrt(items)
    return Interval.around(float(values.mean()), _student_quantile(items) * error)


def ratio_interval(numerators: Floats, denominators: Floats) -> Interval | None:
    """The interval of Σ numerators / Σ denominators over items, by jackknife and Student's t.

    Each item is left out in turn; the variance of the ratios without it gives the standard error
    (Quenouille 1956, Tukey 1958). None for fewer than `MIN_ITEMS` items, or where one item has all
    of the denominator.
    """
    items, total = len(numerators), float(denominators.sum())
    rest = total - denominators
    if items < MIN_ITEMS or not (rest > 0).all():
        return None
    without_n = (numerators.sum() - numerators) / rest
    variance = (items - 1) / items * float(((without_n - without_n.mean()) ** 2).sum())
    ratio = float(numerators.sum()) / total
    return Interval.around(ratio, _student_quantile(items) * sqrt(variance))


def paired_share_interval(wins: int, losses: int, items: int) -> Interval:
    """The interval of the difference (wins - losses) / items of two shares of the same items.

    Bonett and Price (2012): the normal interval after adding one win and one loss, so that it has
    a width where no item was won or lost.
    """
    won, lost = (wins + 1) / (items + 2), (losses + 1) / (items + 2)
    half_width = Z * sqrt((won + lost - (won - lost) ** 2) / (items + 2))
    return Interval(max(-1.0, won - lost - half_width), min(1.0, won - lost + half_width))


def intervals_as_json(intervals: Mapping[str, Interval | None]) -> dict[str, dict[str, float]]:
    """Intervals by metric as JSON values, without metrics that have none."""
    return {key: asdict(interval) for key, interval in intervals.items() if interval is not None}


@lru_cache(maxsize=1024)
def _student_quantile(items: int) -> float:
    return student_t_quantile((1 + LEVEL) / 2, items - 1)
