"""The percentile bootstrap (Efron 1979): the interval of a statistic over resampled items.

Items are resampled with replacement many times, and the statistic of each sample is computed. The
interval reaches from the 2.5th to the 97.5th percentile.
"""

from __future__ import annotations

import numpy as np

from heed.arrays import Floats
from heed.stats.intervals import LEVEL, Interval

RESAMPLES = 1000
"""Bootstrap samples for an interval: sacreBLEU's default."""
SEED = 12345
"""sacreBLEU's seed, so that all of heed's intervals use the same."""
BLOCK = 2**22
"""Numbers in memory at once while resampling."""


def percentile_interval(samples: Floats) -> Interval:
    """The interval of a statistic from its values [r] over samples, NaN left out."""
    low, high = np.nanpercentile(samples, (50 * (1 - LEVEL), 50 * (1 + LEVEL)))
    return Interval(float(low), float(high))
