"""Association by ranks: scipy's coefficients, level of the permutation test, choices."""

from __future__ import annotations

import numpy as np
import pytest
from comparison_level import binomial_bound
from scipy import stats as scipy_stats

from heed.stats.association import associate


def test_numbers_are_spearmans() -> None:
    random = np.random.default_rng(1)
    values = random.integers(0, 6, 25)  # with ties
    scores = values + random.normal(size=25)
    expected = scipy_stats.spearmanr(values, scores)
    result = associate(values.tolist(), scores)
    assert result.direction == pytest.approx(expected.statistic)
    assert result.share == pytest.approx(expected.statistic**2)
    assert result.p == pytest.approx(1 / 2001)  # the smallest, for an association this strong


def test_choices_are_kruskals() -> None:
    """H = (n - 1) η² of ranks, whatever the choices are called."""
    random = np.random.default_rng(2)
    scores = random.normal(size=30)
    values = [("adam", "sgd", "lion")[i % 3] for i in range(30)]
    expected = scipy_stats.kruskal(*(scores[i::3] for i in range(3)))
    result = associate(values, scores)
    assert 29 * result.share == pytest.approx(expected.statistic)
    assert result.p == pytest.approx(expected.pvalue, abs=0.06)


def test_the_level_holds() -> None:
    random = np.random.default_rng(3)
    trials, claims = 300, 0
    for _ in range(trials):
        claims += associate(random.random(15).tolist(), random.random(15), draws=200).p <= 0.05
    assert claims <= binomial_bound(trials, 0.05)


def test_constants_and_few_trials_say_nothing() -> None:
    for values, scores in (([1, 2], [1.0, 2.0]), ([3, 3, 3], [1.0, 2.0, 3.0]), ("aaa", [1, 2, 3])):
        assert associate(list(values), scores).p == 1.0
    assert associate([1, 2, 3], [5.0, 5.0, 5.0]).share == 0.0
