"""Heat maps as SVG: values from 0 to 1 as shaded cells."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from heed.report.svg import (
    LABEL_WIDTH,
    LINE_HEIGHT,
    SMALL,
    WIDTH,
    Canvas,
    shorten,
    text_width,
)


def heat_map(
    values: Sequence[Sequence[float | None]],
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    row_title: str,
    column_title: str,
    texts: Sequence[Sequence[str]] | None = None,
    shade: Callable[[float], float] = float,
    width: float = WIDTH,
) -> str:
    """Values from 0 to 1 as cells; `shade` maps a value to its share of the color.

    `texts` are written in the cells. A cell whose value is None is masked: crossed out.
    """
    widest = max((text_width(text, SMALL) for row in texts or [] for text in row), default=0.0)
    label_width = LABEL_WIDTH * width / WIDTH
    left = 26 + min(label_width, max(text_width(name, SMALL) for name in rows))
    names = max(text_width(name, SMALL) for name in columns)
    room = (width - left - 8) / len(columns)
    cell = min(room, max(22.0 if texts is None else 56.0, widest + 12))
    height = min(cell, 34.0)
    is_upright = names > cell - 6
    above = 24 + (min(label_width, names) if is_upright else LINE_HEIGHT)
    # One label for each line of text: of narrower cells only some are named.
    row_step, column_step = math.ceil(12 / height), math.ceil(13 / cell)
    canvas = Canvas(width)
    middle = left + cell * len(columns) / 2
    canvas.text(middle, 13, column_title, anchor="middle", size=SMALL, color="muted")
    center = above + height * len(rows) / 2
    turned = f"rotate(-90 12 {center:.1f})"
    canvas.text(12, center, row_title, anchor="middle", size=SMALL, color="muted", transform=turned)
    for i, name in enumerate(rows):
        if i % row_step == 0:
            y = above + height * (i + 0.5) + 4
            canvas.text(left - 6, y, shorten(name, label_width, SMALL), anchor="end", size=SMALL)
    for j, name in enumerate(columns):
        at = left + cell * (j + 0.5)
        if is_upright and j % column_step == 0:
            turn = f"rotate(-90 {at + 4:.1f} {above - 6:.1f})"
            label = shorten(name, label_width, SMALL)
            canvas.text(at + 4, above - 6, label, size=SMALL, transform=turn)
        elif not is_upright:
            canvas.text(at, above - 7, name, anchor="middle", size=SMALL)
    for i, row in enumerate(values):
        for j, value in enumerate(row):
            x, y = left + cell * j, above + height * i
            text = "" if texts is None else texts[i][j]
            _draw_cell(canvas, x, y, cell, height, value, shade)
            if text:
                canvas.text(x + cell / 2, y + height / 2 + 4, text, anchor="middle", size=SMALL)
    canvas.add(
        "rect",
        x=left,
        y=above,
        width=cell * len(columns),
        height=height * len(rows),
        fill="none",
        stroke="var(--edge)",
    )
    canvas.height = above + height * len(rows) + 8
    return canvas.svg()


def _draw_cell(
    canvas: Canvas,
    x: float,
    y: float,
    width: float,
    height: float,
    value: float | None,
    shade: Callable[[float], float],
) -> None:
    gap = 1.0 if min(width, height) > 6 else 0.0
    if value is None:
        canvas.line(x, y + height, x + width, y)
    elif (share := shade(value)) > 0.004:  # less than half a step of 255 shades cannot be seen
        canvas.add(
            "rect",
            x=x,
            y=y,
            width=width - gap,
            height=height - gap,
            fill="var(--heat)",
            fill_opacity=share,
        )
