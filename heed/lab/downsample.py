"""Downsampling of curves for a screen, by minimum and maximum.

The x axis is divided into buckets of equal width. Of each bucket the points with the lowest and the
highest value stay, of a band those of its lowest and highest edge as well; the first and the last
point stay. So every point that is drawn was measured, and no peak is lost.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from heed.arrays import Floats, Ints


def choose_points(x: Floats, values: Sequence[Floats], most: int, *, log_x: bool = False) -> Ints:
    """The places of the points to draw, in order: about `most`, or all if there are no more.

    `values` are the curve and, if it has a band, its edges. `most` is exceeded by two at most.
    """
    count = len(x)
    if count <= most:
        return np.arange(count)
    # A mean over seeds of tokens or seconds may step back: a bucket is a stretch of the curve.
    at = np.maximum.accumulate(np.log(x) if log_x else x)
    buckets = max(1, most // (2 * len(values)))
    width = at[-1] - at[0]
    shares = (at - at[0]) / width if width > 0 else np.linspace(0, 1, count)
    bucket = np.minimum((shares * buckets).astype(np.int64), buckets - 1)
    starts = np.flatnonzero(np.diff(bucket, prepend=-1))
    ends = np.append(starts[1:], count) - 1
    chosen = [np.array([0, count - 1])]
    for column in values:
        order = np.lexsort((column, bucket))
        chosen += [order[starts], order[ends]]  # the lowest and the highest of each bucket
    return np.unique(np.concatenate(chosen))
