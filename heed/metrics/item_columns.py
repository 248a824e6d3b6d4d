"""Item counts of classifiers and language models, from the answers that an evaluation made."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from heed.arrays import Floats
from heed.data.tokenizers.tokenizer import Tokenizer
from heed.metrics.classification import Predictions
from heed.metrics.perplexity import LossCounts, TokenLosses
from heed.runs.item_counts import to_columns

MIN_TEXTS = 10
"""With fewer texts, the items of a language model are blocks of them."""
BLOCKS = 40
LOSS_COLUMNS = ("loss", "tokens", "words", "bytes", "correct")


def classification_columns(predictions: Predictions) -> dict[str, Floats]:
    """Label, prediction and log-probability of the label of every text."""
    columns = to_columns({"label": predictions.labels, "predicted": predictions.predicted})
    if predictions.log_probs is not None:
        rows = np.arange(len(predictions.labels))
        columns["log_probability"] = predictions.log_probs[rows, predictions.labels]
    return columns


def loss_columns(counts: Sequence[LossCounts]) -> dict[str, Floats]:
    """Loss sum, tokens, words, bytes and correct tokens of every text."""
    return to_columns({name: [getattr(one, name) for one in counts] for name in LOSS_COLUMNS})


def block_columns(
    tokenizer: Tokenizer,
    scored: Sequence[TokenLosses],
    counts: Sequence[LossCounts],
) -> tuple[dict[str, Floats], list[int]]:
    """The same for blocks of a text's bytes, and the text of each block.

    A few long texts say nothing about how much texts differ, so blocks of them serve as items. A
    token belongs to the block in which it ends, by the lengths of the tokens before it; so blocks
    are the same for every tokenizer.
    """
    total = sum(one.bytes for one in counts)
    rows: dict[str, list[float]] = {name: [] for name in LOSS_COLUMNS}
    text_of_block: list[int] = []
    for i, (one, whole) in enumerate(zip(scored, counts, strict=True)):
        blocks = max(1, round(BLOCKS * whole.bytes / total))
        lengths = [len(token) for token in tokenizer.ids_to_tokens(one.ids[:-1].tolist())]
        ends = np.cumsum([*lengths, 1]) / (sum(lengths) + 1)
        block_of_token = np.minimum(np.ceil(ends * blocks).astype(int) - 1, blocks - 1)
        edges = np.arange(blocks + 1) / blocks
        ones = np.ones(len(one.ids))
        for name, weights in (("loss", one.losses), ("tokens", ones), ("correct", one.correct)):
            rows[name] += np.bincount(block_of_token, weights, minlength=blocks).tolist()
        for name, count in (("words", whole.words), ("bytes", whole.bytes)):
            rows[name] += np.diff(np.round(edges * count)).tolist()
        text_of_block += [i] * blocks
    return to_columns(rows), text_of_block
