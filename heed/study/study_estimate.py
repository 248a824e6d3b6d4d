"""`heed study --dry-run`: runs, minutes and disk space of a study, before it begins."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from rich.console import Console

from heed.config import DecodeConfig, Recipe
from heed.runs.run import Run
from heed.study.plan import label_systems
from heed.study.pretrained_run import pretrained_folder, resolve_pretraining
from heed.study.study_config import PRETRAINED, StudyConfig
from heed.study.study_folder import is_study_folder, merge_studies
from heed.study.study_systems import System, expand_systems
from heed.study.trial_process import resolve_trial, scoring_options, sets_to_score
from heed.study.trials import Trial, read_trials

if TYPE_CHECKING:
    from heed.train.estimate import TrainingEstimate

MEASURED = 3
"""Systems of which some steps and evaluations are timed; the others take as long on average."""
START_SECONDS = 6.0
"""Seconds that the process of a trial takes to start and to end: imports, curves, its record."""
STAGES = ("search", "final")
"""Stages of trials that differ in the sets that they are scored on."""
WEIGHT_BYTES = 4
"""Bytes of a saved weight: float32."""
CHECKPOINT_BYTES = 20
"""Bytes of a parameter in the files of a run that trains: weights, best weights, Adam's moments,
and the weights of the checkpoint before."""


@dataclass(frozen=True)
class StudyEstimate:
    """What a study takes."""

    runs: int
    """Trials in all, as far as they are known: a search may end early or be widened."""
    left: int
    """Trials that have not ended."""
    minutes_per_run: float
    """Minutes of a trial, from the start of its process to its last score."""
    minutes: float
    """Minutes for what is left, with so many trials at a time."""
    disk: int
    """Bytes at the peak, of what is left."""
    source: str
    """What the minutes were estimated from."""


@dataclass(frozen=True)
class MeasuredTrials:
    """What some trials were measured to take."""

    minutes: Mapping[str, float]
    """Mean minutes of a trial, by its stage: later stages are scored on more sets."""
    parameters: float
    pretraining: float = 0.0
    """Minutes of the study's pretraining, where it has not ended."""


def count_runs(config: StudyConfig) -> Counter[str]:
    """Trials of a study by stage: every system with every seed, and those of its search before."""
    runs = Counter(final=len(expand_systems(config)) * len(config.seeds))
    if (search := config.search) is not None:
        from heed.study.search.propose import count_trials
        from heed.study.search.search_states import group_states

        groups = group_states(config, [])
        for group in groups:
            trials = count_trials(config, group, groups)
            runs["search"] += trials + min(search.finalists, trials) * search.finalist_seeds
    return runs


def estimate_study(
    folder: Path,
    config: StudyConfig,
    *,
    jobs: int,
    device: str,
    console: Console,
) -> StudyEstimate:
    """Estimate a study from its finished trials, or else from some real steps and evaluations.

    Where it has begun in the folder, it is estimated with what the command would add to it.
    """
    if is_study_folder(folder):
        config, _ = merge_studies(folder, config)
    states, planned = read_trials(folder), count_runs(config)
    runs = max(planned.total(), len(states))
    left = runs - sum(state.has_ended for state in states)
    finished = [state for state in states if state.status == "finished" and state.minutes]
    pretraining = 0.0
    if finished:
        minutes = fmean(state.minutes or 0.0 for state in finished)
        parameters = fmean(state.parameters or 0 for state in finished)
        source = f"{len(finished)} finished trials"
    else:
        measured = _measure(folder, config, device, console)
        parameters, pretraining = measured.parameters, measured.pretraining
        minutes = sum(n * measured.minutes[stage] for stage, n in planned.items()) / runs
        source = "some steps and evaluations"
    systems = len(expand_systems(config))
    kept = {"all": runs, "best": systems, "none": 0}[config.keep_weights]
    weights = kept * parameters * (CHECKPOINT_BYTES if kept == runs else WEIGHT_BYTES)
    disk = int(weights + jobs * parameters * CHECKPOINT_BYTES)
    in_all = minutes * -(-left // jobs) + pretraining
    return StudyEstimate(runs, left, minutes, in_all, disk, source)


def _measure(folder: Path, config: StudyConfig, device: str, console: Console) -> MeasuredTrials:
    """Measure some systems of a study, with as many threads as its trials have."""
    import torch

    from heed.train.resolve import set_threads

    threads = torch.get_num_threads()
    set_threads(config.threads)
    try:
        return _measure_systems(folder, config, device, console)
    finally:
        torch.set_num_threads(threads)


def _measure_systems(
    folder: Path, config: StudyConfig, device: str, console: Console
) -> MeasuredTrials:
    from heed.train.estimate import measure_recipe

    systems = expand_systems(config)
    labels = label_systems(systems)
    pretraining, pretraining_minutes = resolve_pretraining(folder, config), 0.0
    if pretraining is not None and not Run(pretrained_folder(folder)).finished:
        estimate = measure_recipe(pretraining, device=device, say=lambda text: None)
        _show(console, PRETRAINED, estimate)
        pretraining_minutes = estimate.seconds / 60
        systems = [one for one in systems if one.changes.get("init.from") != PRETRAINED]
        if not systems:  # nothing to begin from yet
            minutes = dict.fromkeys(STAGES, pretraining_minutes)
            return MeasuredTrials(minutes, estimate.parameters, pretraining_minutes)
    measured = []
    for system in systems[:: max(1, -(-len(systems) // MEASURED))]:
        recipe = resolve_system(folder, config, system, labels[system.name])
        measured.append(_measure_system(config, recipe, device))
        _show(console, system.name, measured[-1][0])
    return MeasuredTrials(
        {stage: fmean(minutes[stage] for _, minutes in measured) for stage in STAGES},
        fmean(estimate.parameters for estimate, _ in measured),
        pretraining_minutes,
    )


def _measure_system(
    config: StudyConfig, recipe: Recipe, device: str
) -> tuple[TrainingEstimate, dict[str, float]]:
    """What training a system takes, and the minutes of a trial of it by stage."""
    from heed.evaluate.evaluation_time import estimate_evaluations
    from heed.train.estimate import measure_recipe

    scoring: dict[str, float] = {}

    def time_sets(run: Run, decode: DecodeConfig) -> float:
        for name in sets_to_score(config, "final", recipe):
            options = scoring_options(recipe.task, name, config.metric)
            scoring[name] = estimate_evaluations(run, [options], decode, device=device)
        return sum(scoring.values())

    estimate = measure_recipe(
        recipe, device=device, say=lambda text: None, final_evaluation=time_sets
    )
    training = START_SECONDS + estimate.seconds - estimate.final_evaluation
    return estimate, {
        stage: (training + sum(scoring[one] for one in sets_to_score(config, stage, recipe))) / 60
        for stage in STAGES
    }


def _show(console: Console, name: str, estimate: TrainingEstimate) -> None:
    """Print what was measured of a system."""
    scoring = ""
    if estimate.final_evaluation:
        scoring = f", {estimate.final_evaluation:.1f} s to score the run"
    console.print(
        f"{name}: {estimate.seconds_per_step * 1e3:.0f} ms a step, "
        f"{estimate.seconds_per_evaluation:.1f} s an evaluation{scoring}"
    )


def resolve_system(folder: Path, config: StudyConfig, system: System, label: str) -> Recipe:
    """The recipe of a system with the first seed."""
    trial = Trial(label, 0, system.name, system.changes, system.recipe, config.seeds[0])
    return resolve_trial(folder, config, trial)


def render_estimate(estimate: StudyEstimate, jobs: int) -> str:
    """What a study takes, in lines."""
    done = estimate.runs - estimate.left
    runs = f"{estimate.runs}" + (f", {estimate.left} of them left" if done else "")
    at_once = f", {jobs} at a time" if jobs > 1 else ""
    total, per_run = estimate.minutes, estimate.minutes_per_run
    time = _format_time(max(total, 0.1), digits=1)
    each = f"{estimate.left} run{'s' * (estimate.left != 1)} of {_format_time(per_run, digits=2)}"
    pretraining = total - per_run * -(-estimate.left // jobs)
    if pretraining > 0.05:
        at_once += f", after {pretraining:.1f} min of pretraining"
    if not estimate.left:
        return f"runs     {runs}\nminutes  none: every trial has ended"
    return (
        f"runs     {runs}\n"
        f"minutes  about {time}: {each}{at_once}, from {estimate.source}\n"
        f"disk     about {_format_bytes(estimate.disk)} at the peak"
    )


def _format_time(minutes: float, *, digits: int) -> str:
    """Minutes or hours; with digits where rounding would hide how the parts add up."""
    if minutes >= 120:
        return f"{minutes / 60:.1f} h"
    return f"{minutes:.{digits if minutes < 10 else 0}f} min"


def _format_bytes(size: int) -> str:
    return f"{size / 2**20:,.0f} MiB" if size < 2**30 else f"{size / 2**30:,.1f} GiB"
