"""Many comparisons: familywise error, agreement of p and interval, and the set of the best."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from comparison_level import Experiment, binomial_bound, mean_value
from scipy import stats as scipy_stats

from heed.stats.families import best_set, gaps_to_best, judge_family
from heed.stats.variance import estimate_variances


def test_one_comparison_is_not_corrected() -> None:
    variances = estimate_variances(
        Experiment(3, 50, (1, 1, 1)).draw(np.random.default_rng(0)), mean_value
    )
    [result] = judge_family(variances, [variances.contrast(1, 0)])
    assert result.corrected_p == result.p
    assert result.critical == pytest.approx(scipy_stats.t.ppf(0.975, result.df))


def test_independent_comparisons_are_corrected_as_sidak_does() -> None:
    """Contrasts without common systems, and many degrees of freedom: 1 - (1 - p)^f."""
    experiment = Experiment(400, 30, (30, 0, 0), systems=8)
    variances = estimate_variances(experiment.draw(np.random.default_rng(1)), mean_value)
    results = judge_family(variances, [variances.contrast(i, i + 1) for i in (0, 2, 4, 6)])
    for result in results:
        assert result.corrected_p == pytest.approx(1 - (1 - result.p) ** 4, abs=0.006)


def test_two_sided_dunnett_is_scipys() -> None:
    """Systems against one baseline, seed variance alone: Dunnett's test."""
    random = np.random.default_rng(2)
    scores = [random.normal(shift, 1, 6) for shift in (0, 0.9, 0.3, 1.5)]
    experiment = Experiment(6, 30, (0, 0, 0), systems=4)
    systems = experiment.draw(random)
    for system, values in zip(systems, scores, strict=True):
        system.counts_snc[..., 0] = values[:, None]
    variances = estimate_variances(systems, mean_value)
    assert variances.pooled
    results = judge_family(variances, [variances.contrast(i, 0) for i in (1, 2, 3)])
    expected = scipy_stats.dunnett(*scores[1:], control=scores[0], rng=np.random.default_rng(0))
    ps = [result.corrected_p for result in results]
    assert ps == pytest.approx(list(expected.pvalue), abs=0.005)


def test_intervals_and_corrected_p_agree() -> None:
    random = np.random.default_rng(3)
    for _ in range(15):
        systems = Experiment(3, 60, (2, 1, 1), systems=5).draw(random, (0, 0.2, 0.3, 0.5, 0.6))
        variances = estimate_variances(systems, mean_value)
        pairs = [variances.contrast(b, a) for a, b in combinations(range(5), 2)]
        for result in judge_family(variances, pairs):
            outside = abs(result.difference) > result.critical * result.standard_error
            assert outside == (result.corrected_p < 0.05)
            assert result.corrected_p >= result.p


def test_familywise_error_over_seven_systems() -> None:
    """All pairs of seven systems drawn alike: at most 5.5% of experiments find anything."""
    random = np.random.default_rng(4)
    experiment = Experiment(3, 100, (1, 1, 1), systems=7)
    trials, found = 150, 0
    for _ in range(trials):
        variances = estimate_variances(experiment.draw(random), mean_value)
        pairs = [variances.contrast(b, a) for a, b in combinations(range(7), 2)]
        found += any(
            result.corrected_p < 0.05 for result in judge_family(variances, pairs, draws=4000)
        )
    assert found <= binomial_bound(trials, 0.055)


def test_the_set_of_the_best_holds_the_true_best() -> None:
    random = np.random.default_rng(5)
    experiment = Experiment(3, 100, (1, 1, 1), systems=4)
    trials, missed, size = 100, 0, 0
    for _ in range(trials):
        systems = experiment.draw(random, (0.0, 0.9, 0.9, 1.0))
        variances = estimate_variances(systems, mean_value)
        best = best_set(variances, higher_is_better=True, draws=4000)
        missed += 3 not in best
        size += len(best)
    assert missed <= binomial_bound(trials, 0.05)
    assert size < 3.5 * trials  # the system that is far behind leaves the set


def test_lower_is_better_turns_the_set_around() -> None:
    systems = Experiment(3, 60, (0.1, 0.1, 0.1), systems=3).draw(
        np.random.default_rng(6), (0.0, 5.0, 10.0)
    )
    variances = estimate_variances(systems, mean_value)
    assert best_set(variances, higher_is_better=True) == [2]
    assert best_set(variances, higher_is_better=False) == [0]


def test_the_gap_of_two_systems_is_a_one_sided_interval() -> None:
    systems = Experiment(3, 50, (1, 1, 1)).draw(np.random.default_rng(8), (0.0, 0.1))
    variances = estimate_variances(systems, mean_value)
    contrast = variances.contrast(1, 0)
    error = variances.variance(contrast) ** 0.5
    width = scipy_stats.t.ppf(0.95, variances.degrees_of_freedom(contrast)) * error
    difference = float(variances.means_k[1] - variances.means_k[0])
    members = best_set(variances, higher_is_better=True)
    gap = dict(zip(members, gaps_to_best(variances, members, higher_is_better=True), strict=True))[
        1
    ]
    assert (gap.low, gap.high) == pytest.approx((difference - width, difference + width))


@pytest.mark.parametrize("effects", [(0.0, 0.0, 0.0, 0.0), (0.0, 0.3, 2.0, 0.2)])
def test_gaps_to_the_best_agree_with_the_set(effects: tuple[float, ...]) -> None:
    """Those of the set may lead the others; the only one of a set leads by at least nothing."""
    systems = Experiment(4, 60, (1, 1, 1), systems=4).draw(np.random.default_rng(9), effects)
    variances = estimate_variances(systems, mean_value)
    members = best_set(variances, higher_is_better=True)
    gaps = gaps_to_best(variances, members, higher_is_better=True)
    for i, gap in zip(members, gaps, strict=True):
        others = [variances.means_k[j] for j in range(4) if j != i]
        assert gap.low <= variances.means_k[i] - max(others) <= gap.high
        assert gap.low <= 0 < gap.high
        assert (gap.low == 0) == (len(members) == 1)
    mirrored = [replace(one, counts_snc=one.counts_snc * np.array([-1, 1])) for one in systems]
    other = estimate_variances(mirrored, mean_value)
    assert best_set(other, higher_is_better=False) == members
    for gap, turned in zip(gaps, gaps_to_best(other, members, higher_is_better=False), strict=True):
        assert (turned.low, turned.high) == pytest.approx((-gap.high, -gap.low), abs=1e-9)
