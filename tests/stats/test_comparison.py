"""The comparison of recipes: what it claims for equal, different and equivalent systems."""

from __future__ import annotations

import re

import numpy as np
import pytest
from comparison_level import Experiment, binomial_bound, mean_value
from hypothesis import given, settings
from hypothesis import strategies as st

from heed.stats.comparison import SumMetric, compare_systems
from heed.stats.variance import System
from heed.stats.verdicts import Verdict, format_differences, format_p, format_score, judge_pair

SCORE = SumMetric("points", mean_value)
LOSS = SumMetric("loss", mean_value, higher_is_better=False)
CLAIMS = {Verdict.BETTER, Verdict.WORSE, Verdict.BETTER_BY_MARGIN, Verdict.WORSE_BY_MARGIN}


def one_recipe(random: np.random.Generator, runs: int, items: int = 100) -> np.ndarray:
    """Counts [runs, n, 2] of runs of one recipe, with real seed variance."""
    [system] = Experiment(runs, items, (3.0, 0.0, 1.0), systems=1).draw(random)
    return system.counts_snc


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 2), st.integers(1, 4), st.floats(-20, 20), st.integers(0, 2**32))
def test_fewer_than_three_seeds_never_judge_a_recipe(
    few: int, other: int, effect: float, seed: int
) -> None:
    random = np.random.default_rng(seed)
    systems = [
        System("a", one_recipe(random, few, 30) + np.array([effect, 0.0])),
        System("b", one_recipe(random, other, 30)),
    ]
    comparison = compare_systems(systems, SCORE)
    judgement = judge_pair(comparison.pairs[0], SCORE, margin=0.5)
    assert judgement.verdict is Verdict.TWO_MODELS
    assert "more run" in judgement.sentence
    assert not re.search(r"better|worse|as good|best", judgement.sentence)
    assert comparison.best is None


def test_relabeled_runs_of_one_recipe_are_rarely_told_apart() -> None:
    """Six runs of one recipe, split 3 and 3 at random: at most 7% are called better or worse."""
    random = np.random.default_rng(1)
    trials, claims = 200, 0
    for _ in range(trials):
        runs = one_recipe(random, 6)
        comparison = compare_systems([System("a", runs[:3]), System("b", runs[3:])], SCORE)
        claims += judge_pair(comparison.pairs[0], SCORE).verdict in CLAIMS
    assert claims <= binomial_bound(trials, 0.07)


def test_systems_that_differ_by_the_margin_are_rarely_called_as_good() -> None:
    random = np.random.default_rng(2)
    trials, wrong, margin = 200, 0, 0.5
    experiment = Experiment(4, 100, (1.0, 1.0, 1.0))
    for _ in range(trials):
        systems = experiment.draw(random, (0.0, margin))
        [pair] = compare_systems(systems, SCORE).pairs
        wrong += judge_pair(pair, SCORE, margin=margin).within_margin
    assert wrong <= binomial_bound(trials, 0.05)


def test_equal_systems_with_many_items_are_as_good() -> None:
    experiment = Experiment(4, 3000, (1.0, 0.1, 0.1))
    [pair] = compare_systems(experiment.draw(np.random.default_rng(3)), SCORE).pairs
    judgement = judge_pair(pair, SCORE, margin=0.5)
    assert judgement.verdict is Verdict.AS_GOOD
    assert "as good as" in judgement.sentence
    assert "90% interval" in judgement.sentence


@settings(deadline=None, max_examples=60)
@given(
    st.integers(3, 5),
    st.floats(-2, 2),
    st.none() | st.floats(0.05, 2),
    st.booleans(),
    st.integers(0, 2**32),
)
def test_no_sentence_contradicts_its_interval(
    seeds: int, effect: float, margin: float | None, higher: bool, seed: int
) -> None:
    """Words and interval of every verdict agree, whichever way the metric points."""
    metric = SCORE if higher else LOSS
    systems = Experiment(seeds, 40, (1.0, 0.5, 0.5)).draw(np.random.default_rng(seed), (0, effect))
    [pair] = compare_systems(systems, metric).pairs
    judgement = judge_pair(pair, metric, margin=margin)
    low, high = pair.interval.low, pair.interval.high
    gain_low, gain_high = (low, high) if higher else (-high, -low)
    words = judgement.sentence
    assert f"{low:+.2f} to {high:+.2f}" in words
    assert (" is better than " in words) == (gain_low > 0)
    assert (" is worse than " in words) == (gain_high < 0)
    assert (judgement.verdict in CLAIMS) == (pair.corrected_p < 0.05)
    if "by at least" in words:
        assert margin is not None
        assert max(gain_low, -gain_high) >= margin
    if "as good" in words or "too small to matter" in words:
        assert margin is not None
        assert abs(pair.equivalence_interval.low) < margin
        assert abs(pair.equivalence_interval.high) < margin
    if judgement.verdict is Verdict.UNDECIDED:
        assert "Can't tell yet" in words
        assert "these runs would show a difference of" in words
        assert ("Equivalence within" in words) == (margin is not None)


def test_a_difference_is_that_of_the_metric_itself() -> None:
    """D is the difference of the metric from the sums, never a mean of pseudo-values."""
    random = np.random.default_rng(4)
    tokens = random.integers(1, 50, (3, 40)).astype(float)
    losses = [tokens * random.normal(level, 0.3, (3, 40)) for level in (3.0, 3.2)]
    systems = [System(str(i), np.stack([x, tokens], -1)) for i, x in enumerate(losses)]

    def perplexity(counts: np.ndarray) -> np.ndarray:
        return np.exp(counts[..., 0] / counts[..., 1])

    metric = SumMetric("perplexity", perplexity, higher_is_better=False)
    [pair] = compare_systems(systems, metric).pairs
    means = [np.exp(x.sum(1) / tokens.sum(1)).mean() for x in losses]
    assert pair.difference == pytest.approx(means[1] - means[0])
    assert pair.win_share == 0.0
    assert judge_pair(pair, metric).verdict is Verdict.WORSE


def test_a_baseline_makes_fewer_and_so_narrower_comparisons() -> None:
    systems = Experiment(3, 60, (1.0, 1.0, 1.0), systems=5).draw(np.random.default_rng(5))
    everything = compare_systems(systems, SCORE)
    against = compare_systems(systems, SCORE, baseline="system 2")
    assert len(everything.pairs) == 10
    assert {pair.b for pair in against.pairs} == {"system 2"}
    wide = {frozenset((p.a, p.b)): p.interval.high - p.interval.low for p in everything.pairs}
    for pair in against.pairs:
        assert pair.interval.high - pair.interval.low < wide[frozenset((pair.a, pair.b))]


def test_a_difference_of_zero_asks_for_no_seeds() -> None:
    """As runs have that differ in a key without effect."""
    runs = np.random.default_rng(0).random((3, 40)) < np.array([[0.6], [0.7], [0.8]])
    counts = np.stack([runs, np.ones_like(runs)], axis=-1).astype(float)
    score = SumMetric("accuracy", lambda sums: sums[..., 0] / sums[..., 1])
    [pair] = compare_systems([System("a", counts), System("b", counts)], score).pairs
    assert "No difference was seen" in judge_pair(pair, score).sentence


def test_identical_systems_differ_by_nothing() -> None:
    counts = one_recipe(np.random.default_rng(6), 3)
    [pair] = compare_systems([System("a", counts), System("b", counts)], SCORE).pairs
    assert pair.difference == 0
    assert pair.p == pair.corrected_p == 1
    assert judge_pair(pair, SCORE).verdict is Verdict.UNDECIDED


def test_identical_systems_in_a_family_have_finite_intervals() -> None:
    """Their items vary together, so that only the rest of the seeds' variance is left."""
    random = np.random.default_rng(31)
    for _ in range(5):
        [same] = Experiment(3, 100, (0.0, 1.0, 1.0), systems=1).draw(random)
        others = Experiment(3, 100, (0.0, 1.0, 1.0), systems=5).draw(random)
        others = [System(f"other {i}", one.counts_snc) for i, one in enumerate(others)]
        systems = [System(name, same.counts_snc) for name in "ab"]
        comparison = compare_systems([*systems, *others], SCORE, baseline="a")
        for pair in comparison.pairs:
            assert np.isfinite([pair.interval.low, pair.interval.high]).all()
            assert 0 <= pair.p <= pair.corrected_p <= 1


def test_a_p_below_its_resolution_is_a_bound() -> None:
    systems = [
        System("a", one_recipe(np.random.default_rng(7), 1) + np.array([9.0, 0.0])),
        System("b", one_recipe(np.random.default_rng(7), 1)),
    ]
    [pair] = compare_systems(systems, SCORE).pairs
    assert "p < 0.0001" in judge_pair(pair, SCORE).sentence
    assert format_p(0.03) == "= 0.030"
    assert format_p(1e-9) == "< 0.0001"


def test_unknown_baselines_and_repeated_names_are_refused() -> None:
    systems = Experiment(3, 20, (1.0, 1.0, 1.0)).draw(np.random.default_rng(8))
    with pytest.raises(ValueError, match="no system is called"):
        compare_systems(systems, SCORE, baseline="system 9")
    with pytest.raises(ValueError, match="different names"):
        compare_systems([systems[0], systems[0]], SCORE)


@given(st.lists(st.floats(-1e9, 1e9).filter(lambda x: x == 0 or abs(x) > 1e-5), min_size=2))
def test_printed_differences_keep_their_sign_and_size(values: list[float]) -> None:
    texts = format_differences(values, SCORE)
    assert not any(re.fullmatch(r"-0\.0+", text) for text in texts)
    for value, text in zip(values, texts, strict=True):
        assert float(text) == pytest.approx(value, abs=max(0.0051, 0.006 * max(map(abs, values))))
    if min(values) > 0 or max(values) < 0:
        assert all(float(text) * value > 0 for value, text in zip(values, texts, strict=True))


def test_huge_scores_are_short() -> None:
    assert format_score(123456789012.3, SCORE) == "1.23e+11"
    assert format_score(12345.678, SCORE) == "12345.68"
    assert format_differences([-0.0123, -0.0031], SCORE) == ["-0.012", "-0.003"]
    assert format_differences([-0.2, -0.0], SCORE) == ["-0.20", "+0.00"]
