"""Denoising: input sequences with some tokens dropped, some masked, the rest shuffled locally.

The noise is that of Lample et al. (2018), applied to subwords instead of words: of a word of
several subwords, any may be dropped. Token i is sorted by i + u with u drawn from [0, k + 1), so no
token moves by more than k.

Shapes: b examples, m source tokens.
"""

from __future__ import annotations

import numpy as np
import torch

from heed.data.batching.batch import Batch
from heed.data.tokenizers.special_tokens import DEFAULT_SPECIALS, SpecialTokens

DROP_SHARE, MASK_SHARE, MAX_SHIFT = 0.1, 0.1, 3
"""Share of tokens dropped, share masked, and the farthest a token may move (k)."""


def add_noise(
    batch: Batch, random: np.random.Generator, specials: SpecialTokens = DEFAULT_SPECIALS
) -> Batch:
    """Add noise to the source of a batch. EOS stays last, and at least one token is left."""
    if batch.source is None or batch.source_mask is None:
        raise ValueError("this batch has no source to add noise to")
    ids_bm, real_bm = batch.source.numpy(), batch.source_mask.numpy()
    words_bm = real_bm & (ids_bm != specials.eos)
    dropped_bm = words_bm & (random.random(ids_bm.shape) < DROP_SHARE)
    dropped_bm &= (words_bm & ~dropped_bm).any(axis=1, keepdims=True)
    length, kept_bm = ids_bm.shape[1], real_bm & ~dropped_bm
    place_bm = np.arange(length) + random.random(ids_bm.shape) * (MAX_SHIFT + 1)
    # Sort order: tokens, then EOS, then what was dropped or is padding.
    last_bm = np.where(kept_bm, 1, 2) * (length + MAX_SHIFT + 1)
    place_bm = np.where(words_bm & kept_bm, place_bm, last_bm)
    masked_bm = words_bm & (random.random(ids_bm.shape) < MASK_SHARE)
    ids_masked_bm = np.where(masked_bm, specials.require_mask("data.denoise"), ids_bm)
    order_bm = np.argsort(place_bm, axis=1, kind="stable")
    mask_bm = np.arange(length) < kept_bm.sum(axis=1, keepdims=True)
    source_bm = np.where(mask_bm, np.take_along_axis(ids_masked_bm, order_bm, axis=1), specials.pad)
    tensors = {"source": torch.from_numpy(source_bm), "source_mask": torch.from_numpy(mask_bm)}
    return batch.with_tensors(tensors)
