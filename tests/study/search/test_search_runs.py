"""Searches with real trials: pruned in training, killed at random, and the same in the end."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from studying import ForkExecutor, fork, on_cpu, outcome_of, write_recipe

from heed.study.runner import carry_out_study
from heed.study.search.finalists import choose_winner
from heed.study.search.pruning import (
    PILOT_SEEDS,
    build_rule,
    is_exempt,
    read_curves,
    review_pruning,
)
from heed.study.search.search_states import group_states, search_number
from heed.study.study_config import StudyConfig
from heed.study.study_folder import create_study_folder, read_study_folder
from heed.study.study_lock import study_lock
from heed.study.study_results import StudyResults
from heed.study.trials import TrialState, read_trials

pytestmark = pytest.mark.slow
SEARCH: dict[str, Any] = {
    "method": "tpe",
    "trials": 14,
    "round": 4,
    "widen": 1,
    "finalists": 2,
    "space": {
        "train.lr": {"low": 1e-2, "high": 1e-1, "log": True},
        "train.optimizer": {"choices": ["adamw", "adam", "sgd"]},
        "train.momentum": {"low": 0.0, "high": 0.9, "when": {"train.optimizer": "sgd"}},
    },
}


def make_study(folder: Path) -> StudyConfig:
    """A search of one system that is quick to train, without anything at random but its seeds."""
    fixed = {"train.warmup": 0, "train.evaluate_every": 2, "train.schedule": "constant"}
    return StudyConfig.of(
        {
            "name": "search",
            "recipe": str(write_recipe(folder)),
            "metric": "loss",
            "seeds": 2,
            "sets": ["test"],
            "keep_weights": "none",
            "set": fixed,
            "search": SEARCH,
        }
    )


def carry_out(folder: Path) -> list[TrialState]:
    with study_lock(folder):
        return carry_out_study(folder, read_study_folder(folder), ForkExecutor(), on_cpu())


@pytest.fixture(scope="module", autouse=True)
def _quick_trials(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """One cache for all studies; no figures, which take longer than the training."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEED_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setattr("heed.train.run.draw_curves", lambda run: None)
        yield


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory, _quick_trials: None) -> Path:
    """The folder of a search that was carried out without a break."""
    folder = tmp_path_factory.mktemp("unbroken") / "out"
    create_study_folder(folder, make_study(folder.parent))
    carry_out(folder)
    return folder


def outcome(folder: Path) -> dict[str, Any]:
    """What a study came to; the place of its recipe is another in each test."""
    return {
        name: (replace(trial, recipe=""), *rest)
        for name, (trial, *rest) in outcome_of(folder, read_trials(folder)).items()
    }


def test_trials_are_pruned_by_the_rule_alone_and_the_rest_is_chosen_from(unbroken: Path) -> None:
    config, states = read_study_folder(unbroken), read_trials(unbroken)
    stages = Counter(state.trial.stage for state in states)
    assert stages == {"search": 14, "finalist": 2 * 2, "final": 2}
    curves = read_curves(unbroken, config, states)
    assert curves.keys() == {state.trial.name for state in states}
    for state in states:
        rule = build_rule(config, states, curves, state.trial)
        place = None if rule is None else rule.find_place(curves[state.trial.name])
        number = search_number(state.trial) if state.trial.stage == "search" else 0
        if state.status == "pruned":
            assert place == max(curves[state.trial.name])
            assert "below the median" in (state.reason or "")
            assert number >= PILOT_SEEDS
            assert (state.steps or 0) < 12
        else:
            assert state.status == "finished"
            assert place is None or is_exempt(number)
        assert ("test" in state.scores) == (state.trial.stage == "final")
    assert any(state.status == "pruned" for state in states)
    review = review_pruning(config, states, curves)[0]
    assert review.pruned == sum(state.status == "pruned" for state in states)
    results = StudyResults.read(unbroken)
    assert results.winner_falls().keys() == {"tiny"}
    assert all(state.dev is not None for state in states if state.trial.stage == "final")


def test_a_search_killed_at_random_ends_with_the_same_trials_scores_and_choice(
    unbroken: Path, tmp_path: Path
) -> None:
    folder, draw = tmp_path / "out", random.Random(0)
    create_study_folder(folder, make_study(tmp_path))
    for _ in range(4):
        runner = fork(lambda: len(carry_out(folder)) and 0)
        time.sleep(draw.uniform(0.5, 4))
        if os.waitpid(runner, os.WNOHANG)[0] == 0:
            os.kill(runner, signal.SIGKILL)
            os.waitpid(runner, 0)
    carry_out(folder)
    assert outcome(folder) == outcome(unbroken)
    config = read_study_folder(folder)
    choices = [
        choose_winner(config, group_states(config, read_trials(one))[0])
        for one in (folder, unbroken)
    ]
    assert choices[0] == choices[1] is not None
