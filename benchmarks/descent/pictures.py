"""The figure of the page, in the style of `heed.plot`: a column a task, a row a question."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reading import Facts

from descent.systems import RULES, TASKS, Task
from heed import plot

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAME = "optimizers.png"
DPI = 120
MARKS = ("o", "s", "D", "^", "v", "P", "X")
ROOM = 0.04
"""Left free above and below, as a share of what is shown."""
WAYS = ("own", "shared")
GUESSING = 7.0
"""About log(1000), what a language model's loss is that finds all tokens as likely; what is worse
is not shown."""


def draw_all(figures: Facts, folder: Path) -> list[str]:
    """The figure, where there are numbers for it; the names of the files."""
    from matplotlib import style

    tasks = [task for task in TASKS if task.name in figures["tasks"]]
    if not tasks:
        return []
    with style.context(plot.STYLE, after_reset=True):
        figure = _figure(tasks, figures["tasks"])
        figure.savefig(folder / NAME, dpi=DPI, bbox_inches="tight", metadata={"Software": None})
    return [NAME]


def _figure(tasks: list[Task], facts: Mapping[str, Facts]) -> Figure:
    """Above, dev by rate; below, the way of fresh seeds at one rate for all and at one's own."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.6 * len(tasks), 9.2), facecolor="white")
    figure.set_layout_engine("constrained", h_pad=0.08, w_pad=0.08)
    grid = figure.subplots(3, len(tasks), squeeze=False)
    for column, task in enumerate(tasks):
        own = facts[task.name]
        _by_rate(grid[0][column], own)
        for row, which in ((1, "shared"), (2, "own")):
            _by_step(grid[row][column], own, which)
        for row in range(3):
            _finish(grid[row][column], task, own)
        grid[0][column].set_title(f"{task.title}: dev by learning rate, one seed", pad=8)
        shared = f"{task.title}: all at {own['shared_rate']:g}"
        grid[1][column].set_title(shared, pad=8)
        grid[2][column].set_title(f"{task.title}: each at its own best rate", pad=8)
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    return figure


def _looks(number: int) -> dict[str, Any]:
    """How an optimizer is drawn: dashes let the line below show where two are the same."""
    dash = plot.DASHES[number % len(plot.DASHES)]
    line = {"color": plot.COLORS[number], "linestyle": dash, "linewidth": 1.3}
    return line | {"marker": MARKS[number], "markersize": 3.5}


def _by_rate(axes: Axes, own: Facts) -> None:
    """A line an optimizer over the rates, its best ringed, and where one rate for all stands."""
    for number, rule in enumerate(RULES):
        if rule.name not in own["rules"]:
            continue
        told = own["rules"][rule.name]
        points = [(float(at), v) for at, v in told["by_rate"].items() if isinstance(v, float)]
        if not points:
            continue
        axes.plot(*zip(*points, strict=True), label=rule.label, **_looks(number))
        top = told["by_rate"][f"{told['best']:g}"]
        axes.plot(told["best"], top, "o", markersize=9, fillstyle="none", color=_colour(number))
    axes.axvline(own["shared_rate"], color=plot.INK, linewidth=0.8, linestyle=":")
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlabel("learning rate")


def _colour(number: int) -> str:
    return plot.COLORS[number]


def _by_step(axes: Axes, own: Facts, which: str) -> None:
    """The mean over seeds, and a band from the lowest to the highest."""
    for number, rule in enumerate(RULES):
        curve = own["rules"].get(rule.name, {}).get(which, {}).get("curve")
        if not curve:
            continue
        steps, means, low, high = (
            [point[key] for point in curve] for key in ("step", "mean", "low", "high")
        )
        axes.plot(steps, means, label=rule.label, **_looks(number))
        axes.fill_between(steps, low, high, color=_colour(number), alpha=0.15, linewidth=0)
    axes.set_xlabel("updates")


def _finish(axes: Axes, task: Task, own: Facts) -> None:
    """The same range for all three, so that heights compare; a rate far too high leaves it."""
    low, high = _range(task, own)
    axes.set_ylim(low, high)
    axes.set_ylabel(f"dev {task.unit}")
    axes.grid(axis="y", color=plot.FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if task.rises:
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")


def _range(task: Task, own: Facts) -> tuple[float, float]:
    """From the best figure to the worst that a model starts from: guessing."""
    seen = [v for one in own["rules"].values() for v in one["by_rate"].values()]
    known = [v for v in seen if isinstance(v, float)]
    curves = [one[way]["curve"] for one in own["rules"].values() for way in WAYS if way in one]
    ends = [point[key] for curve in curves for point in curve for key in ("low", "high")]
    low, high = min([*known, *ends], default=0.0), max([*known, *ends], default=1.0)
    if not task.rises:
        high = min(high, GUESSING)
    room = ROOM * (high - low or 1.0)
    return low - room, high + room
