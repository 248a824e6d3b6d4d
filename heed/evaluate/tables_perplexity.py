"""Tables of language-model results: perplexity, bits per byte, losses of single tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Group, RenderableType
from rich.text import Text

from heed.evaluate.table_cells import Result, format_number
from heed.stats.intervals import MIN_ITEMS
from heed.terminal import build_note, build_table

ROWS = {
    "word_perplexity": ("perplexity per word", "{:.2f}"),
    "bits_per_byte": ("bits per byte", "{:.4f}"),
    "mean_text_perplexity": ("mean perplexity of texts, as in course reports", "{:.2f}"),
    "tokens": ("tokens", "{:,}"),
    "words": ("words", "{:,}"),
    "bytes": ("bytes", "{:,}"),
    "unknown_tokens": ("unknown tokens", "{:,}"),
}
"""Rows of the table, in order: the key in the result, its label, its format."""

SETS_COLUMNS = (
    ("texts", "perplexity", "bits_per_byte"),
    ("loss", "word_perplexity", "mean_text_perplexity"),
    ("tokens", "words", "bytes", "unknown_tokens", "accuracy"),
)
"""Columns of the tables that compare sets, the main metrics first: each fits 80 columns."""


def parts_of_named_sets(result: Result) -> list[tuple[str, Result]]:
    """The recipe's named sets, each followed by its clean part where they differ."""
    parts: list[tuple[str, Result]] = []
    for name, set_result in result.get("sets", {}).items():
        parts.append((name, set_result))
        if set_result["in_train"] and set_result["clean"]:
            parts.append(("  not in train", set_result["clean"]))
    return parts


def render_caveat(*results: Result) -> Iterator[RenderableType]:
    """A note where bits per byte do not compare with those of other tokenizers."""
    unknown, altered = (
        sum(result[key] for result in results) for key in ("unknown_tokens", "altered_texts")
    )
    if not altered:
        return
    lost = f"{unknown:,} unknown tokens hide text, and " if unknown else ""
    yield build_note(
        "perplexity per word and bits per byte do not compare with another tokenizer's: "
        f"{lost}the tokenizer does not restore {altered:,} of the texts exactly"
    )


def render_intervals_note(*results: Result) -> Iterator[RenderableType]:
    """What the intervals are, and why a small set or clean part has none."""
    parts = [part for one in results for part in (one, one["clean"]) if part]
    if any(part["interval"] for part in parts):
        yield build_note("intervals: 95%, Student's t over texts, on the logarithm of perplexity")
    if any(part["texts"] < MIN_ITEMS for part in parts):
        yield build_note(
            f"fewer than {MIN_ITEMS} texts get no interval: they do not show how much texts differ"
        )


def render_token_losses(result: Result) -> Group:
    """The loss and probability of each token of the given texts."""
    shown: list[RenderableType] = []
    for one in result["scored_texts"]:
        numbers = ("loss", "probability")
        table = build_table("token", *numbers, title=one["text"], right=numbers)
        for token in one["by_token"]:
            probability = f"{token['probability']:.2%}"
            table.add_row(Text(token["token"]), f"{token['loss']:.4f}", probability)
        shown += [table, build_note(_summarize(one)), *render_caveat(one), ""]
    return Group(*shown[:-1])


def _summarize(one: Result) -> str:
    token, word = (format_number(one[key], "{:.2f}") for key in ("perplexity", "word_perplexity"))
    without = f" (without the end token {_format_without_end(one)})" if one["without_end"] else ""
    return (
        f"{one['tokens']:,} tokens, loss {one['loss']:.4f}, perplexity {token}{without}; "
        f"per word {word}; "
        f"{one['bits_per_byte']:.4f} bits per byte"
    )


def render_texts_by_run(result: Result) -> Group:
    """Texts × runs: perplexity with and without the end token, and bits per byte."""
    runs = result["runs"]
    names = _short_names([one["run"] for one in runs])
    table = build_table("text", "", *names, right=names, compact=True)
    for i, first in enumerate(runs[0]["scored_texts"]):
        texts = [one["scored_texts"][i] for one in runs]
        table.add_row(
            Text(first["text"]),
            "perplexity",
            *(format_number(one["perplexity"], "{:.2f}") for one in texts),
        )
        table.add_row("", "without <eos>", *map(_format_without_end, texts))
        table.add_row("", "bits per byte", *(f"{one['bits_per_byte']:.4f}" for one in texts))
    notes = []
    if len({one["tokenizer"] for one in runs}) > 1:
        notes.append("perplexities of different tokenizers do not compare: bits per byte do")
    every_text = [one for run in runs for one in run["scored_texts"]]
    return Group(table, *map(build_note, notes), *render_caveat(*every_text))


def _format_without_end(one: Result) -> str:
    inner = one["without_end"]
    return "–" if inner is None else format_number(inner["perplexity"], "{:.2f}")


def _short_names(folders: Sequence[str]) -> list[str]:
    """The last part of each folder's path, or the whole where two would be the same."""
    names = [Path(folder).name for folder in folders]
    return names if len({*names}) == len(names) else list(folders)
