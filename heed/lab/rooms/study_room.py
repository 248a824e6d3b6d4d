"""A study: its answer, its trials over their keys, and their curves, also while it goes on."""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.responses import Response

from heed.errors import HeedError
from heed.lab.error_responses import StrictJsonResponse
from heed.lab.lab_context import Lab, LabContext
from heed.lab.rooms.compare_room import describe_comparison
from heed.lab.rooms.run_curves import CurveQuery, choose_metrics, draw_groups
from heed.lab.rooms.run_page import describe_document
from heed.lab.run_folder import reading
from heed.lab.run_watch import FIRST_LOOK_SECONDS, Stamp, stamp_study
from heed.report.study_report import build_study_report
from heed.report.study_search import MAX_AXES, trial_axis
from heed.runs.metric_plot import HasSeries, RunHistory
from heed.study.study_results import DEV, StudyResults
from heed.study.trials import TrialState

MAX_SEEDS = 12
"""Seeds that are each a tick of their axis; more are on a linear one."""
REMEMBERED = 8
"""Studies whose results are remembered."""

router = APIRouter(prefix="/api")


@router.get("/study/{name:path}/curves")
async def show_curves(lab: Lab, name: str, query: Annotated[CurveQuery, Query()]) -> Response:
    """A metric of the trials of a study, one curve for each trial, or for each system."""
    return StrictJsonResponse(await lab.queue.run(build_curves, lab, name, query))


@router.get("/study/{name:path}/report")
async def show_report(lab: Lab, name: str) -> dict[str, Any]:
    """The report of a study as sections of HTML."""
    return await lab.queue.run(build_report, lab, name)


@router.get("/study/{name:path}")
async def show_study(lab: Lab, name: str) -> dict[str, Any]:
    """A study as it is now: its question, its verdict, and every trial."""
    return await lab.queue.run(build_page, lab, name)


def build_report(lab: LabContext, name: str) -> dict[str, Any]:
    """The report of a study, built once for files that do not change."""
    folder = lab.folder.study(name)
    with reading(name):
        return _build_report(folder, stamp_study(folder))


def build_page(lab: LabContext, name: str) -> dict[str, Any]:
    """Everything that the page of a study shows at first."""
    folder = lab.folder.study(name)
    with reading(name):
        return _describe_study(lab, name, folder)


def _describe_study(lab: LabContext, name: str, folder: Path) -> dict[str, Any]:
    cursor = lab.watch.log.cursor()
    results = _read_results(folder, stamp_study(folder))
    config = results.config
    verdict, problem = None, None
    try:
        if results.comparison is not None:
            verdict = describe_comparison(results.comparison)
    except HeedError as error:
        problem = str(error)
    runs = {state.trial.name: _run_of(lab, folder, state) for state in results.trials}
    return {
        "cursor": cursor,
        "name": name,
        "title": config.title or config.question or config.name or folder.name,
        "question": config.question,
        "metric": results.metric,
        "set": results.set_name,
        "higher_is_better": results.higher_is_better,
        "verdict": verdict,
        "problem": problem,
        "systems": [system.name for system in results.systems],
        "trials": [_describe_trial(state, runs[state.trial.name]) for state in results.trials],
        "coordinates": build_coordinates(results),
    }


def _describe_trial(state: TrialState, run: str | None) -> dict[str, Any]:
    trial = state.trial
    return {
        "name": trial.name,
        "system": trial.system,
        "seed": trial.seed,
        "stage": trial.stage,
        "status": state.status,
        "reason": state.reason,
        "minutes": state.minutes,
        "steps": state.steps,
        "dev": state.dev,
        "scores": state.scores,
        "run": run,
    }


def _run_of(lab: LabContext, folder: Path, state: TrialState) -> str | None:
    """The name of a trial's run in the lab, if the folder is still there."""
    if state.run is None:
        return None
    name = lab.folder.name_of(folder)
    run = f"{name}/{state.run}"
    return run if run in lab.watch.runs else None


def build_coordinates(results: StudyResults) -> dict[str, Any] | None:
    """Every scored trial as a line over its keys, its seed, and its scores; None without any.

    The last axis but the primary set's is dev, by which trials are chosen.
    """
    metric, set_name = results.metric or "", results.set_name
    states = [state for state in results.trials if _is_number(state.dev)]
    if not states:
        return None
    search = results.config.search
    keys = dict.fromkeys(key for system in results.systems for key in system.scientific)
    keys |= dict.fromkeys(search.space if search is not None else ())
    shown = list(keys)[:MAX_AXES]
    columns = {key: [state.trial.changes.get(key) for state in states] for key in shown}
    columns["seed"] = [state.trial.seed for state in states]
    axes = [trial_axis(key, values, results) for key, values in columns.items()]
    seeds = sorted({state.trial.seed for state in states})
    if len(seeds) <= MAX_SEEDS:  # those of a search are far from the others
        axes[-1] |= {"scale": "category", "categories": [str(seed) for seed in seeds]}
    scores = {f"{DEV} {metric}": [state.dev for state in states]}
    test = [state.scores.get(set_name, {}).get(metric) for state in states]
    if set_name != DEV and any(map(_is_number, test)):
        scores[f"{set_name} {metric}"] = test
    axes += [{"label": label, "scale": "linear"} for label in scores]
    table = [*columns.values(), *scores.values()]
    lines = []
    for number, state in enumerate(states):
        values = [
            str(column[number])
            if axis["scale"] == "category" and column[number] is not None
            else column[number]
            for axis, column in zip(axes, table, strict=True)
        ]
        lines.append({"name": state.trial.name, "group": state.trial.system, "values": values})
    return {
        "axes": axes,
        "lines": lines,
        "score": len(columns),
        "higher_is_better": results.higher_is_better,
        "left_out": len(keys) - len(shown),
    }


def _is_number(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def build_curves(lab: LabContext, name: str, query: CurveQuery) -> dict[str, Any]:
    """The curves of trials: of the run folder while it is there, else of the trial's record."""
    folder = lab.folder.study(name)
    with reading(name), lab.watch.lock:
        results = _read_results(folder, stamp_study(folder))
        lab.watch.refresh(FIRST_LOOK_SECONDS)
        histories = {
            state.trial.name: history
            for state in results.trials
            if (history := _find_history(lab, folder, results, state)) is not None
        }
        recorded = [one.metrics for one in histories.values()]
        metrics = choose_metrics(query.metric, recorded)
        groups = _select(results.trials, histories, by_system=query.by == "recipe")
        curves = draw_groups(groups, histories, metrics, query)
    known = sorted({name for names in recorded for name in names})
    return {"metrics": metrics, "recorded": known, "x": query.x, "curves": curves}


def _select(
    trials: Sequence[TrialState], known: Container[str], *, by_system: bool
) -> list[tuple[str, list[str]]]:
    """The names of the curves and their trials: one each, or the final ones of each system."""
    names = [state.trial.name for state in trials if state.trial.name in known]
    if not by_system:
        return [(name, [name]) for name in names]
    systems: dict[str, list[str]] = {}
    for state in trials:
        if state.trial.stage == "final" and state.trial.name in known:
            systems.setdefault(state.trial.system, []).append(state.trial.name)
    return list(systems.items())


def _find_history(
    lab: LabContext, folder: Path, results: StudyResults, state: TrialState
) -> HasSeries | None:
    run = _run_of(lab, folder, state)
    if run is not None and lab.watch.runs[run].metrics.rows:
        return lab.watch.runs[run].metrics
    try:
        rows = results.record(state.trial.name).history
    except HeedError:  # there is none before the trial has ended
        return None
    return RunHistory(state.trial.name, rows) if rows else None


@lru_cache(maxsize=REMEMBERED)
def _read_results(folder: Path, _stamp: Stamp) -> StudyResults:
    """The results of a study, read once for files that do not change."""
    return StudyResults.read(folder)


@lru_cache(maxsize=REMEMBERED)
def _build_report(folder: Path, _stamp: Stamp) -> dict[str, Any]:
    return describe_document(build_study_report(folder))
