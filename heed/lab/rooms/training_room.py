"""Training from the browser: the form of a recipe, the queue, and start, stop and resume."""

from __future__ import annotations

from contextlib import suppress
from pathlib import PurePosixPath
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool

from heed import recipes
from heed.config.recipe import apply_overrides, read_tables
from heed.errors import HeedError
from heed.lab.error_responses import INVALID, NOT_FOUND, StatusError
from heed.lab.lab_context import Lab, LabContext
from heed.lab.recipe_form import (
    build_recipe,
    describe_form,
    flatten_tables,
    list_complaints,
    without_keys,
)
from heed.lab.run_names import CONFLICT, place_new_run, suggest_name
from heed.lab.training_queue import DEVICE, JOB_ID

MOST_KEYS, MOST_CHARACTERS, MOST_NAME = 300, 20_000, 1000

router = APIRouter(prefix="/api/training")

Name = Annotated[str, Field(max_length=MOST_NAME)]
Device = Annotated[str, Field(pattern=f"^({DEVICE})$")]
Key = Annotated[str, Field(max_length=100)]
Text = Annotated[str, Field(max_length=MOST_CHARACTERS)]


class RecipeBody(BaseModel):
    """A recipe as the form has it: what it starts from, and what is changed of that."""

    model_config = ConfigDict(extra="forbid")

    shipped: Name | None = None
    """Start from a shipped recipe,"""
    run: Name | None = None
    """from the recipe of a run,"""
    job: Annotated[str, Field(pattern=f"^{JOB_ID}$")] | None = None
    """or from that of a training in the queue; without any, from the defaults."""
    changes: Annotated[dict[Key, Text], Field(max_length=MOST_KEYS)] = {}
    """Values by key, as the text of a recipe has them."""
    unset: Annotated[list[Key], Field(max_length=MOST_KEYS)] = []
    """Keys that have their default again."""
    data_folder: Text | None = None
    """The folder of the recipe's files, as `heed train --data` has it."""


class StartBody(RecipeBody):
    """A recipe and the run that it makes."""

    name: Name
    device: Device = "auto"


class RunBody(BaseModel):
    """A run to stop or to resume."""

    model_config = ConfigDict(extra="forbid")

    run: Name
    device: Device = "auto"


class PlaceBody(BaseModel):
    """The place of a training in the queue, counted from 1."""

    model_config = ConfigDict(extra="forbid")

    place: Annotated[int, Field(ge=1, le=10_000)]


@router.get("")
def show_queue(lab: Lab) -> dict[str, Any]:
    """What trains, what waits and what has ended, of what was started here."""
    cursor = lab.watch.log.cursor()
    queue = lab.training.describe()
    for job in queue["jobs"]:
        job["progress"] = _describe_progress(lab, job) if job["status"] == "training" else None
    return {"cursor": cursor, "is_read_only": lab.is_read_only, **queue}


def _describe_progress(lab: LabContext, job: dict[str, Any]) -> dict[str, Any] | None:
    """The step of all steps of a job that trains, and the seconds left; None without a run."""
    with suppress(HeedError):  # its folder is not made yet, or is gone
        run = lab.watch.find(job["run"]).entry
        if run["steps"] is not None:  # else it is damaged
            return {key: run[key] for key in ("steps", "total_steps", "seconds_left")}
    return None


@router.get("/form")
def show_form() -> dict[str, Any]:
    """The form of a recipe, made from its schema, and the shipped recipes."""
    return describe_form()


@router.get("/recipe")
def show_recipe(
    lab: Lab,
    shipped: Annotated[str | None, Query(max_length=MOST_NAME)] = None,
    run: Annotated[str | None, Query(max_length=MOST_NAME)] = None,
    job: Annotated[str | None, Query(pattern=f"^{JOB_ID}$")] = None,
) -> dict[str, Any]:
    """The values that a recipe sets, and a free name for a run of it."""
    tables, stem = _read_start(lab, RecipeBody(shipped=shipped, run=run, job=job))
    return {
        "values": flatten_tables(tables),
        "name": suggest_name(lab.folder, stem, lab.training.names()),
    }


@router.post("/check")
async def check_recipe(lab: Lab, body: StartBody) -> dict[str, Any]:
    """Everything that `heed train` says against a recipe and a name; nothing is written."""
    return await run_in_threadpool(_check, lab, body)


@router.post("/start")
async def start_training(lab: Lab, body: StartBody) -> dict[str, Any]:
    """Start a run of a recipe, or let it wait while others train."""
    return await run_in_threadpool(_start, lab, body)


@router.post("/resume")
def resume_training(lab: Lab, body: RunBody) -> dict[str, Any]:
    """Resume a run that was stopped, or let it wait while others train."""
    _refuse_trial(lab, body.run)
    job = lab.training.add_resume(body.run, body.device)
    return _advance(lab, job.id)


@router.post("/stop")
def stop_training(lab: Lab, body: RunBody) -> dict[str, Any]:
    """Ask the process that trains a run to save a checkpoint and to end."""
    lab.training.stop(body.run)
    lab.watch.log.add("queue", {})
    return show_queue(lab)


@router.delete("/job/{job_id}")
def remove_training(lab: Lab, job_id: str) -> dict[str, Any]:
    """Remove a training that waits or has ended from the queue; its run stays."""
    lab.training.remove(job_id)
    lab.watch.log.add("queue", {})
    return show_queue(lab)


@router.post("/job/{job_id}/place")
def move_training(lab: Lab, job_id: str, body: PlaceBody) -> dict[str, Any]:
    """Give a training that waits another place."""
    lab.training.move(job_id, body.place)
    lab.watch.log.add("queue", {})
    return show_queue(lab)


def _read_start(lab: LabContext, body: RecipeBody) -> tuple[dict[str, Any], str]:
    """The tables that a form starts from, and a name for a run of them."""
    if sum(one is not None for one in (body.shipped, body.run, body.job)) > 1:
        what = "a form starts from one recipe: shipped, run or job."
        raise StatusError(what, status=INVALID)
    if body.shipped is not None:
        if body.shipped not in recipes.names():
            what = "there is no shipped recipe of this name."
            raise StatusError(what, status=NOT_FOUND, where=body.shipped)
        return read_tables(recipes.find(body.shipped)), PurePosixPath(body.shipped).name
    if body.run is not None:
        return lab.folder.run(body.run).recipe().tables(), PurePosixPath(body.run).name
    if body.job is not None:
        job = lab.training.find(body.job)
        return lab.training.read_recipe(job), job.run
    return {}, "run"


def _overrides(body: RecipeBody) -> list[str]:
    return [f"{key}={text}" for key, text in body.changes.items()]


def _build(lab: LabContext, body: RecipeBody) -> Any:
    """The recipe of a form; an error with what is wrong with it."""
    tables, _ = _read_start(lab, body)
    where = body.shipped or body.run
    folder = body.data_folder or None
    return build_recipe(without_keys(tables, body.unset), _overrides(body), folder, where)


def _check(lab: LabContext, body: StartBody) -> dict[str, Any]:
    complaints: list[dict[str, Any]] = []
    values: dict[str, Any] = {}
    with suppress(HeedError):  # what is wrong with them is said below
        values = apply_overrides(_read_start(lab, body)[0], _overrides(body))
    try:
        _build(lab, body)
    except StatusError:
        raise  # there is nothing to start from
    except (HeedError, OSError) as error:
        complaints = list_complaints(error, values)
    problem = None
    try:
        place_new_run(lab.folder, body.name, lab.training.names())
    except HeedError as error:
        problem = str(error)
    return {"complaints": complaints, "name_problem": problem}


def _start(lab: LabContext, body: StartBody) -> dict[str, Any]:
    place_new_run(lab.folder, body.name, lab.training.names())
    job = lab.training.add_training(body.name, _build(lab, body), body.device)
    return _advance(lab, job.id)


def _advance(lab: LabContext, job_id: str) -> dict[str, Any]:
    """Start what there is room for; the queue, and the job that was added."""
    lab.training.advance()
    lab.watch.log.add("queue", {})
    return show_queue(lab) | {"added": job_id}


def _refuse_trial(lab: LabContext, name: str) -> None:
    """Refuse to resume a run of a study: the study resumes it, and scores it."""
    study = lab.watch.find(name).study
    if study is not None:
        raise StatusError(
            f"this run belongs to the study {study}, which resumes and scores it.",
            status=CONFLICT,
            where=name,
            todo=f"Run: heed study {lab.folder.root / study}",
        )
