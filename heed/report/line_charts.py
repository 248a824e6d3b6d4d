"""Line charts as SVG: curves over one x, with bands around them.

Series differ in color, dash and marker, so that they are distinct in gray and to color-blind
readers. Values are in `<title>` elements, which browsers show beside the pointer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from heed.report.svg import (
    DASHES,
    LINE_HEIGHT,
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

MAX_POINTS = 480
"""Points of a curve that are drawn; of more, evenly spaced ones are."""
MARKED_POINTS = 40
"""A curve of so many points or fewer has a marker at each."""


@dataclass(frozen=True)
class Series:
    """One curve: points (x, y), and the interval (low, high) around each if there is one."""

    label: str
    points: Sequence[tuple[float, float]]
    band: Sequence[tuple[float, float]] = ()
    style: int | None = None
    """The number of its color, dash and marker; the place among the series if None."""
    is_faint: bool = False
    """Whether to draw a thin line without markers, as for values while training."""


def line_chart(
    series: Sequence[Series],
    *,
    x: str,
    y: str,
    log_x: bool = False,
    log_y: bool = False,
    second_x: tuple[str, float] | None = None,
    mark: tuple[float, str] | None = None,
    height: float = 250,
    width: float = WIDTH,
) -> str:
    """Curves over one x. Points that are not finite, or have no logarithm, are left out.

    `second_x` is an axis above: its label, and what x is divided by. `mark` is a vertical line:
    where, and its label.
    """
    drawable = [(one, number, _drawable(one, log_x, log_y)) for number, one in enumerate(series)]
    drawable = [item for item in drawable if item[2]]
    if not drawable:
        raise ValueError("no series has a point to draw")
    canvas = Canvas(width)
    top = _draw_legend(canvas, [(one, number) for one, number, _ in drawable])
    top += 12 + (16 if second_x else 0) + (14 if mark else 0)
    bottom = top + height
    xs = [point[0] for _, _, points in drawable for point in points]
    ys = [value for _, _, points in drawable for point in points for value in point[1:]]
    up = fit_axis(ys, bottom, top, log=log_y)
    labels = up.ticks()
    left = 34 + max(text_width(label, SMALL) for _, label in labels)
    across = fit_axis(xs, left, width - 12, log=log_x, margin=0.015)
    draw_grid(canvas, across, labels, up)
    draw_x_axis(canvas, across, bottom, x, whole=all(float(at).is_integer() for at in xs))
    draw_y_label(canvas, top, bottom, y)
    if second_x is not None:
        _draw_second_axis(canvas, across, top, *second_x)
    if mark is not None and across.low <= mark[0] <= across.high:
        at = across.at(mark[0])
        canvas.line(at, top, at, bottom, color="edge")
        side = "end" if at > width / 2 else "start"
        shift = -5 if side == "end" else 5
        above = top - (22 if second_x else 6)
        canvas.line(at, above + 2, at, top, color="edge")
        canvas.text(at + shift, above, mark[1], anchor=side, size=SMALL, color="muted")
    for one, number, points in drawable:
        _draw_band(canvas, points, across, up, _style(one, number))
    for one, number, points in drawable:
        _draw_curve(canvas, one, points, across, up, _style(one, number))
    canvas.height = bottom + 42
    return canvas.svg()


def _drawable(one: Series, log_x: bool, log_y: bool) -> list[tuple[float, ...]]:
    """The points that can be drawn: (x, y), or (x, y, low, high) where there is a band."""
    points: list[tuple[float, ...]] = list(one.points)
    if one.band:
        points = [(*point, *band) for point, band in zip(one.points, one.band, strict=True)]
    finite = [
        point
        for point in points
        if all(map(math.isfinite, point))
        and (not log_x or point[0] > 0)
        and (not log_y or min(point[1:]) > 0)
    ]
    stride = math.ceil(len(finite) / MAX_POINTS)
    return finite if stride <= 1 else finite[(len(finite) - 1) % stride :: stride]


def _style(one: Series, number: int) -> int:
    return number if one.style is None else one.style


def _draw_legend(canvas: Canvas, series: Sequence[tuple[Series, int]]) -> float:
    """Draw samples and labels in rows at the top; returns the height that they take."""
    if len(series) == 1:
        return 0.0
    at, row = 0.0, 0
    for one, number in series:
        label = shorten(one.label, canvas.width - 60, SMALL)
        width = 40 + text_width(label, SMALL) + 14
        if at and at + width > canvas.width:
            at, row = 0.0, row + 1
        y, style = row * LINE_HEIGHT + 9, _style(one, number)
        dash = DASHES[style % len(DASHES)]
        canvas.add(
            "line",
            x1=at + 2,
            y1=y,
            x2=at + 32,
            y2=y,
            stroke=series_color(style),
            stroke_width=1.2 if one.is_faint else 2,
            stroke_dasharray=dash,
        )
        if not one.is_faint:
            canvas.parts.append(_marker(at + 17, y, style))
        canvas.text(at + 38, y + 4, label, size=SMALL)
        at += width
    return (row + 1) * LINE_HEIGHT + 2


def _draw_second_axis(canvas: Canvas, across: Axis, top: float, label: str, unit: float) -> None:
    """An axis above the plot that counts in units of so many x."""
    above = Axis(across.low / unit, across.high / unit, across.start, across.end, across.log)
    canvas.line(across.start, top, across.end, top)
    for value, text in above.ticks():
        at = above.at(value)
        canvas.line(at, top - 4, at, top)
        canvas.text(at, top - 7, text, anchor="middle", size=SMALL, color="muted")
    canvas.text(across.start - 6, top - 7, label, anchor="end", size=SMALL, color="muted")


def _draw_band(
    canvas: Canvas, points: Sequence[tuple[float, ...]], across: Axis, up: Axis, style: int
) -> None:
    banded = [point for point in points if len(point) == 4]
    if len(banded) == 1:
        (x, _, low, high) = banded[0]
        at = across.at(x)
        stroke = series_color(style)
        canvas.add("line", x1=at, y1=up.at(low), x2=at, y2=up.at(high), stroke=stroke)
    elif banded:
        corners = [(x, high) for x, _, _, high in banded]
        corners += [(x, low) for x, _, low, _ in reversed(banded)]
        path = " ".join(f"{across.at(x):.1f},{up.at(y):.1f}" for x, y in corners)
        canvas.add("polygon", points=path, fill=series_color(style), fill_opacity=0.16)


def _draw_curve(
    canvas: Canvas,
    one: Series,
    points: Sequence[tuple[float, ...]],
    across: Axis,
    up: Axis,
    style: int,
) -> None:
    places = [(across.at(point[0]), up.at(point[1])) for point in points]
    if len(places) > 1:
        canvas.add(
            "polyline",
            points=" ".join(f"{x:.1f},{y:.1f}" for x, y in places),
            fill="none",
            stroke=series_color(style),
            stroke_width=1.2 if one.is_faint else 2,
            stroke_dasharray=DASHES[style % len(DASHES)],
            stroke_linejoin="round",
        )
    if len(places) == 1 or (len(places) <= MARKED_POINTS and not one.is_faint):
        for (x, y), point in zip(places, points, strict=True):
            title = f"{one.label}: {point[1]:.4g} at {point[0]:,.10g}"
            canvas.parts.append(_marker(x, y, style, title))


def _marker(x: float, y: float, style: int, title: str = "") -> str:
    """A small mark: circle, square, triangle or diamond, by the number of the style."""
    note = element("title", plain(title)) if title else ""
    color = series_color(style)
    shape = style % 4
    if shape == 0:
        return element("circle", note, cx=x, cy=y, r=3, fill=color)
    corners = {
        1: [(-2.8, -2.8), (2.8, -2.8), (2.8, 2.8), (-2.8, 2.8)],
        2: [(0, -3.8), (3.4, 2.6), (-3.4, 2.6)],
        3: [(0, -3.9), (3.9, 0), (0, 3.9), (-3.9, 0)],
    }[shape]
    points = " ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in corners)
    return element("polygon", note, points=points, fill=color)
