"""Cells of result tables: intervals, shares in percent, p-values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from heed.stats.verdicts import MAX_PLAIN, format_p

Result = Mapping[str, Any]
"""The result of an evaluation, or a part of it, as JSON values that tables only read."""


def format_interval(interval: Result, form: str = "{:.2f}", metric: str | None = None) -> str:
    """An interval in brackets, clipped to the range of sacreBLEU's `metric` if one is named.

    sacreBLEU's intervals are symmetric and can exceed the range.
    """
    low, high = interval["low"], interval["high"]
    if metric is not None:
        low, high = max(0.0, low), high if metric == "ter" else min(100.0, high)
    return f"[{format_number(low, form)}, {format_number(high, form)}]"


def format_number(value: float, form: str) -> str:
    """A number in its format; a perplexity of millions with three digits."""
    is_huge = isinstance(value, float) and abs(value) >= MAX_PLAIN
    return f"{value:.3g}" if is_huge else form.format(value)


def format_percent(result: Result, key: str) -> str:
    """A share in percent, with its interval if there is one: `84.0  [76.1, 91.0]`."""
    interval = result.get("interval", {}).get(key)
    text = f"{100 * result[key]:.1f}"
    if not interval:
        return text
    return f"{text}  [{100 * interval['low']:.1f}, {100 * interval['high']:.1f}]"


def format_paired_p(paired: Result) -> str:
    """The corrected p-value of a comparison of two systems over items."""
    p = format_p(paired["p_corrected"], below_resolution=paired["p_is_bound"])
    return p.removeprefix("= ")


def format_difference(paired: Result, form: str = "{:+.2f}", factor: float = 1.0) -> str:
    """A difference with its interval: `-1.20  [-2.10, -0.30]`."""
    bounds = [paired["interval"]["low"], paired["interval"]["high"]]
    low, high = (form.format(factor * bound) for bound in bounds)
    return f"{form.format(factor * paired['difference'])}  [{low}, {high}]"
