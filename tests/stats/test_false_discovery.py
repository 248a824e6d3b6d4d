"""Benjamini and Hochberg's method: scipy's values, and the share of false findings."""

from __future__ import annotations

import numpy as np
import pytest
from comparison_level import binomial_bound
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from heed.stats.false_discovery import benjamini_hochberg


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_adjusted_values_are_scipys(p_values: list[float]) -> None:
    expected = scipy_stats.false_discovery_control(p_values)
    assert benjamini_hochberg(p_values) == pytest.approx(expected)


def test_limits() -> None:
    assert benjamini_hochberg([]).size == 0
    assert benjamini_hochberg([0.03]).tolist() == [0.03]
    with pytest.raises(ValueError, match="between 0 and 1"):
        benjamini_hochberg([1.2])


def test_at_most_five_percent_of_the_findings_are_false() -> None:
    """Twenty questions, five with an effect: the mean share of false ones among those selected."""
    random = np.random.default_rng(2)
    trials = 2000
    z = random.standard_normal((trials, 20))
    z[:, :5] += 3.0
    p = 2 * scipy_stats.norm.sf(np.abs(z))
    selected = np.stack([benjamini_hochberg(row) for row in p]) <= 0.05
    shares = selected[:, 5:].sum(axis=1) / np.maximum(selected.sum(axis=1), 1)
    assert shares.mean() * trials <= binomial_bound(trials, 0.05)
    # Without any effect, the share of experiments that select something is the level.
    empty = np.stack([benjamini_hochberg(row) for row in p[:, 5:]]) <= 0.05
    assert empty.any(axis=1).sum() <= binomial_bound(trials, 0.05)
