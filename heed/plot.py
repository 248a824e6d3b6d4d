"""Figures: curves of a run, attention maps, one map a head. Each call returns a new `Figure`.

Nothing here keeps state or needs a screen: figures are made without pyplot, in a style of their
own whatever a person's matplotlib settings say. Matplotlib is imported on the first call, so that
importing this module costs nothing. Sizes are in inches, of type in points.
"""

from __future__ import annotations

import io
import threading
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from unicodedata import category

from heed.errors import HeedError, nearest
from heed.files import write_atomic

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes
    from matplotlib.collections import QuadMesh
    from matplotlib.figure import Figure
    from numpy.typing import ArrayLike, NDArray

    Weights = NDArray[np.float64]
    Cells = Collection[tuple[int, int]]

INK, FAINT, GOLD = "#262626", "#d9d9d9", "#d55e00"
# Okabe and Ito's colours, which colour-blind readers can tell apart, the strong ones first.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
DASHES = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (6, 1.5, 1.2, 1.5)))
PNG_DPI = 160
_ONE_AT_A_TIME = threading.RLock()  # matplotlib's settings and Python's warnings are shared
STYLE = {
    "font.size": 9,
    "axes.titlesize": 10.5,
    "axes.titlelocation": "left",
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "text.parse_math": False,  # a word with a dollar sign is no formula
    "svg.fonttype": "none",  # words stay words: small, and found by a search
    "svg.hashsalt": "heed",  # ids that are the same each time
}


def curves(
    series: Mapping[str, Sequence[tuple[float, float]]],
    *,
    title: str,
    x: str,
    y: str,
    best: Mapping[str, float] | None = None,
    log_y: bool = False,
    bands: Mapping[str, Sequence[tuple[float, float]]] | None = None,
) -> Figure:
    """One line a series. `best` gives a series an x: a dot on its line, its value in the legend.
    `bands` gives a series a low and a high end for each point, shaded between.

    The values stand in the legend because beside the dots they would hide each other's lines.
    """
    marked = dict(best or {})
    _check_series(series, marked, log_y)
    with _style():
        figure = _figure(7.6, 4.0)
        axes = _place(figure, 0.8, 0.7, 5.0, 2.8)
        lines = []
        for number, (name, points) in enumerate(series.items()):
            xs, ys = zip(*points, strict=True)
            colour, dash = COLOURS[number % len(COLOURS)], DASHES[number % len(DASHES)]
            label, dot = _writable(name), []
            if name in marked:
                dot = [min(range(len(xs)), key=lambda i: abs(xs[i] - marked[name]))]
                label += f"\nbest {ys[dot[0]]:.4g} at {xs[dot[0]]:,.10g}"
            (line,) = axes.plot(xs, ys, color=colour, linestyle=dash, linewidth=1.6, label=label)
            line.set(marker="o" if dot else "", markevery=dot, markeredgecolor="white")
            lines.append(line)
            if name in (bands or {}):
                low, high = zip(*(bands or {})[name], strict=True)
                axes.fill_between(xs, low, high, color=colour, alpha=0.15, linewidth=0)
        axes.margins(x=0.02, y=0.05)
        if log_y:
            _log_axis(axes)
        axes.set_title(_writable(title), pad=10)
        axes.set_xlabel(_writable(x))
        axes.set_ylabel(_writable(y))
        axes.grid(axis="y", color=FAINT, linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        if len(series) > 1 or marked:
            legend = axes.legend(  # told its lines, it has those that begin with "_", too
                handles=lines,
                loc="upper left",
                bbox_to_anchor=(1.01, 1.02),
                frameon=False,
                labelspacing=0.8,
            )
            for text in legend.get_texts():
                text.set_linespacing(1.35)
    return figure


def attention_map(
    weights: ArrayLike,
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    title: str,
    gold: Cells = (),
    row_label: str = "",
    column_label: str = "",
    numbers: Sequence[Sequence[int]] = (),
) -> Figure:
    """A heat map with a word for every row and column. `gold` cells (row, column) are outlined.
    `numbers`, one a cell, are written into the cells.
    """
    array = _checked(weights, rows, columns, gold, dimensions=2)
    with _style():
        cell = _between(8.0 / max(array.shape), 0.17, 0.34)
        size = _between(cell * 28, 5.5, 9.0)
        width, height = cell * array.shape[1], cell * array.shape[0]
        left = 0.3 + _length(rows, size)
        above = 0.9 + 0.75 * _length(columns, size)
        figure = _figure(left + width + 1.0, above + height + 0.2)
        axes = _place(figure, left, 0.2, width, height)
        mesh = _heat(axes, array, _scale(array), gold)
        for row, values in enumerate(numbers):
            for column, value in enumerate(values):
                ink = "white" if array[row, column] > 0.6 * _scale(array) else INK
                word = axes.text(column + 0.5, row + 0.5, str(value), color=ink)
                word.set(ha="center", va="center", fontsize=0.75 * size)
        axes.xaxis.tick_top()
        axes.xaxis.set_label_position("top")
        _write(axes, rows, columns, size, above=True)
        axes.set_xlabel(_writable(column_label), labelpad=6)
        axes.set_ylabel(_writable(row_label), labelpad=6)
        axes.set_title(_writable(title), pad=10)
        bar = _between(height, 0.5, 2.4)
        _colour_bar(figure, mesh, left + width + 0.15, 0.2 + height - bar, bar)
    return figure


def attention_grid(
    maps: ArrayLike,
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    title: str,
    names: Sequence[str] | None = None,
    gold: Cells = (),
) -> Figure:
    """Small maps side by side on one colour scale, one for each head: `maps` is [heads, n, m]."""
    array = _checked(maps, rows, columns, gold, dimensions=3)
    heads, n, m = array.shape
    labels = [f"head {head + 1}" for head in range(heads)] if names is None else list(names)
    if len(labels) != heads:
        what = f"There are {heads} maps, but {len(labels)} names."
        raise HeedError(what, todo="Give one name for each map.")
    with _style():
        cell = _between(2.4 / max(n, m), 0.135, 0.24)
        size = _between(cell * 46, 6.0, 8.0)
        width, height, gap = cell * m, cell * n, 0.38
        across = _across(heads, max(1, int(11.0 / (width + gap))))
        down = -(-heads // across)
        left, below = 0.3 + _length(rows, size), 0.2 + 0.75 * _length(columns, size)
        total = (left + across * (width + gap) + 0.6, below + down * (height + gap) + 0.2)
        figure = _figure(*total)
        for head in range(heads):
            line, place = divmod(head, across)
            bottom = below + (down - 1 - line) * (height + gap)
            axes = _place(figure, left + place * (width + gap), bottom, width, height)
            mesh = _heat(axes, array[head], _scale(array), gold)
            lowest = head + across >= heads
            _write(axes, rows if place == 0 else (), columns if lowest else (), size, above=False)
            axes.set_title(_writable(labels[head]), fontsize=8.5, pad=4)
        _colour_bar(figure, mesh, left + across * (width + gap) - gap + 0.15, bottom, height)
        figure.text(
            left / total[0],
            1.0,
            _writable(title),
            fontsize=STYLE["axes.titlesize"],
            verticalalignment="top",
        )
    return figure


def save(figure: Figure, stem: Path) -> tuple[Path, Path]:
    """Write stem.png and stem.svg. The same figure gives the same bytes each time."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    written = []
    for kind, empty in (("png", {"Software": None}), ("svg", {"Date": None, "Creator": None})):
        path = stem.with_name(f"{stem.name}.{kind}")
        drawn = io.BytesIO()
        with _style():
            figure.savefig(drawn, format=kind, dpi=PNG_DPI, bbox_inches="tight", metadata=empty)
        write_atomic(path, drawn.getvalue())
        written.append(path)
    return written[0], written[1]


@contextmanager
def _style() -> Iterator[None]:
    """Our style in place of the person's, for a while."""
    from matplotlib import style

    with _ONE_AT_A_TIME, style.context(STYLE, after_reset=True), warnings.catch_warnings():
        # A word in a script that the font lacks shows as boxes. That is no reason to stop.
        warnings.filterwarnings("ignore", r"Glyph \d+ .*missing from", UserWarning)
        yield


def _figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), facecolor="white")


def _place(figure: Figure, left: float, bottom: float, width: float, height: float) -> Axes:
    """Axes at a place given in inches, so that a cell is as large in every figure."""
    across, up = figure.get_size_inches()
    return figure.add_axes((left / across, bottom / up, width / across, height / up))


def _writable(text: str) -> str:
    """The text with a mark for each character that no SVG may hold: control signs, for one."""
    return "".join("�" if category(c) in ("Cc", "Cs", "Cn") and c != "\n" else c for c in text)


def _between(value: float, low: float, high: float) -> float:
    return max(low, min(value, high))


def _length(words: Sequence[str], size: float) -> float:
    """About how long the longest word is, in inches."""
    return max(len(word) for word in words) * size * 0.6 / 72


def _across(panels: int, most: int) -> int:
    """Panels in a line: four at most, and whole lines where they can be had."""
    most = min(most, 4, panels)
    whole = [count for count in range(2, most + 1) if panels % count == 0]
    return max(whole, default=most)


def _check_series(
    series: Mapping[str, Sequence[tuple[float, float]]], marked: Mapping[str, float], log_y: bool
) -> None:
    if not series:
        raise HeedError("There is no series to draw.", todo="Give one or more.")
    for name, points in series.items():
        if not points:
            raise HeedError(f"The series {name!r} has no points.", todo="Leave it out.")
        if log_y and any(value <= 0 for _, value in points):
            what = f"The series {name!r} has values of 0 or less, which have no logarithm."
            raise HeedError(what, todo="Draw it with log_y=False.")
    for name in marked:
        if name not in series:
            what = f"There is no series {name!r} to mark.{nearest(name, list(series))}"
            raise HeedError(what, todo=f"The series are {', '.join(series)}.")


def _checked(
    weights: ArrayLike, rows: Sequence[str], columns: Sequence[str], gold: Cells, *, dimensions: int
) -> Weights:
    import numpy as np

    array: Weights = np.asarray(weights, dtype=np.float64)
    if array.ndim != dimensions:
        what = f"These weights have {array.ndim} dimensions, and {dimensions} are needed."
        raise HeedError(what, todo="Choose one sentence, layer or head.")
    n, m = array.shape[-2:]
    if (n, m) != (len(rows), len(columns)):
        raise HeedError(
            f"The weights are {n} × {m} (rows × columns), "
            f"but the labels are {len(rows)} × {len(columns)}.",
            todo="Give one label for every row and every column.",
        )
    if array.size == 0:
        raise HeedError("There are no weights to draw.", todo="Give a sentence with words.")
    wrong = np.argwhere(~np.isfinite(array) | (array < 0))
    if len(wrong):
        value = array[tuple(wrong[0])]
        row, column = rows[wrong[0][-2]], columns[wrong[0][-1]]
        raise HeedError(
            f"The weight of row {row!r} on column {column!r} is {value}, "
            "and an attention weight is a number from 0 to 1.",
            todo="Look at the mask: a row that may see nothing should be zeros.",
        )
    for row, column in gold:
        if not (0 <= row < n and 0 <= column < m):
            what = f"The gold cell ({row}, {column}) is outside a map of {n} × {m}."
            raise HeedError(what, todo="Count words from 0, and give (row, column).")
    return array


def _scale(array: Weights) -> float:
    """Where the colours end: at 1, unless all weights are so small that nothing would show."""
    peak = float(array.max())
    return next((end for end in (0.1, 0.2, 0.5, 1.0) if peak <= end), peak)


def _heat(axes: Axes, array: Weights, scale: float, gold: Cells) -> QuadMesh:
    from matplotlib.patches import Rectangle

    # Drawn as cells, not as an image, so that print and SVG stay sharp.
    mesh = axes.pcolormesh(
        array, cmap="Blues", vmin=0.0, vmax=scale, edgecolors="white", linewidth=0.4
    )
    axes.invert_yaxis()
    axes.tick_params(length=0, pad=3)
    for spine in axes.spines.values():
        spine.set(color=FAINT, linewidth=0.8)
    for row, column in sorted(gold):
        axes.add_patch(
            Rectangle((column, row), 1, 1, fill=False, color=GOLD, lw=1.3, zorder=3, clip_on=False)
        )
    return mesh


def _write(
    axes: Axes, rows: Sequence[str], columns: Sequence[str], size: float, *, above: bool
) -> None:
    axes.set_yticks(
        [at + 0.5 for at in range(len(rows))], [_writable(word) for word in rows], fontsize=size
    )
    axes.set_xticks(
        [at + 0.5 for at in range(len(columns))],
        [_writable(word) for word in columns],
        fontsize=size,
        rotation=45,
        rotation_mode="anchor",
        horizontalalignment="left" if above else "right",
    )


def _colour_bar(figure: Figure, mesh: QuadMesh, left: float, bottom: float, height: float) -> None:
    bar = figure.colorbar(mesh, cax=_place(figure, left, bottom, 0.1, height))
    bar.outline.set_visible(False)
    end = mesh.get_clim()[1]
    bar.set_ticks([0.0, end / 2, end], labels=[f"{value:.3g}" for value in (0.0, end / 2, end)])
    bar.ax.tick_params(length=0, labelsize=7.5)


def _log_axis(axes: Axes) -> None:
    """A logarithmic axis whose numbers are plain: 0.5, 2, 30."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

    axes.set_yscale("log")
    low, high = axes.get_ylim()
    few_decades = (1.0, 2.0, 5.0) if high < 1000 * low else (1.0,)
    axes.yaxis.set_major_locator(
        MaxNLocator(6, steps=[1, 2, 2.5, 5, 10])
        if high < 10 * low
        else LogLocator(subs=few_decades)
    )
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
