"""Figures of cost by size, on logarithmic axes: a line per curve, its band the range of turns."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

from matplotlib.figure import Figure as MatplotlibFigure

from by_size.record import Measurement
from by_size.summary import MEMORY, TIME, Series, build_series
from heed.plot import COLORS, DASHES, Curve, curve_panels, save_as

MIB = 2**20
Figure = tuple[dict[str, list[Curve]], str, str]
"""The curves of each panel (none: there is nothing to draw), the title, and the label of x."""


def draw_figures(measurements: Iterable[Measurement], folder: Path, device: str) -> list[Path]:
    """Draw what was measured; returns the files."""
    measured = list(measurements)
    series = build_series(measured)
    drawn = []
    for name, draw in (
        ("length", _draw_length),
        ("shape", _draw_shape),
        ("corpus", _draw_corpus),
        ("decoding", _draw_decoding),
    ):
        panels, title, x = draw(series)
        if panels:
            path = folder / f"growth-{name}-{device}.png"
            drawing = curve_panels(panels, title=title, x=x, log_x=True, log_y=True)
            _widen_vertical_axes(drawing)
            save_as(drawing, path)
            drawn.append(path)
    return drawn


def _widen_vertical_axes(drawing: MatplotlibFigure) -> None:
    """Show a factor of 4 on each vertical axis at least: what does not grow looks flat."""
    for axes in drawing.axes:
        low, high = axes.get_ylim()
        if high < 4 * low:
            middle = math.sqrt(low * high)
            axes.set_ylim(middle / 2, middle * 2)


def _draw_length(series: list[Series]) -> Figure:
    chosen = [one for one in series if one.question == "length" and len(one.values) > 1]
    panels: dict[str, list[Curve]] = {}
    for number, one in enumerate(_names(chosen)):
        for quantity, label in ((TIME, "µs per token"), (MEMORY, "MiB of a step")):
            for found in chosen:
                if (found.curve, found.quantity) != (one, quantity):
                    continue
                scales = [1e6 / v.size if quantity == TIME else 1 / MIB for v in found.values]
                panels.setdefault(label, []).append(_curve(found, one, scales, number))
    title, names = "Cost of a training step by length, for equally many tokens", _names(chosen)
    return panels, f"{title}, {names[0]}" if len(names) == 1 else title, "tokens in a sequence"


def _draw_shape(series: list[Series]) -> Figure:
    questions = ("width", "depth", "vocabulary")
    chosen = [one for one in series if one.question in questions and len(one.values) > 1]
    varied = [question for question in questions if any(o.question == question for o in chosen)]
    panels: dict[str, list[Curve]] = {}
    for one in chosen:
        first = one.values[0].size if len(varied) > 1 else 1
        label, scale = ("ms per step", 1e3) if one.quantity == TIME else ("MiB of a step", 1 / MIB)
        curve = _curve(
            one,
            f"{one.question}, from {first:,}",
            [scale] * len(one.values),
            questions.index(one.question),
            unit=first,
        )
        panels.setdefault(label, []).append(curve)
    if len(varied) == 1:
        return panels, f"Cost of a training step by {varied[0]}", varied[0]
    title = f"Cost of a training step by {', '.join(varied[:-1])} and {''.join(varied[-1:])}"
    return panels, f"{title}, one varied at a time", "size, as a multiple of the smallest"


def _draw_corpus(series: list[Series]) -> Figure:
    """The start-up alone: memory and tokens per second do not grow, which a table says better."""
    chosen = [one for one in series if one.question == "corpus" and one.quantity == TIME]
    curves = [_curve(one, "", [1.0] * len(one.values), 0) for one in chosen if len(one.values) > 1]
    panels = {"s to the first step": curves} if curves else {}
    title = "Start-up of heed train by the size of the corpus, with an empty cache"
    return panels, title, "sentence pairs"


def _draw_decoding(series: list[Series]) -> Figure:
    chosen = [
        one
        for one in series
        if one.question == "decoding" and one.quantity == TIME and len(one.values) > 1
    ]
    labels = {"batch": "by sentences in a batch", "output": "by tokens of each output"}
    curves = [
        _curve(one, labels[one.curve], [1e3] * len(one.values), number)
        for number, one in enumerate(chosen)
    ]
    panels = {"ms per batch": curves} if curves else {}
    title = "Greedy decoding by batch and by output length"
    return panels, title, "sentences in a batch, or tokens of each output"


def _curve(
    series: Series, label: str, scales: list[float], number: int, *, unit: float = 1.0
) -> Curve:
    """A series as a line; values are multiplied by the scales, sizes divided by the unit."""
    scaled = list(zip(series.values, scales, strict=True))
    return Curve(
        label,
        [(value.size / unit, value.median * scale) for value, scale in scaled],
        [(value.low * scale, value.high * scale) for value, scale in scaled],
        color=number % len(COLORS),
        dash=number % len(DASHES),
    )


def _names(series: list[Series]) -> list[str]:
    return list(dict.fromkeys(one.curve for one in series))
