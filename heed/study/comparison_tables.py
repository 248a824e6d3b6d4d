"""The comparison of recipes as terminal tables, Markdown and LaTeX."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from heed.errors import ConfigError, make_printable
from heed.stats.comparison import Pair
from heed.stats.intervals import Interval
from heed.stats.verdicts import (
    describe_verdict,
    format_differences,
    format_level,
    format_minutes,
    format_p,
    format_score,
)
from heed.study.recipe_comparison import RecipeComparison
from heed.terminal import build_note, build_table

LATEX_ESCAPES = {
    "\\": r"\textbackslash{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    **{sign: f"${sign}$" for sign in "<>"},
    "−": "$-$",
    "–": r"\textendash{}",
    "±": r"$\pm$",
    "|": r"\textbar{}",
    **{sign: f"{{{sign}}}" for sign in "[]*"},  # \\ takes them as options
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
}


def render_comparison(comparison: RecipeComparison) -> Group:
    """Verdicts first, then the scores of the systems, then every difference, then notes."""
    parts: list[RenderableType] = []
    for sentence in comparison.sentences:
        parts += [Text(sentence), Text("")]
    columns, rows = score_rows(comparison)
    table = build_table(*columns, right=columns[1:], no_wrap=columns[1:], compact=True)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    parts += [Text(describe_scores(comparison)), table]
    if comparison.whole.pairs:
        columns, rows = difference_rows(comparison)
        table = build_table(*columns, right=columns[1:], no_wrap=columns[1:], compact=True)
        for row in rows:
            table.add_row(*(Text(cell) for cell in row))
        parts += [Text(""), table]
    notes = all_notes(comparison)
    if comparison.signature:
        notes.append(f"{comparison.metric.name}: {comparison.signature}")
    parts += [Text(""), *(build_note(note) for note in notes)]
    return Group(*parts)


def to_markdown(comparison: RecipeComparison) -> str:
    """The comparison for a paper or a README, in Markdown."""
    lines = [f"{sentence}\n" for sentence in comparison.sentences]
    lines += [describe_scores(comparison), ""]
    tables = [score_rows(comparison)]
    if comparison.whole.pairs:
        tables.append(difference_rows(comparison))
    for columns, rows in tables:
        lines.append("| " + " | ".join(columns) + " |")
        lines.append("|---" + "|---:" * (len(columns) - 1) + "|")
        lines += [
            "| " + " | ".join(cell.replace("|", r"\|") for cell in row) + " |" for row in rows
        ]
        lines.append("")
    notes = all_notes(comparison)
    lines += [f"- {note}" for note in notes]
    if comparison.signature:
        lines.append(f"- {comparison.metric.name}: `{comparison.signature}`")
    return "\n".join(lines) + "\n"


def to_latex(comparison: RecipeComparison) -> str:
    """The comparison as a LaTeX table (booktabs), with verdicts and notes as its caption."""
    columns, rows = score_rows(comparison)
    if comparison.whole.pairs and _has_baseline(comparison):
        difference_columns, lines = difference_rows(comparison)
        differences = {row[0]: row[1:] for row in lines}
        columns += difference_columns[1:]
        rows = [row + differences.get(row[0], [""] * (len(columns) - len(row))) for row in rows]
    caption = [*comparison.sentences, *_caption_parts(comparison)]
    return _latex_table(columns, rows, caption, "l" + "r" * (len(columns) - 1))


def pairs_to_latex(comparison: RecipeComparison) -> str:
    """The table of pairs in LaTeX (booktabs): difference, interval, p and verdict."""
    if not comparison.whole.pairs:
        raise ConfigError(["These runs have one recipe, so there is no pair to write: name more."])
    columns, rows = difference_rows(comparison)
    columns, rows = columns[:-1], [row[:-1] for row in rows]  # without P(A>B)
    if any(one.within_margin for one in comparison.judgements):
        columns.insert(3, f"{format_level(2 * comparison.whole.alpha)} interval")
        for row, pair in zip(rows, comparison.whole.pairs, strict=True):
            ends = _format_interval(pair.equivalence_interval, comparison)
            row.insert(3, ends if pair.compares_recipes else "–")
    columns.append("verdict")
    for row, judgement in zip(rows, comparison.judgements, strict=True):
        row.append(describe_verdict(judgement, comparison.margin))
    a, b = _name_sides(comparison)
    unit = comparison.metric.difference_unit
    meaning = f"Differences A − B in {unit}, mean over seeds: {a} and {b}."
    caption = [meaning, *_caption_parts(comparison)]
    alignment = "l" + "r" * (len(columns) - 2) + "l"
    return _latex_table(columns, rows, caption, alignment)


def _caption_parts(comparison: RecipeComparison) -> list[str]:
    """What a table in a paper says of its scores: the set, the notes, the metric's signature."""
    parts = [f"{describe_scores(comparison)}.", *comparison.notes]
    if comparison.signature:
        parts.append(f"{comparison.metric.name}: {comparison.signature}.")
    return parts


def _latex_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], caption: Sequence[str], alignment: str
) -> str:
    """A floating table with booktabs rules; every text in it is escaped."""
    lines = [" & ".join(map(_escape_latex, row)) + r" \\" for row in (columns, *rows)]
    return "\n".join(
        [
            r"\begin{table}",
            r"  \centering",
            rf"  \begin{{tabular}}{{{alignment}}}",
            r"    \toprule",
            f"    {lines[0]}",
            r"    \midrule",
            *(f"    {line}" for line in lines[1:]),
            r"    \bottomrule",
            r"  \end{tabular}",
            rf"  \caption{{{_escape_latex(' '.join(caption))}}}",
            r"\end{table}",
            "",
        ]
    )


def describe_scores(comparison: RecipeComparison) -> str:
    items = f"{comparison.whole.items:,} {comparison.unit}s"
    if comparison.whole.clustered:
        items += f" in {comparison.whole.units:,} groups"
    order = "higher" if comparison.metric.higher_is_better else "lower"
    return f"{comparison.metric.name} on {comparison.set_name} ({items}; {order} is better)"


def score_rows(comparison: RecipeComparison) -> tuple[list[str], list[list[str]]]:
    metric, rows = comparison.metric, []
    for group, values in zip(comparison.groups, comparison.whole.systems.values(), strict=True):
        spread = format_score(float(values.std(ddof=1)), metric) if len(values) > 1 else "–"
        mean = format_score(float(values.mean()), metric)
        rows.append([group.name, str(len(values)), mean, spread])
    return ["system", "seeds", "mean", "sd over seeds"], rows


def difference_rows(comparison: RecipeComparison) -> tuple[list[str], list[list[str]]]:
    """One row for each pair; against a baseline the first column names the system alone."""
    baseline, rows = _has_baseline(comparison), []
    for pair in comparison.whole.pairs:
        difference, interval = _format_pair(pair, comparison)
        name = pair.a if baseline else f"{pair.a} − {pair.b}"
        is_bound = pair.item_exchange is not None and pair.item_exchange.is_bound
        p = format_p(pair.corrected_p, below_resolution=is_bound).removeprefix("= ")
        rows.append([name, difference, interval, p, f"{pair.win_share:.2f}"])
    level = format_level(comparison.whole.alpha)
    first = f"against {comparison.whole.pairs[0].b}" if baseline else "pair (A − B)"
    return [first, "difference", f"{level} interval", "p", "P(A>B)"], rows


def _format_pair(pair: Pair, comparison: RecipeComparison) -> tuple[str, str]:
    """The difference of a pair, and its interval."""
    [difference] = format_differences([pair.difference], comparison.metric)
    return difference, _format_interval(pair.interval, comparison)


def _format_interval(interval: Interval, comparison: RecipeComparison) -> str:
    return " to ".join(format_differences([interval.low, interval.high], comparison.metric))


def _has_baseline(comparison: RecipeComparison) -> bool:
    return len({pair.b for pair in comparison.whole.pairs}) == 1


def _name_sides(comparison: RecipeComparison) -> tuple[str, str]:
    """What A and B of a difference A − B are in a row."""
    if _has_baseline(comparison):
        return "the row's recipe (A)", f"{comparison.whole.pairs[0].b} (B)"
    return "the first recipe of the row (A)", "the second (B)"


def all_notes(comparison: RecipeComparison) -> list[str]:
    """Every note, those about this comparison's figures first."""
    notes = [*_power_notes(comparison), *_clean_notes(comparison), *comparison.notes]
    if comparison.whole.pairs:
        a, b = _name_sides(comparison)
        notes.append(
            f"P(A>B): the share of pairs of runs in which {a} scores better than {b}; a tie counts "
            "half."
        )
    if comparison.set_name != "dev":
        notes += _look_notes(comparison)
    return notes


def _look_notes(comparison: RecipeComparison) -> list[str]:
    """How often the set was evaluated. Items that are kept without a run have no count."""
    notes, counts = [], list(comparison.looks.values())
    if looks := [count for count in counts if count]:
        most = f", at most {max(looks)} times for one run" if max(looks) > 1 else ": once each"
        notes.append(
            f"{comparison.set_name} was evaluated {sum(looks)} times for {len(looks)} runs{most}."
        )
    if unknown := len(counts) - len(looks):
        notes.append(
            f"How often {comparison.set_name} was evaluated is not recorded for {unknown} of "
            f"{len(counts)} runs."
        )
    return notes


def _power_notes(comparison: RecipeComparison) -> list[str]:
    """The smallest visible difference of each pair, and the seeds that the one seen needs."""
    visible = [p.smallest_visible for p in comparison.whole.pairs if p.smallest_visible is not None]
    if not visible:
        return []
    low, high = (format_score(bound, comparison.metric) for bound in (min(visible), max(visible)))
    span = low if low == high else f"{low} to {high}"
    note = f"Smallest difference that these runs show in 8 of 10 cases: {span}."
    if len(comparison.whole.pairs) == 1:
        note += _seeds_note(comparison.whole.pairs[0], comparison.minutes_per_run)
    return [note]


def _seeds_note(pair: Pair, minutes: float | None) -> str:
    if pair.seeds_needed is None or pair.seeds_needed <= min(pair.seeds):
        return ""
    time = "" if minutes is None else f", {format_minutes(minutes)} a run"
    return f" For one as seen that takes about {pair.seeds_needed} seeds each in all{time}."


def _clean_notes(comparison: RecipeComparison) -> list[str]:
    """The differences on the texts that are not in train."""
    if comparison.clean is None:
        return []
    seen = comparison.whole.items - comparison.clean.items
    differences = []
    for pair in comparison.clean.pairs:
        difference, interval = _format_pair(pair, comparison)
        differences.append(f"{pair.a} − {pair.b} {difference} ({interval})")
    return [
        f"Without {seen:,} {comparison.unit}s that are also in train: {'; '.join(differences)}."
    ]


def _escape_latex(text: str) -> str:
    """A text that LaTeX prints as it is, also at the start of a row."""
    escaped = "".join(LATEX_ESCAPES.get(sign, sign) for sign in make_printable(text))
    escaped = re.sub(r"-(?=-)", "-{}", escaped)  # two hyphens would be set as a dash
    return re.sub(r"(?<![\w])-(?=\d)", "$-$", escaped)
