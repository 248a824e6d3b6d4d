"""Curves of runs over training: means and bands over seeds, downsampled, in one request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from heed.errors import ConfigError, nearest
from heed.lab.downsample import choose_points
from heed.lab.error_responses import StrictJsonResponse
from heed.lab.lab_context import Lab
from heed.lab.run_watch import FIRST_LOOK_SECONDS, RunWatch
from heed.runs.metric_plot import DEFAULTS, HasSeries, MeanCurve, PlotOptions, average_runs

router = APIRouter(prefix="/api")


class CurveQuery(BaseModel):
    """Which curves, and how they are drawn."""

    model_config = ConfigDict(extra="forbid")

    run: list[str] = Field(default=[], max_length=2000)
    """Names of runs; none for all."""
    metric: list[str] = Field(default=[], max_length=20)
    """By default dev/loss, else train/loss."""
    x: Literal["step", "epoch", "tokens", "seconds"] = "step"
    log: Literal["none", "x", "y", "both"] = "none"
    smooth: int = Field(default=1, ge=1, le=1000)
    """Each point is the mean of so many: itself and those before. 1 is as measured."""
    by: Literal["recipe", "run"] = "recipe"
    points: int = Field(default=400, ge=10, le=10_000)
    """Points of a curve, at most, about."""

    def options(self, metric: str) -> PlotOptions:
        """The same as `heed plot` has it."""
        return PlotOptions([metric], self.x, None if self.log == "none" else self.log, self.smooth)


@router.get("/curves")
async def read_curves(lab: Lab, query: Annotated[CurveQuery, Query()]) -> Response:
    """A metric of runs over training: one curve for each recipe, or for each run."""
    return StrictJsonResponse(await run_in_threadpool(build_curves, lab.watch, query))


def build_curves(watch: RunWatch, query: CurveQuery) -> dict[str, Any]:
    """The curves of the runs that were read so far."""
    with watch.lock:
        watch.refresh(FIRST_LOOK_SECONDS)
        chosen = {watch.find(name).name for name in query.run} or watch.runs.keys()
        runs = {name: watch.runs[name] for name in sorted(chosen)}
        metrics = choose_metrics(query.metric, (run.entry["metrics"] for run in runs.values()))
        groups = [
            (group.name, [name for name in group.runs if name in runs])
            for _, group in watch.groups()
        ]
        if query.by == "run":
            groups = [(name, [name]) for _, names in groups for name in names]
        histories = {name: run.metrics for name, run in runs.items()}
        curves = draw_groups(groups, histories, metrics, query)
        return {"cursor": watch.log.cursor(), "metrics": metrics, "x": query.x, "curves": curves}


def choose_metrics(names: Sequence[str], recorded: Iterable[Sequence[str]]) -> list[str]:
    """The metrics that are asked for, else the first of the usual ones; an error if none has it."""
    known = sorted({metric for metrics in recorded for metric in metrics})
    if not names:
        return [next((one for one in (*DEFAULTS, *known) if one in known), DEFAULTS[0])]
    unknown = [name for name in names if name not in known]
    if unknown:
        listed = f"There are {', '.join(known)}." if known else "They have recorded nothing yet."
        hint = nearest(unknown[0], known)
        raise ConfigError([f"None of these runs has recorded {unknown[0]!r}.{hint} {listed}"])
    return list(dict.fromkeys(names))


def draw_groups(
    groups: Iterable[tuple[str, Sequence[str]]],
    histories: Mapping[str, HasSeries],
    metrics: Sequence[str],
    query: CurveQuery,
) -> list[dict[str, Any]]:
    """The curves of named groups of runs, in their order; one without a value has none."""
    curves = []
    for label, names in groups:
        for metric in metrics if names else ():
            curve = draw_curve([histories[name] for name in names], metric, query)
            if curve is not None:
                about = {"id": names[0], "name": label, "metric": metric, "runs": list(names)}
                curves.append(about | curve)
    return curves


def draw_curve(runs: Sequence[HasSeries], metric: str, query: CurveQuery) -> dict[str, Any] | None:
    """The mean curve of these runs, downsampled; None if none has a value that can be drawn.

    `low` and `high` are the edges of the band over seeds; they are absent for one run.
    """
    mean = average_runs([run.series(metric, query.x) for run in runs], query.options(metric))
    return None if mean is None else describe_curve(mean, query)


def describe_curve(mean: MeanCurve, query: CurveQuery) -> dict[str, Any]:
    """A mean curve as JSON values, with its exact extremes and its last point."""
    band = [mean.low, mean.high] if mean.runs > 1 else []
    is_log = query.log in ("x", "both")
    places = choose_points(mean.x, [mean.values, *band], query.points, log_x=is_log)
    curve: dict[str, Any] = {
        "x": mean.x[places].tolist(),
        "y": mean.values[places].tolist(),
        "seeds": mean.runs,
        "measured": len(mean.x),
        "complete_until": mean.complete_until,
    }
    if band:
        curve |= {"low": mean.low[places].tolist(), "high": mean.high[places].tolist()}
    return curve
