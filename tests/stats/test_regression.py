"""Regression from summed counts: numpy's coefficients, gaps that add up, and coverage."""

from __future__ import annotations

import numpy as np
import pytest
from comparison_level import binomial_bound

from heed.stats.families import judge_family
from heed.stats.regression import (
    coefficient_metric,
    contribution_metric,
    gap_metric,
    regression_counts,
    solve_coefficients,
)
from heed.stats.variance import System, estimate_variances


def draw(
    random: np.random.Generator, seeds: int = 3, items: int = 80, slope: float = 0.5
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Outcomes [s, n] times weights, predictors (1, group, x) and weights."""
    group = (np.arange(items) < items // 2).astype(float)
    x = random.normal(size=items) + group
    weight = random.integers(5, 40, items).astype(float)
    noise = random.normal(0, 0.5, items) + random.normal(0, 0.3, (seeds, items))
    seed_effect = random.normal(0, 0.05, (seeds, 1))
    outcome = 2 + 0.3 * group + slope * x + noise + seed_effect
    return outcome * weight, np.stack([np.ones(items), group, x], axis=1), weight


def test_coefficients_are_those_of_weighted_least_squares() -> None:
    outcome, predictors, weight = draw(np.random.default_rng(1))
    sums = regression_counts(outcome, predictors, weight).sum(axis=1)
    root = np.sqrt(weight)
    for seed, coefficients in enumerate(solve_coefficients(sums, 3)):
        y = outcome[seed] / weight
        expected = np.linalg.lstsq(predictors * root[:, None], y * root, rcond=None)[0]
        assert coefficients == pytest.approx(expected, rel=1e-5)


def test_contributions_and_the_rest_add_up_to_the_gap() -> None:
    outcome, predictors, weight = draw(np.random.default_rng(2))
    sums = regression_counts(outcome, predictors, weight).sum(axis=1)
    group = predictors[:, 1] == 1
    gap = outcome[:, group].sum(1) / weight[group].sum()
    gap -= outcome[:, ~group].sum(1) / weight[~group].sum()
    assert gap_metric(1, 3)(sums) == pytest.approx(gap)
    parts = contribution_metric(1, [2], 3)(sums) + coefficient_metric(1, 3)(sums)
    assert parts == pytest.approx(gap, rel=1e-5)


@pytest.mark.parametrize("slope", [0.0, 0.5])
def test_the_interval_of_a_coefficient_covers_the_truth(slope: float) -> None:
    random = np.random.default_rng(3)
    trials, missed = 200, 0
    for _ in range(trials):
        counts = regression_counts(*draw(random, slope=slope))
        variances = estimate_variances([System("a", counts)], coefficient_metric(2, 3))
        [result] = judge_family(variances, [np.ones(1)])
        missed += abs(result.difference - slope) > result.critical * result.standard_error
    assert missed <= binomial_bound(trials, 0.065)


def test_predictors_that_are_the_same_stay_finite() -> None:
    outcome, predictors, weight = draw(np.random.default_rng(4))
    twice = np.concatenate([predictors, predictors[:, 2:]], axis=1)
    sums = regression_counts(outcome, twice, weight).sum(axis=1)
    coefficients = solve_coefficients(sums, 4)
    assert np.isfinite(coefficients).all()
    assert contribution_metric(1, [2, 3], 4)(sums) == pytest.approx(
        contribution_metric(1, [2], 3)(regression_counts(outcome, predictors, weight).sum(axis=1)),
        rel=1e-3,
    )
