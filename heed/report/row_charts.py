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

ROW_HEIGHT = 26


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
) -> str:
    """A dot and its interval for each row ("forest plot"), with a line at the reference.

    `margin` shades what is as good as the reference.
    """
    canvas, left, right = _row_canvas(rows)
    top, bottom = 8.0, 8.0 + ROW_HEIGHT * len(rows)
    bounds = [value for row in rows for value in (row.value, row.low, row.high)]
    values = [value for value in bounds if value is not None and math.isfinite(value)]
    include = [] if reference is None else [reference]
    if reference is not None and margin is not None:
        include += [reference - margin, reference + margin]
    across = fit_axis(values, left, WIDTH - right, log=log_x, include=include)
    if reference is not None and margin is not None:
        start, end = across.at(reference - margin), across.at(reference + margin)
        canvas.add(
            "rect", x=start, y=top, width=end - start, height=bottom - top, fill="var(--rule)"
        )
    if reference is not None:
        canvas.line(across.at(reference), top, across.at(reference), bottom, color="edge")
    color = series_color(0)
    for number, row in enumerate(rows):
        y = top + ROW_HEIGHT * (number + 0.5)
        _draw_row_texts(canvas, row, y, left)
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


def bar_chart(rows: Sequence[Row], *, x: str) -> str:
    """A horizontal bar for each row from 0 to its value, with its interval."""
    canvas, left, right = _row_canvas(rows)
    top, bottom = 8.0, 8.0 + ROW_HEIGHT * len(rows)
    bounds = [value for row in rows for value in (row.value, row.low, row.high)]
    values = [value for value in bounds if value is not None and math.isfinite(value)]
    low, high = min(0.0, *values), max(0.0, *values)
    across = Axis(low, high + 0.02 * (high - low) or 1.0, left, WIDTH - right)
    for number, row in enumerate(rows):
        y = top + ROW_HEIGHT * (number + 0.5)
        _draw_row_texts(canvas, row, y, left)
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


def histogram(edges: Sequence[float], counts: Sequence[float], *, x: str, y: str) -> str:
    """Counts of the bins between neighboring edges."""
    if len(edges) != len(counts) + 1:
        raise ValueError(f"{len(counts)} bins have {len(counts) + 1} edges, not {len(edges)}")
    canvas, top, bottom = Canvas(), 10.0, 210.0
    up = Axis(0.0, max(*counts, 1e-9) * 1.04, bottom, top)
    labels = up.ticks(5)
    left = 34 + max(text_width(label, SMALL) for _, label in labels)
    across = Axis(edges[0], edges[-1], left, WIDTH - 12)
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


def _row_canvas(rows: Sequence[Row]) -> tuple[Canvas, float, float]:
    """A canvas, and the room that labels take at its left and texts at its right."""
    if not rows:
        raise ValueError("there is no row to draw")
    left = 14 + min(LABEL_WIDTH, max(text_width(row.label) for row in rows))
    right = 14 + max(text_width(row.text, SMALL) for row in rows)
    return Canvas(), left, right


def _draw_row_texts(canvas: Canvas, row: Row, y: float, left: float) -> None:
    label = shorten(row.label, LABEL_WIDTH)
    note = element("title", plain(row.label)) if label != row.label else ""
    canvas.add(
        "text", note + plain(label), x=left - 10, y=y + 4, text_anchor="end", fill="var(--ink)"
    )
    if row.text:
        canvas.text(WIDTH, y + 4, row.text, anchor="end", size=SMALL)


def _clip(value: float, axis: Axis) -> float:
    return max(axis.low, min(value, axis.high))
