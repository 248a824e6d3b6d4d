"""Finalists and winners: a search's best settings, chosen again on new seeds, then trained afresh.

The best score of a search is partly luck: it was chosen because it was high. So the best settings
are trained again with new seeds, and the mean of these alone chooses the winner. The winner is
trained once more, with seeds that chose nothing, and only those trials are reported and see test.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from heed.study.search.search_space import Setting
from heed.study.search.search_states import (
    SystemSearch,
    final_trial,
    finalist_trial,
    rank_settings,
    require_search,
    score_of,
)
from heed.study.study_config import StudyConfig
from heed.study.trials import Trial, TrialState


def choose_finalists(config: StudyConfig, group: SystemSearch) -> list[Setting]:
    """The best settings of a system's search, best first; those that were pruned are not among."""
    search = require_search(config)
    states = [group.search[number] for number in sorted(group.search)]
    ranked = rank_settings(config, states, search.space)
    return [setting for setting, _ in ranked[: search.finalists]]


def choose_winner(config: StudyConfig, group: SystemSearch) -> Setting | None:
    """The finalist with the best mean on its new seeds; None where no trial of the search finished.

    A finalist of which a seed failed comes after those of which none did.
    """
    settings = choose_finalists(config, group)
    if len(settings) < 2:
        return settings[0] if settings else None
    ranked = []
    for rank, setting in enumerate(settings):
        scores = _finalist_scores(config, group, rank)
        failed = require_search(config).finalist_seeds - len(scores)
        mean = sum(scores) / len(scores) if scores else 0.0
        ranked.append(((failed, -mean, rank), setting))
    return min(ranked, key=lambda one: one[0])[1]


def propose_finalists(config: StudyConfig, groups: Iterable[SystemSearch]) -> list[Trial]:
    """The trials of all finalists. A single setting needs no choice, and has none."""
    seeds = range(require_search(config).finalist_seeds)
    return [
        finalist_trial(group, rank, seed, setting)
        for group in groups
        if len(settings := choose_finalists(config, group)) > 1
        for rank, setting in enumerate(settings)
        for seed in seeds
    ]


def propose_finals(config: StudyConfig, groups: Sequence[SystemSearch]) -> list[Trial]:
    """The final trials of every system's winner: all systems of one seed before the next seed."""
    winners = [(group, choose_winner(config, group)) for group in groups]
    return [
        final_trial(group, seed, setting)
        for seed in config.seeds
        for group, setting in winners
        if setting is not None
    ]


def _finalist_scores(config: StudyConfig, group: SystemSearch, rank: int) -> list[float]:
    seeds = sorted(seed for place, seed in group.finalists if place == rank)
    return _scores(config, [group.finalists[rank, seed] for seed in seeds])


def _scores(config: StudyConfig, states: Iterable[TrialState]) -> list[float]:
    return [score for state in states if (score := score_of(config, state)) is not None]
