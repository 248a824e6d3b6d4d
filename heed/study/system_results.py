"""The trials of each system of a study: those of its search, its finalists and its final seeds."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from heed.study.study_config import StudyConfig
from heed.study.study_systems import expand_systems
from heed.study.trials import FAILED, FINISHED, TrialState


@dataclass(frozen=True)
class SystemResults:
    """One system of a study and its trials."""

    name: str
    scientific: dict[str, Any]
    """The keys that the study asks about, with this system's values."""
    changes: dict[str, Any]
    """All keys of its final trials, those that a search chose included; else as declared."""
    finals: list[TrialState]
    """Its final trials, in the order of their numbers, whatever became of them."""
    searched: list[TrialState]
    """Its trials of the search, in order."""
    finalists: list[TrialState]
    """The trials that chose among the best of the search."""
    is_added: bool
    """Whether it was added after the study was declared."""

    @property
    def finished(self) -> list[TrialState]:
        """The final trials that finished."""
        return [state for state in self.finals if state.status == FINISHED]

    @property
    def failed(self) -> list[TrialState]:
        """The final trials that failed."""
        return [state for state in self.finals if state.status == FAILED]

    @property
    def dev_scores(self) -> list[float]:
        """The dev scores of the finished final trials."""
        return [state.dev for state in self.finished if state.dev is not None]


def group_by_system(
    config: StudyConfig, trials: Iterable[TrialState], *, added: Collection[str]
) -> list[SystemResults]:
    """Every system of a study with its trials, in the study's order.

    `added` are the names of the systems that were added after the study was declared.
    """
    by_stage: dict[tuple[str, str], list[TrialState]] = {}
    for state in trials:
        by_stage.setdefault((state.trial.system, state.trial.stage), []).append(state)
    systems = []
    for system in expand_systems(config):
        finals = by_stage.get((system.name, "final"), [])
        systems.append(
            SystemResults(
                system.name,
                system.scientific,
                finals[0].trial.changes if finals else system.changes,
                finals,
                by_stage.get((system.name, "search"), []),
                by_stage.get((system.name, "finalist"), []),
                system.name in added,
            )
        )
    return systems
