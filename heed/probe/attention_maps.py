"""What a translator attends to, by word: attention maps and the alignments they imply.

Shapes: l layers, h heads, n target pieces, m source pieces; N target words, M source words.
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
TOGETHER = 64
"""Sentences traced side by side."""


@dataclass(frozen=True)
class CrossMap:
    """How each target word was written: where in the source each layer and head looked."""

    source_words: list[str]
    target_words: list[str]
    weights_lhnm: Floats
    """[l, h, N, M]: rows sum to at most one; what went to the end mark is left out."""

    def averaged(self, layer: int) -> Floats:
        """[N, M]: the mean over a layer's heads."""
        return np.asarray(self.weights_lhnm[layer].mean(axis=0))

    def links(self, layer: int) -> set[tuple[int, int]]:
        """(source word, target word): where each target word looked most."""
        return set(hard_links(self.averaged(layer)))


def cross_maps(
    model: Translator, tokenizer: Tokenizer, pairs: Sequence[tuple[str, str]]
) -> list[CrossMap]:
    """Cross-attention while each target is written, piece by piece, from its source.

    The row of a target piece is the one that predicted it: what the model looked at to write it,
    not what it looked at once it was written.
    """
    maps: list[CrossMap] = []
    with evaluating(model):
        for first in range(0, len(pairs), TOGETHER):
            maps += _together(model, tokenizer, pairs[first : first + TOGETHER])
    return maps


def cross_map(model: Translator, tokenizer: Tokenizer, source: str, target: str) -> CrossMap:
    """The same for one pair."""
    return cross_maps(model, tokenizer, [(source, target)])[0]


def _together(
    model: Translator, tokenizer: Tokenizer, pairs: Sequence[tuple[str, str]]
) -> Iterator[CrossMap]:
    sources = tokenizer.encode_batch([source for source, _ in pairs])
    targets = tokenizer.encode_batch([target for _, target in pairs])
    ids, marks = list(zip(sources, targets, strict=True)), tokenizer.specials
    layers = cross_weights(model, ids, marks.bos, marks)
    weights_blhnm = torch.stack(layers, dim=1).double().cpu().numpy()
    for (source, target), weights, s, t in zip(pairs, weights_blhnm, sources, targets, strict=True):
        source_words, target_words = source.split(), target.split()
        rows = tokenizer.words(target), len(target_words)
        columns = tokenizer.words(source), len(source_words)
        weights_lhnm = by_word(weights[:, :, : len(t), : len(s)], rows, columns)
        yield CrossMap(source_words, target_words, weights_lhnm)


def best_layer(maps: Sequence[CrossMap], gold: Sequence[Links]) -> int:
    """The layer whose attention agrees best with known alignments (choose it on dev)."""
    layers = range(maps[0].weights_lhnm.shape[0])
    return min(layers, key=lambda i: alignment_error_rate([m.links(i) for m in maps], gold))
