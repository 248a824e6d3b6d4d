"""Wording that all sentences of a report share: lists of names, counts, intervals."""

from __future__ import annotations

from collections.abc import Iterable

from heed.stats.comparison import Comparison, SumMetric
from heed.stats.intervals import Interval
from heed.stats.verdicts import format_differences, format_level
from heed.study.finding import quote_name

MAX_NAMES = 8
"""Names in one list; of more systems, the count is told and the table names them."""


def join_names(names: Iterable[str]) -> str:
    """Names as a list in a sentence: `a, b and c`; with semicolons where a name has a comma."""
    listed = [quote_name(name) for name in names]
    if len(listed) > MAX_NAMES:
        return f"{len(listed)} systems"
    if len(listed) < 2:
        return "".join(listed)
    comma = "; " if any("," in name for name in listed) else ", "
    return f"{comma.join(listed[:-1])} and {listed[-1]}"


def count_of(number: int, noun: str) -> str:
    """`1 run`, `3 runs`."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def format_interval(interval: Interval, metric: SumMetric) -> str:
    """An interval of a difference: `-0.31 to +1.20`."""
    return " to ".join(format_differences([interval.low, interval.high], metric))


def name_level(comparison: Comparison) -> str:
    """The level of the comparison's intervals: `95%`; `corrected 95%` where it is a family's."""
    level = format_level(comparison.alpha)
    return f"corrected {level}" if len(comparison.pairs) > 1 else level


def hull(intervals: Iterable[Interval]) -> Interval:
    """The smallest interval that contains all of them."""
    listed = list(intervals)
    return Interval(min(one.low for one in listed), max(one.high for one in listed))
