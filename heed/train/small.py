"""Keys for small corpora (docs/small-data.md) that do not go together with others."""

from __future__ import annotations

from collections.abc import Iterator

from heed.config import Recipe


def complaints(recipe: Recipe) -> Iterator[str]:
    """What makes no sense, a sentence each."""
    data = recipe.data
    if data.both and not recipe.model.tie_embeddings:
        yield (
            "[data] both reads and writes either language, so it needs one table for both: set "
            "model.tie_embeddings = true."
        )
    model = recipe.model
    shares = (model.dropout, model.attention_dropout, model.feed_forward_dropout)
    if recipe.train.rdrop and not any(shares):
        yield (
            "[train] rdrop compares two passes with other dropout, and this model has none: set "
            "model.dropout."
        )
    if recipe.tokenizer.dropout and (data.pack or data.blocks):
        key = "pack" if data.pack else "blocks"
        yield (
            f"[tokenizer] dropout and [data] {key} do not go together: rows would fill otherwise "
            "in every epoch. Leave one of them out."
        )
