"""Tables of translation results: comparisons, BLEU by length, example sentences, signatures."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from heed.terminal import build_grid, build_note, build_table

Result = Mapping[str, Any]
SACREBLEU_NAMES = {"bleu": "BLEU", "chrf": "chrF", "ter": "TER"}
NLTK = "nltk_mean_sentence_bleu"
TESTS = ("p_bootstrap", "p_randomization")
TOO_SMALL = "?"
"""Marks a p-value below the smallest that so few differing texts allow."""


def render_details(result: Result) -> Iterator[RenderableType]:
    """BLEU by length, best and worst sentences, and signatures of one system."""
    if "by_source_length" in result:
        yield _build_length_table({"BLEU": result})
    if "best" in result:
        yield _build_sentence_table("best", result["best"])
        yield _build_sentence_table("worst", result["worst"])
    if "signature" in result:
        yield _build_signatures(result["signature"])


def render_comparison(
    result: Result, systems: Mapping[str, Result], untested: Table
) -> Iterator[RenderableType]:
    """Systems compared with the first; `untested` is the table of metrics without a test."""
    baseline = systems[result["baseline"]]
    table = build_table("", "system", "score", "95% interval", "Δ", "p, boot", "p, rand")
    for key, label in SACREBLEU_NAMES.items():
        for name, system in systems.items():
            if key in system:
                interval, paired = (system.get(k, {}).get(key) for k in ("interval", "paired"))
                if paired is None and system is not baseline:  # no samples, so no tests
                    paired = {"difference": system[key] - baseline[key]}
                bounds = format_interval(interval, metric=key) if interval else ""
                table.add_row(
                    label, Text(name), f"{system[key]:.2f}", bounds, *_format_tests(paired)
                )
        if key in baseline:
            table.add_section()
    yield build_note(
        f"{result['texts']:,} texts; each system is compared with {result['baseline']}"
    )
    yield table
    yield untested
    if "by_source_length" in baseline:
        yield _build_length_table(systems)
    yield _build_signatures(baseline["signature"])
    if result["tests"]:
        yield build_note(
            "p, boot: paired bootstrap, as above; p, rand: paired approximate randomization"
        )
        if _has_too_small_p(systems.values()):
            yield build_note(
                f"{TOO_SMALL}: sacreBLEU's p-value is too small here: with n differing texts no "
                "exact test can go below 2^(1-n)"
            )
        yield _build_signatures(result["tests"]["randomization"])


def format_interval(interval: Result, form: str = "{:.2f}", metric: str | None = "bleu") -> str:
    """An interval in brackets. `metric` is sacreBLEU's, whose symmetric intervals can exceed the
    metric's range and are clipped to it; None for any other."""
    low, high = interval["low"], interval["high"]
    if metric is not None:
        low, high = max(0.0, low), high if metric == "ter" else min(100.0, high)
    return f"[{form.format(low)}, {form.format(high)}]"


def _build_length_table(systems: Mapping[str, Result]) -> Table:
    """BLEU by source length; of several systems, with p-values against the first."""
    several = len(systems) > 1
    table = build_table("words in the source", "texts", *systems, title="BLEU by source length")
    for i, group in enumerate(next(iter(systems.values()))["by_source_length"]):
        cells = []
        for system in systems.values():
            part = system["by_source_length"][i]
            cell = f"{part['bleu']:.2f}"
            if several and "paired" in part:
                _, *p_values = _format_tests(part["paired"])
                cell += f"  p {' / '.join(p_values)}"
            elif "interval" in part:
                cell += f"  {format_interval(part['interval'])}"
            cells.append(cell)
        low, high = group["words"]
        words = f"{low}" if low == high else f"{low} to {high}"
        table.add_row(words, f"{group['texts']:,}", *cells)
    return table


def _build_sentence_table(kind: str, sentences: Sequence[Result]) -> Table:
    """The best or the worst sentences."""
    columns = ("source", "hypothesis", "reference")
    keys = [key for key in columns if sentences and key in sentences[0]]
    table = build_table("line", "BLEU", *keys, title=f"{kind} sentences")
    for sentence in sentences:
        texts = [Text(sentence[key]) for key in keys]
        table.add_row(f"{sentence['line']:,}", f"{sentence['score']:.1f}", *texts)
    return table


def _format_tests(paired: Result | None) -> Iterator[str]:
    """The difference and the p-values of a paired comparison; nothing for the baseline."""
    if paired is not None:
        yield f"{paired['difference']:+.2f}"
        for p in (paired[test] for test in TESTS if test in paired):
            yield f"{p:.4f}" + (TOO_SMALL if p < paired["smallest_p"] else "")


def _has_too_small_p(systems: Collection[Result]) -> bool:
    """Whether some p-value is below the smallest that its differing texts allow."""
    comparisons = [one for system in systems for one in system.get("paired", {}).values()]
    groups = [group for system in systems for group in system.get("by_source_length", [])]
    comparisons += [group["paired"] for group in groups if "paired" in group]
    return any(one[test] < one["smallest_p"] for one in comparisons for test in TESTS)


def _build_signatures(signatures: Mapping[str, str]) -> Table:
    grid = build_grid()
    for key, signature in signatures.items():
        name = "mean sentence BLEU" if key == NLTK else SACREBLEU_NAMES[key]
        grid.add_row(Text(name, "dim"), Text(signature, "dim", overflow="fold"))
    return grid
