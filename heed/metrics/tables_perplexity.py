"""What a language model makes of text, for a person to read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

Facts = Mapping[str, Any]
ROWS = {
    "word_perplexity": ("perplexity by word", "{:.2f}"),
    "bits_per_byte": ("bits per byte", "{:.4f}"),
    "mean_text_perplexity": ("mean of the texts' perplexities, as course reports do", "{:.2f}"),
    "tokens": ("tokens", "{:,}"),
    "words": ("words", "{:,}"),
    "bytes": ("bytes", "{:,}"),
    "unknown_tokens": ("unknown tokens", "{:,}"),
}
"""What is told of a set beside its loss, in this order: its key, its name, its form."""


def columns(facts: Facts) -> dict[str, Facts]:
    """The recipe's named sets, each with the part of it that train does not have."""
    found: dict[str, Facts] = {}
    for name, own in facts.get("sets", {}).items():
        found[name] = own
        if own["in_train"] and own["clean"]:
            found[f"{name}, not in train"] = own["clean"]
    return found


def caveat(*found: Facts) -> Iterator[RenderableType]:
    """When bits per byte are no fair comparison."""
    unknown, altered = (
        sum(facts[key] for facts in found) for key in ("unknown_tokens", "altered_texts")
    )
    if not altered:
        return
    hidden = f"{unknown:,} unknown tokens hide text, and " if unknown else ""
    yield Text(
        "perplexity by word and bits per byte do not compare with another tokenizer's: "
        f"{hidden}the tokenizer would not give back {altered:,} of the texts to the letter",
        style="dim",
    )


def judged(facts: Facts) -> Group:
    """Texts with the loss of each of their tokens."""
    shown: list[RenderableType] = []
    for one in facts["judged"]:
        table = Table(title=Text(one["text"]), title_justify="left", show_edge=False)
        table.add_column("token")
        for name in ("loss", "probability"):
            table.add_column(name, justify="right")
        for token in one["by_token"]:
            chance = f"{token['probability']:.2%}"
            table.add_row(Text(token["token"]), f"{token['loss']:.4f}", chance)
        shown += [table, Text(_sum(one), style="dim"), *caveat(one), ""]
    return Group(*shown[:-1])


def _sum(one: Facts) -> str:
    return (
        f"{one['tokens']:,} tokens, loss {one['loss']:.4f}, perplexity {one['perplexity']:.2f}; "
        f"by word {one['word_perplexity']:.2f}; {one['bits_per_byte']:.4f} bits per byte"
    )
