"""Randomization tests: exact over seeds, and equal to sacreBLEU's over items."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest
from comparison_level import mean_value
from hypothesis import given, settings
from hypothesis import strategies as st
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.significance import PairedTest, Result
from scipy import stats as scipy_stats

from heed.stats.permutation import exchange_items, permute_seeds


@settings(deadline=None, max_examples=30)
@given(st.integers(2, 5), st.integers(2, 5), st.integers(0, 2**32))
def test_the_seed_permutation_is_scipys(a: int, b: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    left, right = random.normal(size=a), random.normal(0.5, 1, size=b)
    expected = scipy_stats.permutation_test(
        (left, right),
        lambda x, y, axis: np.abs(x.mean(axis) - y.mean(axis)),
        vectorized=True,
        alternative="greater",
        n_resamples=np.inf,
    )
    assert permute_seeds(left, right).p == pytest.approx(expected.pvalue)


def test_three_and_three_runs_cannot_go_below_a_tenth() -> None:
    result = permute_seeds(np.array([3.0, 4.0, 5.0]), np.array([0.0, 1.0, 2.0]))
    assert result.p == result.smallest_p == pytest.approx(0.1)


def test_many_runs_are_sampled() -> None:
    random = np.random.default_rng(0)
    result = permute_seeds(random.normal(size=15), random.normal(size=15))
    assert 0.01 < result.p <= 1


@settings(deadline=None, max_examples=20)
@given(st.integers(2, 8), st.integers(0, 2**32))
def test_exchanging_items_nears_the_exact_test(items: int, seed: int) -> None:
    """Few items with small integer counts: many ties, and all exchanges can be listed."""
    random = np.random.default_rng(seed)
    a, b = random.integers(0, 3, (2, items)).astype(float)
    counts = [np.stack([x, np.ones(items)], -1) for x in (a, b)]
    observed = abs(a.sum() - b.sum())
    exact = np.mean(
        [abs(np.dot(signs, a - b)) >= observed for signs in product((-1, 1), repeat=items)]
    )
    result = exchange_items(counts[0], counts[1], mean_value, trials=4000)
    assert result.p == pytest.approx(exact, abs=0.035)
    assert exact >= result.smallest_p - 1e-12


def test_exchanging_items_equals_sacrebleus_test() -> None:
    """The same exchanges and the same p, to the last digit, where no trial ties."""
    random = np.random.default_rng(1)
    words = np.array(["the", "a", "cat", "dog", "sat", "ran", "on", "under", "mat", "tree"])
    references = [" ".join(random.choice(words, 12)) for _ in range(60)]

    def corrupt(share: float) -> list[str]:
        return [
            " ".join(
                str(random.choice(words)) if random.random() < share else word
                for word in reference.split()
            )
            for reference in references
        ]

    systems: list[tuple[str, Sequence[str]]] = [("a", corrupt(0.30)), ("b", corrupt(0.34))]
    metric = BLEU()
    test = PairedTest(systems, {"BLEU": metric}, [references], test_type="ar", n_samples=500)
    _, results = test()
    result = results["BLEU"][1]
    assert isinstance(result, Result)

    def bleu(counts: np.ndarray) -> np.ndarray:
        rows = counts.reshape(-1, counts.shape[-1])
        scores = [metric._compute_score_from_stats(row.astype(int).tolist()).score for row in rows]
        return np.array(scores).reshape(counts.shape[:-1])

    counts = [
        np.array(metric._extract_corpus_statistics(texts, [references]), dtype=float)
        for _, texts in systems
    ]
    assert exchange_items(counts[0], counts[1], bleu, trials=500).p == result.p_value


def test_equal_answers_give_p_of_one() -> None:
    counts = np.random.default_rng(0).normal(size=(30, 2)) ** 2
    assert exchange_items(counts, counts, mean_value, trials=200).p == 1.0
