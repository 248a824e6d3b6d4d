"""`heed plot`: metrics of runs over steps, epochs, tokens or seconds, as a figure and as CSV.

Runs of one recipe with different seeds are one curve: their mean, with a band from the lowest to
the highest. Runs may still be training.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from rich.table import Table
from rich.text import Text

from heed import plot
from heed.arrays import Floats, Ints
from heed.config import Recipe
from heed.errors import ConfigError, HeedError, RunError, nearest
from heed.files import write_atomic
from heed.runs.groups import RunGroup, comparable_recipes, group_runs
from heed.runs.history import AXES, read_history
from heed.runs.run import Run
from heed.terminal import Say, build_table

DEFAULTS = ("dev/loss", "train/loss")
"""The metric that is drawn where none is named: the first of these that a run has."""
AXIS_LABELS = {"tokens": "tokens, without padding", "seconds": "seconds of training"}
LOGS = ("x", "y", "both")
MAX_VALUE = 1e100
"""Larger values are not drawn. A run with too high a learning rate has them, and infinite ones."""


@dataclass(frozen=True)
class PlotOptions:
    """What to draw, and how."""

    metrics: Sequence[str] = ()
    """Names of metrics; empty for the default one."""
    x: str = "step"
    log: str | None = None
    smooth: int = 1
    """Each point is the mean of this many: itself and those before."""

    def __post_init__(self) -> None:
        complaints = []
        if self.x not in AXES:
            complaints.append(
                f"--x cannot be {self.x!r}: it is one of {', '.join(AXES)}.{nearest(self.x, AXES)}"
            )
        if self.log is not None and self.log not in LOGS:
            complaints.append(f"--log cannot be {self.log!r}: it is one of {', '.join(LOGS)}.")
        if self.smooth < 1:
            complaints.append(f"--smooth cannot be {self.smooth}: it is 1 or more points.")
        if complaints:
            raise ConfigError(complaints)


@dataclass(frozen=True)
class MetricSeries:
    """The values of a metric in one run: one for each step that measured it, in order."""

    steps: Ints
    x: Floats
    values: Floats
    """NaN where a value was not finite."""


class HasSeries(Protocol):
    """A run whose metrics can be drawn."""

    @property
    def metrics(self) -> list[str]:
        """The names of the metrics that it has, sorted."""

    def series(self, metric: str, x: str) -> MetricSeries:
        """The values of a metric by step, epoch, tokens or seconds."""


@dataclass(frozen=True)
class RunHistory:
    """The rows of a run's history."""

    name: str
    rows: list[dict[str, Any]]

    @property
    def metrics(self) -> list[str]:
        """The names of the metrics that can be drawn, sorted."""
        return sorted({key for row in self.rows for key in row if _is_metric(key, row[key])})

    def points(self, metric: str, x: str) -> dict[int, tuple[float, Any]]:
        """(x, value) of a metric by step; a step that was measured twice has its last value."""
        rows = (row for row in self.rows if metric in row and row[x] is not None)
        return {row["step"]: (float(row[x]), row[metric]) for row in rows}

    def series(self, metric: str, x: str) -> MetricSeries:
        """The same as arrays, in the order of steps."""
        points = sorted(self.points(metric, x).items())
        is_number = [type(value) in (int, float) for _, (_, value) in points]
        numbers = zip(points, is_number, strict=True)
        return MetricSeries(
            np.array([step for step, _ in points], dtype=np.int64),
            np.array([at for _, (at, _) in points], dtype=np.float64),
            np.array([v if known else np.nan for (_, (_, v)), known in numbers], dtype=np.float64),
        )


@dataclass(frozen=True)
class RecordedRun(RunHistory):
    """A run that has recorded something."""

    recipe: Recipe
    data: dict[str, str] = field(default_factory=dict)
    """Hashes of the training and dev text."""


def read_runs(runs: Sequence[Run], notify: Say) -> list[RecordedRun]:
    """Read the histories of runs; one that is empty or damaged is named and left out.

    An error if that is every one.
    """
    recorded: list[RecordedRun] = []
    problems: list[HeedError] = []
    for run in runs:
        try:
            recipe = Run.open(run.folder).recipe()
            data = run.environment().get("data", {})
            one = RecordedRun(str(run.folder), read_history(run), recipe, data)
            if not one.rows:
                every = one.recipe.train.log_every
                raise RunError(
                    "this run has recorded nothing yet.",
                    where=str(run.folder),
                    todo=f"Its first metrics come at step {every:,} (train.log_every).",
                )
            recorded.append(one)
        except HeedError as problem:
            problems.append(problem)
    if not recorded:
        raise problems[0]
    for error in problems:
        notify(f"heed: {error}")
    return recorded


# ---------------------------------------------------------------------------------------- metrics


def count_metrics(runs: Sequence[RecordedRun]) -> dict[str, Counter[str]]:
    """The metrics of runs in the order of their names, and the number of points of each run."""
    counts: dict[str, Counter[str]] = {}
    for run in runs:
        for row in run.rows:
            for key, value in row.items():
                if _is_metric(key, value):
                    counts.setdefault(key, Counter())[run.name] += 1
    return dict(sorted(counts.items()))


def _is_metric(key: str, value: Any) -> bool:
    return "/" in key and key != "time/unix" and not isinstance(value, bool | str)


def build_metrics_table(runs: Sequence[RecordedRun]) -> Table:
    """The metrics that can be drawn, as a table for the terminal."""
    numbers = ["runs", "points", "last"]
    table = build_table("metric", *numbers, right=numbers, compact=True)
    for metric, counts in count_metrics(runs).items():
        last = [run.rows for run in runs if run.name in counts][-1]
        value = next(row[metric] for row in reversed(last) if metric in row)
        table.add_row(Text(metric), str(len(counts)), f"{counts.total():,}", f"{value:.4g}")
    return table


def choose_metrics(runs: Sequence[RecordedRun], names: Sequence[str]) -> list[str]:
    """The metrics to draw: those named, each recorded by some run, or the default one."""
    known = [*count_metrics(runs)]
    if not names:
        return [next((name for name in (*DEFAULTS, *known) if name in known), DEFAULTS[0])]
    unknown = [name for name in names if name not in known]
    if unknown:
        complaints = [_describe_unknown(name, known, runs) for name in unknown]
        raise ConfigError([*complaints, f"There are {', '.join(known)}."])
    return list(dict.fromkeys(names))


def _describe_unknown(name: str, known: Sequence[str], runs: Sequence[RecordedRun]) -> str:
    if name.endswith("/bleu") and any(run.recipe.task == "translate" for run in runs):
        hint = " Translators record it with train.evaluate_bleu = true."
        return f"None of these runs has recorded {name!r}.{hint}"
    last = [one for one in known if one.rpartition("/")[2] == name]
    hint = f" Did you mean {' or '.join(last)}?" if last else nearest(name, known)
    return f"None of these runs has recorded {name!r}.{hint}"


# ----------------------------------------------------------------------------------------- curves


@dataclass(frozen=True)
class GroupCurve:
    """A metric of the runs of one recipe: the mean over seeds, and the lowest and highest."""

    group: RunGroup
    metric: str
    runs: int
    """The runs that have this metric."""
    points: list[tuple[float, float]]
    band: list[tuple[float, float]]
    """Empty for one run."""
    complete_until: float | None
    """The x after which fewer runs have values, since some are shorter; None if none is."""


def build_curve(
    group: RunGroup, runs: Sequence[HasSeries], metric: str, options: PlotOptions
) -> GroupCurve | None:
    """The curve of a metric; None if none of these runs has a value that can be drawn."""
    mean = average_runs([run.series(metric, options.x) for run in runs], options)
    if mean is None:
        return None
    points = list(zip(mean.x.tolist(), mean.values.tolist(), strict=True))
    band = list(zip(mean.low.tolist(), mean.high.tolist(), strict=True)) if mean.runs > 1 else []
    return GroupCurve(group, metric, mean.runs, points, band, mean.complete_until)


@dataclass(frozen=True)
class MeanCurve:
    """The mean of a metric over runs at every step that any of them measured, as arrays."""

    x: Floats
    values: Floats
    low: Floats
    high: Floats
    runs: int
    """The runs that have the metric."""
    complete_until: float | None


def average_runs(series: Sequence[MetricSeries], options: PlotOptions) -> MeanCurve | None:
    """The mean of a metric over runs; None if no run has a value that can be drawn.

    Runs of one recipe measure at the same steps, so values of one step are averaged. Tokens and
    seconds, which differ between runs at the same step, are averaged too.
    """
    drawn = [one for run in series if len((one := _drawable(run, options)).steps)]
    if not drawn:
        return None
    steps = np.unique(np.concatenate([one.steps for one in drawn]))
    x_rs, values_rs = np.full((2, len(drawn), len(steps)), np.nan)
    for row, one in enumerate(drawn):
        places = np.searchsorted(steps, one.steps)
        x_rs[row, places], values_rs[row, places] = one.x, one.values
    first_end = min(one.steps[-1] for one in drawn)
    x = np.nanmean(x_rs, axis=0)
    end = float(x[np.searchsorted(steps, first_end)]) if first_end < steps[-1] else None
    return MeanCurve(
        x,
        np.nanmean(values_rs, axis=0),
        np.nanmin(values_rs, axis=0),
        np.nanmax(values_rs, axis=0),
        len(drawn),
        end,
    )


def _drawable(series: MetricSeries, options: PlotOptions) -> MetricSeries:
    """The points with finite values that a logarithmic axis can show, smoothed."""
    shown = np.abs(series.values) < MAX_VALUE  # False for NaN
    if options.log in ("x", "both"):
        shown &= series.x > 0
    if options.log in ("y", "both"):
        shown &= series.values > 0
    values = series.values[shown]
    if options.smooth > 1 and len(values):
        sums = np.convolve(values, np.ones(options.smooth))[: len(values)]
        values = sums / np.minimum(np.arange(1, len(values) + 1), options.smooth)
    return MetricSeries(series.steps[shown], series.x[shown], values)


def _group_runs(runs: Sequence[RecordedRun]) -> list[RunGroup]:
    """The runs by recipe, whatever they are tested on."""
    recipes = {run.name: (run.recipe.tables(), run.data) for run in runs}
    return group_runs(comparable_recipes(recipes))


def build_curves(
    runs: Sequence[RecordedRun], metrics: Sequence[str], options: PlotOptions, notify: Say
) -> list[GroupCurve]:
    """The curves of all groups and metrics; a run without a metric is named."""
    by_name = {run.name: run for run in runs}
    curves = []
    for group in _group_runs(runs):
        members = [by_name[name] for name in group.runs]
        curves += [
            curve
            for metric in metrics
            if (curve := build_curve(group, members, metric, options)) is not None
        ]
    for metric in metrics:
        for run in runs:
            points = run.points(metric, options.x)
            left_out = len(points) - len(_drawable(run.series(metric, options.x), options).steps)
            if not points:
                has = any(metric in row for row in run.rows)
                what = options.x if has else metric
                notify(f"heed: {run.name}: this run has not recorded {what}.")
            elif left_out:
                why = "not finite" + ("" if options.log is None else ", or not above 0")
                notify(f"heed: {run.name}: {left_out} values of {metric} are {why}: not drawn.")
    if not curves:
        what = f"None of these runs has a value of {' or '.join(metrics)} by {options.x} to draw."
        raise HeedError(what, todo="See what they have: heed plot RUN --list")
    return curves


# ----------------------------------------------------------------------------------------- output


def write_plot(
    runs: Sequence[RecordedRun],
    metrics: Sequence[str],
    options: PlotOptions,
    figure: Path | None,
    table: Path | None,
    notify: Say,
) -> Iterator[str]:
    """Write the figure and the CSV file, where they are named; yields a line about each."""
    if figure is not None:
        curves = build_curves(runs, metrics, options, notify)
        draw_figure(curves, options, figure)
        names = [
            run for group in {c.group.name: c.group for c in curves}.values() for run in group.runs
        ]
        yield f"{figure}: {', '.join(metrics)} by {options.x}, {_count(len(names), 'run')}"
    if table is not None:
        rows = write_csv(runs, metrics, table)
        yield f"{table}: {', '.join(metrics)}, {_count(rows, 'row')} of {_count(len(runs), 'run')}"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def draw_figure(curves: Sequence[GroupCurve], options: PlotOptions, path: Path) -> None:
    """Write the figure of these curves: metrics of one kind, such as losses, share a panel."""
    metrics = list(dict.fromkeys(curve.metric for curve in curves))
    groups = list(dict.fromkeys(curve.group.name for curve in curves))
    kinds = list(dict.fromkeys(metric.rpartition("/")[2] for metric in metrics))
    by_kind = [[one for one in metrics if one.rpartition("/")[2] == kind] for kind in kinds]
    is_dashed = max(map(len, by_kind)) > 1
    panels = {}
    for kind, of_kind in zip(kinds, by_kind, strict=True):
        panels[of_kind[0] if len(of_kind) == 1 else kind] = [
            plot.Curve(
                curve.metric if len(groups) == 1 else _name(curve),
                curve.points,
                curve.band,
                *_choose_style(curve, groups, of_kind, is_dashed=is_dashed),
            )
            for curve in curves
            if curve.metric in of_kind
        ]
    figure = plot.curve_panels(
        panels,
        title=f"{_name(curves[0])}: {', '.join(metrics)}" if len(groups) == 1 else "",
        x=AXIS_LABELS.get(options.x, options.x),
        log_x=options.log in ("x", "both"),
        log_y=options.log in ("y", "both"),
        note=describe_curves(curves, options),
        legend=_build_legend(curves, groups, by_kind) if min(len(groups), len(metrics)) > 1 else (),
    )
    plot.save_as(figure, path)


def _choose_style(
    curve: GroupCurve, groups: Sequence[str], metrics: Sequence[str], *, is_dashed: bool
) -> tuple[int, int]:
    """The numbers of the color and the dash, alike in all panels.

    The color is the group's, if there are several. The dash is the metric's within its panel, if
    some panel has several metrics (`is_dashed`); else it repeats what the color says.
    """
    group, metric = groups.index(curve.group.name), metrics.index(curve.metric)
    color = group if len(groups) > 1 else metric
    return color, metric if is_dashed else color


def _build_legend(
    curves: Sequence[GroupCurve], groups: Sequence[str], by_kind: Sequence[Sequence[str]]
) -> list[plot.LegendEntry]:
    """The legend of all panels: each group, and the dash of each metric that shares a panel."""
    is_dashed = max(map(len, by_kind)) > 1
    entries = []
    for number, group in enumerate(groups):
        most = max((one for one in curves if one.group.name == group), key=lambda one: one.runs)
        entries.append(plot.LegendEntry(_name(most), number, 0 if is_dashed else number))
    shared = [of_kind for of_kind in by_kind if len(of_kind) > 1]
    return entries + [
        plot.LegendEntry(metric, None, dash)
        for of_kind in shared
        for dash, metric in enumerate(of_kind)
    ]


def _name(curve: GroupCurve) -> str:
    """The name of a group, with the number of its runs."""
    if curve.runs == 1:
        return curve.group.name
    seeds = "seeds" if len(set(curve.group.seeds)) == len(curve.group.seeds) else "runs"
    return f"{curve.group.name} ({curve.runs}\N{NO-BREAK SPACE}{seeds})"


def describe_curves(curves: Sequence[GroupCurve], options: PlotOptions) -> str:
    """The note below the figure: what the lines and the bands are."""
    sentences = []
    if any(curve.band for curve in curves):
        sentences.append("Several seeds: their mean, shaded from the lowest to the highest.")
    if any(curve.complete_until is not None for curve in curves):
        ends = sorted({c.complete_until for c in curves if c.complete_until is not None})
        places = " and ".join(plot.format_tick(end) for end in ends)
        sentences.append(f"After {options.x} {places} not all seeds have values.")
    if options.smooth > 1:
        sentences.append(f"Each point is the mean of {options.smooth}: itself and those before.")
    return " ".join(sentences)


def default_path(metrics: Sequence[str], x: str) -> Path:
    """The file of a figure where none is named: `dev-loss-by-step.png`."""
    words = re.sub(r"[^\w.]+", "-", "-".join(metrics)).strip("-")
    return Path(f"{words}-by-{x}.png")


def check_format(path: Path) -> None:
    """Raise an error unless the name of a figure's file ends in a format that can be written."""
    if path.suffix[1:].lower() not in plot.METADATA:
        endings = ", ".join(f".{kind}" for kind in plot.METADATA)
        raise ConfigError([f"--out cannot be {str(path)!r}: a figure's name ends in {endings}."])


def write_csv(runs: Sequence[RecordedRun], metrics: Sequence[str], path: Path) -> int:
    """Write every recorded value of these metrics, by run and step: no means, no smoothing.

    Returns the number of rows.
    """
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["recipe", "run", "seed", *AXES, *metrics])
    rows = [*_csv_rows(runs, metrics)]
    writer.writerows(rows)
    write_atomic(path, buffer.getvalue())
    return len(rows)


def _csv_rows(runs: Sequence[RecordedRun], metrics: Sequence[str]) -> Iterator[list[Any]]:
    by_name = {run.name: run for run in runs}
    for group in _group_runs(runs):
        for name, seed in zip(group.runs, group.seeds, strict=True):
            steps: dict[int, dict[str, Any]] = {}
            for row in by_name[name].rows:
                if any(metric in row for metric in metrics):
                    steps[row["step"]] = steps.get(row["step"], {}) | row
            for _, row in sorted(steps.items()):
                values = [row.get(key) for key in (*AXES, *metrics)]
                yield [group.name, name, seed, *values]
