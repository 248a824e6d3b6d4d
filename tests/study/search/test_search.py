"""The search: the same trials whatever the order and the kills, at the same budget for all."""

from __future__ import annotations

import random
import sys
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from searches import SPACE, end_trial, make_loss, make_study, run_search

from heed.errors import HeedError
from heed.study.search.finalists import choose_winner
from heed.study.search.propose import final_space, list_edges, propose, widening_points
from heed.study.search.pruning import Places
from heed.study.search.search_space import FINALIST_SEED, SEARCH_SEED, read_setting
from heed.study.search.search_states import group_states
from heed.study.trials import Trial, TrialState

METHODS = ["tpe", "random", "grid"]
GRID = {
    "train.optimizer": {"choices": ["adamw", "sgd"]},
    "train.lr": {"low": 0.001, "high": 0.01, "log": True, "step": 10.0},
    "train.momentum": {"choices": [0.0, 0.9], "when": {"train.optimizer": "sgd"}},
}


def search_of(method: str, **changes: Any) -> dict[str, Any]:
    return {"method": method, "space": GRID if method == "grid" else SPACE} | changes


@given(st.sampled_from(METHODS), st.integers(0, 10**6), st.integers(1, 6))
@settings(max_examples=9)
def test_kills_and_the_order_of_reading_change_no_proposal(
    method: str, seed: int, jobs: int
) -> None:
    """At any moment some trials of a round have ended, some run, and some were never begun."""
    draw = random.Random(seed)
    config = make_study(**search_of(method, trials=12, round=3))
    unbroken, _ = run_search(config)
    states: list[TrialState] = []
    curves: dict[str, Places] = {}
    while True:
        draw.shuffle(states)
        trials = propose(config, [one for one in states if one.has_ended or draw.random() < 0.5])
        if not trials:
            break
        begun = draw.sample(trials, min(jobs, len(trials)))
        ended = {state.trial.name for state in states if state.has_ended}
        states = [state for state in states if state.trial.name in ended]
        for trial in begun:
            if draw.random() < 0.2:  # killed
                states.append(TrialState(trial, "running"))
            else:
                states.append(end_trial(config, states, curves, trial))
    assert sorted(states, key=lambda state: state.trial.number) == unbroken


@pytest.mark.parametrize("method", METHODS)
def test_trials_that_were_lost_are_proposed_again_with_their_settings_and_numbers(
    method: str,
) -> None:
    draw = random.Random(method)
    config = make_study(**search_of(method, trials=8, round=2))
    unbroken, curves = run_search(config)
    lost = {state.trial.name for state in draw.sample(unbroken, 8)}
    states = [state for state in unbroken if state.trial.name not in lost]
    curves = {name: one for name, one in curves.items() if name not in lost}
    while trials := propose(config, states):
        assert {trial.name for trial in trials} <= lost
        states += [end_trial(config, states, curves, trial) for trial in trials]
    assert sorted(states, key=lambda state: state.trial.number) == unbroken


@pytest.mark.parametrize("method", METHODS)
def test_every_system_has_the_same_budget_and_no_conditional_key_out_of_place(method: str) -> None:
    config = make_study(**search_of(method, trials=12))

    def loss(trial: Trial) -> float:  # one system fails and is pruned more than the other
        return make_loss(trial) + (trial.system == "t5" and trial.seed % 3 == 0) * 3

    states, _ = run_search(config, loss)
    stages = Counter((state.trial.system, state.trial.stage) for state in states)
    for stage in ("search", "finalist", "final"):
        assert stages["rope", stage] == stages["t5", stage]
    assert stages["rope", "finalist"] == 3 * 2
    assert stages["rope", "final"] == 3
    assert config.search is not None
    for state in states:
        changes = state.trial.changes
        assert changes["model.position"] == state.trial.system
        assert ("train.momentum" in changes) == (changes["train.optimizer"] == "sgd")
    numbers = [state.trial.number for state in states]
    assert numbers == list(range(len(states)))
    assert len({state.trial.name for state in states}) == len(states)


def test_failed_trials_count_and_are_never_chosen() -> None:
    config = make_study(trials=12, prune=False)
    states: list[TrialState] = []
    while trials := propose(config, states):
        for trial in trials:
            state = end_trial(config, states, {}, trial)
            is_best = trial.stage == "search" and trial.changes["train.optimizer"] == "adamw"
            states.append(replace(state, status="failed", dev=None) if is_best else state)
    assert sum(one.trial.stage == "search" for one in states) == 2 * 12
    finals = [one for one in states if one.trial.stage != "search"]
    assert finals
    assert all(one.trial.changes["train.optimizer"] == "sgd" for one in finals)


def test_a_search_in_which_everything_fails_ends() -> None:
    config = make_study(method="tpe", trials=12)
    states: list[TrialState] = []
    while trials := propose(config, states):
        states += [TrialState(trial, "failed", reason="no disk") for trial in trials]
    assert len(states) == 2 * 12
    assert all(choose_winner(config, group) is None for group in group_states(config, states))


def test_tokens_end_the_search_of_a_system() -> None:
    config = make_study(trials=100, round=4, tokens=10_000, prune=False)
    states, _ = run_search(config)
    searched = [state for state in states if state.trial.stage == "search"]
    assert len(searched) == 2 * 12  # 1,000 tokens each: no round begins at 10,000 or above


def test_choosing_seeds_are_never_those_of_final_trials() -> None:
    states, _ = run_search(make_study(trials=12))
    for state in states:
        seed, stage = state.trial.seed, state.trial.stage
        assert (seed >= FINALIST_SEED) == (stage == "finalist")
        assert (SEARCH_SEED <= seed < FINALIST_SEED) == (stage == "search")
        assert (seed in (0, 1, 2)) == (stage == "final")


def test_finalists_choose_by_their_new_seeds_alone() -> None:
    """The setting with the luckiest search loses to one that is better on new seeds."""
    config = make_study(trials=12, prune=False)

    def loss(trial: Trial) -> float:
        lucky = trial.stage == "search" and trial.name.endswith("trial005")
        return make_loss(trial) - 5 * lucky

    states, _ = run_search(config, loss)
    assert config.search is not None
    for group in group_states(config, states):
        lucky = read_setting(config.search.space, group.search[5].trial.changes)
        assert read_setting(config.search.space, group.finalists[0, 0].trial.changes) == lucky
        means = {
            rank: sum(group.finalists[rank, seed].dev or 0 for seed in (0, 1)) / 2
            for rank in range(3)
        }
        best = min(means, key=lambda rank: means[rank])
        winner = read_setting(config.search.space, group.finalists[best, 0].trial.changes)
        assert choose_winner(config, group) == winner
        assert all(
            read_setting(config.search.space, state.trial.changes) == winner
            for state in group.finals.values()
        )


@pytest.mark.parametrize("method", METHODS)
def test_a_best_at_the_edge_widens_the_range_for_all_systems(method: str) -> None:
    config = make_study(**search_of(method, trials=60 if method == "random" else 24, widen=2))

    def loss(trial: Trial) -> float:  # only one of two systems is best at a high rate
        rate = float(trial.changes["train.lr"])
        return -rate if trial.system == "t5" else make_loss(trial)

    states, _ = run_search(config, loss)
    groups = group_states(config, states)
    assert config.search is not None
    declared, wide = config.search.space["train.lr"], final_space(config, groups)["train.lr"]
    assert wide.bounds[1] > declared.bounds[1]
    assert wide.bounds[0] == declared.bounds[0] or method != "grid"
    for group in groups:
        rates = [state.trial.changes["train.lr"] for state in group.search.values()]
        assert max(rates) > declared.bounds[1]
    assert list_edges(config, groups)["t5"] == ["train.lr"]
    assert all(point % 4 == 0 for point in widening_points(config.search))


def test_a_search_that_may_not_widen_stays_in_its_range() -> None:
    config = make_study(trials=12, widen=0)
    states, _ = run_search(config, lambda trial: -float(trial.changes["train.lr"]))
    assert max(state.trial.changes["train.lr"] for state in states) <= 0.1


def test_without_optuna_one_sentence_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(HeedError, match=r"pip install '\.\[study\]'"):
        propose(make_study(method="tpe"), [])
    assert propose(make_study(method="random"), [])
