"""The percentile bootstrap (Efron 1979): the interval of a statistic over resampled items.

Items are resampled with replacement many times, and the statistic of each sample is computed. The
interval reaches from the 2.5th to the 97.5th percentile. Samples are drawn in blocks, as arrays.

Shapes: n items, r samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

RESAMPLES = 1000
"""Bootstrap samples for an interval: sacreBLEU's default."""
SEED = 12345
"""sacreBLEU's seed, so that all of heed's intervals use the same."""
LEVEL = 0.95
BLOCK = 2**22
"""Numbers in memory at once while resampling."""


@dataclass(frozen=True)
class Interval:
    """A 95% confidence interval."""

    low: float
    high: float

    @classmethod
    def around(cls, mean: float, half_width: float) -> Interval:
        """The symmetric interval that sacreBLEU prints as mean ± half width."""
        mean, half_width = float(mean), float(half_width)
        return cls(mean - half_width, mean + half_width)

    @property
    def center(self) -> float:
        """The middle of the interval; for sacreBLEU's, the mean of the bootstrap samples."""
        return (self.low + self.high) / 2


def bootstrap_indices(
    items: int, resamples: int, seed: int = SEED, *, values_per_sample: int = 1
) -> Iterator[Ints]:
    """Yield blocks [r, n] of resampled item indices; the same for the same seed.

    `values_per_sample` is the number of values that a statistic holds for each sample, where that
    is more than the number of items: it makes blocks smaller.
    """
    random = np.random.Generator(np.random.PCG64(seed))
    rows = max(1, BLOCK // max(items, values_per_sample))
    for first in range(0, resamples, rows):
        yield random.integers(items, size=(min(rows, resamples - first), items))


def bootstrap(
    statistic: Callable[[Ints], Floats],
    items: int,
    resamples: int,
    seed: int = SEED,
    *,
    values_per_sample: int = 1,
) -> Floats:
    """The statistic of every bootstrap sample, [resamples, …].

    `statistic` takes indices [r, n] and returns [r, …].
    """
    blocks = bootstrap_indices(items, resamples, seed, values_per_sample=values_per_sample)
    return np.concatenate([statistic(block) for block in blocks])


def percentile_interval(samples: Floats) -> Interval:
    """The interval of a statistic from its values [r] over samples, NaN left out."""
    low, high = percentile_bounds(samples)
    return Interval(float(low), float(high))


def percentile_bounds(samples: Floats) -> tuple[Floats, Floats]:
    """Lower and upper bounds […] of many statistics [r, …], NaN left out; NaN if all are NaN."""
    percentiles = (50 * (1 - LEVEL), 50 * (1 + LEVEL))
    undefined = np.isnan(samples).all(axis=0)
    defined = np.where(undefined, 0.0, samples)
    low, high = np.nanpercentile(defined, percentiles, axis=0)
    return np.where(undefined, np.nan, low), np.where(undefined, np.nan, high)
