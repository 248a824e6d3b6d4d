"""Tables of translation results: comparisons, BLEU by length, example sentences, signatures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from heed.evaluate.table_cells import format_interval, format_paired_p
from heed.terminal import build_grid, build_note, build_table

Result = Mapping[str, Any]
SACREBLEU_NAMES = {"bleu": "BLEU", "chrf": "chrF", "ter": "TER"}
NLTK = "nltk_mean_sentence_bleu"


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
    table = build_table("", "system", "score", "95% interval", "Δ", "p")
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
        yield build_note(_describe_test(len(systems) - 1, "by_source_length" in baseline))
        yield _build_signatures(result["tests"]["randomization"])


def _describe_test(comparisons: int, by_length: bool) -> str:
    """What p is, and which comparisons it is corrected for."""
    families = [f"the {comparisons} comparisons of a metric"] if comparisons > 1 else []
    families += ["all tests by length"] if by_length else []
    corrected = f", corrected for {' and for '.join(families)} (Holm)" if families else ""
    return f"p: two-sided paired approximate randomization{corrected}"


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
                cell += f"  p {format_paired_p(part['paired'])}"
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
    """The difference and the p-value of a paired comparison; nothing for the baseline."""
    if paired is not None:
        yield f"{paired['difference']:+.2f}"
        if "p" in paired:
            yield format_paired_p(paired)


def _build_signatures(signatures: Mapping[str, str]) -> Table:
    grid = build_grid()
    for key, signature in signatures.items():
        name = "mean sentence BLEU" if key == NLTK else SACREBLEU_NAMES[key]
        grid.add_row(Text(name, "dim"), Text(signature, "dim", overflow="fold"))
    return grid
