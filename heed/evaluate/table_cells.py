"""Cells of result tables: intervals, shares in percent, p-values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

Result = Mapping[str, Any]
DIGITS = 4
"""Decimal places of a p-value."""


def format_interval(interval: Result, form: str = "{:.2f}", metric: str | None = "bleu") -> str:
    """An interval in brackets. `metric` is sacreBLEU's, whose symmetric intervals can exceed the
    metric's range and are clipped to it; None for any other."""
    low, high = interval["low"], interval["high"]
    if metric is not None:
        low, high = max(0.0, low), high if metric == "ter" else min(100.0, high)
    return f"[{form.format(low)}, {form.format(high)}]"


def format_percent(result: Result, key: str) -> str:
    """A share in percent, with its interval if there is one: `84.0  [76.1, 91.0]`."""
    interval = result.get("interval", {}).get(key)
    text = f"{100 * result[key]:.1f}"
    if not interval:
        return text
    return f"{text}  [{100 * interval['low']:.1f}, {100 * interval['high']:.1f}]"


def format_p(p: float, *, is_bound: bool = False) -> str:
    """A p-value of four decimal places.

    It is printed as `<0.0010` where it is an upper bound, because no random draw was as extreme, or
    where it has more places.
    """
    unit = 10.0**-DIGITS
    if is_bound or p < unit:
        # Rounded up, with room for the rounding of p itself: 1 / 1001 is below 0.0010.
        return f"<{max(unit, math.ceil(p / unit - 1e-6) * unit):.{DIGITS}f}"
    return f"{p:.{DIGITS}f}"


def format_paired_p(paired: Result) -> str:
    """The corrected p-value of a paired randomization test."""
    return format_p(paired["p_corrected"], is_bound=paired["p"] <= paired["p_resolution"])
