"""Attention with a bias over long sequences on a CPU: a block of queries at a time.

SDPA takes a bias as one tensor of all queries and keys, which for thousands of tokens is most of a
step's memory. Here mask and bias are made for one block of queries, and made again in the backward
pass: memory is linear in the length. Keys that a causal mask hides from a whole block are skipped.

Shapes: b batch, n queries, m keys, h query heads, g key and value heads, d head width.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from heed.nn.kernels.position_bias import PositionBias
from heed.nn.kernels.sdpa import attend_sdpa
from heed.nn.masks import Mask

BLOCK = 128
"""Queries of a block: its scores stay in a CPU's cache, up to some thousands of keys."""


def attend_in_blocks(
    q_bhnd: Tensor,
    k_bgmd: Tensor,
    v_bgmd: Tensor,
    *,
    mask: Mask | None,
    bias: PositionBias,
    scale: float | None,
    dropout: float,
) -> Tensor:
    """softmax(q kᵀ · scale + bias) v."""
    n, m = q_bhnd.shape[2], k_bgmd.shape[2]
    causal = mask is not None and mask.causal

    def attend_block(q: Tensor, k: Tensor, v: Tensor, start: int, end: int) -> Tensor:
        # Made here, and not kept: the backward pass makes them again.
        keys = k.shape[2]
        block_mask = None if mask is None else mask.block(start, end, keys)
        block_bias = bias.block(start, end, keys)
        return attend_sdpa(q, k, v, mask=block_mask, bias=block_bias, scale=scale, dropout=dropout)

    run = attend_block
    if torch.is_grad_enabled():
        run = partial(
            checkpoint, attend_block, use_reentrant=False, preserve_rng_state=dropout > 0.0
        )
    outs: list[Tensor] = []
    for start in range(0, n, BLOCK):
        end = min(start + BLOCK, n)
        keys = m - n + end if causal else m
        heads = q_bhnd[:, :, start:end], k_bgmd[:, :, :keys], v_bgmd[:, :, :keys]
        outs.append(run(*heads, start, end))
    return torch.cat(outs, dim=2)
