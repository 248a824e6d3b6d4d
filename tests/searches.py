"""Searches without training: studies whose trials get their score from a formula."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

from heed.study.search.propose import propose
from heed.study.search.pruning import Places, build_rule
from heed.study.study_config import StudyConfig
from heed.study.trials import Trial, TrialState

SPACE: dict[str, Any] = {
    "train.lr": {"low": 1e-3, "high": 1e-1, "log": True},
    "train.warmup": {"low": 10, "high": 100, "log": True},
    "train.optimizer": {"choices": ["adamw", "sgd"]},
    "train.momentum": {"low": 0.0, "high": 0.9, "when": {"train.optimizer": "sgd"}},
}
SEED_DEVIATION = 0.01
EVALUATIONS = 8

ScoreTrial = Callable[[Trial], float]


def make_study(**search: Any) -> StudyConfig:
    """A study of two systems with a search, which is never trained."""
    tables = {"method": "random", "trials": 16, "space": SPACE} | search
    systems = [{"name": name, "set": {"model.position": name}} for name in ("rope", "t5")]
    study = {"name": "study", "recipe": "demo-generate", "metric": "loss", "seeds": 3}
    return StudyConfig.of({**study, "systems": systems, "search": tables})


def make_loss(trial: Trial) -> float:
    """A dev loss that is smallest at a rate of 0.01, and varies by seed."""
    changes, draw = trial.changes, random.Random(f"{trial.system} {trial.seed}")
    loss = 3 + 0.3 * (math.log10(changes["train.lr"]) + 2) ** 2
    loss += 0.1 if changes.get("train.optimizer") == "sgd" else 0.0
    return loss + draw.gauss(0, SEED_DEVIATION)


def make_places(trial: Trial, loss: float) -> Places:
    """A learning curve that ends at a loss, with noise of its seed."""
    draw = random.Random(f"curve {trial.system} {trial.seed}")
    return {
        Fraction(i, EVALUATIONS): -(loss + 2 * (1 - i / EVALUATIONS) ** 2)
        + (draw.gauss(0, SEED_DEVIATION) if i < EVALUATIONS else 0)
        for i in range(1, EVALUATIONS + 1)
    }


def end_trial(
    config: StudyConfig,
    states: Sequence[TrialState],
    curves: dict[str, Places],
    trial: Trial,
    score: ScoreTrial = make_loss,
) -> TrialState:
    """Carry out one trial: its score and curve, or where the rule prunes it."""
    loss = score(trial)
    places = make_places(trial, loss)
    rule = build_rule(config, states, curves, trial)
    place = None if rule is None or rule.is_exempt else rule.find_place(places)
    state = TrialState(trial, "finished", dev=loss, tokens=1000)
    if place is not None:
        places = {one: value for one, value in places.items() if one <= place}
        state = replace(state, status="pruned", dev=None, tokens=int(1000 * place))
    curves[trial.name] = places
    return state


def run_search(
    config: StudyConfig, score: ScoreTrial = make_loss
) -> tuple[list[TrialState], dict[str, Places]]:
    """A whole search, its finalists and final trials."""
    states: list[TrialState] = []
    curves: dict[str, Places] = {}
    while trials := propose(config, states):
        states += [end_trial(config, states, curves, trial, score) for trial in trials]
    return states, curves
