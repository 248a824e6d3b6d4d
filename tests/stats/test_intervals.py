"""Intervals of single scores: they cover the truth as often as they say, also near 0 and 1.

A simulation fails by a binomial bound, four standard deviations below what is claimed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from heed.stats.intervals import (
    MIN_ITEMS,
    Interval,
    RatioSums,
    mean_interval,
    ratio_interval,
    wilson_interval,
)

counts = st.integers(1, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


def assert_covered(intervals: Iterable[Interval | None], truth: float, *, claimed: float) -> None:
    """The share of intervals that hold the truth is as claimed, up to chance."""
    held = [one is not None and one.low <= truth <= one.high for one in intervals]
    allowed = 4 * math.sqrt(claimed * (1 - claimed) / len(held))
    assert sum(held) / len(held) >= claimed - allowed


@given(counts)
def test_wilson_is_scipys(count: tuple[int, int]) -> None:
    stats = pytest.importorskip("scipy.stats")
    successes, items = count
    expected = stats.binomtest(successes, items).proportion_ci(method="wilson")
    found = wilson_interval(successes, items)
    assert found is not None
    assert found.low == pytest.approx(expected.low, abs=1e-9)
    assert found.high == pytest.approx(expected.high, abs=1e-9)


@given(counts)
def test_wilson_holds_the_share_and_always_has_a_width(count: tuple[int, int]) -> None:
    found = wilson_interval(*count)
    assert found is not None
    assert 0 <= found.low <= count[0] / count[1] <= found.high <= 1
    assert found.low < found.high


def test_a_share_of_nothing_has_no_interval() -> None:
    assert wilson_interval(0, 0) is None


def test_wilson_covers_shares_near_1() -> None:
    """Of 99% and 100 items a resampled interval covers the truth in 64%."""
    random = np.random.default_rng(1)
    single = [wilson_interval(int(x), 100) for x in random.binomial(100, 0.99, 2000)]
    assert_covered(single, 0.99, claimed=0.92)  # exactly 0.9206: x is a whole number
    shares = random.uniform(0.8, 1.0, 2000)
    offsets = [
        Interval(one.low - share, one.high - share)
        for share in shares
        if (one := wilson_interval(int(random.binomial(100, share)), 100)) is not None
    ]
    assert_covered(offsets, 0.0, claimed=0.945)


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=30))
def test_the_interval_of_a_mean_is_students(values: list[float]) -> None:
    stats = pytest.importorskip("scipy.stats")
    array = np.array(values)
    found, error = mean_interval(array), float(stats.sem(array))
    assert found is not None
    half_width = error * float(stats.t.ppf(0.975, len(values) - 1))
    assert found.center == pytest.approx(float(array.mean()), abs=1e-6)
    assert (found.high - found.low) / 2 == pytest.approx(half_width, rel=1e-5, abs=1e-6)


def test_one_value_has_no_interval() -> None:
    assert mean_interval(np.array([1.0])) is None


@given(st.lists(st.floats(0, 100), min_size=MIN_ITEMS, max_size=40))
def test_the_ratio_to_equal_denominators_is_a_mean(values: list[float]) -> None:
    array = np.array(values)
    found, mean = ratio_interval(array, np.ones(len(array))), mean_interval(array)
    assert found is not None
    assert mean is not None
    assert found.low == pytest.approx(mean.low, abs=1e-6)
    assert found.high == pytest.approx(mean.high, abs=1e-6)


@pytest.mark.parametrize("items", [10, 30])
def test_the_interval_of_a_ratio_covers_it(items: int) -> None:
    """Losses over tokens of texts of very unequal lengths."""
    random, intervals = np.random.default_rng(items), []
    for _ in range(1000):
        tokens = np.exp(random.normal(4, 0.8, items))
        intervals.append(ratio_interval(tokens * random.normal(3, 0.3, items), tokens))
    assert_covered(intervals, 3.0, claimed=0.93)


def test_few_items_or_one_that_is_all_have_no_interval() -> None:
    assert ratio_interval(np.ones(MIN_ITEMS - 1), np.ones(MIN_ITEMS - 1)) is None
    alone = np.zeros(20)
    alone[3] = 5.0
    assert ratio_interval(np.ones(20), alone) is None


pairs = st.lists(
    st.tuples(st.floats(0, 10), st.floats(0.5, 5)), min_size=MIN_ITEMS, max_size=60
).map(np.array)


@given(pairs, st.integers(1, 7))
def test_streamed_ratios_do_not_depend_on_the_batches(
    items: NDArray[np.float64], size: int
) -> None:
    together, apart = RatioSums((2,)), RatioSums((2,))
    together.add(items[:, [0, 1]], items[:, [1]])
    for first in range(0, len(items), size):
        part = items[first : first + size]
        apart.add(part[:, [0, 1]], part[:, [1]])
    assert np.allclose(together.ratios(), apart.ratios())
    assert np.allclose(together.half_widths(), apart.half_widths(), atol=1e-6)
    assert np.allclose(together.ratios(), [items[:, 0].sum() / items[:, 1].sum(), 1.0])
    assert together.half_widths()[1] < 1e-6  # every item has the same ratio


@given(st.integers(100, 400), st.integers(0, 1000))
def test_streamed_intervals_approach_the_jackknife(items: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    d = random.uniform(1, 20, items)
    n = d * random.uniform(0, 1, items)
    sums = RatioSums((1,))
    sums.add(n[:, None], d[:, None])
    expected = ratio_interval(n, d)
    assert expected is not None
    width = (expected.high - expected.low) / 2
    assert sums.half_widths()[0] == pytest.approx(width, rel=3 / items**0.5)
    assert sums.ratios()[0] == pytest.approx(expected.center)


def test_streamed_ratios_need_items() -> None:
    """Items without a denominator say nothing about the ratio."""
    sums = RatioSums((2,))
    assert np.isnan(sums.ratios()).all()
    d = np.stack([np.ones(MIN_ITEMS), np.arange(MIN_ITEMS) > 0], axis=1).astype(float)
    sums.add(0.5 * d, d)
    assert sums.items.tolist() == [MIN_ITEMS, MIN_ITEMS - 1]
    assert sums.ratios().tolist() == [0.5, 0.5]
    assert np.isnan(sums.half_widths()).tolist() == [False, True]
