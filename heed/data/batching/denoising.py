"""Noise to be undone: a text with some of its pieces left out, some hidden, and out of order.

As Lample et al. (2018) have it, but by the piece: of a word cut in several, any may be gone. Piece
i goes to its place in the order of i + u, u drawn from [0, k + 1): so none moves by more than k.

Shapes: b texts, m tokens.
"""

from __future__ import annotations

import numpy as np
import torch

from heed.data.batching.batch import Batch
from heed.data.tokenizers.special_tokens import OWN, Specials

LEFT_OUT, HIDDEN, MOVED = 0.1, 0.1, 3
"""Shares of pieces, and how far one may move."""


def spoiled(batch: Batch, random: np.random.Generator, specials: Specials = OWN) -> Batch:
    """The batch with noise in its source. The end stays where it is, and some piece is left."""
    if batch.source is None or batch.source_mask is None:
        raise ValueError("There is no source to spoil.")
    ids_bm, real_bm = batch.source.numpy(), batch.source_mask.numpy()
    words_bm = real_bm & (ids_bm != specials.eos)
    gone_bm = words_bm & (random.random(ids_bm.shape) < LEFT_OUT)
    gone_bm &= (words_bm & ~gone_bm).any(axis=1, keepdims=True)
    length, stays_bm = ids_bm.shape[1], real_bm & ~gone_bm
    place_bm = np.arange(length) + random.random(ids_bm.shape) * (MOVED + 1)
    # Pieces first, then the end, then what is not there.
    behind_bm = np.where(stays_bm, 1, 2) * (length + MOVED + 1)
    place_bm = np.where(words_bm & stays_bm, place_bm, behind_bm)
    hides_bm = words_bm & (random.random(ids_bm.shape) < HIDDEN)
    shown_bm = np.where(hides_bm, specials.masking("data.denoise"), ids_bm)
    order_bm = np.argsort(place_bm, axis=1, kind="stable")
    left_bm = np.arange(length) < stays_bm.sum(axis=1, keepdims=True)
    source_bm = np.where(left_bm, np.take_along_axis(shown_bm, order_bm, axis=1), specials.pad)
    tensors = {"source": torch.from_numpy(source_bm), "source_mask": torch.from_numpy(left_bm)}
    return batch.with_tensors(tensors)
