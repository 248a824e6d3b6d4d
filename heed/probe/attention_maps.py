"""Cross-attention maps of a translator, by word, and the word alignments they imply.

Shapes: b pairs, l layers, h heads, n target tokens, m source tokens; N target words, M source
words.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from heed.data.tokenizers.tokenizer import Tokenizer
from heed.decode.alignment import by_word, cross_weights, hard_links
from heed.metrics.alignment_error import Links, alignment_error_rate
from heed.models import Translator
from heed.models.inference import evaluating

Floats = NDArray[np.float64]
BATCH_SIZE = 64
"""Sentence pairs in a forward pass."""


@dataclass(frozen=True)
class CrossMap:
    """Cross-attention of one sentence pair, by word, for every layer and head."""

    source_words: list[str]
    target_words: list[str]
    weights_lhnm: Floats
    """[l, h, N, M]: rows sum to at most one; weight on the end-of-sequence token is left out."""

    def mean_over_heads(self, layer: int) -> Floats:
        """[N, M]: a layer's attention, averaged over its heads."""
        return np.asarray(self.weights_lhnm[layer].mean(axis=0))

    def links(self, layer: int) -> set[tuple[int, int]]:
        """(source word, target word): the source word with the largest weight for each target."""
        return set(hard_links(self.mean_over_heads(layer)))


def cross_maps(
    model: Translator, tokenizer: Tokenizer, pairs: Sequence[tuple[str, str]]
) -> list[CrossMap]:
    """Cross-attention maps of (source, target) pairs, with the target forced token by token.

    The row of a target token is that of the position which predicts it: what the model attends to
    in order to produce the token, not after it has been read.
    """
    maps: list[CrossMap] = []
    with evaluating(model):
        for first in range(0, len(pairs), BATCH_SIZE):
            maps += _map_batch(model, tokenizer, pairs[first : first + BATCH_SIZE])
    return maps


def cross_map(model: Translator, tokenizer: Tokenizer, source: str, target: str) -> CrossMap:
    """The cross-attention map of one pair."""
    return cross_maps(model, tokenizer, [(source, target)])[0]


def _map_batch(
    model: Translator, tokenizer: Tokenizer, pairs: Sequence[tuple[str, str]]
) -> Iterator[CrossMap]:
    sources = tokenizer.encode_batch([source for source, _ in pairs])
    targets = tokenizer.encode_batch([target for _, target in pairs])
    ids, specials = list(zip(sources, targets, strict=True)), tokenizer.specials
    layers = cross_weights(model, ids, specials.bos, specials)
    weights_blhnm = torch.stack(layers, dim=1).double().cpu().numpy()
    for (source, target), weights, s, t in zip(pairs, weights_blhnm, sources, targets, strict=True):
        source_words, target_words = source.split(), target.split()
        rows = tokenizer.word_indices(target), len(target_words)
        columns = tokenizer.word_indices(source), len(source_words)
        weights_lhnm = by_word(weights[:, :, : len(t), : len(s)], rows, columns)
        yield CrossMap(source_words, target_words, weights_lhnm)


def best_layer(maps: Sequence[CrossMap], gold: Sequence[Links]) -> int:
    """The layer whose attention is closest to gold alignments; choose it on dev."""
    layers = range(maps[0].weights_lhnm.shape[0])
    return min(layers, key=lambda i: alignment_error_rate([m.links(i) for m in maps], gold))
