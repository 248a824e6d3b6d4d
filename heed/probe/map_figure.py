"""Figures of attention maps: one head large, and all layers and heads in an overview.

The color scale is the same in every figure: weights from 0 to 1, by their square root, so that a
weight of 0.01 among hundreds of tokens is still visible. What the mask hides is hatched.

Shapes: h heads, n queries, m keys. Sizes are in inches, font sizes in points.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from heed import plot
from heed.errors import HeedError, NumberError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from heed.probe.attention_maps import AttentionMap, AttentionMaps, Floats

MEAN = "mean"
"""In place of a head: the mean of a layer's heads."""
COLORS = "Blues"
HIDDEN, HATCH = "#ececec", "#b5b5b5"
"""The colors of cells that the mask hides, and of the lines on them."""
MAX_LABELS = 32
"""Tokens named along an axis; of more, every second, third, … is."""
MAX_CHARACTERS = 14
"""Characters of a token in a label."""
VECTOR_CELLS = 64
"""Tokens up to which cells are drawn one by one, with gaps; above, they are an image."""
SIDE, LARGE_SIDE = 4.4, 6.4
MAX_CELL = 0.34
PANEL_PIXELS, GAP_PIXELS, STRIPE = 120, 12, 3
"""Pixels of one panel of an overview, between panels, and of half a stripe of the hatching."""
NAMES = {"encoder": "Encoder self-attention", "decoder": "Decoder self-attention"}
AXES = {"cross": ("query: target", "key: source")}
TICKS = (0.0, 0.01, 0.1, 0.25, 0.5, 1.0)


def draw_maps(
    maps: AttentionMaps,
    kind: str | None = None,
    layer: int | None = None,
    head: int | str | None = None,
) -> Figure:
    """One head of a kind of attention, or without a head an overview; counted from 0."""
    attention = maps.get(kind)
    if head is None:
        return draw_overview(attention, layer)
    return draw_head(attention, last_layer(attention) if layer is None else layer, head)


def draw_head(attention: AttentionMap, layer: int, head: int | str = MEAN) -> Figure:
    """One head's weights, or the mean of a layer's heads, with a name for every token."""
    weights_nm, subject = select_head(attention, layer, head)
    n, m = weights_nm.shape
    rows, columns = short_labels(attention.query_tokens), short_labels(attention.key_tokens)
    with plot.use_style():
        largest = max(n, m)
        side = SIDE if largest <= VECTOR_CELLS else LARGE_SIDE
        cell_height, cell_width = (min(MAX_CELL, side / count) for count in (n, m))
        width, height = cell_width * m, cell_height * n
        row_size, column_size = (
            font_size(cell * _label_step(count), plot.TEXT_SIZE * side / SIDE)
            for cell, count in ((cell_height, n), (cell_width, m))
        )
        upright = cell_width * _label_step(m) < 0.25
        left = 0.35 + plot.label_width(rows, row_size)
        above = 0.75 + (1.0 if upright else 0.75) * plot.label_width(columns, column_size)
        figure = plot.new_figure(left + width + 1.0, above + height + 0.4)
        axes = plot.add_axes(figure, left, 0.4, width, height)
        image = draw_weights(axes, weights_nm, attention.visible)
        _outline_gold(axes, attention.gold or [])
        label_rows(axes, rows, row_size, start=attention.queries.start)
        label_columns(axes, columns, column_size, start=attention.keys.start, upright=upright)
        query, key = AXES.get(attention.kind, ("query", "key"))
        axes.set_ylabel(query, labelpad=6)
        axes.set_xlabel(key, labelpad=6)
        axes.set_title(subject, pad=10)
        bar = plot.clamp(height, 1.3, 2.4)
        add_scale(figure, image, left + width + 0.15, 0.4 + height - bar, bar)
        _add_legend(axes, attention, named_all=largest <= MAX_LABELS)
    return figure


def draw_overview(attention: AttentionMap, layer: int | None = None) -> Figure:
    """All heads, one row for each layer; with a layer, the heads of that layer alone."""
    if layer is not None:
        attention = attention.select_layer(layer)
    require_heads(attention)
    panels = [list(weights_hnm) for weights_hnm in attention.weights]
    across = max(map(len, panels))
    if len(panels) == 1 and across > 4:
        per_row = next((count for count in (4, 3, 5) if across % count == 0), 4)
        panels = [panels[0][i : i + per_row] for i in range(0, across, per_row)]
        across = per_row
    down, wrapped = len(panels), len(panels) != len(attention.weights)
    with plot.use_style():
        panel = plot.clamp(6.0 / across, 0.5, 1.9)
        pitch = panel * (1 + GAP_PIXELS / PANEL_PIXELS)
        width, height = across * pitch, down * pitch
        left, above = 0.75, 0.75
        figure = plot.new_figure(left + width + 0.9, above + height + 0.35)
        axes = plot.add_axes(figure, left, 0.35, width, height)
        image = draw_panels(axes, panels, across, attention.visible)
        _outline_panels(axes, panels, attention)
        _label_panels(axes, panels, attention, wrapped=wrapped)
        name = NAMES.get(attention.kind, "Cross-attention")
        title = f"{name}, every head"
        if len(attention.layers) == 1:
            title = f"{name}, layer {attention.layers[0] + 1}, every head"
        axes.set_title(title, pad=24)
        bar = plot.clamp(height, 1.3, 2.4)
        add_scale(figure, image, left + width + 0.15, 0.35 + height - bar, bar)
        _add_legend(axes, attention, named_all=True, panels=True)
    return figure


def last_layer(attention: AttentionMap) -> int:
    """The last layer that has heads; in a pruned model others may have none."""
    return max((i for i, heads in enumerate(attention.weights) if len(heads)), default=0)


def require_heads(attention: AttentionMap) -> None:
    """Raise an error where all heads of the layers of a map were pruned."""
    if not any(map(len, attention.weights)):
        layers = " and ".join(str(layer + 1) for layer in attention.layers)
        raise HeedError(
            f"{attention.kind} attention has no heads in layer {layers}: all were pruned.",
            todo="Choose another layer or kind.",
        )


def select_head(attention: AttentionMap, layer: int, head: int | str) -> tuple[Floats, str]:
    """The weights [n, m] of a head or of the mean of heads, and a title that names them."""
    attention = attention.select_layer(layer)
    require_heads(attention)
    (weights_hnm,) = attention.weights
    name = f"{NAMES.get(attention.kind, 'Cross-attention')}, layer {attention.layers[0] + 1}"
    if head == MEAN:
        return attention.mean_over_heads(0), f"{name}, mean of {len(weights_hnm)} heads"
    if not isinstance(head, int) or not 0 <= head < len(weights_hnm):
        count = len(weights_hnm)
        raise NumberError("head", head, f"this layer has {count}", count, others=", or mean")
    return weights_hnm[head], f"{name}, head {head + 1} of {len(weights_hnm)}"


def short_labels(tokens: list[str]) -> list[str]:
    """The tokens with the middle of long ones left out, so that one leaves room for the others."""
    shown = [plot.replace_unprintable(token) for token in tokens]
    half = (MAX_CHARACTERS - 1) // 2
    return [
        token if len(token) <= MAX_CHARACTERS else f"{token[: half + 1]}…{token[-half:]}"
        for token in shown
    ]


def _label_step(count: int) -> int:
    """1 where every token is named, k where every k-th is."""
    return -(-count // MAX_LABELS)


def font_size(spacing: float, most: float = plot.TEXT_SIZE) -> float:
    """The size of labels with this spacing, at most `most`."""
    return plot.clamp(spacing * 72 * 0.8, 5.0, most)


def _numbered(labels: list[str], start: int) -> tuple[list[float], list[str]]:
    """Places and names of an axis; where not every token is named, with their numbers."""
    step = _label_step(len(labels))
    places = range(0, len(labels), step)
    names = labels if step == 1 else [f"{i + start} {labels[i]}" for i in places]
    return [place + 0.5 for place in places], names


def label_rows(axes: Axes, labels: list[str], size: float, *, start: int = 1) -> None:
    """Name the queries; `start` is the number of the first one."""
    axes.set_yticks(*_numbered(labels, start), fontsize=size)


def label_columns(
    axes: Axes, labels: list[str], size: float, *, start: int = 1, upright: bool
) -> None:
    """Name the keys; `start` is the number of the first one."""
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    if upright:
        axes.set_xticks(*_numbered(labels, start), fontsize=size, rotation=90)
        return
    axes.set_xticks(
        *_numbered(labels, start),
        fontsize=size,
        rotation=45,
        rotation_mode="anchor",
        horizontalalignment="left",
    )


def _scale() -> Any:
    from matplotlib.colors import PowerNorm

    return PowerNorm(0.5, vmin=0.0, vmax=1.0)


def draw_weights(axes: Axes, weights_nm: Floats, visible: NDArray[np.bool_]) -> Any:
    """Draw the cells; those that the mask hides show the hatched ground behind them."""
    from matplotlib.patches import Rectangle

    n, m = weights_nm.shape
    if not visible.all():
        axes.add_patch(
            Rectangle((0, 0), m, n, facecolor=HIDDEN, edgecolor=HATCH, hatch="/////", linewidth=0)
        )
    shown = np.ma.masked_array(weights_nm, ~visible)
    if max(n, m) <= VECTOR_CELLS:  # cells instead of an image keep print and SVG sharp
        image: Any = axes.pcolormesh(
            shown, cmap=COLORS, norm=_scale(), edgecolors="white", linewidth=0.4
        )
    else:
        image = axes.imshow(
            shown, cmap=COLORS, norm=_scale(), extent=(0, m, n, 0), aspect="auto", zorder=2
        )
    axes.set_xlim(0, m)
    axes.set_ylim(n, 0)
    _set_frame(axes)
    return image


def _set_frame(axes: Axes) -> None:
    axes.tick_params(length=0, pad=3)
    for spine in axes.spines.values():
        spine.set(color=plot.FAINT, linewidth=0.8)


def _outline_gold(axes: Axes, gold: list[tuple[int, int]]) -> None:
    from matplotlib.patches import Rectangle

    for row, column in gold:
        box = Rectangle((column, row), 1, 1, fill=False, color=plot.GOLD, lw=1.3, zorder=3)
        box.set(clip_on=False, path_effects=_halo(2.8))
        axes.add_patch(box)


def _halo(width: float) -> list[Any]:
    """A white line behind an outline, so that it shows on a dark cell in gray, too."""
    from matplotlib.patheffects import Normal, Stroke

    return [Stroke(linewidth=width, foreground="white"), Normal()]


# --------------------------------------------------------------------------------- the overview


def draw_panels(
    axes: Axes, panels: list[list[Floats]], across: int, visible: NDArray[np.bool_]
) -> Any:
    """All panels as one image: an axes object for each would take seconds."""
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable

    pitch = PANEL_PIXELS + GAP_PIXELS
    image = np.ones((len(panels) * pitch, across * pitch, 4), np.float32)
    hidden = ~_resize(visible.astype(np.float32)).astype(bool)
    colors, scale = colormaps[COLORS], _scale()
    stripes = np.add.outer(np.arange(PANEL_PIXELS), np.arange(PANEL_PIXELS)) // STRIPE % 4 == 0
    for row, heads in enumerate(panels):
        for column, weights_nm in enumerate(heads):
            pixels = colors(scale(_resize(weights_nm)))
            pixels[hidden] = _color(HIDDEN)
            pixels[hidden & stripes] = _color(HATCH)
            top, left = row * pitch, column * pitch
            pixels[[0, -1]] = pixels[:, [0, -1]] = _color(plot.FAINT)
            image[top : top + PANEL_PIXELS, left : left + PANEL_PIXELS] = pixels
    axes.imshow(image, aspect="auto", interpolation="nearest")
    axes.set(xticks=[], yticks=[])
    for spine in axes.spines.values():
        spine.set_visible(False)
    return ScalarMappable(norm=scale, cmap=colors)


def _color(name: str) -> tuple[float, float, float, float]:
    from matplotlib.colors import to_rgba

    return to_rgba(name)


def _resize(array_nm: Floats) -> Floats:
    """A map as a square of pixels: cells repeated, or the largest of those that share a pixel."""
    for axis in (0, 1):
        count = array_nm.shape[axis]
        if count > PANEL_PIXELS:
            starts = np.arange(PANEL_PIXELS) * count // PANEL_PIXELS
            array_nm = np.maximum.reduceat(array_nm, starts, axis=axis)
        else:
            array_nm = array_nm.take(np.arange(PANEL_PIXELS) * count // PANEL_PIXELS, axis=axis)
    return array_nm


def _outline_panels(axes: Axes, panels: list[list[Floats]], attention: AttentionMap) -> None:
    """Outline the gold cells in every panel, as one collection."""
    from matplotlib.collections import PolyCollection

    if not attention.gold:
        return
    n, m = attention.visible.shape
    pitch, boxes = PANEL_PIXELS + GAP_PIXELS, []
    for row, heads in enumerate(panels):
        for column in range(len(heads)):
            for query, key in attention.gold:
                top, bottom = (row * pitch + PANEL_PIXELS * (query + i) / n - 0.5 for i in (0, 1))
                left, right = (column * pitch + PANEL_PIXELS * (key + i) / m - 0.5 for i in (0, 1))
                boxes.append([(left, top), (right, top), (right, bottom), (left, bottom)])
    outlines = PolyCollection(boxes, facecolor="none", edgecolor=plot.GOLD, linewidth=0.8)
    outlines.set_path_effects(_halo(1.8))
    axes.add_collection(outlines)


def _label_panels(
    axes: Axes, panels: list[list[Floats]], attention: AttentionMap, *, wrapped: bool
) -> None:
    """The number of each layer beside its row, and of each head above its column."""
    pitch, number = PANEL_PIXELS + GAP_PIXELS, 0
    across = max(map(len, panels))
    word = "" if across > 6 else "head "
    for row, heads in enumerate(panels):
        middle = row * pitch + PANEL_PIXELS / 2
        if not wrapped:
            label = f"layer {attention.layers[row] + 1}"
            axes.text(-8, middle, label, ha="right", va="center", fontsize=9)
        # A pruned layer may have fewer heads than the layers below it in the figure.
        for column in range(len(heads) if wrapped else across):
            number = number + 1 if wrapped else column + 1
            if row == 0 or wrapped:
                place = (column * pitch + PANEL_PIXELS / 2, row * pitch - 2)
                axes.text(*place, f"{word}{number}", ha="center", va="bottom", fontsize=8.5)
    if not word:
        axes.text(-8, -2, "head", ha="right", va="bottom", fontsize=9)


# ----------------------------------------------------------------------------------- the legends


def add_scale(figure: Figure, image: Any, left: float, bottom: float, height: float) -> None:
    bar = figure.colorbar(image, cax=plot.add_axes(figure, left, bottom, 0.1, height))
    bar.outline.set_edgecolor(plot.FAINT)
    bar.set_ticks(list(TICKS), labels=[f"{value:g}" for value in TICKS])
    bar.minorticks_off()
    bar.ax.tick_params(length=0, labelsize=plot.NOTE_SIZE)
    bar.set_label("attention weight (√ scale)", fontsize=plot.NOTE_SIZE)


def _add_legend(
    axes: Axes, attention: AttentionMap, *, named_all: bool, panels: bool = False
) -> None:
    """What hatching and outlines mean, and which way to read a panel, below the map."""
    from matplotlib.patches import Patch

    handles = []
    if panels:
        handles.append(Patch(facecolor="none", edgecolor="none", label=_reading(attention)))
    if not attention.visible.all():
        handles.append(
            Patch(facecolor=HIDDEN, edgecolor=HATCH, hatch="/////", label="hidden by the mask")
        )
    if attention.gold:
        handles.append(Patch(facecolor="none", edgecolor=plot.GOLD, label="gold alignment"))
    if not named_all:
        handles.append(Patch(facecolor="none", edgecolor="none", label="not every token is named"))
    if handles:
        axes.legend(
            handles=handles,
            loc="upper left",
            bbox_to_anchor=(0.0, -0.01),
            frameon=False,
            fontsize=plot.NOTE_SIZE,
            borderaxespad=0.2,
            borderpad=0.2,
            handlelength=1.6,
            labelspacing=0.3,
        )


def _reading(attention: AttentionMap) -> str:
    rows, columns = (" (target)", " (source)") if attention.kind == "cross" else ("", "")
    n, m = attention.visible.shape
    return f"in each map {n} rows{rows} are queries and {m} columns{columns} are keys"
