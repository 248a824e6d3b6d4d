"""Hold out part of the training data as a dev set, where the recipe names none."""

from __future__ import annotations

import numpy as np

from heed.data.batching.length_buckets import Rows, chunk_slices
from heed.errors import DataError

DEV_SHARE, DEV_MAX = 0.05, 2000
"""Share of the examples held out for dev, and the most that are."""


def hold_out_dev(count: int, seed: int) -> tuple[Rows, Rows]:
    """Draw the rows held out for dev from `count` examples; returns the dev and the train rows."""
    if count < 2:
        raise DataError(
            "one example is too few to train on and to hold out for dev.",
            todo="Name a dev set, or give more text.",
        )
    held_out = min(DEV_MAX, int(DEV_SHARE * count) + 1)
    random = np.random.Generator(np.random.PCG64(seed))
    in_train = np.ones(count, np.bool_)
    in_train[random.choice(count, held_out, replace=False)] = False
    # In chunks, since there may be many: indices of 8 bytes each become 4.
    parts = [
        np.flatnonzero(in_train[p]).astype(np.uint32) + np.uint32(p.start)
        for p in chunk_slices(count)
    ]
    return np.flatnonzero(~in_train).astype(np.uint32), np.concatenate(parts)
