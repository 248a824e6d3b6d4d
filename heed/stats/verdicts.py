"""The verdict on one pair of systems: one of five, in fixed words.

Every claim comes from the interval printed beside it, so sentence and interval cannot disagree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from math import ceil, log10

from heed.stats.comparison import ALPHA, MIN_SEEDS, Pair, SumMetric
from heed.stats.intervals import Interval
from heed.stats.power import MAX_SEEDS

MAX_PLAIN = 1e6
"""Larger scores, such as the perplexity per word of a bad model, have three digits."""
MAX_MORE_DIGITS = 4
"""Decimal places beyond those of the metric that a tiny difference may have."""


class Verdict(Enum):
    """What a comparison shows."""

    BETTER = "better"
    WORSE = "worse"
    BETTER_BY_MARGIN = "better by at least the margin"
    WORSE_BY_MARGIN = "worse by at least the margin"
    AS_GOOD = "as good, within the margin"
    UNDECIDED = "can't tell yet"
    TWO_MODELS = "two models only"


@dataclass(frozen=True)
class Judgement:
    """A verdict, whether the difference is too small to matter, and the sentence that says it."""

    verdict: Verdict
    within_margin: bool
    """The 1 - 2 alpha interval lies inside ± margin: two one-sided tests (Schuirmann 1987)."""
    sentence: str


def judge_pair(
    pair: Pair,
    metric: SumMetric,
    *,
    margin: float | None = None,
    minutes_per_run: float | None = None,
    alpha: float = ALPHA,
    comparisons: int = 1,
) -> Judgement:
    """The verdict on a pair, with the margin that matters if one was given.

    `alpha` is the level that the pair was compared at, for the words about its intervals. Of
    several `comparisons`, the words say that the interval of equivalence is of this pair alone.
    """
    verdict = _verdict(pair, metric, margin)
    within = margin is not None and pair.compares_recipes and _is_within(pair, margin)
    alone = ", of this pair alone" if comparisons > 1 else ""
    sentence = _sentence(pair, metric, verdict, within, margin, minutes_per_run, alpha, alone)
    return Judgement(verdict, within, sentence)


def describe_verdict(judgement: Judgement, margin: float | None) -> str:
    """The verdict in the fixed words, with the margin as a number, for a cell of a table."""
    words = judgement.verdict.value
    if margin is not None:
        words = words.replace("the margin", f"{margin:g}")
    if judgement.within_margin and judgement.verdict in (Verdict.BETTER, Verdict.WORSE):
        words += f", and within {margin:g}: too small to matter"
    return words


def _verdict(pair: Pair, metric: SumMetric, margin: float | None) -> Verdict:
    if not pair.compares_recipes:
        return Verdict.TWO_MODELS
    low, high = pair.interval.low, pair.interval.high
    if not metric.higher_is_better:
        low, high = -high, -low
    if margin is not None and low >= margin:
        return Verdict.BETTER_BY_MARGIN
    if margin is not None and high <= -margin:
        return Verdict.WORSE_BY_MARGIN
    if low > 0:
        return Verdict.BETTER
    if high < 0:
        return Verdict.WORSE
    if margin is not None and _is_within(pair, margin):
        return Verdict.AS_GOOD
    return Verdict.UNDECIDED


def _is_within(pair: Pair, margin: float) -> bool:
    return -margin < pair.equivalence_interval.low and pair.equivalence_interval.high < margin


def format_score(value: float, metric: SumMetric) -> str:
    """A score as it is shown; a perplexity of millions with three digits."""
    return f"{value:.3g}" if abs(value) >= MAX_PLAIN else f"{value:.{metric.digits}f}"


def format_differences(values: Sequence[float], metric: SumMetric) -> list[str]:
    """Signed differences with as many decimal places as they need to show their sign.

    So an interval that excludes 0 does not end in -0.00.
    """
    if max(map(abs, values)) >= MAX_PLAIN:
        return [f"{value:+.3g}" for value in values]
    has_one_sign = min(values) > 0 or max(values) < 0
    smallest = min(map(abs, values)) if has_one_sign else max(map(abs, values))
    needed = ceil(-log10(smallest)) if 0 < smallest < 1 else 0
    digits = min(max(metric.digits, needed), metric.digits + MAX_MORE_DIGITS)
    return [f"{round(value, digits) + 0.0:+.{digits}f}" for value in values]


def format_minutes(minutes: float) -> str:
    """A duration: `less than a minute`, `about 12 minutes`, `about 3.5 hours`."""
    if minutes < 1:
        return "less than a minute"
    if minutes >= 120:
        hours = minutes / 60
        return f"about {hours:.2g} hours" if hours < 99 else f"about {hours:,.0f} hours"
    return f"about {round(minutes)} {_plural('minute', round(minutes))}"


def format_level(alpha: float) -> str:
    """The confidence level of an interval in percent: 95% for alpha = 0.05."""
    return f"{100 * (1 - alpha):.3g}%"


def _format_interval(interval: Interval, metric: SumMetric) -> str:
    return " to ".join(format_differences([interval.low, interval.high], metric))


def _sentence(
    pair: Pair,
    metric: SumMetric,
    verdict: Verdict,
    within: bool,
    margin: float | None,
    minutes: float | None,
    alpha: float,
    alone: str,
) -> str:
    [shown] = format_differences([pair.difference], metric)
    difference = f"{shown} {metric.difference_unit}"
    interval = f"{format_level(alpha)} interval {_format_interval(pair.interval, metric)}"
    equivalence = f"{format_level(2 * alpha)} interval"
    support = f"{difference} ({interval}, p {format_p(pair.corrected_p)})"
    delta = f"{margin:g} {metric.difference_unit}" if margin is not None else ""
    match verdict:
        case Verdict.BETTER | Verdict.WORSE:
            small = f" The difference is within {delta}: too small to matter." if within else ""
            return f"{pair.a} is {verdict.value} than {pair.b}: {support}.{small}"
        case Verdict.BETTER_BY_MARGIN | Verdict.WORSE_BY_MARGIN:
            word = "better" if verdict is Verdict.BETTER_BY_MARGIN else "worse"
            return f"{pair.a} is {word} than {pair.b} by at least {delta}: {support}."
        case Verdict.AS_GOOD:
            ends = _format_interval(pair.equivalence_interval, metric)
            return (
                f"{pair.a} is as good as {pair.b}, within {delta}: {difference} "
                f"({equivalence} {ends}{alone}, inside ±{margin:g}: two one-sided tests at "
                f"{100 * alpha:.3g}%). "
                f"That either is better is not shown ({interval})."
            )
        case Verdict.UNDECIDED:
            ends = _format_interval(pair.equivalence_interval, metric)
            equal = (
                f"Equivalence within {delta} is not shown either ({equivalence} {ends}{alone}). "
            )
            words = f"Can't tell yet: {pair.a} − {pair.b} is {support}. "
            words += equal if delta else ""
            return words + _advice(pair, metric, minutes)
        case Verdict.TWO_MODELS:
            return _two_models(pair, metric, minutes, interval)


def _advice(pair: Pair, metric: SumMetric, minutes: float | None) -> str:
    if pair.smallest_visible is None:
        return ""
    smallest = format_score(pair.smallest_visible, metric)
    visible = f"In 8 of 10 cases these runs would show a difference of {smallest}. "
    if pair.difference == 0:
        return visible + "No difference was seen, which no number of seeds would show."
    if pair.seeds_needed is None:
        if pair.needs_items:
            return visible + "More seeds alone would not show the one seen: use more test items."
        return visible + f"More than {MAX_SEEDS} seeds each would be needed to show the one seen."
    more = sum(max(pair.seeds_needed - seeds, 0) for seeds in pair.seeds)
    if more == 0:
        return visible
    each = max(pair.seeds_needed - min(pair.seeds), 1)
    return (
        visible + f"If the true one is as seen, about {each} more {_plural('seed', each)} each "
        f"would show it: {more} {_plural('run', more)}{_duration(more, minutes)}."
    )


def _two_models(pair: Pair, metric: SumMetric, minutes: float | None, interval: str) -> str:
    [difference] = format_differences([pair.difference], metric)
    p, exchange = pair.corrected_p, pair.item_exchange
    bound = exchange is not None and exchange.is_bound
    models = "the two models" if max(pair.seeds) == 1 else "these models"
    more = sum(max(MIN_SEEDS - seeds, 0) for seeds in pair.seeds)
    return (
        f"Two models only: {pair.a} − {pair.b} is {difference} "
        f"{metric.difference_unit} as {models} score these test items ({interval}, "
        f"p {format_p(p, below_resolution=bound)}). Another "
        f"seed can change that: {more} more {_plural('run', more)} ({MIN_SEEDS} seeds "
        f"each{_duration(more, minutes)}) would compare the recipes."
    )


def _duration(runs: int, minutes: float | None) -> str:
    return "" if minutes is None else f", {format_minutes(runs * minutes)} in all"


def _plural(noun: str, count: int) -> str:
    return noun if count == 1 else noun + "s"


def format_p(p: float, *, below_resolution: bool = False) -> str:
    """A p-value with its relation: "= 0.032", or "< 0.0001" below what can be told."""
    if below_resolution:
        return f"< {_round_up(p)}"
    return "< 0.0001" if p < 0.0001 else f"= {p:.4f}" if p < 0.001 else f"= {p:.3f}"


def _round_up(p: float) -> str:
    for bound in (0.0001, 0.001, 0.01, 0.05, 0.1):
        if p <= bound:
            return str(bound)
    return "1"
