"""A part of the training text to choose by, where there is no dev set."""

from __future__ import annotations

import numpy as np

from heed.data.batching.bucketed import Rows
from heed.data.batching.length_buckets import chunks
from heed.errors import DataError

DEV_SHARE, DEV_MOST = 0.05, 2000


def set_aside(count: int, seed: int) -> tuple[Rows, Rows]:
    """Which of so many texts to choose by, and which to learn from."""
    if count < 2:
        raise DataError(
            "one text is too few to learn from and to choose by.",
            todo="Name a dev set, or give more text.",
        )
    held_out = min(DEV_MOST, int(DEV_SHARE * count) + 1)
    random = np.random.Generator(np.random.PCG64(seed))
    learnt = np.ones(count, np.bool_)
    learnt[random.choice(count, held_out, replace=False)] = False
    # In parts, for there may be many: places of 8 bytes each become 4.
    parts = [
        np.flatnonzero(learnt[p]).astype(np.uint32) + np.uint32(p.start) for p in chunks(count)
    ]
    return np.flatnonzero(~learnt).astype(np.uint32), np.concatenate(parts)
