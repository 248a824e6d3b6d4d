"""The figures of the page: a row of maps for each position, and what padding does to a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.colors import PowerNorm

from by_position.results import Results
from by_position.systems import LENGTH, PADDING, POSITIONS
from heed import plot

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage

SHORT, LONG, GAP = 1.5, 2.35, 0.95
"""Inches: the sides of the maps of the two sentences, and the space for words between them."""
MASKED = "#e6e6e6"
SIZE = 6.0
"""Font size of words, in points."""


def draw_positions(results: Results, model: str, title: str, path: Path) -> None:
    """One row for each position: the short sentence, the long one, and its nearest head."""
    rows = results[model]["positions"]
    step, left, bottom, top = LONG + 0.4, 0.85, 0.95, 0.2
    width = left + SHORT + GAP + LONG + 0.25 + LONG + 0.75
    with plot.use_style():
        figure = plot.new_figure(width, bottom + step * len(POSITIONS) + top)
        for number, position in enumerate(POSITIONS):
            at = bottom + step * (len(POSITIONS) - 1 - number)
            maps, last = rows[position]["maps"], number == len(POSITIONS) - 1
            places = (left, left + SHORT + GAP, left + SHORT + GAP + LONG + 0.25)
            short = plot.add_axes(figure, places[0], at + LONG - SHORT, SHORT, SHORT)
            long = plot.add_axes(figure, places[1], at, LONG, LONG)
            near = plot.add_axes(figure, places[2], at, LONG, LONG)
            causal = model == "decoder"
            image = _draw_map(short, maps["short"]["mean"], causal=causal)
            _draw_map(long, maps["long"]["mean"], causal=causal)
            _draw_map(near, maps["long"]["nearest"], causal=causal)
            _label(short, _labels(maps["short"]), rows=True, columns=True)
            _label(long, _labels(maps["long"]), rows=True, columns=last)
            _label(near, _labels(maps["long"]), rows=False, columns=last)
            layer, head = maps["long"]["nearest_head"]
            short.set_title(position, fontsize=12, fontweight="bold", pad=5)
            long.set_title("mean of all heads", fontsize=8, pad=4)
            near.set_title(f"nearest head: layer {layer}, head {head}", fontsize=8, pad=4)
        bar = figure.colorbar(
            image, cax=plot.add_axes(figure, width - 0.62, bottom + step * 6, 0.11, LONG)
        )
        bar.set_ticks([0, 0.05, 0.2, 0.5, 1], labels=["0", "0.05", "0.2", "0.5", "1"])
        bar.ax.tick_params(length=0, labelsize=7.5)
        bar.outline.set_visible(False)
        figure.text(0.12 / width, 1.0, title, fontsize=plot.TITLE_SIZE, va="bottom")
        plot.save_as(figure, path)


def draw_padding(results: Results, position: str, path: Path) -> None:
    """The short sentence in a picture of 32 × 32: padding masked, and padding read as words."""
    masked = np.array(results["encoder"]["positions"][position]["maps"]["short"]["mean"])
    read = results["padded"]["positions"][position]["maps"]["short"]
    real = len(masked)
    square = np.full((LENGTH, LENGTH), np.nan)
    square[:real, :real] = masked
    words = [word for word in read["words"] if word != PADDING]
    side = 2.6
    with plot.use_style():
        figure = plot.new_figure(2 * side + 1.9, side + 0.95)
        for number, (weights, title, count) in enumerate(
            (
                (square, "padding masked", real),
                (np.array(read["mean"]), "padding read as words", 1 + len(words)),
            )
        ):
            axes = plot.add_axes(figure, 0.75 + number * (side + 0.45), 0.55, side, side)
            image = _draw_map(axes, weights)
            for limit in (axes.axvline, axes.axhline):
                limit(count - 0.5, color=plot.GOLD, linewidth=1.2)
            axes.set_title(title, fontsize=9, pad=5)
            axes.set_xticks([0, 15, 31], ["1", "16", "32"], fontsize=8)
            axes.set_yticks([0, 15, 31], ["1", "16", "32"] if not number else ["", "", ""])
            axes.set_xlabel("token that answers", fontsize=8)
            if not number:
                axes.set_ylabel("token that asks", fontsize=8)
        bar = figure.colorbar(
            image, cax=plot.add_axes(figure, 0.75 + 2 * side + 0.6, 0.55, 0.11, side)
        )
        bar.set_ticks([0, 0.05, 0.2, 0.5, 1], labels=["0", "0.05", "0.2", "0.5", "1"])
        bar.ax.tick_params(length=0, labelsize=7.5)
        bar.outline.set_visible(False)
        title = f"“This is a test sentence” in a 32 × 32 picture ({position} positions)"
        figure.text(0.03, 1.0, title, fontsize=plot.TITLE_SIZE, va="bottom")
        plot.save_as(figure, path)


def _draw_map(axes: Axes, weights: Any, *, causal: bool = False) -> AxesImage:
    """A heat map with one scale for all, on which small weights are seen too; masked cells grey."""
    weights_nn = np.asarray(weights, dtype=np.float64)
    if causal:
        weights_nn = np.where(np.tri(len(weights_nn), dtype=bool), weights_nn, np.nan)
    axes.set_facecolor(MASKED)
    image = axes.imshow(weights_nn, cmap="Blues", norm=PowerNorm(0.5, 0, 1))
    axes.tick_params(length=0, pad=2)
    axes.spines[["top", "right", "bottom", "left"]].set_color(plot.FAINT)
    return image


def _labels(sentence: Results) -> list[str]:
    """The tokens as words; one that the model does not know has an asterisk."""
    words = iter(sentence["words"])
    labels = []
    for token in sentence["tokens"]:
        if token in ("<bos>", "<eos>"):
            labels.append(token)
            continue
        word = next(words)
        labels.append(f"{word}*" if token == "<unk>" else word)  # noqa: S105, no password
    return labels


def _label(axes: Axes, labels: Sequence[str], *, rows: bool, columns: bool) -> None:
    places = range(len(labels))
    if rows:
        axes.set_yticks(places, labels, fontsize=SIZE + (len(labels) < 10))
    else:
        axes.set_yticks([])
    if columns:
        axes.set_xticks(places, labels, fontsize=SIZE + (len(labels) < 10), rotation=90)
    else:
        axes.set_xticks([])
