"""Tables of heads for the terminal, 80 columns wide: report cards, alignment, ablation."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from itertools import groupby

from rich.console import Group, RenderableType
from rich.table import Table

from heed.probe.ablate import HOWS, Ablation, HeadCost
from heed.probe.alignment_heads import AlignmentResult
from heed.probe.head_cards import (
    ALIGNER_ERROR,
    GOLD_ERROR,
    MIXED,
    RULES,
    Estimate,
    HeadReport,
    Rule,
)
from heed.probe.head_metrics import INDUCTION
from heed.stats.intervals import MIN_ITEMS
from heed.stats.verdicts import format_p
from heed.terminal import build_note, build_table

COLUMNS = {
    "entropy": "entropy",
    "distance": "dist",
    "previous": "prev",
    "next": "next",
    "same": "same",
    "first": "first",
    "end": "end",
    "punctuation": "punct",
    INDUCTION: "induc",
    GOLD_ERROR: "AER vs\ngold",
    ALIGNER_ERROR: "AER vs\nHMM",
}
"""Metrics that the tables show, and their headers; JSON has all."""
TITLES = {
    "encoder": "Encoder self-attention",
    "decoder": "Decoder self-attention",
    "cross": "Cross-attention",
}
WIDTH = 79
NUMBERS = ("entropy", "distance", GOLD_ERROR, ALIGNER_ERROR)
"""Metrics that are not shares in percent."""


def render_heads(report: HeadReport) -> RenderableType:
    """The tables of a report: one for each kind of attention, then what the numbers mean."""
    return Group(*_parts(report))


def _parts(report: HeadReport) -> Iterator[RenderableType]:
    for kind in report.kinds:
        yield _table(report, kind)
        yield ""
    notes = (textwrap.fill(note, WIDTH) for note in _notes(report))
    yield build_note("\n".join(notes))


def _table(report: HeadReport, kind: str) -> Table:
    cards = [card for card in report.cards if card.head.kind == kind]
    shown = [name for name in COLUMNS if any(name in card.metrics for card in cards)]
    headers = ["head", *(COLUMNS[name] for name in shown), "name"]
    texts = f"{report.examples:,} {unit_of(report)}"
    table = build_table(
        *headers,
        title=f"{TITLES[kind]}, {texts} of {report.set_name}",
        right=headers[:-1],
        no_wrap=headers[:-1],
        compact=True,
    )
    rows = {f"{card.head.layer + 1}.{card.head.head + 1}": card.metrics for card in cards}
    names = [card.name for card in cards]
    for (label, metrics), name in zip(rows.items(), names, strict=True):
        table.add_row(label, *_cells(metrics, shown), name.removesuffix(" token"))
    table.add_section()
    table.add_row("", *_cells(report.uniform[kind], shown), "(uniform)")
    return table


def unit_of(report: HeadReport) -> str:
    """What the examples of a report are."""
    if report.task == "translate":
        return "sentence pairs"
    return "texts" if report.examples == report.texts else "windows of text"


def _cells(metrics: Mapping[str, Estimate], shown: list[str]) -> Iterator[str]:
    for name in shown:
        estimate = metrics.get(name)
        yield "–" if estimate is None else format_estimate(name, estimate)


def format_estimate(name: str, estimate: Estimate) -> str:
    """A metric with half its interval: `2.31±.02`, or a share in percent, `52±1`."""
    value, interval = estimate.value, estimate.interval
    half = None if interval is None else (interval.high - interval.low) / 2
    if name in NUMBERS:
        digits = 3 if name in (GOLD_ERROR, ALIGNER_ERROR) else 2
        shown = f"{value:.{digits}f}"
        if name in (GOLD_ERROR, ALIGNER_ERROR):
            shown = shown.removeprefix("0")
        return shown if half is None else f"{shown}±{_short(half, digits)}"
    shown = f"{100 * value:.0f}"
    return shown if half is None else f"{shown}±{_short(100 * half, 1 if half < 0.0095 else 0)}"


def _short(value: float, digits: int) -> str:
    """A number below one without its zero: .02."""
    return f"{value:.{digits}f}".removeprefix("0") if digits else f"{value:.0f}"


def _notes(report: HeadReport) -> Iterator[str]:
    yield (
        "Heads are layer.head, counted from 1. Entropy is in bits, distance in tokens, shares are "
        "in percent of a query's weight; ± is half of the 95% interval over the examples."
    )
    if report.examples < MIN_ITEMS:
        yield f"Fewer than {MIN_ITEMS} examples give no intervals, so names rest on the values."
    if "cross" in report.kinds:
        yield (
            "In cross-attention, distance is that from the diagonal. AER is the alignment error "
            "rate with one link per target word, against gold links and a word aligner (HMM)."
        )
        yield from _best_aligning_head(report)
    if report.aligner is not None and GOLD_ERROR in report.aligner:
        pairs, error = report.aligner["pairs"], report.aligner[GOLD_ERROR]
        yield f"The aligner, fitted to {pairs:,} pairs, has an AER of {error:.3f} against gold."
    if report.cut:
        verb = "was" if report.cut == 1 else "were"
        share = f"{report.cut:,} of {report.examples:,} examples"
        yield f"{share} {verb} cut to the length that the model reads."
    measured = {name for card in report.cards for name in card.metrics}
    rules = {rule.name: rule for rule in RULES if rule.metric in measured}
    names = [
        f"{', '.join(rule.name for rule in group)} ({limit})"
        for limit, group in groupby(rules.values(), key=Rule.limit)
    ]
    yield f"Names, the first that holds for the whole interval: {'; '.join(names)}; else {MIXED}."


def _best_aligning_head(report: HeadReport) -> Iterator[str]:
    """The cross-attention head with the lowest alignment error rate, by each reference."""
    references = {GOLD_ERROR: "gold links", ALIGNER_ERROR: "the word aligner"}
    cards = [card for card in report.cards if card.head.kind == "cross"]
    for name, reference in references.items():
        errors = {card.head: card.metrics[name].value for card in cards if name in card.metrics}
        if errors:
            best = min(errors, key=lambda head: errors[head])
            label = f"{best.layer + 1}.{best.head + 1}"
            yield f"Head {label} aligns best: AER {errors[best]:.3f} against {reference}."
            return


# ------------------------------------------------------------------------ alignment and ablation


def render_alignment(result: AlignmentResult) -> RenderableType:
    """The alignment error rates of the chosen heads, beside those of others."""
    sets = [
        f"{name}, {pairs:,} pairs"
        for name, pairs in zip((result.chosen_on, result.scored_on), result.pairs, strict=True)
    ]
    if sets[0] == sets[1]:
        sets[1] += " again"
    table = build_table("alignment error rate", *sets, right=sets, no_wrap=sets, compact=True)
    for name, pair in result.errors.items():
        cells = []
        for estimate in pair:
            interval = estimate.interval
            text = f"{estimate.value:.3f}"
            if interval is not None:
                text += f" [{interval.low:.3f}, {interval.high:.3f}]"
            cells.append(text)
        table.add_row(name, *cells)
    heads = ", ".join(head.label for head in result.heads)
    notes = [
        f"Chosen on {result.chosen_on}: {heads}; {result.rule}. Heads are kind.layer.head, "
        "counted from 1.",
        "One link per word: each target word with the source word it attends to most. Links both "
        "ways: also each source word with the target word that attends to it most.",
    ]
    references = dict(zip((result.chosen_on, result.scored_on), result.reference, strict=True))
    sets_by_reference: dict[str, list[str]] = {}
    for name, reference in references.items():
        sets_by_reference.setdefault(reference, []).append(name)
    parts = [
        f"with {'gold links' if reference == 'gold' else 'the links of the word aligner'} on "
        f"{' and '.join(names)}"
        for reference, names in sets_by_reference.items()
    ]
    notes.append(f"Links are compared {', '.join(parts)}.")
    return Group(table, "", build_note("\n".join(textwrap.fill(note, WIDTH) for note in notes)))


def render_ablation(ablation: Ablation) -> RenderableType:
    """What silencing each head costs, and the removal curve."""
    where = f"{ablation.set_name}, {ablation.examples:,} examples"
    metric, digits = ablation.metric, ablation.metric.digits
    notes = [
        f"Whole model: {metric.name} {ablation.whole:.{digits}f}. Silenced by {ablation.how!r}: "
        f"{HOWS[ablation.how]}.",
        "Intervals are 95% and hold for all heads of a table together; examples are paired. They "
        "say how far another sample of text could change the difference, not another seed.",
        "Greedy removal chooses by loss, on a part of the examples.",
    ]
    return Group(
        _cost_table(ablation, ablation.costs, f"Each head silenced alone, on {where}"),
        "",
        _cost_table(ablation, ablation.removals, f"Heads removed one after another, on {where}"),
        "",
        build_note("\n".join(textwrap.fill(note, WIDTH) for note in notes)),
    )


def _cost_table(ablation: Ablation, costs: list[HeadCost], title: str) -> Table:
    name, digits = ablation.metric.name, ablation.metric.digits
    headers = ["", "head", name, "change", "95% interval", "p"]
    table = build_table(*headers, title=title, right=headers, no_wrap=headers, compact=True)
    for number, cost in enumerate(costs, start=1):
        change, number_form = cost.change, f"+.{digits}f"
        interval = f"{change.interval.low:{number_form}} to {change.interval.high:{number_form}}"
        table.add_row(
            str(number),
            cost.head.label,
            f"{change.value:.{digits}f}",
            f"{change.difference:{number_form}}",
            interval,
            format_p(change.p).removeprefix("= "),
        )
    return table
