"""Scores by the length of texts: whether one system gains on another where texts are long.

The question is one difference: that of two systems on long texts, minus theirs on short ones. It is
a metric of summed counts, so its variance over seeds and items is that of every comparison.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heed.arrays import Floats
from heed.runs.item_counts import ItemCounts
from heed.stats.comparison import SumMetric
from heed.stats.intervals import MIN_ITEMS, Interval
from heed.stats.variance import System
from heed.stats.verdicts import format_differences
from heed.study.finding import Finding, describe_estimate, quote_name
from heed.study.scored_systems import ScoredSystems, estimate_score, judge_differences

FIGURE = "by-length"
BINS = 4
LENGTHS = (
    ("text.words", "words of the source"),
    ("words", "words"),
    ("bleu.ref_len", "tokens of the reference"),
)
"""Columns of item counts with a text's length, the first one that there is, and their names."""


@dataclass(frozen=True)
class LengthBin:
    """Texts of similar length."""

    low: int
    high: int
    items: int

    def __str__(self) -> str:
        return f"{self.low}–{self.high}" if self.high > self.low else str(self.low)


@dataclass(frozen=True)
class LengthScores:
    """The scores of every system on texts of each length."""

    unit: str
    """What lengths are counted in."""
    bins: list[LengthBin]
    scores: dict[str, list[tuple[float, Interval | None]]]
    """By system: the mean over seeds in each bin, and its interval over seeds and items."""


def item_lengths(items: ItemCounts) -> tuple[Floats, str] | None:
    """The length of every item, and what it is counted in; None where none is known."""
    for column, name in LENGTHS:
        if column in items.columns:
            unit = "words" if column == "text.words" and items.task != "translate" else name
            return items.columns[column], unit
    return None


def score_by_length(scored: ScoredSystems, bins: int = BINS) -> LengthScores | None:
    """The scores in bins of equally many texts; None where lengths are unknown or too few."""
    known = item_lengths(scored.items)
    if known is None:
        return None
    lengths, unit = known
    rows = _split_by_length(lengths, bins)
    if len(rows) < 2:
        return None
    return LengthScores(
        unit,
        [LengthBin(int(lengths[r].min()), int(lengths[r].max()), int(r.sum())) for r in rows],
        {
            system.name: [estimate_score(scored, system, row) for row in rows]
            for system in scored.systems
        },
    )


def _split_by_length(lengths: Floats, bins: int) -> list[NDArray[np.bool_]]:
    """The rows of each bin, of equally many texts; texts of one length stay together."""
    edges = np.unique(np.quantile(lengths, np.linspace(0, 1, bins + 1), method="inverted_cdf"))
    if len(edges) < 3:
        return []
    index = np.clip(np.searchsorted(edges, lengths, side="left") - 1, 0, len(edges) - 2)
    rows = [index == i for i in range(len(edges) - 1)]
    return [row for row in rows if row.sum() >= MIN_ITEMS]


def find_length_effects(scored: ScoredSystems) -> list[Finding]:
    """Whether the difference of two systems is another on long texts than on short ones."""
    known = item_lengths(scored.items)
    if known is None or len(scored.systems) < 2 or not scored.compares_recipes:
        return []
    lengths, unit = known
    rows = _split_by_length(lengths, 3)
    if len(rows) < 3:
        return []
    short, long = rows[0], rows[-1]
    metric, width = scored.metric, scored.systems[0].counts_snc.shape[-1]

    def change(sums: Floats) -> Floats:
        on_long, on_short = metric.function(sums[..., :width]), metric.function(sums[..., width:])
        return np.asarray(on_long - on_short)

    used = short | long
    systems = [_divide(system, long, short, used) for system in scored.systems]
    interaction = SumMetric(
        metric.name, change, metric.higher_is_better, metric.digits, metric.unit
    )
    differences = judge_differences(scored, systems, interaction, used)
    findings = []
    for difference in differences:
        a, b = difference.a, difference.b
        on_long, on_short = (scored.mean(a, row) - scored.mean(b, row) for row in (long, short))
        estimate = describe_estimate(difference.value, difference.interval, difference.p, metric)
        shown_long, shown_short = format_differences([on_long, on_short], metric)
        spans = [f"{int(lengths[row].min())} to {int(lengths[row].max())}" for row in (long, short)]
        text = (
            f"{quote_name(a)} − {quote_name(b)} is {shown_long} on long texts ({spans[0]} {unit}) "
            f"and {shown_short} on short ones ({spans[1]}): a change of {estimate}."
        )
        numbers: dict[str, Any] = {
            "a": a,
            "b": b,
            "long": on_long,
            "short": on_short,
            "change": difference.value,
            "unit": unit,
            "metric": metric.name,
            "long_span": spans[0],
            "short_span": spans[1],
        }
        findings.append(Finding("length", text, FIGURE, numbers, difference.interval, difference.p))
    return findings


def _divide(
    system: System, long: NDArray[np.bool_], short: NDArray[np.bool_], used: NDArray[np.bool_]
) -> System:
    """The counts of long and of short items side by side: an item has zeros in one of them."""
    parts = [system.counts_snc * row[None, :, None] for row in (long, short)]
    return System(system.name, np.concatenate(parts, axis=-1)[:, used])
