"""The results of a study, read from its folder: study.toml, trials/ and records/, no run folder.

`StudyResults.comparison` answers the declared question (`heed.study.declared_comparison`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Self

from heed.config.task_metrics import LOWER_IS_BETTER
from heed.errors import ConfigError, RunError, nearest
from heed.runs.groups import RunGroup
from heed.runs.history import AXES
from heed.runs.metric_plot import GroupCurve, PlotOptions, RunHistory, build_curve
from heed.runs.run import Run
from heed.stats.looks import Look
from heed.stats.selection import WinnerFall, expected_best, winner_fall
from heed.study.declared_comparison import DeclaredComparison
from heed.study.recipe_comparison import Declaration, RecipeComparison, compare_runs
from heed.study.run_records import ScoredRun
from heed.study.study_config import StudyConfig
from heed.study.study_folder import (
    Additions,
    is_study_folder,
    read_additions,
    read_declared_study,
    read_study_folder,
    refuse_lost_study,
)
from heed.study.system_results import SystemResults, group_by_system
from heed.study.trial_records import TrialRecord, read_trial_record
from heed.study.trials import FAILED, FINISHED, RUNS, TrialState, read_trials, trial_rows

DEV = "dev"
MIN_RUNS = 2
"""Fewer finished runs have nothing to compare."""


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
        refuse_lost_study(folder)
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
        return group_by_system(self.config, self.trials, added=self.additions.systems)

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
            self._records[name] = read_trial_record(self.folder, name)
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
    def declared_comparison(self) -> DeclaredComparison:
        """The comparison as it was declared: its trials, its look, and what deviates from it."""
        return DeclaredComparison(self.config, self.declared, self.additions, self.systems)

    @property
    def look(self) -> Look | None:
        """Which declared look the results are at: the last that all systems have the seeds for."""
        return self.declared_comparison.look

    @cached_property
    def comparison(self) -> RecipeComparison | None:
        """The answer to the declared question; None before two final trials have finished.

        It is None too where evaluations keep no item counts, as those of masked language models.
        """
        chosen = [state.trial.name for state in self.declared_comparison.trials]
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
        config, question = self.config, self.declared_comparison
        chosen = question.trials
        if len(chosen) < MIN_RUNS:
            number = "no final trial has" if not chosen else "only one final trial has"
            raise RunError(
                f"{number} finished, and a comparison needs two.",
                where=str(self.folder),
                todo=f"See what became of them: heed study {self.folder} --status",
            )
        runs = [self._scored_run(state) for state in chosen]
        if set_name is not None:
            self._check_scored(runs, set_name)
        deviations = question.deviations()
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
            if all(state.trial.system != baseline for state in chosen):
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
                question.look,
                tuple(deviations),
                tuple(question.notes()),
            ),
        )

    def _check_scored(self, runs: Sequence[ScoredRun], set_name: str) -> None:
        """Refuse a set that the study's runs were not scored on, with what can still be done."""
        known = list(dict.fromkeys(name for run in runs for name in run.evaluations))
        if all(set_name in run.evaluations for run in runs) or set_name in known:
            return
        folders = [self.folder / RUNS / run.name for run in runs]
        lost = sum(not Run(folder).weights_path.exists() for folder in folders)
        todo = (
            f"Score every run on it, as heed evaluate {folders[0]} --split {set_name}, then: "
            f"heed compare '{self.folder / RUNS}/*' --set {set_name}"
        )
        if lost:
            todo = (
                f"The weights of {lost} of {len(runs)} runs were not kept, so they cannot be "
                f'scored now. Another study can declare it: sets = ["{set_name}"].'
            )
        raise RunError(
            f"this study was scored on {', '.join(known)}, not on {set_name!r}."
            f"{nearest(set_name, known)}",
            where=str(self.folder),
            todo=todo,
        )

    def _scored_run(self, state: TrialState) -> ScoredRun:
        """The run of a finished trial, with the minutes of the whole trial where they are known."""
        run = self.record(state.trial.name).run
        return run if state.minutes is None else replace(run, minutes=state.minutes)

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
