"""Pocock's looks: published levels, and the level over all looks by simulation."""

from __future__ import annotations

import numpy as np
import pytest
from comparison_level import Experiment, binomial_bound, mean_value
from scipy import stats as scipy_stats

from heed.stats.families import judge_family
from heed.stats.looks import find_look, pocock_level
from heed.stats.variance import System, estimate_variances


def crossing_chance(looks: int, level: float) -> float:
    """The chance that a random walk leaves ±z√k at any step k, by numerical integration.

    The density of walks that stayed inside is carried from step to step (Armitage, McPherson and
    Rowe 1969).
    """
    bound = scipy_stats.norm.isf(level / 2)
    points = np.linspace(-bound, bound, 301)
    density = scipy_stats.norm.pdf(points)
    for step in range(2, looks + 1):
        reached = np.linspace(-bound, bound, 301) * np.sqrt(step)
        kernel = scipy_stats.norm.pdf(reached[:, None] - points[None, :])
        density = np.trapezoid(kernel * density, points, axis=1)
        points = reached
    return 1 - float(np.trapezoid(density, points))


@pytest.mark.parametrize("looks", [1, 2, 3, 5, 10])
def test_levels_give_five_percent_over_all_looks(looks: int) -> None:
    assert crossing_chance(looks, pocock_level(looks)) == pytest.approx(0.05, abs=0.0003)


def test_more_looks_than_the_table_has_are_refused() -> None:
    for looks in (0, 11):
        with pytest.raises(ValueError, match="1 to 10 looks"):
            pocock_level(looks)


def test_a_declared_look_is_found_and_no_other() -> None:
    look = find_look([10, 3, 5], 5)
    assert look is not None
    assert (look.number, look.declared, look.level) == (2, (3, 5, 10), 0.0221)
    assert "Look 2 of 3" in str(look)
    assert "0.0221" in str(look)
    assert find_look([3, 5, 10], 4) is None
    single = find_look([5], 5)
    assert single is not None
    assert single.level == 0.05


def test_three_looks_hold_the_level_that_repeated_tests_exceed() -> None:
    """Systems drawn alike, looked at with 3, 5 and 10 seeds: at most 5% ever claim something."""
    random = np.random.default_rng(1)
    trials, claims, naive = 400, 0, 0
    level = pocock_level(3)
    for _ in range(trials):
        systems = Experiment(10, 40, (1.0, 0.2, 0.5)).draw(random)
        ps = []
        for seeds in (3, 5, 10):
            some = [System(one.name, one.counts_snc[:seeds]) for one in systems]
            variances = estimate_variances(some, mean_value)
            ps.append(judge_family(variances, [variances.contrast(1, 0)])[0].p)
        claims += min(ps) < level
        naive += min(ps) < 0.05
    assert claims <= binomial_bound(trials, 0.05)
    assert naive > 1.5 * claims
