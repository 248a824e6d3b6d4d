"""SVG for reports: escaped elements, axes and ticks. Colors are CSS variables of the page.

Lengths are in pixels of a figure that is `WIDTH` wide, or `NARROW_WIDTH` for a phone. A page scales
figures, and its theme sets the variables; `standalone_svg` puts in the colors of the light theme
for files of their own.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

from heed.plot import format_tick, replace_unprintable

WIDTH, NARROW_WIDTH = 640, 380
FONT, SMALL = 13, 11.5
CHARACTER = 0.56
"""The mean width of a character, as a share of the font size."""
COLORS = ("#0072b2", "#d55e00", "#00825f", "#b4528f", "#a87400", "#3a94c9", "#1d2126")
"""Colors of series in the light theme: those of Okabe and Ito, dark enough for thin lines."""
DASHES = ("", "7 3", "2 2.5", "9 3 2 3")
LIGHT = {
    "paper": "#fdfdfc",
    "ink": "#1d2126",
    "muted": "#565e68",
    "rule": "#dfe2e6",
    "edge": "#868e97",
    "heat": "#5b9bd5",
    **{f"series-{number}": color for number, color in enumerate(COLORS)},
}
"""The variables that figures use, with their colors in the light theme."""
FONTS = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', 'Liberation Sans', sans-serif"
MAX_TICKS = 6
LINE_HEIGHT = 18
LABEL_WIDTH = 200
"""The widest label of a row; the rest of it is cut off, and shown beside the pointer."""


def standalone_svg(svg: str) -> str:
    """A figure as a file of its own: on white, in the colors of the light theme."""
    text = re.sub(r"var\(--([a-z0-9-]+)\)", lambda match: LIGHT[match[1]], svg)
    start = text.index(">") + 1
    ground = f'<rect width="100%" height="100%" fill="{LIGHT["paper"]}"/>'
    return f"{text[:start]}{ground}{text[start:]}\n"


def element(name: str, content: str = "", /, **attributes: str | float) -> str:
    """An SVG element; `content` is SVG, attributes are escaped. `_` in their names is `-`."""
    text = "".join(
        f' {key.strip("_").replace("_", "-")}="{_format(value)}"'
        for key, value in attributes.items()
        if value != ""
    )
    return f"<{name}{text}>{content}</{name}>" if content else f"<{name}{text}/>"


def _format(value: str | float) -> str:
    if isinstance(value, str):
        return escape(value, quote=True)
    return f"{value:.2f}".rstrip("0").rstrip(".")


def plain(text: str) -> str:
    """A text as the content of an SVG element."""
    return escape(replace_unprintable(text), quote=False)


def text_width(text: str, size: float = FONT) -> float:
    """The approximate width of a text."""
    return len(text) * size * CHARACTER


def series_color(number: int) -> str:
    return f"var(--series-{number % len(COLORS)})"


def shorten(text: str, width: float, size: float = FONT) -> str:
    """The beginning of a text that is too wide, with … at its end."""
    most = max(2, int(width / (size * CHARACTER)))
    return text if len(text) <= most else f"{text[: most - 1].rstrip()}…"


@dataclass
class Canvas:
    """The elements of one figure, in the order in which they are painted."""

    width: float = WIDTH
    height: float = 0.0
    parts: list[str] = field(default_factory=list)

    def add(self, name: str, content: str = "", /, **attributes: str | float) -> None:
        self.parts.append(element(name, content, **attributes))

    def line(
        self, x1: float, y1: float, x2: float, y2: float, *, color: str = "rule", width: float = 1.0
    ) -> None:
        stroke = f"var(--{color})"
        self.add("line", x1=x1, y1=y1, x2=x2, y2=y2, stroke=stroke, stroke_width=width)

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        anchor: str = "",
        size: float = FONT,
        color: str = "ink",
        transform: str = "",
        weight: str = "",
    ) -> None:
        self.add(
            "text",
            plain(text),
            x=x,
            y=y,
            text_anchor=anchor,
            font_size=size,
            fill=f"var(--{color})",
            transform=transform,
            font_weight=weight,
        )

    def svg(self) -> str:
        """The whole figure."""
        return element(
            "svg",
            "".join(self.parts),
            xmlns="http://www.w3.org/2000/svg",
            viewBox=f"0 0 {_format(self.width)} {_format(self.height)}",
            width=self.width,
            height=self.height,
            font_family=FONTS,
            font_size=FONT,
        )


@dataclass(frozen=True)
class Axis:
    """Values along one direction: from `low` at pixel `start` to `high` at pixel `end`."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def at(self, value: float) -> float:
        """The pixel of a value."""
        low, high, value = (
            (math.log(self.low), math.log(self.high), math.log(value))
            if self.log
            else (self.low, self.high, value)
        )
        share = (value - low) / (high - low) if high > low else 0.5
        return self.start + share * (self.end - self.start)

    def ticks(self, most: int = MAX_TICKS, *, whole: bool = False) -> list[tuple[float, str]]:
        """Round values within the axis, and their labels."""
        values = (
            _log_ticks(self.low, self.high)
            if self.log and self.high >= 10 * self.low
            else _round_ticks(self.low, self.high, most, whole=whole)
        )
        return [(value, format_tick(value)) for value in values]


def fit_axis(
    values: Sequence[float],
    start: float,
    end: float,
    *,
    log: bool = False,
    margin: float = 0.04,
    include: Sequence[float] = (),
) -> Axis:
    """An axis over all values, with a margin on both sides."""
    every = [*values, *include]
    low, high = min(every), max(every)
    if log:
        factor = (high / low) ** margin if high > low else 1.5
        return Axis(low / factor, high * factor, start, end, log=True)
    span = (high - low) or abs(high) or 1.0
    return Axis(low - margin * span, high + margin * span, start, end)


def _round_ticks(low: float, high: float, most: int, *, whole: bool = False) -> list[float]:
    """At most so many multiples of 1, 2, 2.5 or 5 times a power of ten."""
    rough = max((high - low) / most, 1.0 if whole else 0.0)
    power = 10.0 ** math.floor(math.log10(rough))
    steps = [factor * power for factor in (1, 2, 2.5, 5, 10, 20, 50)]
    step = next(s for s in steps if s >= rough and (not whole or float(s).is_integer()))
    first, last = math.ceil(low / step), math.floor(high / step)
    return [round(number * step, 12) for number in range(first, last + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    factors = (1, 2, 5) if high < 1000 * low else (1,)
    values = [factor * 10.0**decade for decade in decades for factor in factors]
    return [value for value in values if low <= value <= high]


def draw_grid(canvas: Canvas, across: Axis, labels: Sequence[tuple[float, str]], up: Axis) -> None:
    """Draw a horizontal line with its label at each of these values."""
    for value, label in labels:
        y = up.at(value)
        canvas.line(across.start, y, across.end, y)
        canvas.text(across.start - 6, y + 4, label, anchor="end", size=SMALL, color="muted")


def draw_x_axis(
    canvas: Canvas, across: Axis, bottom: float, label: str, *, whole: bool = False
) -> None:
    """Draw an axis below the plot: its line, ticks and label; `whole` for ticks at integers."""
    canvas.line(across.start, bottom, across.end, bottom, color="edge")
    for value, text in across.ticks(whole=whole):
        at = across.at(value)
        canvas.line(at, bottom, at, bottom + 4, color="edge")
        canvas.text(at, bottom + 18, text, anchor="middle", size=SMALL, color="muted")
    label = shorten(label, canvas.width, SMALL)
    half = text_width(label, SMALL) / 2
    middle = max(half, min((across.start + across.end) / 2, canvas.width - half))
    canvas.text(middle, bottom + 36, label, anchor="middle", size=SMALL, color="muted")


def draw_y_label(canvas: Canvas, top: float, bottom: float, label: str) -> None:
    """Write the label of the vertical axis, turned, at the left of the plot."""
    middle = (top + bottom) / 2
    turn = f"rotate(-90 12 {middle:.1f})"
    canvas.text(12, middle, label, anchor="middle", size=SMALL, color="muted", transform=turn)
