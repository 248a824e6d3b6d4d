"""Bootstrap samples are one random stream, whatever the block size."""

from __future__ import annotations

import numpy as np
import pytest

from heed.stats import bootstrap
from heed.stats.bootstrap import bootstrap_indices


def test_blocks_of_samples_are_one_random_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """The block size does not change the samples."""
    whole = np.concatenate(list(bootstrap_indices(7, 20)))
    monkeypatch.setattr(bootstrap, "BLOCK", 21)
    parts = list(bootstrap_indices(7, 20))
    assert len(parts) > 1
    assert np.array_equal(np.concatenate(parts), whole)
