"""The trials of a search by system and stage, as their states on disk tell them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

from heed.config.task_metrics import LOWER_IS_BETTER
from heed.study.plan import label_systems
from heed.study.search.search_space import (
    FINALIST_SEED,
    SEARCH_SEED,
    Setting,
    Space,
    read_setting,
)
from heed.study.study_config import SearchConfig, StudyConfig
from heed.study.study_systems import System, expand_systems
from heed.study.trials import Stage, Trial, TrialState


@dataclass(frozen=True)
class SystemSearch:
    """One system and its trials."""

    system: System
    label: str
    """Its name in file names."""
    search: dict[int, TrialState] = field(default_factory=dict)
    """Trials of the search by their number within it, from 0."""
    finalists: dict[tuple[int, int], TrialState] = field(default_factory=dict)
    """Trials of finalists by rank and by seed, both from 0."""
    finals: dict[int, TrialState] = field(default_factory=dict)
    """Final trials by seed."""

    def ended_before(self, number: int) -> list[TrialState]:
        """Trials of the search that have ended, with lower numbers than this, in order."""
        return [
            self.search[i] for i in sorted(self.search) if i < number and self.search[i].has_ended
        ]

    def has_ended_before(self, number: int) -> bool:
        """Whether every trial of the search below this number has ended."""
        return len(self.ended_before(number)) == number

    @property
    def tokens(self) -> int:
        """Training tokens of the search, those of failed and pruned trials included."""
        return sum(state.tokens or 0 for state in self.search.values())


def group_states(config: StudyConfig, states: Iterable[TrialState]) -> list[SystemSearch]:
    """The systems of a study in its order, each with its trials."""
    systems = expand_systems(config)
    labels = label_systems(systems)
    groups = {system.name: SystemSearch(system, labels[system.name]) for system in systems}
    for state in states:
        trial = state.trial
        if (group := groups.get(trial.system)) is None:
            continue
        match trial.stage:
            case "search":
                group.search[search_number(trial)] = state
            case "finalist":
                rank, _, seed = trial.name.rpartition("-finalist")[2].partition("-")
                group.finalists[int(rank) - 1, int(seed) - 1] = state
            case _:
                group.finals[trial.seed] = state
    return list(groups.values())


def search_number(trial: Trial) -> int:
    """The number of a trial within the search of its system, which is part of its name."""
    return int(trial.name.rpartition("-trial")[2])


def search_trial(group: SystemSearch, number: int, setting: Setting) -> Trial:
    """A trial of the search."""
    name = f"{group.label}-trial{number:03d}"
    return _make_trial(group, name, setting, SEARCH_SEED + number, "search")


def finalist_trial(group: SystemSearch, rank: int, seed: int, setting: Setting) -> Trial:
    """A trial of a finalist: its rank in the search and the seed, both from 0."""
    name = f"{group.label}-finalist{rank + 1}-{seed + 1}"
    return _make_trial(group, name, setting, FINALIST_SEED + seed, "finalist")


def final_trial(group: SystemSearch, seed: int, setting: Setting) -> Trial:
    """A final trial."""
    return _make_trial(group, f"{group.label}-seed{seed}", setting, seed, "final")


def _make_trial(group: SystemSearch, name: str, setting: Setting, seed: int, stage: Stage) -> Trial:
    system = group.system
    return Trial(name, -1, system.name, system.changes | setting, system.recipe, seed, stage)


def number_trials(trials: Sequence[Trial], states: Sequence[TrialState]) -> list[Trial]:
    """The trials with their numbers in the study: those on disk keep theirs.

    The others get the lowest free numbers, so a trial whose file was lost has its own again.
    """
    disk = {state.trial.name: state.trial for state in states}
    taken = {one.number for one in disk.values()}
    free = (number for number in count() if number not in taken)
    return [disk.get(trial.name) or replace(trial, number=next(free)) for trial in trials]


def score_of(config: StudyConfig, state: TrialState) -> float | None:
    """The dev score of a finished trial, larger for better; None where there is none."""
    if state.status != "finished" or state.dev is None or not math.isfinite(state.dev):
        return None
    return -state.dev if config.metric in LOWER_IS_BETTER else state.dev


def rank_settings(
    config: StudyConfig, states: Iterable[TrialState], space: Space
) -> list[tuple[Setting, float]]:
    """Different settings with their mean dev scores, best first; a tie goes to the earlier one."""
    scores: list[tuple[Setting, list[float]]] = []
    for state in states:
        score = score_of(config, state)
        if score is None:
            continue
        setting = read_setting(space, state.trial.changes)
        values = next((values for one, values in scores if one == setting), None)
        if values is None:
            scores.append((setting, values := []))
        values.append(score)
    means = [(setting, sum(values) / len(values)) for setting, values in scores]
    return sorted(means, key=lambda one: -one[1])


def require_search(config: StudyConfig) -> SearchConfig:
    """The [search] section of a study that has one."""
    if config.search is None:
        raise ValueError("this study has no search")
    return config.search
