"""Figures and tables of a study: its systems, their differences, curves over seeds, scores by part.

A verdict stands beside the interval that it comes from. A filled dot is a difference that is shown,
a hollow one is not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from heed.report.claims import GAINS, LOSSES, Question
from heed.report.document import Figure, Table
from heed.report.row_charts import Row, interval_plot
from heed.report.wording import count_of, format_interval, name_level
from heed.runs.groups import RunGroup
from heed.stats.comparison import MIN_SEEDS, Pair
from heed.stats.intervals import Interval
from heed.stats.power import MAX_SEEDS
from heed.stats.verdicts import (
    Verdict,
    describe_verdict,
    format_differences,
    format_level,
    format_p,
    format_score,
)
from heed.study.finding import quote_name

MAX_FOREST_ROWS = 30
"""Rows of the plot of differences."""
MAX_FOREST_PAIRS = 6
"""Pairs up to which all are drawn; of more, those with the highest-scoring system are."""
ONE_LINE = 26
"""Characters of a cell's text that is not broken into lines."""
MAX_PAIR_ROWS = 60
"""Rows of the table of differences; of more pairs, those with the largest differences."""
MAX_SEED_COLUMNS, MAX_SEED_ROWS = 7, 40
"""The table of seeds: so many columns of scores fit 80 characters, so many rows a page."""
MIN_MATRIX, MAX_MATRIX = 5, 12
"""Systems from and up to which the verdicts on all pairs are a matrix as well as a table."""
MAX_CURVES = 8
"""Systems in one figure of curves: more cannot be distinguished."""
SIGNS = {**dict.fromkeys(GAINS, ">"), **dict.fromkeys(LOSSES, "<"), Verdict.AS_GOOD: "="}
OPEN_SIGN = "?"
EQUIVALENT = " as good"
"""What is written beside an interval of a system that is as good as another."""


@dataclass(frozen=True)
class Cost:
    """What one system costs: the mean of its finished trials."""

    parameters: int | None = None
    minutes: float | None = None
    memory: int | None = None
    """Bytes at the peak of training."""


def capitalize(text: str) -> str:
    """A text with a capital first letter, the rest as it is: BLEU stays BLEU."""
    return text[:1].upper() + text[1:]


def keep_together(text: str) -> str:
    """A short text with spaces at which no line breaks."""
    return text.replace(" ", "\u00a0") if len(text) <= ONE_LINE else text


def systems_table(question: Question, costs: Mapping[str, Cost]) -> Table:
    """Every system: its score over seeds, whether it may be best, and what it costs."""
    metric, comparison = question.metric, question.comparison
    columns = ["system", "seeds", f"{metric.name}, {keep_together('mean ± sd')}"]
    if comparison.best is not None and len(comparison.systems) > 1:
        columns += ["may be best"]
    has_cost = [
        any(getattr(cost, key) is not None for cost in costs.values())
        for key in ("parameters", "minutes", "memory")
    ]
    names = ("parameters", "minutes", "memory")
    columns += [name for name, present in zip(names, has_cost, strict=True) if present]
    rows = []
    for name, values in comparison.systems.items():
        mean = format_score(float(values.mean()), metric)
        spread = f" ± {format_score(float(values.std(ddof=1)), metric)}" if len(values) > 1 else ""
        baseline = f"{name} (baseline)" if name == question.baseline else name
        row = [baseline, str(len(values)), mean + spread]
        if "may be best" in columns:
            row += ["yes" if name in (comparison.best or ()) else "no"]
        cost = costs.get(name, Cost())
        cells = [
            format_count(cost.parameters),
            _minutes_cell(cost.minutes),
            format_bytes(cost.memory),
        ]
        rows.append(row + [cell for cell, shown in zip(cells, has_cost, strict=True) if shown])
    dashes = ["–"] * (len(columns) - 3)
    rows += [[name, "0", "no finished run", *dashes] for name in question.without_runs]
    return Table("systems", _describe_systems(question, costs), columns, rows, _numbers(columns))


def seeds_table(question: Question, groups: Sequence[RunGroup]) -> Table | None:
    """The score of every run, systems by seeds; None where the means are those of single runs.

    What is more than fits into columns runs down the page: seeds, where systems are few.
    """
    metric = question.metric
    seeds = sorted({seed for group in groups for seed in group.seeds if seed is not None})
    if all(len(group.runs) == 1 for group in groups) or not seeds:
        return None
    scores = {
        (group.name, seed): format_score(float(value), metric)
        for group, values in zip(groups, question.comparison.systems.values(), strict=True)
        for seed, value in zip(group.seeds, values, strict=True)
    }
    names = [group.name for group in groups]
    by_seed = len(seeds) > MAX_SEED_COLUMNS >= len(names)
    limits = (MAX_SEED_COLUMNS, MAX_SEED_ROWS) if by_seed else (MAX_SEED_ROWS, MAX_SEED_COLUMNS)
    shown, shown_seeds = names[: limits[0]], seeds[: limits[1]]
    if by_seed:
        columns = ["seed", *shown]
        rows = [
            [str(seed), *(scores.get((name, seed), "–") for name in shown)] for seed in shown_seeds
        ]
    else:
        columns = ["system", *(f"seed {seed}" for seed in shown_seeds)]
        rows = [[name, *(scores.get((name, seed), "–") for seed in shown_seeds)] for name in shown]
    caption = f"{capitalize(metric.name)} on {question.set_name} of every run, by seed."
    if len(scores) < len(names) * len(seeds):
        caption += " A dash: no score, or not a part of the comparison."
    left_out = [
        f"{len(every) - len(some):,} of {count_of(len(every), noun)}"
        for every, some, noun in ((names, shown, "system"), (seeds, shown_seeds, "seed"))
        if len(every) > len(some)
    ]
    if left_out:
        caption += (
            f" Left out: {' and '.join(left_out)}; `heed study FOLDER --status --csv FILE` has all "
            "scores."
        )
    return Table("seeds", caption, columns, rows, columns[1:])


def _minutes_cell(minutes: float | None) -> str:
    if minutes is None:
        return "–"
    return f"{minutes:,.{2 if minutes < 1 else 1 if minutes < 10 else 0}f}"


def _numbers(columns: Sequence[str]) -> list[str]:
    return [name for name in columns if name not in ("system", "verdict", "pair", "may be best")]


def _has_equivalence(question: Question) -> bool:
    """Whether a verdict of the table rests on the interval of equivalence."""
    return any(
        judgement.verdict is Verdict.AS_GOOD or judgement.within_margin
        for _, judgement in question.pairs
    )


def _tell_equivalence(question: Question) -> str:
    """What the table's intervals of equivalence are, where there is one."""
    if not _has_equivalence(question):
        return ""
    level = format_level(2 * question.comparison.alpha)
    alone = " of each pair alone, not corrected" if len(question.pairs) > 1 else ""
    return f" As good is judged by the {level} interval{alone} (two one-sided tests)."


def _describe_systems(question: Question, costs: Mapping[str, Cost]) -> str:
    metric, comparison = question.metric, question.comparison
    order = "higher" if metric.higher_is_better else "lower"
    text = f"{capitalize(metric.name)} on {question.set_name} ({order} is better), "
    text += "mean and sd over seeds."
    if comparison.best is not None and len(comparison.systems) > 1:
        level = format_level(comparison.alpha)
        text += f" Which may be best: Hsu's comparison with the best, {level}."
    return text + tell_costs(costs)


def tell_costs(costs: Mapping[str, Cost]) -> str:
    """What the columns of costs are, as far as there are any."""
    has_time = any(cost.minutes is not None for cost in costs.values())
    has_memory = any(cost.memory is not None for cost in costs.values())
    parts = ["the mean time of a run"] * has_time + ["the peak in training"] * has_memory
    names = ["Minutes"] * has_time + ["memory"] * has_memory
    if not parts:
        return ""
    return f" {capitalize(' and '.join(names))}: {' and '.join(parts)}."


def _tell_few_seeds(question: Question) -> str:
    """Why an interval without 0 may stand beside no verdict: too few seeds."""
    if all(pair.compares_recipes for pair, _ in question.pairs):
        return ""
    return (
        f" With fewer than {MIN_SEEDS} seeds there is no verdict on recipes, also where the "
        "interval excludes 0: so few seeds do not tell how much another would change."
    )


def pairs_table(question: Question) -> Table:
    """Every difference with its interval, p and verdict, the largest first."""
    metric, is_family = question.metric, len(question.pairs) > 1
    has_equivalence = _has_equivalence(question)
    rows = []
    largest = sorted(question.pairs, key=lambda one: -abs(one[0].difference))
    for pair, judgement in largest[:MAX_PAIR_ROWS]:
        [difference] = format_differences([pair.difference], metric)
        is_bound = pair.item_exchange is not None and pair.item_exchange.is_bound
        p = format_p(pair.corrected_p, below_resolution=is_bound).removeprefix("= ")
        visible, is_early = pair.smallest_visible, not pair.compares_recipes
        rows.append(
            [
                keep_together(f"{pair.a} − {pair.b}"),
                difference,
                "–" if pair.percent is None else f"{pair.percent:+.1f}%",
                "–" if pair.seed_deviations is None else f"{pair.seed_deviations:+.1f}",
                format_interval(pair.interval, metric),
                *([_format_equivalence(question, pair)] if has_equivalence else []),
                *([format_p(pair.p).removeprefix("= ")] if is_family else []),
                p,
                f"{pair.win_share:.2f}",
                "–" if visible is None or is_early else format_score(visible, metric),
                _tell_seeds_needed(pair),
                describe_verdict(judgement, question.margin),
            ]
        )
    level = name_level(question.comparison)
    columns = ["pair", "difference", "percent", "in sd", f"{level} interval"]
    if has_equivalence:
        columns.append(f"{format_level(2 * question.comparison.alpha)} interval")
    columns += ["p alone", "corrected p"] if is_family else ["p"]
    columns += ["P(A>B)", "visible", "seeds needed", "verdict"]
    caption = (
        f"Every difference in {metric.difference_unit}, in percent of the second system's score, "
        "and in standard deviations over seeds. P(A>B): of a pair A − B, the share of pairs of "
        "runs that A leads, ties counting half. Visible: the smallest difference that such runs "
        "show in 8 of 10 cases. Seeds needed: of each system, to show a difference as seen in 8 of "
        "10."
    )
    caption += _tell_equivalence(question) + _tell_few_seeds(question)
    if len(largest) > MAX_PAIR_ROWS:
        left = len(largest) - MAX_PAIR_ROWS
        caption = caption.replace("Every difference", f"The {MAX_PAIR_ROWS} largest differences")
        caption += f" {left:,} smaller ones are left out; `heed compare FOLDER --json` has them."
    return Table("pairs", caption, columns, rows, _numbers(columns))


def _format_equivalence(question: Question, pair: Pair) -> str:
    if not pair.compares_recipes:
        return "–"
    return format_interval(pair.equivalence_interval, question.metric)


def _tell_seeds_needed(pair: Pair) -> str:
    if not pair.compares_recipes:
        return "–"
    if pair.seeds_needed is not None:
        return str(pair.seeds_needed)
    if pair.difference == 0:
        return "–"
    return "more items" if pair.needs_items else f"> {MAX_SEEDS}"


def pair_matrix(question: Question) -> Table:
    """The verdict on every pair: row against column, with the difference."""
    names = list(question.comparison.systems)
    cells: dict[tuple[str, str], str] = {}
    for pair, judgement in question.pairs:
        sign = SIGNS.get(judgement.verdict, OPEN_SIGN)
        turned = {">": "<", "<": ">"}.get(sign, sign)
        there, back = (
            format_differences([value], question.metric)[0]
            for value in (pair.difference, -pair.difference)
        )
        cells[pair.a, pair.b], cells[pair.b, pair.a] = f"{sign} {there}", f"{turned} {back}"
    rows = [[a, *("" if a == b else cells[a, b] for b in names)] for a in names]
    meaning = "> the row is better, < worse, = as good within the margin, ? can't tell yet"
    if question.margin is None:
        meaning = "> the row is better, < worse, ? can't tell yet"
    caption = (
        f"Row minus column in {question.metric.difference_unit}: {meaning}; by the intervals of "
        "the table of pairs, which hold for all together."
    )
    return Table("matrix", caption, ["", *names], rows, names)


def difference_plot(question: Question) -> Figure:
    """Every difference with its interval; of many pairs, those with the highest-scoring system."""
    pairs, against = question.pairs, question.baseline
    if against is None and len(pairs) > MAX_FOREST_PAIRS:
        against = leading_system(question)
        pairs = [one for one in pairs if against in (one[0].a, one[0].b)]
    pairs = pairs[:MAX_FOREST_ROWS]
    metric, rows = question.metric, []
    for pair, judgement in pairs:
        difference, interval = pair.difference, pair.interval
        label = pair.a if against is not None else f"{pair.a} − {pair.b}"
        if against is not None and pair.a == against:
            difference, interval = -difference, Interval(-interval.high, -interval.low)
            label = pair.b
        [text] = format_differences([difference], metric)
        if judgement.verdict is Verdict.AS_GOOD:
            text += EQUIVALENT
        shown = judgement.verdict in (*GAINS, *LOSSES, Verdict.AS_GOOD)
        rows.append(Row(label, difference, interval.low, interval.high, text, shown))
    minus = f" from {quote_name(against)}" if against is not None else ""
    draw = partial(
        interval_plot,
        rows,
        x=f"difference{minus} in {metric.difference_unit} on {question.set_name}",
        reference=0.0,
        margin=question.margin,
    )
    level = name_level(question.comparison)
    hollow = "hollow: not" + ", or too few seeds to say" * bool(_tell_few_seeds(question))
    filled = "shown" if question.is_declared else "seen, exploratory"
    caption = f"Differences{minus} with their {level} intervals. Filled: {filled}; {hollow}."
    if question.margin is not None:
        caption += f" Shaded: differences within {question.margin:g}, which do not matter."
    same = [pair for pair, judgement in pairs if judgement.verdict is Verdict.AS_GOOD]
    if same:
        caption += " As good is judged by a narrower interval, which the table has."
    if against is not None and question.baseline is None:
        caption += " It has the highest mean; all pairs were compared."
        if not metric.higher_is_better:
            caption = caption.replace("highest", "lowest")
    elif len(question.pairs) > len(pairs):
        caption += f" {len(question.pairs) - len(pairs)} more are in the table."
    alt = "; ".join(
        f"{row.label} {row.text.removesuffix(EQUIVALENT)} "
        f"({format_interval(Interval(row.low or 0.0, row.high or 0.0), metric)})"
        for row in rows
    )
    return Figure.drawn("differences", caption, f"Differences{minus}: {alt}", draw)


def leading_system(question: Question) -> str:
    """The system with the highest mean score, or the lowest where less is wanted."""
    sign = 1 if question.metric.higher_is_better else -1
    means = {name: sign * float(v.mean()) for name, v in question.comparison.systems.items()}
    return max(means, key=lambda name: means[name])


def format_count(number: int | None) -> str:
    """A large number in short: `1.23M`."""
    if number is None:
        return "–"
    for unit, size in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return str(number)


def format_bytes(size: int | None) -> str:
    """Memory in MB or GB."""
    if size is None:
        return "–"
    return f"{size / 1e9:.2f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"
