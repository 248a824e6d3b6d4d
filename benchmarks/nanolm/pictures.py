"""The figure of the page, in the style of `heed.plot`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from reading import Facts

from heed import plot
from nanolm.systems import HEADS, LONG, REWEIGHT

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DPI = 120
NAME = "nano-reweight.png"
PANELS = {
    "One epoch, as the recipe has it": REWEIGHT[::2],
    "After more learning": [*LONG[1:], *HEADS],
}
READ = {
    "in a batch, not alone": ("apart", "o"),
    "the future hidden": ("blind", "D"),
    "merge taken away, heads divided by their number": ("even", "s"),
    "merge taken away": ("without", "X"),
}
APART = 0.17
"""Rows between the marks of one system, so that none hides another."""


def draw_all(figures: Facts, folder: Path) -> list[str]:
    """The figure, if there is something to show; the names of the files."""
    panels = {
        title: [system.name for system in systems if system.name in figures["systems"]]
        for title, systems in PANELS.items()
    }
    if not all(panels.values()):
        return []
    from matplotlib import style

    with style.context(plot.STYLE, after_reset=True):
        figure = _drawn(figures["systems"], panels)
        figure.savefig(folder / NAME, dpi=DPI, bbox_inches="tight", metadata={"Software": None})
    return [NAME]


def _drawn(systems: Facts, panels: dict[str, list[str]]) -> Figure:
    """A panel each: a row a model, a mark for each way to read it that it was not trained in."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, NullFormatter

    sizes = [len(names) for names in panels.values()]
    figure = Figure(figsize=(8.4, 0.55 * sum(sizes) + 1.8), facecolor="white", layout="constrained")
    grid = figure.subplots(len(panels), 1, sharex=True, squeeze=False, height_ratios=sizes)[:, 0]
    for axes, (title, names) in zip(grid, panels.items(), strict=True):
        for row, name in enumerate(names):
            _marks(axes, systems[name], row)
        axes.set_yticks(range(len(names)), [systems[name]["label"] for name in names])
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.set_title(title)
        axes.axvline(1.0, color=plot.INK, linewidth=0.8)
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"× {value:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.grid(axis="x", color=plot.FAINT, linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    grid[-1].set_xlabel("dev perplexity, as a multiple of its own; 95% over seeds")
    handles, labels = grid[0].get_legend_handles_labels()
    named = dict(zip(labels, handles, strict=True))
    figure.legend(named.values(), named.keys(), loc="outside lower center", ncols=2, frameon=False)
    return figure


def _marks(axes: Axes, own: Facts, row: int) -> None:
    levels = {"apart": own["apart"], "blind": own["blind"]["hidden"]} | own["lost"]
    for place, (label, (how, mark)) in enumerate(READ.items()):
        level, colour = levels[how], plot.COLORS[place]
        y = row + APART * (place - (len(READ) - 1) / 2)
        if level["low"] is not None:
            ends = [math.exp(level[key]) for key in ("low", "high")]
            axes.plot(ends, [y, y], color=colour, linewidth=1.2)
        axes.plot(math.exp(level["mean"]), y, mark, color=colour, markersize=5, label=label)
