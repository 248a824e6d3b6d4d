"""Power: the noncentral t is scipy's, and an effect of the smallest visible size is found."""

from __future__ import annotations

import numpy as np
import pytest
from comparison_level import Experiment, mean_value
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from heed.stats.comparison import SumMetric, compare_systems
from heed.stats.families import judge_family
from heed.stats.power import ENDLESS_SEEDS, Design, design_of, seeds_needed
from heed.stats.variance import estimate_variances


@pytest.mark.parametrize("freedom", [4, 12, 60])
@pytest.mark.parametrize("alpha", [0.05, 0.005])
def test_with_seed_variance_alone_power_is_that_of_the_noncentral_t(
    freedom: int, alpha: float
) -> None:
    """A pooled variance has a fixed ν, so the power has a formula."""
    plan = Design((2.0, 2.0), 0.0, (0.0, 0.0), (3, 3), 10**6, pooled_freedom=freedom)
    delta = plan.smallest_visible(alpha) / plan.variance() ** 0.5
    critical = float(scipy_stats.t.ppf(1 - alpha / 2, freedom))
    power = scipy_stats.nct.sf(critical, freedom, delta)
    assert power == pytest.approx(0.8, abs=0.02)


def design(experiment: Experiment) -> Design:
    """The true variances of a simulated experiment."""
    seed, interaction, residual = experiment.variances
    return Design(
        (seed / experiment.items,) * 2,
        2 * interaction,
        (residual,) * 2,
        (experiment.seeds,) * 2,
        experiment.items,
    )


@pytest.mark.parametrize("variances", [(0.0, 0.0, 1.0), (1.0, 1.0, 1.0), (5.0, 0.5, 0.5)])
def test_an_effect_of_the_smallest_visible_size_is_found(
    variances: tuple[float, float, float],
) -> None:
    """In 75% to 85% of experiments, within the error of so many trials."""
    experiment = Experiment(3, 100, variances)
    effect = design(experiment).smallest_visible()
    random, trials, found = np.random.default_rng(8), 400, 0
    for _ in range(trials):
        estimate = estimate_variances(experiment.draw(random, (0.0, effect)), mean_value)
        [result] = judge_family(estimate, [estimate.contrast(1, 0)])
        found += result.p < 0.05
    error = 3.3 * (0.8 * 0.2 / trials) ** 0.5
    assert 0.75 - error <= found / trials <= 0.85 + error


def test_the_estimated_design_is_near_the_true_one() -> None:
    experiment = Experiment(10, 400, (1.0, 1.0, 1.0))
    truth = design(experiment)
    random = np.random.default_rng(9)
    estimates = [
        design_of(estimate_variances(experiment.draw(random), mean_value), 1, 0) for _ in range(60)
    ]
    seed = np.mean([sum(e.seed_variances) for e in estimates])
    assert seed == pytest.approx(sum(truth.seed_variances), rel=0.2)
    interaction = np.mean([e.interaction_variance for e in estimates])
    assert interaction == pytest.approx(truth.interaction_variance, rel=0.1)
    residual = np.mean([sum(e.residual_variances) for e in estimates])
    assert residual == pytest.approx(sum(truth.residual_variances), rel=0.05)


@given(st.floats(0.01, 5), st.floats(0, 2), st.floats(0.01, 2), st.floats(0.05, 1.5))
def test_seeds_needed_is_the_smallest_number_that_shows(
    seed: float, interaction: float, residual: float, difference: float
) -> None:
    plan = Design((seed / 100,) * 2, interaction, (residual,) * 2, (3, 3), 100)
    needed = seeds_needed(plan, difference)
    if needed is None:
        assert plan.with_seeds(100).smallest_visible() > difference
        return
    assert plan.with_seeds(needed).smallest_visible() <= difference
    assert needed == 2 or plan.with_seeds(needed - 1).smallest_visible() > difference


def test_more_seeds_alone_never_show_less_than_the_items_allow() -> None:
    plan = Design((0.01, 0.01), 4.0, (0.1, 0.1), (3, 3), 50)
    assert seeds_needed(plan, 0.01) is None
    assert seeds_needed(plan, 0.0) is None


def test_many_seeds_are_no_reason_to_advise_more_items() -> None:
    """A difference that 200 seeds would show, and 100 would not."""
    plan = Design((1.0, 1.0), 0.0, (0.1, 0.1), (3, 3), 500)
    difference = plan.with_seeds(200).smallest_visible()
    assert seeds_needed(plan, difference) is None
    assert plan.with_seeds(ENDLESS_SEEDS).smallest_visible() < difference / 10
    few_items = Design((1.0, 1.0), 9.0, (0.1, 0.1), (3, 3), 20)
    assert few_items.with_seeds(ENDLESS_SEEDS).smallest_visible() > 1.5


@given(
    st.integers(2, 4),
    st.integers(12, 80),
    st.tuples(*[st.sampled_from([0.0, 0.2, 1.0, 5.0])] * 2, st.sampled_from([0.1, 1.0])),
    st.integers(0, 999),
)
def test_no_more_is_promised_than_the_interval_shows(
    seeds: int, items: int, variances: tuple[float, float, float], draw: int
) -> None:
    systems = Experiment(seeds, items, variances).draw(np.random.default_rng(draw))
    [pair] = compare_systems(systems, SumMetric("points", mean_value)).pairs
    assert pair.smallest_visible is not None
    assert pair.smallest_visible >= (pair.interval.high - pair.interval.low) / 2.0001
    if pair.needs_items:
        assert pair.seeds_needed is None


def test_the_advice_depends_on_what_is_in_the_way() -> None:
    """More items where items differ between systems, more seeds where seeds do."""
    random = np.random.default_rng(1)
    noisy_items = Experiment(3, 20, (0.0, 9.0, 0.01)).draw(random, (0.0, 0.3))
    noisy_seeds = Experiment(3, 20, (900.0, 0.0, 0.01)).draw(random, (0.0, 0.3))
    score = SumMetric("points", mean_value)
    [items_pair] = compare_systems(noisy_items, score).pairs
    [seeds_pair] = compare_systems(noisy_seeds, score).pairs
    assert items_pair.seeds_needed is None
    assert items_pair.needs_items
    assert not seeds_pair.needs_items
