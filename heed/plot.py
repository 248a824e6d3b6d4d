"""Figures: line plots, confusion matrices, reliability. Each call returns a new `Figure`.

Figures are made without pyplot, so there is no global state and no display is needed. Their style
does not depend on the user's matplotlib settings. Matplotlib is imported on the first call, so that
importing this module is fast. Sizes are in inches, font sizes in points.
"""

from __future__ import annotations

import io
import textwrap
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unicodedata import category

from heed.errors import HeedError, nearest
from heed.files import make_folder, write_atomic

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes
    from matplotlib.collections import QuadMesh
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from numpy.typing import ArrayLike, NDArray

    Weights = NDArray[np.float64]

INK, FAINT, GOLD = "#262626", "#d9d9d9", "#d55e00"
# Okabe and Ito's colors, which color-blind readers can distinguish, the strong ones first.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
DASHES = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (6, 1.5, 1.2, 1.5)))
PNG_DPI = 160
METADATA: dict[str, dict[str, None]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
"""The formats of figures, and the metadata that is left out of each: versions and dates."""
MANY_CURVES = 8
"""More curves in a panel have a small legend."""
SAME = 1e-6
"""Values that differ by less, as a share of the largest, are drawn as one value."""
FEW_POINTS = 16
"""A curve of so few points has a dot for each."""
TEXT_SIZE, TITLE_SIZE, NOTE_SIZE = 9.0, 10.5, 7.5
CHARACTER_WIDTH = 0.6
"""The mean width of a character, as a share of the font size."""
WIDE_CELLS = 5
"""Classes up to which the cells of a confusion matrix are wide enough for names."""
_STYLE_LOCK = threading.RLock()  # matplotlib's settings and Python's warnings are global
STYLE = {
    "font.size": TEXT_SIZE,
    "axes.titlesize": TITLE_SIZE,
    "axes.titlelocation": "left",
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "text.parse_math": False,  # a dollar sign in a word starts no formula
    "svg.fonttype": "none",  # text stays text: small files, and searchable
    "svg.hashsalt": "heed",  # deterministic ids
}


def curves(
    series: Mapping[str, Sequence[tuple[float, float]]],
    *,
    title: str,
    x: str,
    y: str,
    best: Mapping[str, float] | None = None,
    best_label: str = "best",
    log_y: bool = False,
    second_x: tuple[str, float] | None = None,
    note: str = "",
) -> Figure:
    """A line plot of one or more series of (x, y) points.

    `best` maps a series to an x that is marked with a dot; its value is in the legend, because
    beside the dots values would cover the lines. `second_x` is an axis above: its label, and what
    x is divided by. `note` is a text below.
    """
    marked = dict(best or {})
    _check_series(series, marked, log_y)
    with use_style():
        figure = new_figure(7.6, 4.0)
        axes = add_axes(figure, 0.8, 0.7, 5.0, 2.8)
        lines = []
        for number, (name, points) in enumerate(series.items()):
            xs, ys = zip(*points, strict=True)
            color, dash = COLORS[number % len(COLORS)], DASHES[number % len(DASHES)]
            label, dot = replace_unprintable(name), []
            if name in marked:
                dot = [min(range(len(xs)), key=lambda i: abs(xs[i] - marked[name]))]
                label += f"\n{best_label} {ys[dot[0]]:.4g} at {xs[dot[0]]:,.10g}"
            (line,) = axes.plot(xs, ys, color=color, linestyle=dash, linewidth=1.6, label=label)
            dot = dot or ([0] if len(xs) == 1 else [])  # one point has no line
            line.set(marker="o" if dot else "", markevery=dot, markeredgecolor="white")
            lines.append(line)
        axes.margins(x=0.02, y=0.05)
        _widen_constant(axes)
        if log_y:
            _set_log_axis(axes, "y")
        if second_x:
            _add_second_axis(axes, *second_x)
        axes.set_title(replace_unprintable(title), pad=10)
        axes.set_xlabel(replace_unprintable(x))
        axes.set_ylabel(replace_unprintable(y))
        _add_note(axes, note)
        _set_line_plot_style(axes)
        if len(series) > 1 or marked:
            _add_legend(axes, lines)
    return figure


@dataclass(frozen=True)
class Curve:
    """One line of a panel."""

    label: str
    points: Sequence[tuple[float, float]]
    band: Sequence[tuple[float, float]] = ()
    """The interval (low, high) around each point, shaded; none if empty."""
    color: int = 0
    dash: int = 0
    """Numbers of the color and of the dash, counted from 0. Each repeats after the last."""


@dataclass(frozen=True)
class LegendEntry:
    """One line of a legend that all panels share."""

    label: str
    color: int | None = None
    """None for an entry that is about the dash alone."""
    dash: int = 0


def curve_panels(
    panels: Mapping[str, Sequence[Curve]],
    *,
    title: str,
    x: str,
    log_x: bool = False,
    log_y: bool = False,
    note: str = "",
    legend: Sequence[LegendEntry] = (),
) -> Figure:
    """Line plots one below the other, over the same x; `panels` maps the label of y to its curves.

    `note` is a text below. `legend` is one for all panels; without it each panel has its own.
    """
    if not panels:
        raise HeedError("There is no panel to draw.", todo="Give one or more.")
    for curves_of_panel in panels.values():
        _check_series({curve.label: curve.points for curve in curves_of_panel}, {}, log_y)
    with use_style():
        sizes = [len(legend)] if legend else [len(of_panel) for of_panel in panels.values()]
        crowded = max(sizes) > MANY_CURVES
        height, gap, below = (2.8 if len(panels) == 1 else 1.9), 0.3, 0.7
        height *= 1.5 if crowded else 1.0
        total = below + len(panels) * (height + gap) + 0.5
        figure, above, labels = new_figure(7.6, total), None, None
        for number, (y, curves_of_panel) in enumerate(panels.items()):
            bottom = below + (len(panels) - 1 - number) * (height + gap)
            axes = add_axes(figure, 0.8, bottom, 5.0, height, same_x=above)
            handles = [_draw_curve(axes, curve) for curve in curves_of_panel]
            axes.margins(x=0.02, y=0.05)
            _widen_constant(axes)
            places = [at for curve in curves_of_panel for at, _ in curve.points]
            _set_number_axes(axes, log_x=log_x, log_y=log_y, whole_x=all(map(_is_whole, places)))
            axes.set_ylabel(replace_unprintable(y))
            _set_line_plot_style(axes)
            if number == 0:
                axes.set_title(wrap_text(title, 7.0, TITLE_SIZE), pad=10)
            if number == len(panels) - 1:
                axes.set_xlabel(replace_unprintable(x))
                _add_note(axes, wrap_text(note, 6.5, NOTE_SIZE))
            else:
                axes.tick_params(labelbottom=False)
            names = [curve.label for curve in curves_of_panel]
            if legend and above is None:
                _add_legend(axes, [_legend_line(entry) for entry in legend], crowded=crowded)
            elif not legend and len(names) > 1 and names != labels:
                _add_legend(axes, handles, crowded=crowded)
            above, labels = above or axes, names
    return figure


def _legend_line(entry: LegendEntry) -> Line2D:
    from matplotlib.lines import Line2D

    color = INK if entry.color is None else COLORS[entry.color % len(COLORS)]
    line = Line2D([], [], color=color, linewidth=1.6, label=replace_unprintable(entry.label))
    line.set(linestyle=DASHES[entry.dash % len(DASHES)])
    return line


def _widen_constant(axes: Axes) -> None:
    """Set the limits of y around values that are equal up to rounding, which have no range."""
    low, high = axes.dataLim.intervaly
    largest = max(abs(low), abs(high))
    if largest > 0 and high - low < SAME * largest:
        axes.set_ylim(low - 0.1 * largest, high + 0.1 * largest)


def _draw_curve(axes: Axes, curve: Curve) -> Line2D:
    """Draw a curve and its band; the line is returned for the legend.

    One point has no line and its band no area: it has a dot, and a bar for the band.
    """
    xs, ys = zip(*curve.points, strict=True)
    color, dash = COLORS[curve.color % len(COLORS)], DASHES[curve.dash % len(DASHES)]
    (line,) = axes.plot(xs, ys, color=color, linestyle=dash, linewidth=1.6)
    line.set_label(replace_unprintable(curve.label))
    if len(xs) <= FEW_POINTS:
        line.set(marker="o", markersize=6 if len(xs) == 1 else 3.5)
    if curve.band:
        low, high = zip(*curve.band, strict=True)
        axes.fill_between(xs, low, high, color=color, alpha=0.18, linewidth=0)
        if len(xs) == 1:
            axes.vlines(xs, low, high, color=color, alpha=0.5, linewidth=4)
    return line


def confusion_matrix(
    counts: Sequence[Sequence[int]], names: Sequence[str], *, title: str
) -> Figure:
    """A map of counts by true class (row) and predicted class (column), colored by row shares.

    Names of columns are horizontal where they fit, on several lines if need be.
    """
    import numpy as np

    array = np.array(counts, dtype=np.float64)
    shares = array / np.maximum(1.0, array.sum(axis=1, keepdims=True))
    if array.shape != (len(names), len(names)):
        shape = " × ".join(map(str, array.shape))
        what = f"The counts are {shape}, but there are {len(names)} names."
        raise HeedError(what, todo="Give one name for every class.")
    numbers = [[f"{int(count):,}" for count in row] for row in counts]
    with use_style():
        size = 8.0
        widest = max(label_width(row, size) for row in numbers)
        cell = max(0.42, widest + 0.12) if len(names) > WIDE_CELLS else max(0.95, widest + 0.12)
        wrapped = [wrap_text(name, cell - 0.1, size) for name in names]
        horizontal = max(label_width(name.split("\n"), size) for name in wrapped) <= cell - 0.1
        labels = wrapped if horizontal else list(names)
        lines = max(name.count("\n") for name in wrapped) + 1
        above = lines * size * 1.4 / 72 if horizontal else 0.75 * label_width(names, size) + 0.1
        left, width, height = 0.5 + label_width(names, size), cell * len(names), 0.36 * len(names)
        heading = wrap_text(title, left + width + 1.0, TITLE_SIZE)
        top = 0.1 + (heading.count("\n") + 1) * TITLE_SIZE * 1.3 / 72
        figure = new_figure(left + width + 1.0, top + 0.25 + above + height + 0.1)
        axes = add_axes(figure, left, 0.1, width, height)
        mesh = _draw_heat_map(axes, shares)
        for row, values in enumerate(numbers):
            for column, text in enumerate(values):
                ink = text_color([*mesh.to_rgba(shares[row, column])])
                word = axes.text(column + 0.5, row + 0.5, text, color=ink, fontsize=size)
                word.set(ha="center", va="center")
        axes.xaxis.tick_top()
        axes.xaxis.set_label_position("top")
        _set_tick_labels(axes, names, labels, size)
        if horizontal:
            for label in axes.get_xticklabels():
                label.set(rotation=0, horizontalalignment="center", verticalalignment="bottom")
        axes.set_xlabel("predicted class", labelpad=6)
        axes.set_ylabel("true class", labelpad=6)
        bar = clamp(height, 0.7, 2.4)
        _add_color_bar(
            figure, mesh, left + width + 0.15, 0.1 + height - bar, bar, label="share of the row"
        )
        figure.text(0.0, 1.0, heading, fontsize=TITLE_SIZE, verticalalignment="top")
    return figure


def reliability_diagram(bins: Sequence[Mapping[str, Any]], *, title: str) -> Figure:
    """Accuracy by confidence, with the interval of each bin; area grows with the bin's texts.

    A bin has `confidence`, `accuracy`, `texts` and `interval` (`low`, `high`).
    """
    confidences, accuracies = ([one[key] for one in bins] for key in ("confidence", "accuracy"))
    low, high = ([one["interval"][key] for one in bins] for key in ("low", "high"))
    texts = [one["texts"] for one in bins]
    start = min(0.95, *confidences, *low)
    with use_style():
        heading = wrap_text(title, 4.4, TITLE_SIZE)
        figure = new_figure(4.6, 4.9)
        axes = add_axes(figure, 0.7, 1.0, 3.4, 3.4)
        axes.plot([0, 1], [0, 1], color=INK, linestyle=DASHES[2], linewidth=1.0)
        axes.vlines(confidences, low, high, color=COLORS[0], linewidth=1.4, alpha=0.6)
        areas = [12 + 90 * count / max(texts) for count in texts]
        axes.scatter(confidences, accuracies, s=areas, color=COLORS[0], zorder=3, linewidth=0)
        margin = 0.03 * (1 - start)
        axes.set_xlim(start - margin, 1 + margin)
        axes.set_ylim(start - margin, 1 + margin)
        _add_note(axes, "dotted: perfect calibration; bars: 95% intervals; larger dot: more texts")
        axes.set_xlabel("confidence")
        axes.set_ylabel("accuracy")
        axes.grid(color=FAINT, linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_title(heading, pad=10)
    return figure


def import_matplotlib() -> None:
    """Import what drawing and saving needs; on a new machine matplotlib lists its fonts here.

    This takes a second, so it is worth doing on a thread while something else is waited for.
    """
    for module in ("figure", "style", "ticker", "backends.backend_agg", "backends.backend_svg"):
        import_module(f"matplotlib.{module}")


def save(figure: Figure, stem: Path) -> tuple[Path, Path]:
    """Write stem.png and stem.svg. The same figure always gives the same bytes."""
    make_folder(stem.parent)
    paths = figure_paths(stem)
    for path in paths:
        save_as(figure, path)
    return paths


def save_as(figure: Figure, path: Path) -> None:
    """Write one file; its name ends in `.png`, `.svg` or `.pdf`."""
    buffer, kind = io.BytesIO(), path.suffix[1:].lower()
    metadata = METADATA[kind]
    with use_style():
        figure.savefig(buffer, format=kind, dpi=PNG_DPI, bbox_inches="tight", metadata=metadata)
    write_atomic(path, buffer.getvalue())


def figure_paths(stem: Path) -> tuple[Path, Path]:
    """The files of a figure: stem.png and stem.svg."""
    return stem.with_name(f"{stem.name}.png"), stem.with_name(f"{stem.name}.svg")


@contextmanager
def use_style() -> Iterator[None]:
    """Use heed's style instead of the user's settings in this block."""
    from matplotlib import style

    with _STYLE_LOCK, style.context(STYLE, after_reset=True), warnings.catch_warnings():
        # Characters that the font lacks are drawn as boxes; matplotlib warns about each.
        warnings.filterwarnings("ignore", r"Glyph \d+ .*missing from", UserWarning)
        yield


def new_figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), facecolor="white")


def add_axes(
    figure: Figure,
    left: float,
    bottom: float,
    width: float,
    height: float,
    same_x: Axes | None = None,
) -> Axes:
    """Add axes at a position in inches, so that cells have the same size in every figure."""
    across, up = figure.get_size_inches()
    place = (left / across, bottom / up, width / across, height / up)
    return figure.add_axes(place, sharex=same_x)


def replace_unprintable(text: str) -> str:
    """The text with � for each character that SVG forbids, such as control characters."""
    return "".join("�" if category(c) in ("Cc", "Cs", "Cn") and c != "\n" else c for c in text)


def clamp(value: float, low: float, high: float) -> float:
    return max(low, min(value, high))


def text_color(face: Sequence[float]) -> str:
    """Black or white, whichever contrasts more with a color of red, green and blue from 0 to 1.

    The contrast is that of WCAG 2.2. One of the two always reaches 4.5, its minimum for text.
    """
    luminance = relative_luminance(face)
    return "white" if 1.05 / (luminance + 0.05) > (luminance + 0.05) / 0.05 else "black"


def relative_luminance(color: Sequence[float]) -> float:
    """The relative luminance of a color in sRGB, from 0 to 1 (WCAG 2.2)."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in color[:3]]
    return sum(
        weight * value for weight, value in zip((0.2126, 0.7152, 0.0722), linear, strict=True)
    )


def label_width(words: Sequence[str], size: float) -> float:
    """The approximate width of the longest word, in inches."""
    return max(len(word) for word in words) * size * CHARACTER_WIDTH / 72


def wrap_text(text: str, width: float, size: float) -> str:
    """The text on lines of about this width in inches; a word that is longer stays whole."""
    characters = max(1, int(width * 72 / (size * CHARACTER_WIDTH)))
    lines = textwrap.wrap(replace_unprintable(text), characters, break_long_words=False)
    return "\n".join(lines)


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


def _draw_heat_map(axes: Axes, array: Weights) -> QuadMesh:
    # Cells instead of an image keep print and SVG sharp.
    mesh = axes.pcolormesh(
        array, cmap="Blues", vmin=0.0, vmax=1.0, edgecolors="white", linewidth=0.4
    )
    axes.invert_yaxis()
    axes.tick_params(length=0, pad=3)
    for spine in axes.spines.values():
        spine.set(color=FAINT, linewidth=0.8)
    return mesh


def _set_tick_labels(axes: Axes, rows: Sequence[str], columns: Sequence[str], size: float) -> None:
    axes.set_yticks(
        [at + 0.5 for at in range(len(rows))],
        [replace_unprintable(word) for word in rows],
        fontsize=size,
    )
    axes.set_xticks(
        [at + 0.5 for at in range(len(columns))],
        [replace_unprintable(word) for word in columns],
        fontsize=size,
        rotation=45,
        rotation_mode="anchor",
        horizontalalignment="left",
    )


def _add_color_bar(
    figure: Figure, mesh: QuadMesh, left: float, bottom: float, height: float, *, label: str
) -> None:
    bar = figure.colorbar(mesh, cax=add_axes(figure, left, bottom, 0.1, height))
    bar.outline.set_visible(False)
    end = mesh.get_clim()[1]
    bar.set_ticks([0.0, end / 2, end], labels=[f"{value:.3g}" for value in (0.0, end / 2, end)])
    bar.ax.tick_params(length=0, labelsize=7.5)
    bar.set_label(label, fontsize=7.5)


def _add_second_axis(axes: Axes, label: str, unit: float) -> None:
    """An axis above the plot that counts in units of so many x."""
    import numpy as np

    def to_units(x: ArrayLike) -> Weights:
        return np.asarray(x, dtype=np.float64) / unit

    def from_units(x: ArrayLike) -> Weights:
        return np.asarray(x, dtype=np.float64) * unit

    above = axes.secondary_xaxis("top", functions=(to_units, from_units))
    above.set_xlabel(replace_unprintable(label), labelpad=3)
    above.tick_params(labelsize=8)
    above.spines["top"].set_color(FAINT)


def _set_log_axis(axes: Axes, name: str) -> None:
    """Make the axis `x` or `y` logarithmic, with plain numbers: 0.5, 2, 30."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

    axes.set(**{f"{name}scale": "log"})
    axis = axes.xaxis if name == "x" else axes.yaxis
    low, high = axis.get_view_interval()
    few_decades = (1.0, 2.0, 5.0) if high < 1000 * low else (1.0,)
    axis.set_major_locator(
        MaxNLocator(6, steps=[1, 2, 2.5, 5, 10])
        if high < 10 * low
        else LogLocator(subs=few_decades)
    )
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: format_tick(value)))


def _set_number_axes(axes: Axes, *, log_x: bool, log_y: bool, whole_x: bool) -> None:
    """Set the scale of both axes, and short numbers at their ticks: whole ones if all x are."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 2.5, 5, 10], integer=whole_x))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: format_tick(value)))
    if log_x:
        _set_log_axis(axes, "x")
    if log_y:
        _set_log_axis(axes, "y")


def _is_whole(value: float) -> bool:
    return float(value).is_integer()


def format_tick(value: float) -> str:
    """A short number at a tick: 0.5, 2,000, 20k, 1.5M."""
    for unit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= max(unit, 1e4):
            return f"{value / unit:.6g}{letter}"
    return f"{value:,.6g}"


def _set_line_plot_style(axes: Axes) -> None:
    axes.grid(axis="y", color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _add_note(axes: Axes, note: str) -> None:
    """Add a text below the label of x."""
    if note:
        axes.annotate(
            replace_unprintable(note),
            (0, 0),
            (0, -40),
            xycoords="axes fraction",
            textcoords="offset points",
            fontsize=NOTE_SIZE,
            verticalalignment="top",
        )


def _add_legend(axes: Axes, lines: Sequence[Line2D], *, crowded: bool = False) -> None:
    """Add a legend to the right of the axes, where it covers no line; a crowded one is small."""
    size, width = (NOTE_SIZE, 3.6) if crowded else (TEXT_SIZE, 2.4)
    legend = axes.legend(  # explicit handles: matplotlib hides labels that begin with "_"
        handles=lines,
        loc="upper left",
        bbox_to_anchor=(1.01, 1.02),
        frameon=False,
        labelspacing=0.4 if crowded else 0.8,
        handlelength=2.8,
        fontsize=size,
    )
    for text in legend.get_texts():
        lines_of_label = text.get_text().split("\n")
        text.set_text("\n".join(wrap_text(line, width, size) for line in lines_of_label))
        text.set_linespacing(1.2 if crowded else 1.35)
