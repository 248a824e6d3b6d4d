"""Tables of translation results: comparisons, BLEU by length, example sentences, signatures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from heed.evaluate.table_cells import Result, format_difference, format_interval, format_paired_p
from heed.terminal import build_grid, build_note, build_table

SACREBLEU_NAMES = {"bleu": "BLEU", "chrf": "chrF", "ter": "TER"}
NLTK = "nltk_mean_sentence_bleu"
LENGTH_TITLE = "BLEU by source length"
ITEMS_ONLY = (
    "These tests are over test items alone: they compare these outputs, not the recipes behind "
    "them. Another seed can change the result; heed compare takes several seeds of each recipe."
)
SHOWN_CHARS = 240
"""Characters of an example sentence that are shown; `--sentences` writes all of them."""


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
    numbers = ("score", "difference", "p")
    table = build_table("", "system", *numbers, no_wrap=("", *numbers), compact=True)
    for key, label in SACREBLEU_NAMES.items():
        for name, system in systems.items():
            if key in system:
                interval, paired = (system.get(k, {}).get(key) for k in ("interval", "paired"))
                bounds = f"  {format_interval(interval, metric=key)}" if interval else ""
                tests = (format_difference(paired), format_paired_p(paired)) if paired else ()
                table.add_row(label, Text(name), f"{system[key]:.2f}{bounds}", *tests)
        if key in baseline:
            table.add_section()
    yield build_note(
        f"{result['texts']:,} texts; each system is compared with {result['baseline']}"
    )
    yield table
    yield build_note(ITEMS_ONLY)
    yield untested
    if "by_source_length" in baseline:
        yield _build_length_table(systems)
    yield _build_signatures(baseline["signature"])
    yield build_note(_describe_test(result, "by_source_length" in baseline))


def _describe_test(result: Result, by_length: bool) -> str:
    """What p is, and which comparisons it is corrected for."""
    comparisons, test = len(result["systems"]) - 1, result["test"]
    families = [f"the {comparisons} comparisons of a metric (max-t)"] if comparisons > 1 else []
    families += ["all ranges of length (Bonferroni)"] if by_length else []
    corrected = f", corrected for {' and for '.join(families)}" if families else ""
    seed = "a new seed each time" if test["seed"] is None else f"seed {test['seed']}"
    return (
        f"p: two-sided paired {test['name']}, {test['trials']:,} trials, {seed}{corrected}; "
        "differences with 95% intervals by jackknife"
    )


def _build_length_table(systems: Mapping[str, Result]) -> Table:
    """BLEU by source length; of several systems a row each, with p-values against the first."""
    groups = next(iter(systems.values()))["by_source_length"]
    ranges = [_format_range(*group["words"]) for group in groups]
    texts = [f"{group['texts']:,}" for group in groups]
    if len(systems) == 1:
        (system,) = systems.values()
        table = build_table("words in the source", "texts", *systems, title=LENGTH_TITLE)
        for words, count, part in zip(ranges, texts, system["by_source_length"], strict=True):
            interval = part.get("interval")
            bounds = f"  {format_interval(interval, metric='bleu')}" if interval else ""
            table.add_row(words, count, f"{part['bleu']:.2f}{bounds}")
        return table
    headers = [f"{w} words\n{n} texts" for w, n in zip(ranges, texts, strict=True)]
    table = build_table(
        "system", *headers, title=LENGTH_TITLE, right=headers, no_wrap=headers, compact=True
    )
    for name, system in systems.items():
        cells = []
        for part in system["by_source_length"]:
            p = f"\np {format_paired_p(part['paired'])}" if "paired" in part else ""
            cells.append(f"{part['bleu']:.2f}{p}")
        table.add_row(Text(name), *cells)
    return table


def _format_range(low: int, high: int) -> str:
    return f"{low}" if low == high else f"{low} to {high}"


def _build_sentence_table(kind: str, sentences: Sequence[Result]) -> Table:
    """The best or the worst sentences: source, hypothesis and reference below one another."""
    numbers = ("line", "BLEU")
    title = f"{kind} sentences"
    table = build_table(*numbers, "", "", title=title, right=numbers, no_wrap=numbers, compact=True)
    for sentence in sentences:
        cells = [f"{sentence['line']:,}", f"{sentence['score']:.1f}"]
        for key in ("source", "hypothesis", "reference"):
            if key in sentence:
                table.add_row(*cells, Text(key, "dim"), Text(_shorten(sentence[key])))
                cells = ["", ""]
    return table


def _shorten(text: str) -> str:
    """The beginning of a long text; a model that repeats itself may fill screens."""
    if len(text) <= SHOWN_CHARS:
        return text
    return f"{text[:SHOWN_CHARS].rstrip()} … ({len(text):,} characters)"


def _build_signatures(signatures: Mapping[str, str]) -> Table:
    grid = build_grid()
    for key, signature in signatures.items():
        name = "mean sentence BLEU" if key == NLTK else SACREBLEU_NAMES[key]
        grid.add_row(Text(name, "dim"), Text(signature, "dim", overflow="fold"))
    return grid
