"""Results of `heed evaluate` and `heed score` as tables, from the values that `--json` prints."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from heed.evaluate import tables_classification, tables_perplexity, tables_translation
from heed.evaluate.table_cells import Result, format_interval, format_number
from heed.evaluate.tables_translation import NLTK, SACREBLEU_NAMES
from heed.terminal import build_note, build_table

ROWS = {
    "texts": ("texts", "{:,}"),
    "loss": ("loss", "{:.4f}"),
    "perplexity": ("perplexity", "{:.3f}"),
    **tables_perplexity.ROWS,
    "accuracy": ("accuracy", "{:.2%}"),
    "macro_f1": ("macro F1", "{:.2%}"),
    **tables_classification.CALIBRATION_ROWS,
    "bleu": ("BLEU", "{:.2f}"),
    "chrf": ("chrF", "{:.2f}"),
    "ter": ("TER, lower is better", "{:.2f}"),
    "length_ratio": ("length ratio to the reference", "{:.3f}"),
    "hit_limit": ("cut off at the length limit", "{:.2%}"),
    NLTK: ("mean sentence BLEU, 0 to 1 (NLTK)", "{:.4f}"),
}
"""Rows of the table, in order: the key in the result, its label, its format."""
TOKEN_ACCURACY = {"accuracy": ("token accuracy", "{:.2%}")}
HEADER_WIDTH = 24
"""Characters in a line of a header of a table with one row per set."""
UNTESTED = ("length_ratio", NLTK)
"""Metrics without a paired test."""


def render_scores(result: Result) -> Group:
    """The result of `heed score`: one system, or several compared with the first."""
    if "systems" not in result:
        return Group(build_metrics_table({result["system"]: result}), *_details(result))
    systems = {system["system"]: system for system in result["systems"]}
    untested = build_table("system", *(ROWS[key][0] for key in UNTESTED), compact=True)
    for name, one in systems.items():
        untested.add_row(Text(name), *(format_metric(one, key) for key in UNTESTED))
    return Group(*tables_translation.render_comparison(result, systems, untested))


def render_evaluation(result: Result) -> Group:
    """The result of `heed evaluate`: the whole set, and its clean part where they differ."""
    if "runs" in result:
        return tables_perplexity.render_texts_by_run(result)
    if "scored_texts" in result:
        return tables_perplexity.render_token_losses(result)
    columns = {result["split"]: result}
    if result["in_train"] and result["clean"]:
        columns["not in train"] = result["clean"]
    rows = ROWS | TOKEN_ACCURACY
    if result["task"] == "classify":
        rows = {key: row for key, row in ROWS.items() if key != "perplexity"}
        if "calibration" in result:  # then the log loss is of calibrated probabilities
            rows |= {"loss": ("loss, before calibration", "{:.4f}")}
    table = build_metrics_table(columns, rows)
    return Group(*_provenance(result), table, *_details(result))


def build_metrics_table(
    columns: Mapping[str, Result], rows: Mapping[str, tuple[str, str]] = ROWS
) -> Table:
    """A table with one row per metric and one column per set."""
    table = build_table("", *columns)
    for key, (label, form) in rows.items():
        if any(key in result for result in columns.values()):
            table.add_row(label, *(format_metric(one, key, form) for one in columns.values()))
    return table


def _build_sets_tables(sets: Sequence[tuple[str, Result]]) -> Iterator[Table]:
    """Tables with one row per set, which compare the sets; for a single one, as `--test` has it."""
    rows = ROWS | TOKEN_ACCURACY
    if len(sets) == 1:
        yield build_metrics_table(dict(sets), rows)
        return
    for keys in tables_perplexity.SETS_COLUMNS:
        labels = ["\n".join(textwrap.wrap(rows[key][0], HEADER_WIDTH)) for key in keys]
        table = build_table("set", *labels, right=labels, no_wrap=labels, compact=True)
        for name, one in sets:
            table.add_row(Text(name), *(format_metric(one, key, rows[key][1]) for key in keys))
        yield table


def format_metric(result: Result, key: str, form: str | None = None) -> str:
    """A metric and its interval; a dash where the result has no such metric."""
    form = form or ROWS[key][1]
    if key not in result:
        return "–"
    if key == tables_classification.IF_PERFECT:
        return tables_classification.format_perfect_error(result[key])
    interval = result.get("interval", {}).get(key)
    if not interval:
        return format_number(result[key], form)
    metric = key if key in SACREBLEU_NAMES else None
    return f"{format_number(result[key], form)}  {format_interval(interval, form, metric)}"


def _provenance(result: Result) -> Iterator[RenderableType]:
    """Notes on the weights, the text, and how much of the text also occurs in train."""
    weights = result["checkpoint"]
    if weights is not None:
        yield build_note(weights_in_words(weights))
    part, trained_on = result["is_part"], result["trained_on"]
    origin = "set aside from " if part and not trained_on else ""
    left_out = ", without the part set aside for dev" if part and trained_on else ""
    yield build_note(f"{result['split']}: {origin}{', '.join(result['files'])}{left_out}")
    if result["dropped"]:
        counts = ", ".join(f"{count:,} {reason}" for reason, count in result["dropped"].items())
        yield build_note(f"left out: {counts}")
    yield build_note(overlap_in_words(result))
    if result.get("groups"):
        yield build_note(f"{result['texts']:,} texts in {result['groups']:,} groups")
    if result.get("looks", 1) > 1:
        yield build_note(f"{result['split']} was evaluated {result['looks']} times in this run")


def weights_in_words(weights: Result) -> str:
    """Which weights of the run were scored, in words."""
    text = f"{weights['weights']} at step {weights['step']:,}"
    if weights["epoch"] is not None:
        text += f" (epoch {weights['epoch']})"
    if weights["value"] is None:
        return text
    chosen = "" if weights["weights"] == "the weights" else "chosen by "
    return f"{text}, {chosen}{weights['metric']} = {weights['value']:.4f}"


def overlap_in_words(result: Result) -> str:
    """How many of the texts also occur in train, in words."""
    seen, texts = result["in_train"], result["texts"]
    if result["trained_on"]:
        return "the run was trained on this text: these scores say nothing about other text"
    if seen is None:
        return f"overlap with train is not known: {result['overlap_unknown']}"
    if texts == 1:
        return "the text is also in train" if seen else "the text is not in train"
    share = "all" if seen == texts else f"{seen:,} of" if seen else "none of"
    return f"{share} {texts:,} texts also in train"


def _details(result: Result) -> Iterator[RenderableType]:
    """The tables below the metrics, by what the result contains."""
    if "bits_comparable" in result:
        if named_sets := tables_perplexity.parts_of_named_sets(result):
            yield from _build_sets_tables(named_sets)
        sets = [result, *result.get("sets", {}).values()]
        yield from tables_perplexity.render_caveat(*sets)
        yield from tables_perplexity.render_intervals_note(*sets)
    if "confusion" in result:
        yield from tables_classification.render_details(result)
    yield from tables_translation.render_details(result)
