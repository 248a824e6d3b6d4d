"""Charts of single values as SVG: intervals and bars in rows, and histograms.

Values are in `<title>` elements, which browsers show beside the pointer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from heed.report.svg import (
    LABEL_WIDTH,
    NARROW_WIDTH,
    SMALL,
    WIDTH,
    Axis,
    Canvas,
    draw_grid,
    draw_x_axis,
    draw_y_label,
    element,
    fit_axis,
    plain,
    series_color,
    shorten,
    text_width,
)

ROW_HEIGHT, STACKED_HEIGHT = 26, 44
"""Heights of a row, with its texts beside the mark, and in a narrow chart above it."""


@dataclass(frozen=True)
class Row:
    """One row of `interval_plot` or `bar_chart`: a value, its interval, and a text at the right."""

    label: str
    value: float
    low: float | None = None
    high: float | None = None
    text: str = ""
    is_strong: bool = True
    """Whether the dot is filled; a hollow one says that nothing was shown."""


def interval_plot(
    rows: Sequence[Row],
    *,
    x: str,
    reference: float | None = None,
    margin: float | None = None,
    log_x: bool = False,
    width: float = WIDTH,
) -> str:
    """A dot and its interval for each row ("forest plot"), with a line at the reference.

    `margin` shades what is as good as the reference.
    """
    layout = _lay_out_rows(rows, width)
    canvas, top, bottom = layout.canvas, layout.top, layout.bottom
    bounds = [value for row in rows for value in (row.value, row.low, row.high)]
    values = [value for value in bounds if value is not None and math.isfinite(value)]
    include = [] if reference is None else [reference]
    if reference is not None and margin is not None:
        include += [reference - margin, reference + margin]
    across = fit_axis(values, layout.left, layout.right, log=log_x, include=include)
    if reference is not None and margin is not None:
        start, end = across.at(reference - margin), across.at(reference + margin)
        canvas.add(
            "rect", x=start, y=top, width=end - start, height=bottom - top, fill="var(--rule)"
        )
    if reference is not None:
        canvas.line(across.at(reference), top, across.at(reference), bottom, color="edge")
    color = series_color(0)
    for number, row in enumerate(rows):
        y = layout.draw_texts(number, row)
        if row.low is not None and row.high is not None:
            x1, x2 = (across.at(_clip(bound, across)) for bound in (row.low, row.high))
            canvas.add("line", x1=x1, y1=y, x2=x2, y2=y, stroke=color, stroke_width=2)
            for end in (x1, x2):
                canvas.add("line", x1=end, y1=y - 4, x2=end, y2=y + 4, stroke=color, stroke_width=2)
        fill = color if row.is_strong else "var(--paper)"
        note = element("title", plain(f"{row.label}: {row.value:.4g}"))
        at = across.at(row.value)
        canvas.add("circle", note, cx=at, cy=y, r=4.5, fill=fill, stroke=color, stroke_width=2)
    draw_x_axis(canvas, across, bottom, x)
    canvas.height = bottom + 42
    return canvas.svg()


def bar_chart(rows: Sequence[Row], *, x: str, width: float = WIDTH) -> str:
    """A horizontal bar for each row from 0 to its value, with its interval."""
    layout = _lay_out_rows(rows, width)
    canvas, top, bottom = layout.canvas, layout.top, layout.bottom
    bounds = [value for row in rows for value in (row.value, row.low, row.high)]
    values = [value for value in bounds if value is not None and math.isfinite(value)]
    low, high = min(0.0, *values), max(0.0, *values)
    across = Axis(low, high + 0.02 * (high - low) or 1.0, layout.left, layout.right)
    for number, row in enumerate(rows):
        y = layout.draw_texts(number, row)
        start, end = sorted((across.at(0.0), across.at(row.value)))
        note = element("title", plain(f"{row.label}: {row.value:.4g}"))
        canvas.add(
            "rect",
            note,
            x=start,
            y=y - 8,
            width=max(1.0, end - start),
            height=16,
            fill=series_color(0),
            fill_opacity=0.75,
        )
        if row.low is not None and row.high is not None:
            x1, x2 = (across.at(_clip(bound, across)) for bound in (row.low, row.high))
            canvas.line(x1, y, x2, y, color="ink", width=1.5)
            for end in (x1, x2):
                canvas.line(end, y - 4, end, y + 4, color="ink", width=1.5)
    canvas.line(across.at(0.0), top, across.at(0.0), bottom, color="edge")
    draw_x_axis(canvas, across, bottom, x)
    canvas.height = bottom + 42
    return canvas.svg()


def histogram(
    edges: Sequence[float], counts: Sequence[float], *, x: str, y: str, width: float = WIDTH
) -> str:
    """Counts of the bins between neighboring edges."""
    if len(edges) != len(counts) + 1:
        raise ValueError(f"{len(counts)} bins have {len(counts) + 1} edges, not {len(edges)}")
    canvas, top, bottom = Canvas(width), 10.0, 210.0
    up = Axis(0.0, max(*counts, 1e-9) * 1.04, bottom, top)
    labels = up.ticks(5)
    left = 34 + max(text_width(label, SMALL) for _, label in labels)
    across = Axis(edges[0], edges[-1], left, width - 12)
    draw_grid(canvas, across, labels, up)
    for (start, end), count in zip(pairwise(edges), counts, strict=True):
        note = element("title", plain(f"{start:,.4g} to {end:,.4g}: {count:,.4g}"))
        x1, x2 = across.at(start), across.at(end)
        canvas.add(
            "rect",
            note,
            x=x1 + 0.5,
            y=up.at(count),
            width=max(0.5, x2 - x1 - 1),
            height=bottom - up.at(count),
            fill=series_color(0),
            fill_opacity=0.75,
        )
    draw_x_axis(canvas, across, bottom, x)
    draw_y_label(canvas, top, bottom, y)
    canvas.height = bottom + 42
    return canvas.svg()


@dataclass(frozen=True)
class _RowLayout:
    """Where the rows of a chart are: the plot from `left` to `right`, and their texts."""

    canvas: Canvas
    count: int
    left: float
    right: float
    is_stacked: bool
    """Whether texts are above the marks: beside them they would leave a narrow chart no room."""
    top: float = 8.0

    @property
    def row_height(self) -> float:
        return STACKED_HEIGHT if self.is_stacked else ROW_HEIGHT

    @property
    def bottom(self) -> float:
        return self.top + self.row_height * self.count

    def draw_texts(self, number: int, row: Row) -> float:
        """Draw the label and the text of a row; returns the height of its mark."""
        y = self.top + self.row_height * (number + 0.5)
        width, at, anchor = float(LABEL_WIDTH), self.left - 10, "end"
        if self.is_stacked:
            width, at, anchor = self.canvas.width - text_width(row.text, SMALL) - 10, 0.0, "start"
        label = shorten(row.label, width)
        note = element("title", plain(row.label)) if label != row.label else ""
        content, above = note + plain(label), y - 10 if self.is_stacked else y + 4
        self.canvas.add("text", content, x=at, y=above, text_anchor=anchor, fill="var(--ink)")
        if row.text:
            self.canvas.text(self.canvas.width, above, row.text, anchor="end", size=SMALL)
        return y + 8 if self.is_stacked else y


def _lay_out_rows(rows: Sequence[Row], width: float) -> _RowLayout:
    if not rows:
        raise ValueError("there is no row to draw")
    if width <= NARROW_WIDTH:
        return _RowLayout(Canvas(width), len(rows), 8.0, width - 8, is_stacked=True)
    left = 14 + min(LABEL_WIDTH, max(text_width(row.label) for row in rows))
    right = 14 + max(text_width(row.text, SMALL) for row in rows)
    return _RowLayout(Canvas(width), len(rows), left, width - right, is_stacked=False)


def _clip(value: float, axis: Axis) -> float:
    return max(axis.low, min(value, axis.high))
