"""Holm's correction: the familywise error stays at the level."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from heed.stats.correction import holm


@given(st.lists(st.floats(0, 1), max_size=12), st.floats(0.001, 0.5))
def test_holm_rejects_step_by_step(p_values: list[float], level: float) -> None:
    """The definition: the smallest is tested at level / m, the next at level / (m - 1), …"""
    corrected, rejected = holm(p_values), set()
    for rank, i in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        if (len(p_values) - rank) * p_values[i] > level:
            break
        rejected.add(i)
    assert rejected == {i for i, p in enumerate(corrected) if p <= level}
    assert all(p <= q <= 1 for p, q in zip(p_values, corrected, strict=True))


def test_the_familywise_error_is_at_the_level() -> None:
    p_values = np.random.default_rng(3).random((4000, 6))
    false_positives = np.mean([min(holm(row.tolist())) <= 0.05 for row in p_values])
    assert false_positives <= 0.05 + 4 * np.sqrt(0.05 * 0.95 / 4000)
