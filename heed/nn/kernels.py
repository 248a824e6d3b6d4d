"""The fused formulas: what `attend` computes, without ever holding all the weights.

`fused` takes what `attend` takes and returns the output alone. Behind it stand two kernels:
torch's scaled_dot_product_attention (SDPA), and on a GPU FlexAttention, which computes a position's
bias and a mask cell by cell, so that memory stays linear in length.

Shapes: b batch, n queries, m keys, h query heads, g key and value heads, d head width.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from heed.nn.masks import Mask

FLEX_FROM_LENGTH = 512
"""Shorter than this, a bias held as a tensor is cheaper than FlexAttention's bookkeeping."""


class Bias(Protocol):
    """A bias in either form a kernel may want."""

    def dense(self) -> Tensor | None: ...

    def score_mod(self) -> Any: ...


def fused(
    q_bhnd: Tensor,
    k_bgmd: Tensor,
    v_bgmd: Tensor,
    *,
    mask: Mask | Tensor | None = None,
    bias: Bias | Tensor | None = None,
    scale: float | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """softmax(q kᵀ · scale + bias) v, as `attend` has it, by the fastest kernel that can."""
    if (
        isinstance(mask, Mask)
        and not isinstance(bias, Tensor)
        and _flex_fits(q_bhnd, k_bgmd, dropout)
    ):
        score_mod = bias.score_mod() if bias is not None else None
        if score_mod is not None or not (mask.only_causal or mask.sees_all):
            return _flex(q_bhnd, k_bgmd, v_bgmd, mask, score_mod, scale)
    return _sdpa(q_bhnd, k_bgmd, v_bgmd, mask, bias, scale, dropout)


def share_heads(x_bgmd: Tensor, heads: int) -> Tensor:
    """Grouped-query attention: repeat each key or value head for its group of query heads."""
    groups = x_bgmd.shape[1]
    return x_bgmd if groups == heads else x_bgmd.repeat_interleave(heads // groups, dim=1)


def _sdpa(
    q_bhnd: Tensor,
    k_bgmd: Tensor,
    v_bgmd: Tensor,
    mask: Mask | Tensor | None,
    bias: Bias | Tensor | None,
    scale: float | None,
    dropout: float,
) -> Tensor:
    added = bias if isinstance(bias, Tensor) or bias is None else bias.dense()
    causal = False
    if isinstance(mask, Mask):
        causal = added is None and mask.only_causal and mask.queries == mask.keys
        mask = None if causal else mask.dense()
    if added is not None:
        added = added.to(q_bhnd.dtype)
        mask = added if mask is None else added.masked_fill(~mask, float("-inf"))
    return F.scaled_dot_product_attention(
        q_bhnd,
        k_bgmd,
        v_bgmd,
        attn_mask=mask,
        dropout_p=dropout,
        is_causal=causal,
        scale=scale,
        enable_gqa=q_bhnd.shape[1] != k_bgmd.shape[1],
    )


# ------------------------------------------------------------------------------ FlexAttention


def _flex_fits(q_bhnd: Tensor, k_bgmd: Tensor, dropout: float) -> bool:
    """Whether FlexAttention can take this call and is long enough to pay.

    It has no dropout and, on a CPU, no backward; it needs Triton, and heads of 16 or more.
    """
    long = min(q_bhnd.shape[2], k_bgmd.shape[2]) >= FLEX_FROM_LENGTH
    fits = q_bhnd.device.type == "cuda" and dropout == 0.0 and q_bhnd.shape[-1] >= 16
    return fits and long and _has_triton()


@cache
def _has_triton() -> bool:
    from torch.utils._triton import has_triton

    return bool(has_triton())


@cache
def _compiled_flex() -> Any:
    return torch.compile(flex_attention, dynamic=False)


def _flex(
    q_bhnd: Tensor, k_bgmd: Tensor, v_bgmd: Tensor, mask: Mask, score_mod: Any, scale: float | None
) -> Tensor:
    run = flex_attention if torch.compiler.is_compiling() else _compiled_flex()
    out: Tensor = run(
        q_bhnd,
        k_bgmd,
        v_bgmd,
        score_mod=score_mod,
        block_mask=None if mask.sees_all else block_mask(mask),
        scale=scale,
        enable_gqa=q_bhnd.shape[1] != k_bgmd.shape[1],
    )
    return out


def block_mask(mask: Mask) -> BlockMask:
    """The mask by blocks, so that hidden ones are never computed."""
    if mask.only_causal:
        return _causal_block_mask(mask.queries, mask.keys, str(mask.device))
    offset, causal = mask.keys - mask.queries, mask.causal
    real, q_segments, k_segments = mask.real_bm, mask.q_segments_bn, mask.k_segments_bm

    def visible(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        seen = (k <= q + offset) if causal else (k >= 0)
        if real is not None:
            seen = seen & real[b, k]
        if q_segments is not None and k_segments is not None:
            seen = seen & (q_segments[b, q] == k_segments[b, k])
        return seen

    rows = next(x.shape[0] for x in (real, q_segments, k_segments) if x is not None)
    return create_block_mask(visible, rows, None, mask.queries, mask.keys, device=mask.device)


@cache
def _causal_block_mask(queries: int, keys: int, device: str) -> BlockMask:
    offset = keys - queries

    def visible(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return k <= q + offset

    return create_block_mask(visible, None, None, queries, keys, device=device)
