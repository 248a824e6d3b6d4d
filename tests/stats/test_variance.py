"""Variances over seeds and items: limit cases with formulas, and the level of the test."""

from __future__ import annotations

import numpy as np
import pytest
from comparison_level import CELLS, Experiment, binomial_bound, mean_value
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from heed.stats.families import judge_family
from heed.stats.variance import System, Variances, bartlett_p, estimate_variances, jackknife

TRIALS = 400


def judge(variances: Variances) -> tuple[float, float, float]:
    """t, ν and p of the first two systems' difference."""
    [result] = judge_family(variances, [variances.contrast(1, 0)])
    return result.difference / result.standard_error, result.df, result.p


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 8), st.integers(2, 8), st.integers(0, 2**32))
def test_with_seed_variance_alone_it_is_welchs_test(a: int, b: int, seed: int) -> None:
    """Items that are all alike leave the t-test with unequal variances over the runs' scores."""
    random = np.random.default_rng(seed)
    scores = [random.normal(0, 1, a), random.normal(0.5, 2, b)]
    systems = [
        System(str(i), np.stack([np.repeat(x[:, None], 50, 1), np.ones((len(x), 50))], -1))
        for i, x in enumerate(scores)
    ]
    _, df, p = judge(estimate_variances(systems, mean_value))
    expected = scipy_stats.ttest_ind(scores[1], scores[0], equal_var=False)
    assert p == pytest.approx(expected.pvalue, rel=1e-9)
    assert df == pytest.approx(expected.df, rel=1e-9)


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 300), st.integers(0, 2**32))
def test_with_one_run_each_it_is_the_paired_test_over_items(items: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    values = random.normal(0, 1, (2, items))
    systems = [
        System(str(i), np.stack([x, np.ones(items)], -1)[None]) for i, x in enumerate(values)
    ]
    _, df, p = judge(estimate_variances(systems, mean_value))
    expected = scipy_stats.ttest_rel(values[1], values[0])
    assert p == pytest.approx(expected.pvalue, rel=1e-9)
    assert df == pytest.approx(items - 1)


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 8), st.integers(0, 2**32))
def test_paired_seeds_with_items_alike_are_the_paired_test_over_seeds(
    seeds: int, seed: int
) -> None:
    random = np.random.default_rng(seed)
    scores = random.normal(0, 1, (2, seeds))
    systems = [
        System(str(i), np.stack([np.repeat(x[:, None], 30, 1), np.ones((seeds, 30))], -1))
        for i, x in enumerate(scores)
    ]
    _, df, p = judge(estimate_variances(systems, mean_value, paired=True))
    expected = scipy_stats.ttest_rel(scores[1], scores[0])
    assert p == pytest.approx(expected.pvalue, rel=1e-7)
    assert df == pytest.approx(seeds - 1)


@given(st.lists(st.integers(2, 9), min_size=2, max_size=6), st.integers(0, 2**32))
def test_bartletts_test_is_scipys(sizes: list[int], seed: int) -> None:
    random = np.random.default_rng(seed)
    samples = [random.normal(0, 1 + i, size) for i, size in enumerate(sizes)]
    variances = np.array([sample.var(ddof=1) for sample in samples])
    p = bartlett_p(variances, np.array(sizes))
    assert p == pytest.approx(scipy_stats.bartlett(*samples).pvalue, rel=1e-7)


def test_pseudo_values_of_a_mean_are_the_values() -> None:
    values = np.random.default_rng(0).normal(size=(3, 40))
    _, pseudo = jackknife(np.stack([values, np.ones_like(values)], -1), mean_value)
    np.testing.assert_allclose(pseudo, values, rtol=1e-9)


def test_pseudo_values_give_a_ratios_variance() -> None:
    """The jackknife variance of loss / tokens is that of the delta method, for many texts."""
    random = np.random.default_rng(0)
    tokens = random.integers(5, 60, 4000).astype(float)
    loss = tokens * random.normal(3, 0.5, 4000)
    _, pseudo = jackknife(np.stack([loss, tokens], -1)[None], mean_value)
    ratio = loss.sum() / tokens.sum()
    delta = ((loss - ratio * tokens) / tokens.mean()).var(ddof=1)
    assert pseudo.var(ddof=1) == pytest.approx(delta, rel=0.02)


def test_clusters_replace_items_from_ten_on() -> None:
    """Copies of an item in one cluster add no certainty; fewer than ten clusters are not used."""
    random = np.random.default_rng(3)
    values = random.normal(size=(2, 3, 60))
    plain = [System(str(i), np.stack([x, np.ones_like(x)], -1)) for i, x in enumerate(values)]
    copies = [System(s.name, np.repeat(s.counts_snc, 4, axis=1)) for s in plain]
    clusters = np.repeat(np.arange(60), 4)
    t, df, _ = judge(estimate_variances(plain, mean_value))
    clustered = estimate_variances(copies, mean_value, clusters=clusters)
    assert judge(clustered)[:2] == pytest.approx((t, df))
    assert clustered.clustered
    assert clustered.units == 60
    few = estimate_variances(copies, mean_value, clusters=np.arange(240) % 9)
    assert not few.clustered


def test_a_result_does_not_depend_on_the_order_of_runs_or_items() -> None:
    random = np.random.default_rng(5)
    systems = Experiment(4, 80, (1, 1, 1)).draw(random)
    order = random.permutation(80)
    shuffled = [System(s.name, s.counts_snc[random.permutation(4)][:, order]) for s in systems]
    first = judge(estimate_variances(systems, mean_value))
    assert judge(estimate_variances(shuffled, mean_value)) == pytest.approx(first)


@pytest.mark.parametrize("kind", ["normal", "bernoulli", "t3"])
@pytest.mark.parametrize("variances", [CELLS[1], CELLS[4], CELLS[5]])
def test_false_positives_stay_below_their_level(
    kind: str, variances: tuple[float, float, float]
) -> None:
    """Two systems drawn alike differ "significantly" in at most 6.5% of experiments."""
    random = np.random.default_rng(11)
    experiment = Experiment(3, 100, variances, kind)
    found = sum(
        judge(estimate_variances(experiment.draw(random), mean_value))[2] < 0.05
        for _ in range(TRIALS)
    )
    assert found <= binomial_bound(TRIALS, 0.065)


def test_the_pooled_seed_variance_keeps_the_level() -> None:
    random = np.random.default_rng(12)
    experiment = Experiment(3, 100, (5, 0.5, 0.5), systems=4)
    found, pooled = 0, 0
    for _ in range(TRIALS):
        variances = estimate_variances(experiment.draw(random), mean_value)
        pooled += variances.pooled
        found += judge(variances)[2] < 0.05
    assert pooled > 0.95 * TRIALS
    assert found <= binomial_bound(TRIALS, 0.065)


def test_systems_on_different_items_are_refused() -> None:
    systems = [System("a", np.ones((1, 5, 2))), System("b", np.ones((1, 6, 2)))]
    with pytest.raises(ValueError, match="same items"):
        estimate_variances(systems, mean_value)
