"""What a translator attends to, by word: attention maps and the alignments they imply.

Shapes: l layers, h heads, n target pieces, m source pieces; N target words, M source words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from heed.data.tokenizer import BOS, EOS, Tokenizer
from heed.models import Translator
from heed.score.evaluation import evaluating
from heed.score.translation import Links, alignment_error

Floats = NDArray[np.float64]


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
        return {(int(row.argmax()), i) for i, row in enumerate(self.averaged(layer))}


def cross_map(model: Translator, tokenizer: Tokenizer, source: str, target: str) -> CrossMap:
    """Cross-attention while `target` is written, piece by piece, from `source`.

    The row of a target piece is the one that predicted it: what the model looked at to write it,
    not what it looked at once it was written.
    """
    device = model.embedding.table.weight.device
    source_ids, target_ids = tokenizer.encode(source), tokenizer.encode(target)
    read = torch.tensor([[*source_ids, EOS]], device=device)
    written = torch.tensor([[BOS, *target_ids]], device=device)
    with evaluating(model):
        trace = model.trace(read, written)
    pieces = torch.stack([layer[0] for layer in trace.cross]).double().cpu().numpy()
    pieces = pieces[:, :, : len(target_ids), : len(source_ids)]
    columns = _by_word(tokenizer.words(source), len(source.split()))
    rows = _by_word(tokenizer.words(target), len(target.split()))
    # Pieces of a source word add up; pieces of a target word are averaged.
    rows = rows / np.maximum(1, rows.sum(axis=1, keepdims=True))
    return CrossMap(source.split(), target.split(), rows @ pieces @ columns.T)


def _by_word(word_of_piece: Sequence[int], words: int) -> Floats:
    """[words, pieces]: 1 where a piece belongs to a word."""
    return np.equal.outer(np.arange(words), np.asarray(word_of_piece)).astype(np.float64)


def best_layer(maps: Sequence[CrossMap], gold: Sequence[Links]) -> int:
    """The layer whose attention agrees best with known alignments (choose it on dev)."""
    layers = range(maps[0].weights_lhnm.shape[0])
    return min(layers, key=lambda i: alignment_error([m.links(i) for m in maps], gold))
