"""Hold out part of the training data as a dev set, where the recipe names none."""

from __future__ import annotations

import numpy as np

from heed.config import DataConfig
from heed.data.batching.length_buckets import Rows, chunk_slices
from heed.errors import DataError

DEV_MAX = 2000
"""The most examples that are held out for dev."""


def hold_out_dev(count: int, data: DataConfig) -> tuple[Rows, Rows]:
    """Draw the rows held out for dev from `count` examples; returns the dev and the train rows.

    At least one is held out. Call it only where `data.splits_off_dev`.
    """
    if count < 2:
        raise DataError(
            "one example is too few to train on and to hold out for dev.",
            todo="Name a dev set, set data.dev_share = 0, or give more text.",
        )
    held_out = min(DEV_MAX, count - 1, int(data.dev_share * count) + 1)
    random = np.random.Generator(np.random.PCG64(data.dev_seed))
    in_train = np.ones(count, np.bool_)
    in_train[random.choice(count, held_out, replace=False)] = False
    # In chunks, since there may be many: indices of 8 bytes each become 4.
    parts = [
        np.flatnonzero(in_train[p]).astype(np.uint32) + np.uint32(p.start)
        for p in chunk_slices(count)
    ]
    return np.flatnonzero(~in_train).astype(np.uint32), np.concatenate(parts)
