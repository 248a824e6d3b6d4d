"""The figures of the page, in the style of `heed.plot`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reading import Facts

from heed import plot
from ted.systems import GROUPS, REPORTED, SETS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WELL, TOLD = plot.COLORS[:2]
HOW = ("trained well", "as reported")
DPI = 120
APART = 0.35
"""Words between the bars of systems at one length, so that none hides another."""


def draw_all(figures: Facts, folder: Path) -> list[str]:
    """Every figure there are numbers for; the names of the files."""
    names = []
    for name, figure in _all(figures):
        names.append(f"{name}.png")
        with _style():
            figure.savefig(
                folder / names[-1], dpi=DPI, bbox_inches="tight", metadata={"Software": None}
            )
    return names


def _all(figures: Facts) -> Iterator[tuple[str, Figure]]:
    systems, by_length = figures["systems"], figures.get("by_length", {})
    curves = figures.get("curves", {})
    pairs = [(well.name, told.name) for well, told in zip(SETS, REPORTED, strict=True)]
    if shown := [pair for pair in pairs if any(curves.get(name) for name in pair)]:
        yield "translation-curves", _by_epoch(curves, shown)
    for name, how in (("sets", "trained well"), ("reported", "as reported")):
        if own := by_length.get(name):
            title = f"BLEU by sentence length, {how}"
            yield f"translation-lengths-{name}", _by_words(own["groups"], systems, title)
    tried = [one.name for one in (*REPORTED[2:], *GROUPS["fail"]) if curves.get(one.name)]
    if any(one.name in tried for one in GROUPS["fail"]):
        yield "translation-fail", _side_by_side(curves, systems, tried)
    if names := [system.name for system in GROUPS["positions"] if system.name in systems]:
        yield "translation-positions", _dots(systems, names)
    if own := by_length.get("lengths"):
        learnt = {system.name for system in GROUPS["lengths"]}
        title = "BLEU by sentence length, learnt from short pairs"
        yield "translation-longer", _by_words(own["groups"], systems, title, learnt)


@contextmanager
def _style() -> Iterator[None]:
    from matplotlib import style

    with style.context(plot.STYLE, after_reset=True):
        yield


def _figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), facecolor="white")


def _plain(axes: Axes) -> None:
    axes.grid(axis="y", color=plot.FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _by_epoch(curves: Facts, pairs: Sequence[tuple[str, str]]) -> Figure:
    """A column a set: loss above, dev BLEU below; trained well and as reported."""
    with _style():
        figure = _figure(2.3 * len(pairs) + 1.2, 4.6)
        figure.set_layout_engine("constrained")
        grid = figure.subplots(2, len(pairs), sharey="row", squeeze=False)
        for column, pair in enumerate(pairs):
            for name, colour, how in zip(pair, (WELL, TOLD), HOW, strict=True):
                points = curves.get(name) or []
                epochs = [point["epoch"] for point in points]
                for key, dash in (("train_loss", ":"), ("dev_loss", "-")):
                    losses = [point[key] for point in points]
                    words = "training" if key == "train_loss" else "dev"
                    label = f"{how}, {words}"
                    grid[0][column].plot(epochs, losses, dash, color=colour, label=label)
                _plot_bleu(grid[1][column], points, color=colour)
            grid[0][column].set_title(f"set {pair[0][3]}")
            grid[1][column].set_xlabel("epoch")
        for row, words in ((0, "loss a token"), (1, "dev BLEU, greedy")):
            grid[row][0].set_ylabel(words)
            for axes in grid[row]:
                _plain(axes)
        handles, labels = grid[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    return figure


def _plot_bleu(axes: Axes, points: Sequence[Facts], **look: Any) -> None:
    """Dev BLEU by epoch, where it was measured."""
    scored = [(p["epoch"], p["dev_bleu"]) for p in points if p["dev_bleu"] is not None]
    if scored:
        axes.plot(*zip(*scored, strict=True), **look)


def _by_words(
    groups: Sequence[Facts],
    systems: Mapping[str, Facts],
    title: str,
    only: set[str] | None = None,
) -> Figure:
    """A line a system over the lengths of sentences, with intervals."""
    names = [name for name in groups[0]["systems"] if only is None or name in only]
    with _style():
        figure = _figure(7.2, 3.6)
        axes = figure.subplots()
        for number, name in enumerate(names):
            own = [group["systems"][name] for group in groups]
            shift = APART * (number - (len(names) - 1) / 2)
            xs, ys = [group["mean_words"] + shift for group in groups], [one["bleu"] for one in own]
            below = [max(0.0, one["bleu"] - one["low"]) for one in own]
            above = [max(0.0, one["high"] - one["bleu"]) for one in own]
            axes.errorbar(
                xs,
                ys,
                yerr=[below, above],
                color=plot.COLORS[number % len(plot.COLORS)],
                label=systems[name]["label"],
                linewidth=1.4,
                elinewidth=0.8,
                marker="o",
                markersize=3.5,
            )
        axes.set_title(title, pad=10)
        axes.set_xlabel("words in the source, mean of each group")
        axes.set_ylabel("BLEU")
        _plain(axes)
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.02), frameon=False)
    return figure


def _dots(systems: Mapping[str, Facts], names: Sequence[str]) -> Figure:
    """A row a system: its mean with the interval over sentences, and each seed."""
    with _style():
        figure = _figure(6.4, 0.36 * len(names) + 1.1)
        axes = figure.subplots()
        for row, name in enumerate(names):
            own = systems[name]["bleu"]
            axes.plot([own["low"], own["high"]], [row, row], color=WELL, linewidth=1.4)
            axes.plot(own["mean"], row, "o", color=WELL, markersize=6)
            axes.plot(own["each"], [row] * len(own["each"]), "|", color=TOLD, markersize=9)
        axes.set_yticks(range(len(names)), [systems[name]["label"] for name in names])
        axes.invert_yaxis()
        axes.set_title("BLEU by position encoding: mean, 95% over sentences, each seed", pad=10)
        axes.set_xlabel("BLEU")
        _plain(axes)
        axes.grid(axis="x", color=plot.FAINT, linewidth=0.6)
    return figure


def _side_by_side(curves: Facts, systems: Mapping[str, Facts], names: Sequence[str]) -> Figure:
    """Dev loss on the left, dev BLEU on the right, a line a system."""
    with _style():
        figure = _figure(8.4, 4.4)
        figure.set_layout_engine("constrained")
        loss, bleu = figure.subplots(1, 2)
        for number, name in enumerate(names):
            points = curves[name]
            look = {
                "color": plot.COLORS[number % len(plot.COLORS)],
                "linestyle": plot.DASHES[number % len(plot.DASHES)],
                "label": systems[name]["label"],
            }
            epochs = [point["epoch"] for point in points]
            loss.plot(epochs, [point["dev_loss"] for point in points], **look)
            _plot_bleu(bleu, points, **look)
        for axes, words in ((loss, "dev loss a token"), (bleu, "dev BLEU, greedy")):
            axes.set_xlabel("epoch")
            axes.set_ylabel(words)
            _plain(axes)
        handles, labels = loss.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
    return figure
