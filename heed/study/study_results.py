"""The results of a study, read from its folder: study.toml, trials/ and records/, no run folder.

`StudyResults.comparison` answers the declared question. Its notes say what was declared before
training and what came later, which trials failed, and which look at the results it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Self

from heed import checksums
from heed.config.task_metrics import LOWER_IS_BETTER
from heed.errors import ConfigError, RunError, nearest
from heed.runs.groups import RunGroup
from heed.runs.history import AXES
from heed.runs.metric_plot import GroupCurve, PlotOptions, RunHistory, build_curve
from heed.stats.looks import LEVELS, Look, find_look
from heed.stats.selection import WinnerFall, expected_best, winner_fall
from heed.study.recipe_comparison import Declaration, RecipeComparison, compare_runs
from heed.study.run_records import ScoredRun, parse_record
from heed.study.study_config import StudyConfig
from heed.study.study_folder import (
    Additions,
    is_study_folder,
    read_additions,
    read_declared_study,
    read_study_folder,
)
from heed.study.study_systems import expand_systems
from heed.study.trial_records import record_path
from heed.study.trials import TrialState, read_trials, state_path, trial_rows

DEV = "dev"
FINISHED, FAILED = "finished", "failed"
RESTORE_RECORD = "Restore it from a copy; or delete it and {}, and `heed study` makes both again."
MIN_RUNS = 2
"""Fewer finished runs have nothing to compare."""


@dataclass(frozen=True)
class TrialRecord:
    """What the record of a finished trial holds."""

    run: ScoredRun
    """The run under the trial's name."""
    history: list[dict[str, Any]]
    """The rows of the run's history: every evaluation, and some of the training rows."""
    environment: dict[str, Any]


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


class StudyResults:
    """A study as its folder tells it. Records are read when they are first needed."""

    def __init__(self, folder: Path, config: StudyConfig, trials: list[TrialState]) -> None:
        self.folder = folder
        self.config = config
        """The study with everything that was added to it."""
        self.trials = trials
        """The states of all trials, in the order of their numbers."""
        self._records: dict[str, TrialRecord] = {}

    @classmethod
    def read(cls, folder: str | Path) -> Self:
        """Read the study in this folder."""
        folder = Path(folder)
        if not is_study_folder(folder):
            raise RunError(
                "there is no study in this folder: study.toml is missing.",
                where=str(folder),
                todo="Name the folder that `heed study` made.",
            )
        return cls(folder, read_study_folder(folder), read_trials(folder))

    def __repr__(self) -> str:
        finished = sum(state.status == FINISHED for state in self.trials)
        return (
            f"StudyResults({str(self.folder)!r}: {len(self.systems)} systems, "
            f"{finished} of {len(self.trials)} trials finished)"
        )

    # ---------------------------------------------------------------------------- the parts

    @cached_property
    def declared(self) -> StudyConfig:
        """The study as it was declared before training."""
        return read_declared_study(self.folder)

    @cached_property
    def additions(self) -> Additions:
        """The seeds and systems that were added later."""
        return read_additions(self.folder)

    @cached_property
    def systems(self) -> list[SystemResults]:
        """Every system with its trials, in the study's order."""
        by_stage: dict[tuple[str, str], list[TrialState]] = {}
        for state in self.trials:
            by_stage.setdefault((state.trial.system, state.trial.stage), []).append(state)
        systems = []
        for system in expand_systems(self.config):
            finals = by_stage.get((system.name, "final"), [])
            systems.append(
                SystemResults(
                    system.name,
                    system.scientific,
                    finals[0].trial.changes if finals else system.changes,
                    finals,
                    by_stage.get((system.name, "search"), []),
                    by_stage.get((system.name, "finalist"), []),
                    system.name in self.additions.systems,
                )
            )
        return systems

    def system(self, name: str) -> SystemResults:
        """The system of this name."""
        for system in self.systems:
            if system.name == name:
                return system
        known = [system.name for system in self.systems]
        raise ConfigError([f"The study has no system {name!r}.{nearest(name, known)}"])

    def record(self, name: str) -> TrialRecord:
        """The record of a finished trial, read once."""
        if name not in self._records:
            path = record_path(self.folder, name)
            todo = RESTORE_RECORD.format(state_path(self.folder, name))
            if not path.exists():
                what = "the record of this finished trial is missing."
                raise RunError(what, where=str(path), todo=todo)
            document = checksums.read_json(path, todo=todo)
            run = replace(parse_record(document, str(path)), name=name)
            self._records[name] = TrialRecord(
                run, document.get("history") or [], document.get("environment") or {}
            )
        return self._records[name]

    @property
    def metric(self) -> str | None:
        """The primary metric."""
        return self.config.metric

    @property
    def higher_is_better(self) -> bool:
        """Whether a larger value of the primary metric is better."""
        return self.config.metric not in LOWER_IS_BETTER

    @property
    def set_name(self) -> str:
        """The primary set: the first that final trials are scored on, else dev."""
        return self.config.sets[0] if self.config.sets else DEV

    # -------------------------------------------------------------------------- the answer

    @cached_property
    def comparison(self) -> RecipeComparison | None:
        """The answer to the declared question; None before two final trials have finished.

        It is None too where evaluations keep no item counts, as those of masked language models.
        """
        chosen = [state.trial.name for state in self._compared_trials()]
        if len(chosen) < MIN_RUNS or not self._has_items(chosen):
            return None
        return self.compare()

    def _has_items(self, trials: Sequence[str]) -> bool:
        """Whether any of these trials has item counts of the primary set."""
        return any(self.set_name in self.record(name).run.evaluations for name in trials)

    def compare(
        self,
        *,
        metric: str | None = None,
        set_name: str | None = None,
        baseline: str | None = None,
        margin: float | None = None,
        paired_seeds: bool = False,
    ) -> RecipeComparison:
        """Compare the final trials; whatever is not given is as declared.

        What differs from the declared question makes the comparison exploratory.
        """
        config = self.config
        chosen = self._compared_trials()
        if len(chosen) < MIN_RUNS:
            number = "no final trial has" if not chosen else "only one final trial has"
            raise RunError(
                f"{number} finished, and a comparison needs two.",
                where=str(self.folder),
                todo=f"See what became of them: heed study {self.folder} --status",
            )
        runs = [self._scored_run(state) for state in chosen]
        present = {state.trial.system for state in chosen}
        deviations = self._deviations()
        for what, asked, fixed in (
            ("metric", metric, config.metric),
            ("set", set_name, self.set_name),
            ("baseline", baseline, config.baseline),
            ("margin", margin, config.margin),
        ):
            if asked is not None and asked != fixed:
                deviations.append(
                    f"the {what} {asked} was asked after training; declared was "
                    f"{'none' if fixed is None else fixed}."
                )
        if paired_seeds and not config.paired_seeds:
            deviations.append("that seeds are pairs was not declared before training.")
        if baseline is None and config.baseline is not None:
            baseline = config.baseline
            if baseline not in present:
                deviations.append(
                    f"the baseline {baseline} has no finished trial, so all pairs are compared."
                )
                baseline = None
        return compare_runs(
            runs,
            baseline=baseline,
            metric=metric or config.metric,
            margin=config.margin if margin is None else margin,
            set_name=set_name or self.set_name,
            paired_seeds=paired_seeds or config.paired_seeds,
            declaration=Declaration(
                {state.trial.name: state.trial.system for state in chosen},
                self.look,
                tuple(deviations),
                tuple(self._trial_notes(chosen)),
            ),
        )

    def _scored_run(self, state: TrialState) -> ScoredRun:
        """The run of a finished trial, with the minutes of the whole trial where they are known."""
        run = self.record(state.trial.name).run
        return run if state.minutes is None else replace(run, minutes=state.minutes)

    @cached_property
    def look(self) -> Look | None:
        """Which declared look the results are at: the last that all systems have the seeds for."""
        reached = [look for look in self.config.looks if look <= self._seeds_ended]
        if not self.config.looks or not reached or len(self.config.looks) > len(LEVELS):
            return None
        return find_look(self.config.looks, reached[-1])

    @property
    def _seeds_ended(self) -> int:
        """The seeds that every declared system has ended, finished or failed."""
        counts = [
            sum(state.has_ended for state in system.finals)
            for system in self.systems
            if not system.is_added
        ]
        return min(counts, default=0)

    def _compared_trials(self) -> list[TrialState]:
        """The finished final trials that a comparison takes, by system.

        At a declared look they are those of its seeds: a seed more would be another look. Where
        seeds are pairs, they are those of the seeds that every system has.
        """
        chosen = []
        for system in self.systems:
            finals = system.finals if self.look is None else system.finals[: self.look.seeds]
            chosen += [state for state in finals if state.status == FINISHED]
        if self.config.paired_seeds:
            seeds: dict[str, set[int]] = {}
            for state in chosen:
                seeds.setdefault(state.trial.system, set()).add(state.trial.seed)
            common = set.intersection(*seeds.values()) if seeds else set()
            chosen = [state for state in chosen if state.trial.seed in common]
        return chosen

    def _deviations(self) -> list[str]:
        """What was not as declared before training, in words."""
        deviations = []
        added = [system.name for system in self.systems if system.is_added and system.finished]
        if added:
            names, verb = ", ".join(added), "was" if len(added) == 1 else "were"
            deviations.append(f"{names} {verb} added after training began.")
        if self.config.looks:
            if self.look is None:
                places = ", ".join(map(str, self.config.looks))
                deviations.append(
                    f"{self._seeds_ended} seeds each are none of the declared looks ({places})."
                )
            return deviations
        seeds = sorted(
            {s.trial.seed for s in self._compared_trials() if s.trial.seed in self.additions.seeds}
        )
        if seeds:
            listed = f"seed {seeds[0]} was" if len(seeds) == 1 else f"{len(seeds)} seeds were"
            deviations.append(
                f"{listed} added after training began, and no looks were declared (looks = …)."
            )
        finals = [
            state for system in self.systems for state in system.finals if not system.is_added
        ]
        ended = sum(state.has_ended for state in finals)
        planned = len(self.declared.seeds) * sum(not system.is_added for system in self.systems)
        planned = max(planned, len(finals))
        if ended < planned:
            deviations.append(
                f"{ended} of {planned} final trials have ended, so the seeds are not all there."
            )
        return deviations

    def _trial_notes(self, chosen: Sequence[TrialState]) -> list[str]:
        """Systems whose seeds are not all in the comparison."""
        notes = []
        for system in self.systems:
            total = len(system.finals)
            used = sum(state.trial.system == system.name for state in chosen)
            if system.failed:
                failed = system.failed[0]
                left = "The others are compared." if used else "It is not compared."
                notes.append(
                    f"{len(system.failed)} of {total} seeds of {system.name} failed "
                    f"({failed.trial.name}: {failed.reason or 'no reason is known'}). {left}"
                )
            elif not used:
                notes.append(f"{system.name} has no finished final trial: it is not compared.")
        left_out = sum(len(system.finished) for system in self.systems) - len(chosen)
        if left_out:
            why = "beyond this look" if self.look is not None else "of seeds that not all have"
            trials = "trial" if left_out == 1 else "trials"
            notes.append(f"Left out: {left_out} finished {trials} {why}.")
        return notes

    # --------------------------------------------------------------------- tables and curves

    def rows(self) -> list[dict[str, Any]]:
        """One row for each trial, as pandas takes them."""
        return trial_rows(self.trials)

    def summary(self) -> list[dict[str, Any]]:
        """One row for each system: its keys, its scores, and its difference to the baseline."""
        compared = {}
        if self.comparison is not None:
            compared = {row["system"]: row for row in self.comparison.rows()}
        rows = []
        for system in self.systems:
            finished, result = system.finished, compared.get(system.name, {})
            dev = system.dev_scores
            known = [state.scores.get(self.set_name, {}) for state in finished]
            scores = [one[self.metric] for one in known if self.metric in one]
            row: dict[str, Any] = {
                "system": system.name,
                **system.scientific,
                "seeds": len(finished),
                "failed": len(system.failed),
                "added": system.is_added,
                "set": self.set_name,
                "metric": self.metric,
                "mean": result.get("mean", _mean(scores)),
                "sd": result.get("sd", stdev(scores) if len(scores) > 1 else None),
                "dev_mean": fmean(dev) if dev else None,
                "dev_sd": stdev(dev) if len(dev) > 1 else None,
                "minutes": _mean(state.minutes for state in finished),
                "tokens": _mean(state.tokens for state in finished),
                "parameters": _mean(state.parameters for state in finished),
                "peak_memory": _mean(state.peak_memory for state in finished),
            }
            rows.append(row | {key: one for key, one in result.items() if key not in row})
        return rows

    def curves(self, metric: str = "dev/loss", x: str = "step") -> list[GroupCurve]:
        """The mean over seeds of a metric of the history, with a band from lowest to highest.

        Systems without it have no curve. `x` is step, epoch, tokens or seconds.
        """
        if x not in AXES:
            raise ConfigError([f"x cannot be {x!r}: choose {', '.join(AXES)}.{nearest(x, AXES)}"])
        curves = []
        for system in self.systems:
            records = [self.record(state.trial.name) for state in system.finished]
            group = RunGroup(
                system.name,
                tuple(one.run.name for one in records),
                tuple(state.trial.seed for state in system.finished),
                system.scientific,
            )
            runs = [RunHistory(one.run.name, one.history) for one in records if one.history]
            if (curve := build_curve(group, runs, metric, PlotOptions([metric], x))) is not None:
                curves.append(curve)
        return curves

    def metrics(self) -> list[str]:
        """The metrics that any finished final trial's history has, in order."""
        names: dict[str, None] = {}
        for system in self.systems:
            for state in system.finished:
                for row in self.record(state.trial.name).history:
                    names |= dict.fromkeys(key for key in row if "/" in key)
        return list(names)

    # -------------------------------------------------------------------------- choosing

    @property
    def best(self) -> str | None:
        """The system with the best mean dev score: the choice. Test scores never choose."""
        means = {
            system.name: fmean(system.dev_scores)
            for system in self.systems
            if system.finished and system.dev_scores
        }
        if not means:
            return None
        choose = max if self.higher_is_better else min
        return choose(means, key=lambda name: means[name])

    def best_trial(self, system: str) -> TrialState | None:
        """The finished final trial of a system with the best dev score."""
        states = [state for state in self.system(system).finished if state.dev is not None]
        choose = max if self.higher_is_better else min
        return choose(states, key=lambda state: state.dev or 0.0) if states else None

    def expected_best(self) -> dict[str, list[float]]:
        """The expected best dev score of 1, 2, … search trials of each system.

        Failed and pruned trials count at the worst score that any trial of the system had.
        """
        curves = {}
        for system in self.systems:
            scores = [state.dev for state in system.searched if state.dev is not None]
            if not scores:
                continue
            worst = (min if self.higher_is_better else max)(scores)
            ended = [state for state in system.searched if state.has_ended]
            values = [worst if state.dev is None else state.dev for state in ended]
            best = expected_best(values, higher_is_better=self.higher_is_better)
            curves[system.name] = best.tolist()
        return curves

    def winner_falls(self) -> dict[str, WinnerFall]:
        """How far each system's winner of the search falls from its search to fresh seeds."""
        falls = {}
        for system in self.systems:
            winners = [
                state.dev
                for state in system.searched
                if state.dev is not None and system.finals and _is_same(state, system.finals[0])
            ]
            if winners and system.dev_scores:
                falls[system.name] = winner_fall(
                    winners, system.dev_scores, higher_is_better=self.higher_is_better
                )
        return falls

    # ----------------------------------------------------------------------------- costs

    @property
    def looks(self) -> dict[str, int]:
        """How often each set but dev was evaluated, over all finished trials."""
        totals: dict[str, int] = {}
        for state in self.trials:
            if state.status != FINISHED or state.trial.stage != "final":
                continue
            for name, count in self.record(state.trial.name).run.looks.items():
                if name != DEV:
                    totals[name] = totals.get(name, 0) + count
        return totals

    @property
    def failures(self) -> list[TrialState]:
        """The trials that failed, with their reasons."""
        return [state for state in self.trials if state.status == FAILED]

    @property
    def minutes(self) -> float:
        """Minutes of all trials together, failed and pruned ones included."""
        return sum(state.minutes or 0.0 for state in self.trials)

    @property
    def tokens(self) -> int:
        """Training tokens of all trials together."""
        return sum(state.tokens or 0 for state in self.trials)


def _is_same(state: TrialState, other: TrialState) -> bool:
    """Whether two trials differ in nothing but their seeds."""
    return state.trial.changes == other.trial.changes and state.trial.recipe == other.trial.recipe


def _mean(values: Any) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
