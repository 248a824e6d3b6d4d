"""The percentile bootstrap (Efron 1979): the interval of a statistic over resampled items.

Items are resampled with replacement many times, and the statistic of each sample is computed. The
interval reaches from the 2.5th to the 97.5th percentile. Samples are drawn in blocks, as arrays.

Shapes: n items, r samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from heed.stats.intervals import LEVEL, Interval

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

RESAMPLES = 1000
"""Bootstrap samples for an interval: sacreBLEU's default."""
SEED = 12345
"""sacreBLEU's seed, so that all of heed's intervals use the same."""
BLOCK = 2**22
"""Numbers in memory at once while resampling."""


def bootstrap_indices(items: int, resamples: int, seed: int = SEED) -> Iterator[Ints]:
    """Yield blocks [r, n] of resampled item indices; the same for the same seed."""
    random = np.random.Generator(np.random.PCG64(seed))
    rows = max(1, BLOCK // items)
    for first in range(0, resamples, rows):
        yield random.integers(items, size=(min(rows, resamples - first), items))


def bootstrap(
    statistic: Callable[[Ints], Floats], items: int, resamples: int, seed: int = SEED
) -> Floats:
    """The statistic of every bootstrap sample, [resamples, …].

    `statistic` takes indices [r, n] and returns [r, …].
    """
    return np.concatenate([statistic(block) for block in bootstrap_indices(items, resamples, seed)])


def percentile_interval(samples: Floats) -> Interval:
    """The interval of a statistic from its values [r] over samples, NaN left out."""
    low, high = np.nanpercentile(samples, (50 * (1 - LEVEL), 50 * (1 + LEVEL)))
    return Interval(float(low), float(high))
