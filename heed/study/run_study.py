"""Run a study: declare it in its folder, or go on with the one there, until it is complete."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from heed.errors import ConfigError, RunError, nearest
from heed.files import is_draft, write_atomic
from heed.study.executors import Executor, LocalExecutor
from heed.study.plan import label_systems
from heed.study.recipe_copies import RECIPES
from heed.study.runner import RunOptions, carry_out_study
from heed.study.study_estimate import resolve_system
from heed.study.study_file import StudyConfig, StudyFlags, declare_study
from heed.study.study_folder import (
    create_study_folder,
    extend_study,
    is_study_folder,
    refuse_lost_study,
)
from heed.study.study_lock import LOCK, RUNNER, study_lock
from heed.study.study_systems import expand_systems
from heed.study.study_texts import DATA, try_texts
from heed.study.trials import TrialState, trial_rows

MAX_JOBS = 8
"""Trials at a time by default, however many cores there are."""
PLACES = ("local", "ray")
"""Where trials can run: on this machine, or on a Ray cluster."""


@dataclass(frozen=True)
class Place:
    """Where trials run, and what is set aside for each on a cluster."""

    on: str = "local"
    address: str | None = None
    """HOST:PORT of a Ray cluster; by default that of RAY_ADDRESS, else Ray on this machine."""
    cpus: float | None = None
    """By default as many as a trial has threads."""
    gpus: float | None = None
    """By default one where the cluster has any and the device is not `cpu`."""


def locate_study(name: str | Path, flags: StudyFlags, out: Path | None) -> tuple[Path, StudyConfig]:
    """The folder of a study and the study, as flags change it. Nothing is written.

    The folder is `out`, else that of a study that has begun, else runs/NAME: for a recipe,
    runs/RECIPE-study.
    """
    config = declare_study(name, flags)
    if out is None:
        default = f"{config.name}-quick" if config.is_quick else config.name
        out = Path(name) if is_study_folder(Path(name)) else Path("runs") / default
    if not is_study_folder(out) and out.exists():
        if not out.is_dir():
            raise RunError("this is a file.", where=str(out), todo="Name a new folder with --out.")
        has_lock = (out / LOCK).exists()  # of a command that was killed before study.toml
        begun = (LOCK, RUNNER, RECIPES, DATA) if has_lock else ()
        refuse_lost_study(out)
        if any(path.name not in begun and not is_draft(path) for path in out.iterdir()):
            what = "this folder is not empty, and there is no study in it."
            raise RunError(what, where=str(out), todo="Name a new folder with --out.")
    return out, config


def run_study(
    folder: Path,
    config: StudyConfig,
    options: RunOptions,
    *,
    place: Place | None = None,
    texts: Mapping[str, bytes] | None = None,
) -> list[TrialState]:
    """Declare a study in its folder, or extend the one there, and carry out what is left of it.

    `texts` are the content of files in the study's `data/`, by name.
    """
    place = place or Place()
    check_place(place)
    check_reuse(options.reuse)
    check_jobs(options.jobs)
    check_minutes(options.minutes)
    if not is_study_folder(folder):
        with try_texts(folder, texts or {}) as draft:
            check_recipes(draft, config)
    with study_lock(folder):
        if is_study_folder(folder):
            config = extend_study(folder, config, texts)
        else:
            create_study_folder(folder, config, texts)
        with open_executor(place, folder, config, options.device) as executor:
            if options.jobs is None:
                options = replace(options, jobs=executor.jobs)
            return carry_out_study(folder, config, executor, options)


def check_jobs(jobs: int | None) -> None:
    """Refuse fewer than one trial at a time; None stands for the default."""
    if jobs is not None and jobs < 1:
        raise ConfigError([f"--jobs cannot be {jobs}: it is at least 1, or left out."])


def check_minutes(minutes: float | None) -> None:
    """Refuse a time in which nothing can be trained; None stands for no limit."""
    if minutes is not None and not minutes > 0:  # nan, too
        raise ConfigError([f"--minutes cannot be {minutes:g}: it is more than 0, or left out."])


def check_reuse(folders: Sequence[Path]) -> None:
    """Refuse a folder of runs to reuse that is not there, before anything is trained instead."""
    missing = [
        f"--reuse {folder}: there is no such folder." for folder in folders if not folder.is_dir()
    ]
    if missing:
        raise ConfigError(missing)


def describe_lone_system(config: StudyConfig) -> str | None:
    """A warning where a study has one system and searches nothing; None for other studies."""
    systems = expand_systems(config)
    if len(systems) > 1 or config.search is not None:
        return None
    return (
        f"{systems[0].name} is the only system: the study measures how its seeds differ, and there "
        "is nothing to compare it with. Name what varies with --vary key=a,b."
    )


def refuse_no_result(folder: Path, states: Sequence[TrialState]) -> None:
    """Raise an error where every trial of a study failed."""
    if states and all(state.status == "failed" for state in states):
        raise RunError(
            f"every trial failed. The first: {states[0].reason}",
            where=str(folder),
            todo="A trial is tried again once its file in trials/ is deleted; with other keys it "
            "is another study, in another --out.",
        )


def check_place(place: Place) -> None:
    """Refuse a place that there is not, before anything is written."""
    if place.on not in PLACES:
        near = nearest(place.on, PLACES)
        raise ConfigError([f"--on cannot be {place.on!r}: it is {' or '.join(PLACES)}.{near}"])
    flags = {
        "--address": place.address,
        "--cpus-per-trial": place.cpus,
        "--gpus-per-trial": place.gpus,
    }
    if place.on == "local":
        needless = [f"{flag} needs --on ray." for flag, value in flags.items() if value is not None]
        if needless:
            raise ConfigError(needless)
    else:
        from heed.study.ray_cluster import find_address

        least = {"--cpus-per-trial": place.cpus, "--gpus-per-trial": place.gpus}
        negative = [f"{flag} cannot be below 0." for flag, n in least.items() if n and n < 0]
        if negative:
            raise ConfigError(negative)
        find_address(place.address)


@contextmanager
def open_executor(
    place: Place, folder: Path, config: StudyConfig, device: str
) -> Iterator[Executor]:
    """What launches the trials of a study: processes on this machine, or a Ray cluster."""
    if place.on == "local":
        yield LocalExecutor(folder, config.threads, default_jobs(config, device))
        return
    from heed.study.ray_cluster import TrialResources, connect_ray

    cpus = config.threads if place.cpus is None else place.cpus
    with connect_ray(folder, place.address, TrialResources(cpus, place.gpus), device) as cluster:
        yield cluster


def check_recipes(folder: Path, config: StudyConfig) -> None:
    """Refuse recipes that conflict or whose files are missing, before anything is written."""
    from heed.config.checks import find_conflicts
    from heed.train.prepare.setup import validate_recipe

    systems = expand_systems(config)
    labels = label_systems(systems)
    complaints: dict[str, list[str]] = {}
    validated = set()
    for system in systems:
        recipe = resolve_system(folder, config, system, labels[system.name])
        for one in find_conflicts(recipe):
            complaints.setdefault(one, []).append(system.name)
        if not complaints and system.recipe not in validated and recipe.init.from_model is None:
            validated.add(system.recipe)
            validate_recipe(recipe)
    if complaints:
        raise ConfigError(
            [
                one if len(names) == len(systems) else f"system {', '.join(names)}: {one}"
                for one, names in complaints.items()
            ]
        )


def default_jobs(config: StudyConfig, device: str) -> int:
    """Trials at a time: as many as there are cores for, but one on a GPU."""
    from heed.device import choose_device

    if choose_device(device).type != "cpu":
        return 1
    return max(1, min(MAX_JOBS, (os.cpu_count() or 1) // config.threads))


def write_csv(path: Path, states: Sequence[TrialState]) -> None:
    """Write one row for each trial: its keys, its status and its scores."""
    rows = trial_rows(states)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else ["trial"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_atomic(path, text.getvalue())
