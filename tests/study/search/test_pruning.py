"""Pruning: by earlier rounds of one system alone, never early, never the exempt, and repeatable."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from fractions import Fraction
from statistics import stdev
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from searches import EVALUATIONS, make_loss, make_study, run_search

from heed.study.search.pruning import (
    MARGIN,
    MIN_TRIALS,
    PILOT_SEEDS,
    PruningRule,
    build_rule,
    has_pilot,
    is_exempt,
    measure_places,
    review_pruning,
)
from heed.study.search.search_states import group_states, search_number
from heed.study.trials import Trial, TrialState

CONFIG = make_study(method="random", trials=40, round=4, widen=0)


def bad_rates(trial: Trial) -> float:
    """A loss that is much worse away from the best rate."""
    return 3 + 20 * (make_loss(trial) - 3)


STATES, CURVES = run_search(CONFIG, bad_rates)
PILOT = {
    system: stdev(CURVES[f"{system}-trial00{i}"][Fraction(1)] for i in range(PILOT_SEEDS))
    for system in ("rope", "t5")
}
"""The seed deviation of each system's pilot."""
POOLED = math.sqrt(sum(one**2 for one in PILOT.values()) / 2)
SEARCH = [state for state in STATES if state.trial.stage == "search"]


def test_a_search_prunes_bad_trials_and_never_pilots_exempt_ones_or_the_best() -> None:
    pruned = {state.trial.name for state in STATES if state.status == "pruned"}
    assert 10 < len(pruned) < len(SEARCH)
    for state in STATES:
        if state.status == "pruned":
            assert state.trial.stage == "search"
            assert search_number(state.trial) >= PILOT_SEEDS
            assert not is_exempt(search_number(state.trial))
    for group in group_states(CONFIG, STATES):
        losses = {state.trial.name: bad_rates(state.trial) for state in group.search.values()}
        best = sorted(losses, key=lambda name: losses[name])[: len(losses) // 2]
        assert not pruned & {*best}


def test_a_tenth_of_the_trials_is_exempt() -> None:
    assert sum(map(is_exempt, range(1000))) == 100


@given(st.sampled_from([state.trial for state in SEARCH]), st.integers(0, 10**6))
def test_the_rule_depends_on_earlier_rounds_of_the_system_and_on_pilots_alone(
    trial: Trial, seed: int
) -> None:
    """Trials at the same time, of later rounds and of other systems may be anything, or missing."""
    draw = random.Random(seed)
    first = search_number(trial) // 4 * 4

    def matters(state: TrialState) -> bool:
        number = search_number(state.trial)
        return number < PILOT_SEEDS or (state.trial.system == trial.system and number < first)

    states = [state for state in SEARCH if matters(state) or draw.random() < 0.5]
    curves = {
        state.trial.name: CURVES[state.trial.name]
        if matters(state)
        else {place: draw.gauss(0, 9) for place in CURVES[state.trial.name]}
        for state in states
    }
    draw.shuffle(states)
    assert build_rule(CONFIG, states, curves, trial) == build_rule(CONFIG, SEARCH, CURVES, trial)


@given(
    st.dictionaries(st.fractions(0, 1), st.floats(-5, 5), min_size=1),
    st.floats(-2, 2),
    st.floats(0, 1),
)
def test_a_trial_is_pruned_at_the_first_place_below_the_limit(
    places: dict[Fraction, float], median: float, margin: float
) -> None:
    rule = PruningRule(dict.fromkeys(places, median), dict.fromkeys(places, margin))
    place = rule.find_place(places)
    below = [one for one in sorted(places) if places[one] < median - margin and one < 1]
    assert place == (below[0] if below else None)


def test_places_that_differ_are_not_compared() -> None:
    """Trials that were evaluated at other shares of their schedules say nothing."""
    third = {name: {Fraction(2, 3): -9.0, Fraction(1): -9.0} for name in CURVES}
    last = SEARCH[-1].trial
    rule = build_rule(CONFIG, SEARCH, CURVES, last)
    assert rule is not None
    assert rule.find_place(third[last.name]) is None
    assert rule.find_place({Fraction(1, 2): -9.0}) == Fraction(1, 2)


def test_pruned_trials_count_below_the_median_so_that_the_rule_grows_no_stricter() -> None:
    last = next(one.trial for one in SEARCH if search_number(one.trial) == 39)
    place = Fraction(EVALUATIONS - 1, EVALUATIONS)
    rule = build_rule(CONFIG, SEARCH, CURVES, last)
    assert rule is not None
    without = [state for state in SEARCH if state.status != "pruned"]
    filled = {state.trial.name: CURVES[state.trial.name] for state in without}
    group = [one for one in without if one.trial.system == last.system]
    values = [filled[one.trial.name][place] for one in group if search_number(one.trial) >= 3]
    assert rule.medians[place] < sorted(values)[len(values) // 2]


def test_the_margin_is_two_seed_deviations_or_more_where_curves_cross() -> None:
    last = next(one.trial for one in SEARCH if search_number(one.trial) == 39)
    rule = build_rule(CONFIG, SEARCH, CURVES, last)
    assert rule is not None
    place = Fraction(1, 2)
    pilots = {
        system: stdev(CURVES[f"{system}-trial00{i}"][place] for i in range(PILOT_SEEDS))
        for system in ("rope", "t5")
    }
    pooled = math.sqrt(sum(one**2 for one in pilots.values()) / 2)
    assert rule.margins[place] >= MARGIN * max(pilots[last.system], pooled)
    crossing = dict(CURVES)
    for state in SEARCH:
        if search_number(state.trial) % 2 and search_number(state.trial) >= PILOT_SEEDS:
            crossing[state.trial.name] = {
                one: value - (5 if one <= place else 0)
                for one, value in CURVES[state.trial.name].items()
            }
    wide = build_rule(CONFIG, SEARCH, crossing, last)
    assert wide is not None
    assert wide.margins[place] > 2 * rule.margins[place]
    assert wide.find_place({place: rule.medians[place] - rule.margins[place] - 1}) is None


@pytest.mark.parametrize(
    "search",
    [{"prune": False}, {"trials": MIN_TRIALS - 1}, {"method": "grid"}],
    ids=["off", "short", "grid"],
)
def test_there_is_no_pilot_where_nothing_is_pruned(search: dict[str, Any]) -> None:
    space = {"train.lr": {"choices": [0.1, 0.01]}}
    config = make_study(**({"space": space} | search))
    assert config.search is not None
    assert not has_pilot(config.search)
    states, curves = run_search(config)
    assert {state.status for state in states} == {"finished"}
    assert all(build_rule(config, states, curves, state.trial) is None for state in states)


def test_a_pilot_that_failed_prunes_nothing() -> None:
    failed = [
        replace(state, status="failed") if search_number(state.trial) < PILOT_SEEDS else state
        for state in SEARCH
    ]
    curves = {
        state.trial.name: CURVES[state.trial.name] for state in failed if state.status != "failed"
    }
    assert all(build_rule(CONFIG, failed, curves, state.trial) is None for state in failed)


def test_the_review_counts_exempt_trials_that_would_have_been_pruned() -> None:
    for review in review_pruning(CONFIG, STATES, CURVES):
        assert review.trials == 40
        assert review.exempt == 3  # of four, the first comes before there is a median
        assert review.pruned == sum(
            one.status == "pruned" and one.trial.system == review.system for one in STATES
        )
        assert 0 <= review.wrong <= review.would_prune <= review.exempt
        assert review.wrong == 0
        assert review.wrong_share == 0
        assert review.deviation == pytest.approx(max(PILOT[review.system], POOLED))


def test_the_first_rule_is_that_of_number_eight() -> None:
    """With rounds of four: a median needs five settings of earlier rounds, the pilot as one."""
    for state in SEARCH:
        rule = build_rule(CONFIG, STATES, CURVES, state.trial)
        assert (rule is not None) == (search_number(state.trial) >= 8)


def test_a_wrongly_pruned_trial_is_counted() -> None:
    """An exempt trial that begins badly and ends best."""
    name = next(
        one.trial.name
        for one in SEARCH
        if search_number(one.trial) == 17 and one.trial.system == "t5"
    )
    curves = CURVES | {name: {Fraction(1, 2): -99.0, Fraction(1): -1.0}}
    states = [replace(one, dev=1.0) if one.trial.name == name else one for one in SEARCH]
    reviews = {review.system: review for review in review_pruning(CONFIG, states, curves)}
    assert reviews["t5"].wrong == 1
    assert reviews["rope"].wrong == 0


@given(st.lists(st.none() | st.floats(0.1, 9), min_size=1, max_size=9), st.booleans())
def test_a_learning_curve_is_the_best_score_so_far(
    losses: list[float | None], has_bleu: bool
) -> None:
    rows: list[dict[str, Any]] = [{"event": "train", "step": 1, "train/loss": 9.0}]
    for step, loss in enumerate(losses, 1):
        row: dict[str, Any] = {"event": "evaluate", "step": step}
        if loss is not None:  # a loss that is not finite is left out of the history
            row |= {"dev/loss": loss} | ({"dev/bleu": 10 - loss} if has_bleu else {})
        rows.append(row)
    places = measure_places(rows, len(losses), "bleu")
    if all(loss is None for loss in losses):
        assert places == {}
        return
    best = [
        min((one for one in losses[:i] if one is not None), default=math.inf)
        for i in range(1, len(losses) + 1)
    ]
    shown = [10 - one if has_bleu else -one for one in best]
    assert list(places) == [Fraction(i, len(losses)) for i in range(1, len(losses) + 1)]
    assert list(places.values()) == pytest.approx(shown)
