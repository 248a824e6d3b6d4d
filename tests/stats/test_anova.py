"""Analysis of variance of grids: scipy's F, sums that add up, level, and planted effects."""

from __future__ import annotations

import numpy as np
import pytest
from comparison_level import binomial_bound
from scipy import stats as scipy_stats

from heed.stats.anova import analyze_grid
from heed.stats.distributions import f_tail


def test_f_tail_is_scipys() -> None:
    for f, df1, df2 in ((0.2, 1, 4), (1.0, 3, 7), (5.5, 2, 60), (400.0, 6, 9)):
        expected = scipy_stats.f.sf(f, df1, df2)
        assert f_tail(f, df1, df2) == pytest.approx(expected, rel=1e-9)
    assert f_tail(0.0, 2, 3) == 1.0
    assert f_tail(np.inf, 2, 3) == 0.0
    with pytest.raises(ValueError, match="positive"):
        f_tail(1.0, 0, 3)


def test_one_factor_is_scipys() -> None:
    scores = np.random.default_rng(1).normal(size=(4, 5)) + np.arange(4)[:, None]
    [effect] = analyze_grid(scores, ["position"]).effects
    expected = scipy_stats.f_oneway(*scores)
    assert effect.f == pytest.approx(expected.statistic)
    assert effect.p == pytest.approx(expected.pvalue)
    assert effect.share == 1.0


def test_sums_of_squares_add_up() -> None:
    scores = np.random.default_rng(2).normal(size=(3, 2, 4, 2, 3))
    anova = analyze_grid(scores, ["a", "b", "c", "d"])
    within = anova.seed_variance * anova.seed_df
    total = ((scores - scores.mean()) ** 2).sum()
    assert sum(e.sum_of_squares for e in anova.effects) + within == pytest.approx(total)
    assert sum(e.df for e in anova.effects) + anova.seed_df == scores.size - 1
    assert sum(e.share for e in anova.effects) == pytest.approx(1.0)
    assert {len(e.factors) for e in anova.effects} == {1, 2, 4}


def test_shares_are_those_of_the_planted_variances() -> None:
    """Main effects of variance 4 and 1 and no interaction: shares of 80% and 20%."""
    a, b = np.array([-2.0, 2.0]), np.array([-1.0, 1.0])
    random = np.random.default_rng(3)
    scores = a[:, None, None] + b[None, :, None] + random.normal(0, 0.5, (2, 2, 200))
    shares = {e.factors: e.share for e in analyze_grid(scores, ["a", "b"]).effects}
    assert shares["a",] == pytest.approx(0.8, abs=0.03)
    assert shares["b",] == pytest.approx(0.2, abs=0.03)
    assert shares["a", "b"] < 0.01


def test_factors_without_effect_are_rarely_found() -> None:
    random = np.random.default_rng(4)
    trials, claims = 300, 0
    for _ in range(trials):
        scores = random.normal(size=(3, 3, 3))
        scores += np.array([0.0, 1.0, 2.0])[:, None, None]  # a has an effect, b and a × b have none
        effects = {e.factors: e for e in analyze_grid(scores, ["a", "b"]).effects}
        claims += (effects["b",].p < 0.05) + (effects["a", "b"].p < 0.05)
    assert claims <= binomial_bound(2 * trials, 0.05)


def test_one_seed_has_no_test_and_a_gap_is_refused() -> None:
    scores = np.array([[1.0], [2.0]])
    [effect] = analyze_grid(scores, ["a"]).effects
    assert np.isnan(effect.p)
    assert effect.share == 1.0
    with pytest.raises(ValueError, match="finite score"):
        analyze_grid(np.array([[1.0], [np.nan]]), ["a"])
    with pytest.raises(ValueError, match="axes"):
        analyze_grid(scores, ["a", "b"])
