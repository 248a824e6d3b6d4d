"""`heed study --dry-run`: runs, minutes and disk space of a study, before it begins."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from rich.console import Console

from heed.config import Recipe
from heed.runs.run import Run
from heed.study.plan import label_systems
from heed.study.pretrained_run import pretrained_folder, resolve_pretraining
from heed.study.status_table import format_minutes
from heed.study.study_config import PRETRAINED, StudyConfig
from heed.study.study_systems import System, expand_systems
from heed.study.trial_process import resolve_trial
from heed.study.trials import Trial, read_trials

MEASURED = 3
"""Systems of which a few steps are timed; the others are taken to be as fast on average."""
START_SECONDS = 6.0
"""Seconds that the process of a trial takes besides its steps: imports, curves, its record."""
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
    minutes: float
    """Minutes for what is left, with so many trials at a time."""
    disk: int
    """Bytes at the peak, of what is left."""
    source: str
    """What the minutes were estimated from."""


def count_runs(config: StudyConfig) -> int:
    """Trials of a study: every system with every seed, and those of its search before."""
    systems = expand_systems(config)
    runs = len(systems) * len(config.seeds)
    if (search := config.search) is not None:
        from heed.study.search import count_trials
        from heed.study.search_states import group_states

        groups = group_states(config, [])
        for group in groups:
            trials = count_trials(config, group, groups)
            runs += trials + min(search.finalists, trials) * search.finalist_seeds
    return runs


def estimate_study(
    folder: Path,
    config: StudyConfig,
    *,
    jobs: int,
    device: str,
    console: Console,
) -> StudyEstimate:
    """Estimate a study from its finished trials, or else from a few real steps."""
    states = read_trials(folder)
    runs = max(count_runs(config), len(states))
    left = runs - sum(state.has_ended for state in states)
    finished = [state for state in states if state.status == "finished" and state.minutes]
    if finished:
        minutes = fmean(state.minutes or 0.0 for state in finished)
        parameters = fmean(state.parameters or 0 for state in finished)
        source = f"{len(finished)} finished trials"
    else:
        minutes, parameters = _measure(folder, config, device, console)
        source = f"a few steps and {START_SECONDS:g} s to start, without evaluation"
    systems = len(expand_systems(config))
    kept = {"all": runs, "best": systems, "none": 0}[config.keep_weights]
    weights = kept * parameters * (CHECKPOINT_BYTES if kept == runs else WEIGHT_BYTES)
    disk = int(weights + jobs * parameters * CHECKPOINT_BYTES)
    return StudyEstimate(runs, left, minutes, minutes * -(-left // jobs), disk, source)


def _measure(
    folder: Path, config: StudyConfig, device: str, console: Console
) -> tuple[float, float]:
    """Mean minutes of a trial and its parameters, from a few steps of some systems."""
    from heed.train.estimate import measure_recipe

    systems = expand_systems(config)
    labels = label_systems(systems)
    pretraining = resolve_pretraining(folder, config)
    if pretraining is not None and not Run(pretrained_folder(folder)).finished:
        systems = [one for one in systems if one.changes.get("init.from") != PRETRAINED]
    recipes = {
        one.name: resolve_system(folder, config, one, labels[one.name])
        for one in systems[:: max(1, -(-len(systems) // MEASURED))]
    }
    if pretraining is not None and not recipes:  # nothing to begin from yet
        recipes = {PRETRAINED: pretraining}
    minutes, parameters = [], []
    for name, recipe in recipes.items():
        estimate = measure_recipe(recipe, device=device, say=lambda text: None)
        console.print(f"{name}: {estimate.seconds_per_step * 1e3:.0f} ms a step")
        minutes.append((START_SECONDS + estimate.seconds) / 60)
        parameters.append(estimate.parameters)
    return fmean(minutes), fmean(parameters)


def resolve_system(folder: Path, config: StudyConfig, system: System, label: str) -> Recipe:
    """The recipe of a system with the first seed."""
    trial = Trial(label, 0, system.name, system.changes, system.recipe, config.seeds[0])
    return resolve_trial(folder, config, trial)


def render_estimate(estimate: StudyEstimate, jobs: int) -> str:
    """What a study takes, in lines."""
    done = estimate.runs - estimate.left
    runs = f"{estimate.runs}" + (f", {estimate.left} of them left" if done else "")
    at_once = f", {jobs} at a time" if jobs > 1 else ""
    return (
        f"runs     {runs}\n"
        f"minutes  about {format_minutes(estimate.minutes)}{at_once}: "
        f"{estimate.minutes_per_run:.1f} a run, from {estimate.source}\n"
        f"disk     about {_format_bytes(estimate.disk)} at the peak"
    )


def _format_bytes(size: int) -> str:
    return f"{size / 2**20:,.0f} MiB" if size < 2**30 else f"{size / 2**30:,.1f} GiB"
