"""The declared comparison of a study: its trials, its look, and what deviates from the declaration.

What was declared before training is tested as such. Seeds and systems that came later, and looks
that were not declared, make a comparison exploratory; its notes say so, and which trials failed.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from heed.stats.looks import LEVELS, Look, find_look
from heed.study.study_config import StudyConfig
from heed.study.study_folder import Additions
from heed.study.system_results import SystemResults
from heed.study.trials import FINISHED, TrialState


class DeclaredComparison:
    """Which final trials answer the declared question, and what is not as declared."""

    def __init__(
        self,
        config: StudyConfig,
        declared: StudyConfig,
        additions: Additions,
        systems: Sequence[SystemResults],
    ) -> None:
        self._config, self._declared = config, declared
        self._additions, self._systems = additions, systems

    @cached_property
    def look(self) -> Look | None:
        """Which declared look the results are at: the last that all systems have the seeds for."""
        looks = self._config.looks
        reached = [look for look in looks if look <= self._seeds_ended]
        if not looks or not reached or len(looks) > len(LEVELS):
            return None
        return find_look(looks, reached[-1])

    @property
    def _seeds_ended(self) -> int:
        """The seeds that every declared system has ended, finished or failed."""
        counts = [
            sum(state.has_ended for state in system.finals)
            for system in self._systems
            if not system.is_added
        ]
        return min(counts, default=0)

    @cached_property
    def trials(self) -> list[TrialState]:
        """The finished final trials that a comparison takes, by system.

        At a declared look they are those of its seeds: a seed more would be another look. Where
        seeds are pairs, they are those of the seeds that every system has.
        """
        chosen = []
        for system in self._systems:
            finals = system.finals if self.look is None else system.finals[: self.look.seeds]
            chosen += [state for state in finals if state.status == FINISHED]
        if self._config.paired_seeds:
            seeds: dict[str, set[int]] = {}
            for state in chosen:
                seeds.setdefault(state.trial.system, set()).add(state.trial.seed)
            common = set.intersection(*seeds.values()) if seeds else set()
            chosen = [state for state in chosen if state.trial.seed in common]
        return chosen

    def deviations(self) -> list[str]:
        """What was not as declared before training, in words."""
        deviations = []
        added = [system.name for system in self._systems if system.is_added and system.finished]
        if added:
            names, verb = ", ".join(added), "was" if len(added) == 1 else "were"
            deviations.append(f"{names} {verb} added after training began.")
        if self._config.looks:
            if self.look is None:
                places = ", ".join(map(str, self._config.looks))
                deviations.append(
                    f"{self._seeds_ended} seeds each are none of the declared looks ({places})."
                )
            return deviations
        later = self._additions.seeds
        seeds = sorted({state.trial.seed for state in self.trials if state.trial.seed in later})
        if seeds:
            listed = f"seed {seeds[0]} was" if len(seeds) == 1 else f"{len(seeds)} seeds were"
            deviations.append(
                f"{listed} added after training began, and no looks were declared (looks = …)."
            )
        finals = [
            state for system in self._systems for state in system.finals if not system.is_added
        ]
        ended = sum(state.has_ended for state in finals)
        planned = len(self._declared.seeds) * sum(not system.is_added for system in self._systems)
        planned = max(planned, len(finals))
        if ended < planned:
            deviations.append(
                f"{ended} of {planned} final trials have ended, so the seeds are not all there."
            )
        return deviations

    def notes(self) -> list[str]:
        """Systems whose seeds are not all in the comparison, in words."""
        notes = []
        for system in self._systems:
            total = len(system.finals)
            used = sum(state.trial.system == system.name for state in self.trials)
            if system.failed:
                failed = system.failed[0]
                left = "The others are compared." if used else "It is not compared."
                notes.append(
                    f"{len(system.failed)} of {total} seeds of {system.name} failed "
                    f"({failed.trial.name}: {failed.reason or 'no reason is known'}). {left}"
                )
            elif not used:
                notes.append(f"{system.name} has no finished final trial: it is not compared.")
        left_out = sum(len(system.finished) for system in self._systems) - len(self.trials)
        if left_out:
            why = "beyond this look" if self.look is not None else "of seeds that not all have"
            trials = "trial" if left_out == 1 else "trials"
            notes.append(f"Left out: {left_out} finished {trials} {why}.")
        return notes
