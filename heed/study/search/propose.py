"""The search of a study: which trials come next, as a function of those that have ended.

Nuisance keys are searched anew for every system, with the same number of trials. Trials are
proposed in rounds, and a round waits for the one before. Each trial's sampler is seeded by its
number, so a search repeats itself, however many trials run at once and wherever it is killed. The
states on disk are its only memory.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from heed.study.search.finalists import propose_finalists, propose_finals
from heed.study.search.pruning import PILOT_SEEDS, has_pilot
from heed.study.search.search_space import (
    Setting,
    Space,
    central_setting,
    draw_setting,
    edge_of,
    list_settings,
    read_setting,
    widen_range,
)
from heed.study.search.search_states import (
    SystemSearch,
    group_states,
    number_trials,
    rank_settings,
    require_search,
    score_of,
    search_trial,
)
from heed.study.search.tpe_sampler import require_optuna, suggest_setting
from heed.study.study_config import SearchConfig, StudyConfig
from heed.study.trials import Trial, TrialState

RANDOM_SHARE = 0.25
"""The share of a TPE search that is drawn at random, before the estimators begin."""
MIN_RANDOM = 4
"""Fewest random trials of a TPE search."""


def propose(config: StudyConfig, states: Sequence[TrialState]) -> list[Trial]:
    """The trials to carry out now: those of the current round that have not ended.

    First come the rounds of the search, then its finalists, then the final trials of every system's
    winner. An empty list means that nothing is left to do.
    """
    if require_search(config).method == "tpe":
        require_optuna()
    groups = group_states(config, states)
    for stage in (propose_round, propose_finalists, propose_finals):
        trials = number_trials(stage(config, groups), states)
        ended = {state.trial.name for state in states if state.has_ended}
        if left := [trial for trial in trials if trial.name not in ended]:
            return left
    return []


def propose_round(config: StudyConfig, groups: Sequence[SystemSearch]) -> list[Trial]:
    """The current round of the search: that of the slowest system, with all that belong to it.

    Trials of systems that are further are in it as they are on disk.
    """
    search = require_search(config)
    rounds = [_current_round(config, group, groups) for group in groups]
    unfinished = [one for one in rounds if one is not None]
    if not unfinished:
        return []
    first = min(unfinished) * search.round
    trials = []
    for group, current in zip(groups, rounds, strict=True):
        if current == min(unfinished):
            trials += _propose_trials(config, group, groups, first)
        else:
            numbers = range(first, first + search.round)
            trials += [group.search[i].trial for i in numbers if i in group.search]
    return trials


def _current_round(
    config: StudyConfig, group: SystemSearch, groups: Sequence[SystemSearch]
) -> int | None:
    """The first round of a system's search that has not ended; None where its budget is spent."""
    search = require_search(config)
    for number in range(0, count_trials(config, group, groups), search.round):
        ended = group.ended_before(number)
        if search.tokens is not None and sum(one.tokens or 0 for one in ended) >= search.tokens:
            return None
        last = min(number + search.round, count_trials(config, group, groups))
        if not group.has_ended_before(last):
            return number // search.round
    return None


def count_trials(
    config: StudyConfig, group: SystemSearch, groups: Sequence[SystemSearch] = ()
) -> int:
    """Trials of one system's search. A grid grows where a range of it is widened."""
    search = require_search(config)
    if search.method != "grid":
        return search.trials
    return len(_grid_settings(config, group, groups))


def _propose_trials(
    config: StudyConfig, group: SystemSearch, groups: Sequence[SystemSearch], first: int
) -> list[Trial]:
    """One round of one system, from the trial with this number on."""
    search = require_search(config)
    numbers = range(first, min(first + search.round, count_trials(config, group, groups)))
    if search.method == "grid":
        settings = _grid_settings(config, group, groups)
        return [search_trial(group, number, settings[number]) for number in numbers]
    space = widen_space(config, groups, first)
    ended = [
        (read_setting(search.space, state.trial.changes), score_of(config, state))
        for state in group.ended_before(first)
    ]
    running: list[Setting] = []
    for number in numbers:
        running.append(_propose_setting(search, space, group, ended, running, number))
    return [search_trial(group, *one) for one in zip(numbers, running, strict=True)]


def _propose_setting(
    search: SearchConfig,
    space: Space,
    group: SystemSearch,
    ended: Sequence[tuple[Setting, float | None]],
    running: Sequence[Setting],
    number: int,
) -> Setting:
    fixed = group.system.changes
    if has_pilot(search) and number < PILOT_SEEDS:
        return central_setting(space, fixed)
    sequence = np.random.SeedSequence((search.seed, number))
    if search.method == "random" or number < count_random(search) or not ended:
        return draw_setting(space, fixed, np.random.default_rng(sequence))
    return suggest_setting(space, fixed, ended, running, int(sequence.generate_state(1)[0]))


def count_random(search: SearchConfig) -> int:
    """Trials of a TPE search before its estimators begin, the pilot's included."""
    pilot = PILOT_SEEDS - 1 if has_pilot(search) else 0
    return pilot + max(MIN_RANDOM, round(RANDOM_SHARE * search.trials))


# ----------------------------------------------------------------------------------- widening


def widen_space(config: StudyConfig, groups: Sequence[SystemSearch], number: int) -> Space:
    """The space from which the trial with this number is drawn, the same for all systems.

    At `widen` points of the search, evenly spaced, a range is widened at the edge where the best
    trial of some system lies.
    """
    search = require_search(config)
    space: Space = search.space
    for point in widening_points(search):
        if point <= number:
            space = _widen_once(config, space, groups, point)
    return space


def widening_points(search: SearchConfig) -> list[int]:
    """The trial numbers from which ranges may be wider: the first of a round each."""
    parts = search.widen + 1
    points = [search.trials * i / parts / search.round for i in range(1, parts)]
    return sorted({number for one in points if (number := round(one) * search.round) > 0})


def _widen_once(
    config: StudyConfig, space: Space, groups: Sequence[SystemSearch], number: int
) -> Space:
    """The space with every range widened at whose edge the best of some system lies."""
    wider = dict(space)
    for group in groups:
        ranked = rank_settings(config, group.ended_before(number), space)
        for key, value in ranked[0][0].items() if ranked else ():
            edge = edge_of(space[key], value)
            if edge is not None:
                wider[key] = widen_range(wider[key], edge, key)
    return wider


def list_edges(config: StudyConfig, groups: Sequence[SystemSearch]) -> dict[str, list[str]]:
    """For each system, the keys whose best value is at an edge of the final space.

    An edge at which the recipe key itself ends, as no dropout, is none.
    """
    most = max((count_trials(config, group, groups) for group in groups), default=0)
    space = final_space(config, groups)
    edges = {}
    for group in groups:
        ranked = rank_settings(config, group.ended_before(most), space)
        setting = ranked[0][0] if ranked else {}
        edges[group.system.name] = [
            key
            for key, value in setting.items()
            if (edge := edge_of(space[key], value)) is not None
            and widen_range(space[key], edge, key) != space[key]
        ]
    return edges


def final_space(config: StudyConfig, groups: Sequence[SystemSearch]) -> Space:
    """The space of the last trials: every range as wide as it became."""
    search = require_search(config)
    if search.method != "grid":
        return widen_space(config, groups, search.trials)
    return _grid_spaces(config, groups)[-1]


# -------------------------------------------------------------------------------------- grids


def _grid_settings(
    config: StudyConfig, group: SystemSearch, groups: Sequence[SystemSearch]
) -> list[Setting]:
    """The settings of a grid: all of the declared space, then those that a wider one adds."""
    settings: list[Setting] = []
    for space in _grid_spaces(config, groups):
        new = list_settings(space, group.system.changes)
        settings += [setting for setting in new if setting not in settings]
    return settings


def _grid_spaces(config: StudyConfig, groups: Sequence[SystemSearch]) -> list[Space]:
    """The declared space of a grid and its wider ones, each after the one before has ended."""
    search = require_search(config)
    spaces: list[Space] = [search.space]
    counts = {group.system.name: 0 for group in groups}
    settings: dict[str, list[Setting]] = {group.system.name: [] for group in groups}
    for _ in range(search.widen):
        for group in groups:
            seen = settings[group.system.name]
            new = list_settings(spaces[-1], group.system.changes)
            seen += [setting for setting in new if setting not in seen]
            counts[group.system.name] = len(seen)
        if not all(group.has_ended_before(counts[group.system.name]) for group in groups):
            break
        wider = _widen_once(config, spaces[-1], groups, max(counts.values()))
        if wider == spaces[-1]:
            break
        spaces.append(wider)
    return spaces
