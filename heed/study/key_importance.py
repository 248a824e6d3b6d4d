"""Importance of keys: how much of the spread of scores each key of a study accounts for.

A full grid with the same seeds in every cell has an exact answer: analysis of variance, with the
spread over seeds taken out, and an F test for each key and each pair of keys. A search has none:
its sampler chose the values. There the ranks of scores are associated with each key, within
systems, and fANOVA (Hutter, Hoos and Leyton-Brown 2014) gives shares where Optuna and scikit-learn
are installed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from math import isfinite
from typing import Any

import numpy as np

from heed.arrays import Floats
from heed.stats.anova import analyze_grid
from heed.stats.association import associate
from heed.stats.verdicts import format_p
from heed.study.finding import Finding
from heed.study.study_config import SearchRange
from heed.study.study_results import StudyResults
from heed.study.trials import TrialState

FIGURE = "importance"
SYSTEM = "system"
"""The factor of named systems, beside the keys of a grid."""
ANOVA = "analysis of variance of the final runs, the spread over seeds taken out"
RANKS = "squared rank correlation with the dev score of search trials, within systems"
FANOVA = "fANOVA of the search trials (a random forest), with the p of a rank test"
MIN_TRIALS = 8
"""A search of fewer trials says nothing about its keys."""
FOREST_SEED = 0
TREES = 16
"""Trees of the forest: shares change by a percent or two with more."""


@dataclass(frozen=True)
class KeyEffect:
    """A key, or several together, and its share of the spread of scores."""

    keys: tuple[str, ...]
    share: float
    p: float | None
    direction: float = 0.0
    """Of a searched number: its rank correlation with the score, good scores high; else 0."""

    @property
    def label(self) -> str:
        """`model.layers`, or `model.layers × train.lr`."""
        return " × ".join(self.keys) if len(self.keys) <= 2 else "three or more keys together"


@dataclass(frozen=True)
class KeyImportance:
    """The effects of all keys, the largest first, and how they were found."""

    method: str
    effects: list[KeyEffect]
    runs: int
    """Final runs of the grid, or trials of the search."""
    is_search: bool


def grid_importance(results: StudyResults) -> KeyImportance | None:
    """Shares of scientific keys; None where the final runs are no full grid of two cells or more.

    Where some cells have more finished seeds, the first ones are taken, as many as all have.
    """
    if results.comparison is None:
        return None
    values = results.comparison.whole.systems
    factors, cells = _grid_cells(results)
    scores = {cell: values[name] for cell, name in cells.items() if name in values}
    seeds = min((len(one) for one in scores.values()), default=0)
    if len(scores) < len(cells) or len(cells) < 2 or seeds < 2:
        return None
    shape = [1 + max(cell[axis] for cell in cells) for axis in range(len(factors))]
    grid = np.empty((*shape, seeds))
    for cell, one in scores.items():
        grid[cell] = one[:seeds]
    varied = [axis for axis, size in enumerate(shape) if size > 1]
    grid = grid.reshape(*(shape[axis] for axis in varied), seeds)
    anova = analyze_grid(grid, [factors[axis] for axis in varied])
    effects = [
        KeyEffect(effect.factors, effect.share, effect.p if isfinite(effect.p) else None)
        for effect in anova.effects
    ]
    return KeyImportance(ANOVA, effects, grid.size, is_search=False)


def _grid_cells(results: StudyResults) -> tuple[list[str], dict[tuple[int, ...], str]]:
    """The factors, and the system in each cell of their grid."""
    config = results.config
    named = len({system.name for system in config.systems}) or 1
    factors = [*([SYSTEM] if config.systems else []), *config.grid]
    shape = [*([named] if config.systems else []), *(len(v) for v in config.grid.values())]
    names = [system.name for system in results.systems]
    indices = np.ndindex(*shape) if shape else iter(())
    return factors, dict(zip(indices, names, strict=True)) if shape else {}


def search_importance(results: StudyResults) -> KeyImportance | None:
    """Shares of nuisance keys among the finished trials of the search, all systems together."""
    search = results.config.search
    if search is None:
        return None
    states = [
        state
        for system in results.systems
        for state in system.searched
        if state.status == "finished" and state.dev is not None
    ]
    if len(states) < MIN_TRIALS:
        return None
    scores = _center_by_system(states)
    if not results.higher_is_better:
        scores = -scores
    effects = []
    for key in search.space:
        rows = [i for i, state in enumerate(states) if key in state.trial.changes]
        if len(rows) < MIN_TRIALS:
            continue
        values = [states[i].trial.changes[key] for i in rows]
        one = associate(values, scores[rows])
        effects.append(KeyEffect((key,), one.share, one.p, one.direction))
    method = RANKS
    shares = _forest_shares(search.space, states, scores)
    if shares is not None and all(effect.keys[0] in shares for effect in effects):
        method = FANOVA
        effects = [
            KeyEffect(one.keys, shares[one.keys[0]], one.p, one.direction) for one in effects
        ]
    effects.sort(key=lambda effect: -effect.share)
    return KeyImportance(method, effects, len(states), is_search=True)


def _center_by_system(states: Sequence[TrialState]) -> Floats:
    """The dev scores minus the mean of their systems."""
    values = np.array([state.dev for state in states], dtype=np.float64)
    systems = np.array([state.trial.system for state in states])
    for system in set(systems.tolist()):
        values[systems == system] -= values[systems == system].mean()
    return values


def _forest_shares(
    space: Mapping[str, SearchRange], states: Sequence[TrialState], scores: Floats
) -> dict[str, float] | None:
    """fANOVA's shares of the keys that every trial has; None without Optuna and scikit-learn."""
    if find_spec("optuna") is None or find_spec("sklearn") is None:
        return None
    import optuna
    from optuna.importance import FanovaImportanceEvaluator, get_param_importances

    keys = [key for key in space if all(key in state.trial.changes for state in states)]
    distributions = {key: _distribution(key, space[key], states) for key in keys}
    if len(keys) < len(space):
        return None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(direction="maximize")
    for state, score in zip(states, scores.tolist(), strict=True):
        parameters = {key: state.trial.changes[key] for key in keys}
        study.add_trial(
            optuna.trial.create_trial(params=parameters, distributions=distributions, value=score)
        )
    evaluator = FanovaImportanceEvaluator(n_trees=TREES, seed=FOREST_SEED)
    shares: dict[str, float] = get_param_importances(study, evaluator=evaluator)
    return shares


def _distribution(key: str, one: SearchRange, states: Sequence[TrialState]) -> Any:
    """The range of a key as Optuna has it, as wide as the values that were tried."""
    from optuna.distributions import (
        CategoricalDistribution,
        FloatDistribution,
        IntDistribution,
    )

    if one.choices is not None:
        return CategoricalDistribution(one.choices)
    tried = [state.trial.changes[key] for state in states]
    low, high = min([one.low, *tried]), max([one.high, *tried])
    kind = IntDistribution if one.is_integer else FloatDistribution
    return kind(low, high, log=one.log)


def find_important_keys(results: StudyResults) -> list[Finding]:
    """What each of several keys accounts for, in the grid and in the search."""
    findings = []
    for importance in (grid_importance(results), search_importance(results)):
        if importance is None or len(importance.effects) < 2:
            continue
        noun = "search trials" if importance.is_search else "final runs"
        for effect in importance.effects:
            test = "" if effect.p is None else f", p {format_p(effect.p)}"
            text = (
                f"{effect.label} accounts for {effect.share:.0%} of the spread of scores over "
                f"{importance.runs} {noun} ({importance.method}{test})."
            )
            numbers: dict[str, Any] = {
                "keys": effect.keys,
                "share": effect.share,
                "direction": effect.direction,
                "method": importance.method,
            }
            findings.append(Finding("importance", text, FIGURE, numbers, None, effect.p))
    return findings
