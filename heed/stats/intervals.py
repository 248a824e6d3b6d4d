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

from heed.arrays import Floats
from heed.stats.distributions import normal_quantile, student_t_quantile
from heed.stats.variance import jackknife

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

    None for fewer than `MIN_ITEMS` items, or where one item has all of the denominator.
    """
    items = len(numerators)
    if items < MIN_ITEMS or not (denominators.sum() - denominators > 0).all():
        return None
    counts_nc = np.stack([numerators, denominators], axis=-1)
    [ratio], [pseudo_n] = jackknife(counts_nc[None], lambda sums: sums[..., 0] / sums[..., 1])
    error = float(pseudo_n.std(ddof=1)) / sqrt(items)
    return Interval.around(ratio, _student_quantile(items) * error)


class RatioSums:
    """Ratios Σ numerators / Σ denominators of items that are added batch by batch.

    Only first and second moments are stored, so memory does not grow with the items. The standard
    error is the infinitesimal jackknife's (Jaeckel 1972): the residuals n - r·d, divided by Σ d. It
    approaches the delete-one jackknife of `ratio_interval` as items are added.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.items = np.zeros(shape)
        """Items with a denominator above zero; the others say nothing about the ratio."""
        self._sum_n, self._sum_d, self._sum_nn, self._sum_nd, self._sum_dd = np.zeros((5, *shape))

    def add(self, numerators: Floats, denominators: Floats) -> None:
        """Add items: both arrays are [items, …], their further axes broadcast to the shape."""
        n, d = np.broadcast_arrays(numerators, denominators)
        self.items += (d > 0).sum(axis=0)
        self._sum_n += n.sum(axis=0)
        self._sum_d += d.sum(axis=0)
        self._sum_nn += (n * n).sum(axis=0)
        self._sum_nd += (n * d).sum(axis=0)
        self._sum_dd += (d * d).sum(axis=0)

    def ratios(self) -> Floats:
        """The ratios; NaN where the denominators are zero."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(self._sum_d > 0, self._sum_n / self._sum_d, np.nan)

    def half_widths(self) -> Floats:
        """Half the width of each 95% interval; NaN for fewer than `MIN_ITEMS` items."""
        r = self.ratios()
        squares = self._sum_nn - 2 * r * self._sum_nd + r * r * self._sum_dd
        with np.errstate(invalid="ignore", divide="ignore"):
            factor = self.items / (self.items - 1)
            errors = np.sqrt(factor * np.maximum(squares, 0.0)) / self._sum_d
        widths = [
            _student_quantile(int(items)) * error if items >= MIN_ITEMS else np.nan
            for items, error in zip(self.items.flat, errors.flat, strict=True)
        ]
        return np.array(widths).reshape(self.items.shape)


def intervals_as_json(intervals: Mapping[str, Interval | None]) -> dict[str, dict[str, float]]:
    """Intervals by metric as JSON values, without metrics that have none."""
    return {key: asdict(interval) for key, interval in intervals.items() if interval is not None}


@lru_cache(maxsize=1024)
def _student_quantile(items: int) -> float:
    return student_t_quantile((1 + LEVEL) / 2, items - 1)
