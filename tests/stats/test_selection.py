"""Expected best by budget, and the winner's fall: limits, simulation and unbiasedness."""

from __future__ import annotations

import numpy as np
import pytest
from comparison_level import binomial_bound
from hypothesis import given
from hypothesis import strategies as st

from heed.stats.selection import expected_best, winner_fall

scores = st.lists(st.floats(-50, 50), min_size=1, max_size=20)


@given(scores)
def test_expected_best_goes_from_the_mean_towards_the_largest(values: list[float]) -> None:
    curve = expected_best(values, budget=500)
    assert curve[0] == pytest.approx(np.mean(values), abs=1e-9)
    assert curve[-1] == pytest.approx(max(values), abs=1e-6)
    assert (np.diff(curve) >= -1e-9).all()
    # Where lower is better, everything is mirrored.
    mirrored = expected_best([-v for v in values], higher_is_better=False, budget=500)
    assert mirrored == pytest.approx(-curve)


def test_expected_best_is_the_mean_of_drawn_maxima() -> None:
    random = np.random.default_rng(3)
    values = random.normal(size=12)
    draws = random.choice(values, (20_000, 5)).max(axis=1)
    error = draws.std() / np.sqrt(len(draws))
    assert expected_best(values)[4] == pytest.approx(draws.mean(), abs=4 * error)
    assert len(expected_best(values)) == 12
    with pytest.raises(ValueError, match="finite"):
        expected_best([1.0, np.nan])


def test_the_fall_of_a_winner_is_covered() -> None:
    """Twenty equal trials: the winner's advantage is luck, and fresh seeds show all of it."""
    random = np.random.default_rng(4)
    trials, missed, falls = 400, 0, []
    for _ in range(trials):
        best = random.standard_normal(20).max()
        result = winner_fall([best], random.standard_normal(5))
        assert result.interval is not None
        falls.append(result.fall)
        missed += not result.interval.low <= best <= result.interval.high
    assert missed <= binomial_bound(trials, 0.05)
    assert np.mean(falls) == pytest.approx(1.867, abs=0.15)  # the expected largest of 20 normals
    lower = winner_fall([1.0], [1.5], higher_is_better=False)
    assert lower.fall == 0.5
    assert lower.interval is None
