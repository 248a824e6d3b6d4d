"""The analysis of a study's report: further questions, each with its figure and its tested answer.

The questions and their tests are those of `heed.study.analysis`. They are exploratory and corrected
together. Answers that stand out are told below their figure; all others are in one table.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from heed.report.document import Block, Figure, Heading, Paragraph, Section, Table
from heed.report.line_charts import Series, line_chart
from heed.report.row_charts import Row, bar_chart, interval_plot
from heed.report.study_figures import MAX_CURVES, capitalize
from heed.report.study_search import grid_coordinates
from heed.report.wording import count_of
from heed.stats.verdicts import format_p, format_score
from heed.study.class_scores import score_by_class
from heed.study.costs import measure_costs
from heed.study.finding import Finding, quote_name
from heed.study.hardness import (
    EVERYTHING,
    PROPERTIES,
    UNITS,
    open_text_losses,
    score_groups,
)
from heed.study.key_importance import ANOVA, KeyEffect
from heed.study.length_scores import score_by_length
from heed.study.overfitting import DEV_LOSS, measure_gaps
from heed.study.scored_systems import ScoredSystems, open_scored_systems
from heed.study.study_results import StudyResults

HEADINGS = {
    "by-length": "Does a system gain on long texts?",
    "by-class": "Do systems differ by class?",
    "train-dev-gap": "Does a system overfit?",
    "by-group": "Why are some groups of texts harder?",
    "text-properties": "What makes a text hard?",
    "importance": "Which keys matter?",
    "costs": "What does each system cost?",
}
"""The questions, by the figure that shows their answers."""
MAX_FINDINGS = 8
"""Answers that are told below one figure; the rest is in the table."""
PERCENTS = ("bleu", "chrf", "accuracy", "macro_f1")
"""Metrics from 0 to 100: the interval of a few texts is drawn no further."""
MAX_BANDS = 4
"""Systems whose intervals are drawn around their curves; of more, they would hide each other."""
COLUMNS = {
    "unseen": "% not in train",
    "surprisal": "surprisal",
    "tokens": "tokens per word",
    "length": "words",
}
"""The columns of properties of texts."""
STEPS = {
    "unseen": "10 points more not in train",
    "surprisal": "1 nat more surprisal",
    "tokens": "1 token more per word",
    "length": "twice the length",
}
"""One unit of each property, as the label of a row."""
MAX_QUESTIONS = 60
"""Rows of the table of answers that do not stand out."""


def describe_analysis(results: StudyResults, findings: Sequence[Finding]) -> Section | None:
    """The section of the analysis; None where nothing could be asked."""
    scored = open_scored_systems(results)
    if scored is None:
        return None
    figures = _build_figures(results, scored, findings)
    blocks: list[Block] = []
    told: list[Finding] = []
    for name, heading in HEADINGS.items():
        figure = figures.get(name)
        if figure is None:
            continue
        chosen = [one for one in findings if one.figure == name and one.is_selected]
        if not all(one.is_selected for one in findings if one.figure == name and _is_gap(one)):
            chosen = []  # parts of a gap that does not stand out
        told += chosen[:MAX_FINDINGS]
        blocks += [Heading(heading), figure]
        if name == "importance" and (coordinates := grid_coordinates(results)) is not None:
            blocks.append(coordinates)
        if name == "train-dev-gap" and (calm := _tell_no_rise(results, findings)):
            blocks.append(Paragraph(calm, "text", name))
        blocks += [Paragraph(one.text, "finding", name) for one in chosen[:MAX_FINDINGS]]
        asked = [one for one in findings if one.figure == name and one.p is not None]
        if any(_is_gap(one) and not one.is_selected for one in asked):
            text = "The gap between the groups of highest and lowest loss is not distinguishable "
            text += "from chance after correction, so it is not explained."
            blocks.append(Paragraph(text, "note", "questions"))
        elif asked and not chosen:
            answers = "the answer" if len(asked) == 1 else f"none of the {len(asked)} answers"
            verb = "is not" if len(asked) == 1 else "is"
            text = f"{capitalize(answers)} {verb} distinguishable from chance after correction."
            blocks.append(Paragraph(text, "note", "questions"))
    rest = [one for one in findings if one.p is not None and one not in told]
    if rest:
        blocks += [Heading("All other questions"), _questions_table(rest)]
    if not blocks:
        return None
    intro = (
        "These questions were asked after the declared one, so they are exploratory. Their "
        "p-values are corrected together (q, Benjamini and Hochberg); what stands out is worth a "
        "declared study, and is never called shown."
    )
    return Section("analysis", "Analysis", [Paragraph(intro), *blocks])


def _is_gap(finding: Finding) -> bool:
    """Whether a finding is the gap between two groups, not a part of it."""
    return finding.kind == "group" and "part" not in finding.numbers


def _build_figures(
    results: StudyResults, scored: ScoredSystems, findings: Sequence[Finding]
) -> dict[str, Figure | Table]:
    built = (
        _length_figure(scored),
        _class_table(scored),
        _gap_figure(results),
        _group_table(results),
        _property_figure(findings),
        _importance_figure(findings),
        _cost_table(results),
    )
    return {one.id: one for one in built if one is not None}


def _length_figure(scored: ScoredSystems) -> Figure | None:
    """The score of every system on texts of each length."""
    by_length = score_by_length(scored)
    if by_length is None:
        return None
    places = [(one.low + one.high) / 2 for one in by_length.bins]
    series = []
    for number, (name, scores) in enumerate(list(by_length.scores.items())[:MAX_CURVES]):
        points = [(at, value) for at, (value, _) in zip(places, scores, strict=True)]
        intervals = [interval for _, interval in scores if interval is not None]
        bounds = (0.0, 100.0) if scored.metric_name in PERCENTS else (-math.inf, math.inf)
        band = [(max(one.low, bounds[0]), min(one.high, bounds[1])) for one in intervals]
        has_band = len(band) == len(points) and len(by_length.scores) <= MAX_BANDS
        series.append(Series(name, points, band if has_band else (), number))
    bins = ", ".join(f"{one} ({one.items} texts)" for one in by_length.bins)
    metric = scored.metric.name
    where = f"{capitalize(metric)} on {scored.set_name}"
    caption = f"{where} by length in {by_length.unit}: {bins}. Mean of the seeds"
    caption += ", with the 95% interval of each." if any(one.band for one in series) else "."
    caption += _tell_left_out(len(by_length.scores))
    ends = "; ".join(
        f"{one.label} {one.points[0][1]:.4g} (shortest) to {one.points[-1][1]:.4g} (longest)"
        for one in series
    )
    draw = partial(line_chart, series, x=f"length in {by_length.unit}", y=metric)
    return Figure.drawn("by-length", caption, f"{metric} by length: {ends}", draw)


def _class_table(scored: ScoredSystems) -> Table | None:
    """The recall of every system on each class."""
    by_class = score_by_class(scored)
    if by_class is None:
        return None
    names = [
        f"{name} ({count:,})" for name, count in zip(by_class.classes, by_class.texts, strict=True)
    ]
    rows = [
        [system, *(f"{value:.1f}" for value, _ in scores)]
        for system, scores in by_class.scores.items()
    ]
    caption = f"Recall in percent of each class on {scored.set_name} (texts), mean of the seeds."
    return Table("by-class", caption, ["system", *names], rows, names)


def _gap_figure(results: StudyResults) -> Figure | None:
    """Dev loss minus train loss over training, mean of the seeds."""
    gaps = measure_gaps(results)
    if gaps is None:
        return None
    train = {curve.group.name: dict(curve.points) for curve in results.curves(gaps.train_loss)}
    series = []
    for number, curve in enumerate(results.curves(DEV_LOSS)[:MAX_CURVES]):
        other = train.get(curve.group.name, {})
        points = [(at, round(dev - other[at], 9)) for at, dev in curve.points if at in other]
        if points:
            series.append(Series(curve.group.name, points, style=number))
    if not series:
        return None
    what = f"Dev loss minus train loss ({gaps.label})"
    ends = "; ".join(f"{one.label} ends at {one.points[-1][1]:+.3g}" for one in series)
    if all(len(one.points) == 1 for one in series):
        caption = f"{what} at the end, mean of the seeds: dev was evaluated once."
        rows = [Row(one.label, one.points[0][1], text=f"{one.points[0][1]:+.3g}") for one in series]
        draw = partial(interval_plot, rows, x="dev loss − train loss")
    else:
        caption = f"{what} over training, in nats, mean of the seeds. A gap that widens while dev "
        caption += "loss rises is overfitting."
        draw = partial(line_chart, series, x="step", y="dev loss − train loss")
    caption += _tell_left_out(len(gaps.rises))
    return Figure.drawn("train-dev-gap", caption, f"Gap by step: {ends}", draw)


def _tell_no_rise(results: StudyResults, findings: Sequence[Finding]) -> str:
    """That no seed's dev loss rises; empty where one does, which is then a question of its own.

    A dev loss that was measured once cannot rise.
    """
    if all(len(curve.points) < 2 for curve in results.curves(DEV_LOSS)):
        return ""
    rises = [one for one in findings if one.kind == "overfit" and "rise" in one.numbers]
    if not rises or any(one.p is not None for one in rises):
        return ""
    return (
        "Dev loss is lowest at the last evaluation, for every system and seed: no overfitting is "
        "seen within these budgets."
    )


def _group_table(results: StudyResults) -> Table | None:
    """The loss of every group of texts beside what describes its texts."""
    losses = open_text_losses(results)
    scores = [] if losses is None else score_groups(losses)
    if losses is None or not scores:
        return None
    keys = [key for key in PROPERTIES if key in losses.properties]
    columns = ["group", "texts", "loss", "95% interval", *(COLUMNS[key] for key in keys)]
    rows = [
        [
            score.name,
            f"{score.texts:,}",
            f"{score.loss:.3f}",
            f"{score.interval.low:.3f} to {score.interval.high:.3f}",
            *(
                f"{_natural(key, score.properties[key]):.{1 if key == 'length' else 2}f}"
                for key in keys
            ),
        ]
        for score in sorted(scores, key=lambda score: -score.loss)
    ]
    caption = (
        f"Loss of {quote_name(losses.system)} by group in {UNITS[losses.task]}, and its texts: "
        "percent of words not in train, unigram surprisal in nats per word (rare words have more), "
        "tokens per word, words per text. These properties overlap: their parts of a gap do not "
        "add up."
    )
    if losses.names[0].startswith("group "):
        caption += " Groups are numbered as they come in the test text."
    return Table("by-group", caption, columns, rows, columns[1:])


def _natural(key: str, value: float) -> float:
    """A property in the unit that its caption names."""
    return {"unseen": 10 * value, "length": 2.0**value}.get(key, value)


def _property_figure(findings: Sequence[Finding]) -> Figure | None:
    """What one unit of each property of a text changes in its loss."""
    chosen = [one for one in findings if one.figure == "text-properties" and one.interval]
    if not chosen:
        return None
    rows = [
        Row(
            STEPS[one.numbers["property"]],
            one.numbers["coefficient"],
            one.interval.low,
            one.interval.high,
            f"{one.numbers['coefficient']:+.3f}",
            one.is_selected,
        )
        for one in chosen
        if one.interval is not None
    ]
    system = quote_name(chosen[0].numbers["system"])
    caption = (
        f"How the loss of {system} changes with each property of a text, taken alone, with 95% "
        "intervals. The properties overlap. Filled: stands out after correction."
    )
    alt = "; ".join(f"{row.label}: {row.text}" for row in rows)
    x = f"change of the loss in {chosen[0].numbers['unit']}"
    draw = partial(interval_plot, rows, x=x, reference=0.0)
    return Figure.drawn("text-properties", caption, f"Change of the loss: {alt}", draw)


def _importance_figure(findings: Sequence[Finding]) -> Figure | None:
    """The share of the spread of scores that each key accounts for."""
    chosen = [one for one in findings if one.figure == "importance"]
    if len(chosen) < 2:
        return None
    methods = list(dict.fromkeys(one.numbers["method"] for one in chosen))
    rows = []
    for one in chosen:
        label = KeyEffect(one.numbers["keys"], one.numbers["share"], one.p).label
        if len(methods) > 1 and one.numbers["method"] != ANOVA:
            label += " (search)"
        share = f"{one.numbers['share']:.0%}"
        text = share if one.p is None else f"{share}, p {format_p(one.p)}"
        rows.append(Row(label, 100 * one.numbers["share"], text=text))
    caption = (
        "Share of the spread of scores that each key accounts for, by "
        f"{'; for the search by '.join(methods)}. Shares divide what there is, noise included: "
        "whether a key matters at all, its p says."
    )
    alt = "; ".join(f"{row.label} {row.text}" for row in rows)
    draw = partial(bar_chart, rows, x="share in percent")
    return Figure.drawn("importance", caption, f"Shares: {alt}", draw)


def _cost_table(results: StudyResults) -> Table | None:
    """What each system costs, beside its score."""
    costs = measure_costs(results)
    if len(costs) < 2 or results.comparison is None:
        return None
    metric = results.comparison.metric
    columns = ["system", "minutes a run", "training tokens per second", metric.name]
    rows = [
        [
            one.system,
            "–" if one.minutes is None else f"{one.minutes:.2f}",
            "–" if one.tokens_per_second is None else f"{one.tokens_per_second:,.0f}",
            "–" if one.score is None else format_score(one.score, metric),
        ]
        for one in costs
    ]
    caption = (
        "The mean time and speed of a run over its seeds. Minutes include evaluations, tokens per "
        "second do not. Ratios of times are of geometric means, which one slow run changes less: "
        "they may differ from the ratio of these means."
    )
    return Table("costs", caption, columns, rows, columns[1:])


def _questions_table(findings: Sequence[Finding]) -> Table:
    """The answers that do not stand out, or have no room below their figures."""
    rows = []
    for one in sorted(findings, key=lambda one: one.p or 0.0)[:MAX_QUESTIONS]:
        about, value = _tell_estimate(one)
        bounds = [] if one.interval is None else [one.interval.low, one.interval.high]
        shown, *ends = _format_alike([value, *bounds])
        span = " to ".join(ends) or "–"
        p, q = (
            "–" if number is None else format_p(number).removeprefix("= ")
            for number in (one.p, one.q)
        )
        rows.append([about, shown, span, p, q])
    caption = (
        "The other answers, smallest p first. q is p corrected for all questions together: above "
        "0.05 an answer is not distinguishable from chance. Each interval is of its question alone."
    )
    if len(findings) > MAX_QUESTIONS:
        caption += f" {len(findings) - MAX_QUESTIONS} with larger p are left out."
    columns = ["question", "estimate", "95% interval", "p", "q"]
    return Table("questions", caption, columns, rows, columns[1:])


def _format_alike(values: Sequence[float]) -> list[str]:
    """Numbers with the same decimals: three digits of the largest, four decimals at most."""
    largest = max(map(abs, values))
    decimals = 4 if largest == 0 else min(4, max(0, 2 - math.floor(math.log10(largest))))
    return [f"{value:.{decimals}f}" for value in values]


def _tell_estimate(finding: Finding) -> tuple[str, float]:
    """What a finding is about with its unit, in few words, and its estimate."""
    n = finding.numbers
    pair = f"{n.get('a')} − {n.get('b')}"
    match finding.kind:
        case "length":
            return f"{pair}, long minus short texts ({n['metric']})", n["change"]
        case "class":
            return f"{pair}, recall of {n['class']} (points)", n["difference"]
        case "overfit" if "rise" in n:
            return f"{n['system']}, rise of dev loss after its lowest (nats)", n["rise"]
        case "overfit":
            return f"{pair}, dev minus train loss at the end (nats)", n["difference"]
        case "group" if "part" in n:
            key = n["property"]
            name = "all properties" if key == EVERYTHING else PROPERTIES[key][0]
            return f"{n['hard']} − {n['easy']}, part that goes with {name} (nats)", n["part"]
        case "group":
            return f"{n['hard']} − {n['easy']}, loss (nats)", n["gap"]
        case "hardness":
            return f"{PROPERTIES[n['property']][1]}, change of loss (nats)", n["coefficient"]
        case "importance":
            return f"{' × '.join(n['keys'])}, share of the spread", n["share"]
        case "cost":
            return f"{n['a']} / {n['b']}, time of a run (ratio of geometric means)", n["ratio"]
        case kind:
            raise ValueError(f"a finding of kind {kind!r} has no short form")


def _tell_left_out(systems: int) -> str:
    left = systems - MAX_CURVES
    return f" {count_of(left, 'more system')} not drawn." if left > 0 else ""
