"""The list of runs: by recipe with the spread over seeds, best and last scores, and studies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from heed.lab.error_responses import StrictJsonResponse
from heed.lab.lab_context import Lab
from heed.lab.run_watch import FIRST_LOOK_SECONDS, Entry, RunWatch
from heed.runs.groups import RunGroup

OF_A_PAGE = ("metrics", "sets")
"""What the page of a run has, and the list leaves out: it may have hundreds of runs."""

router = APIRouter(prefix="/api")


@router.get("/runs")
async def list_runs(lab: Lab) -> Response:
    """Every run and study of the folder, and the cursor of the events that come after."""
    return StrictJsonResponse(await run_in_threadpool(build_list, lab.watch))


def build_list(watch: RunWatch, seconds: float = FIRST_LOOK_SECONDS) -> dict[str, Any]:
    """The list as it is now. `waiting` counts the runs that are not read yet."""
    with watch.lock:
        waiting = watch.refresh(seconds)
        entries = {name: run.entry for name, run in sorted(watch.runs.items())}
        groups = [_describe_group(study, group, entries) for study, group in watch.groups()]
        group_of = {run: group["id"] for group in groups for run in group["runs"]}
        metrics = {name: 0 for entry in entries.values() for name in entry["metrics"]}
        for entry in entries.values():
            for name in entry["metrics"]:
                metrics[name] += 1
        return {
            "cursor": watch.log.cursor(),
            "waiting": waiting,
            "runs": [
                {key: entry[key] for key in entry if key not in OF_A_PAGE}
                | {"group": group_of.get(name)}
                for name, entry in entries.items()
            ],
            "groups": groups,
            "studies": [{"name": name} for name in sorted(watch.studies)],
            "metrics": dict(sorted(metrics.items())),
        }


def _describe_group(
    study: str | None, group: RunGroup, entries: dict[str, Entry]
) -> dict[str, Any]:
    """One recipe: its keys that differ from the others', and its scores over seeds."""
    members = [entries[name] for name in group.runs]
    return {
        "id": group.runs[0],
        "name": group.name,
        "study": study,
        "task": members[0]["task"],
        "runs": list(group.runs),
        "seeds": list(group.seeds),
        "differing": group.differing,
        **{kind: summarize([one[kind] for one in members]) for kind in ("best", "last", "test")},
    }


def summarize(scores: Sequence[Entry | None]) -> Entry | None:
    """The mean of scores over seeds, the lowest and the highest; None if none is known.

    Scores of another metric, as of a run before its first evaluation, are not averaged.
    """
    known = [one for one in scores if one is not None and one["value"] is not None]
    if not known:
        return None
    metric = next((one["metric"] for one in known if one["metric"] != "train/loss"), "train/loss")
    values = [one["value"] for one in known if one["metric"] == metric]
    with np.errstate(over="ignore", invalid="ignore"):
        mean = float(np.mean(values, dtype=np.float64))
    return {
        "metric": metric,
        "mean": mean,
        "low": min(values),
        "high": max(values),
        "runs": len(values),
    }
