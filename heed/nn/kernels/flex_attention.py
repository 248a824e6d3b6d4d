"""FlexAttention: a bias computed one score at a time, with memory linear in length.

Shapes: b batch, n queries, m keys, h query heads, g key and value heads, d head width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from heed.nn.masks import Mask

ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
"""FlexAttention's way to change one score: (score, batch, head, query, key) -> score."""


def attend_flex(
    q_bhnd: Tensor,
    k_bgmd: Tensor,
    v_bgmd: Tensor,
    *,
    mask: Mask,
    score_mod: ScoreMod,
    scale: float | None,
) -> Tensor:
    """softmax(score_mod(q kᵀ · scale)) v."""
    run: Any = flex_attention
    if not torch.compiler.is_compiling():
        run = torch.compile(flex_attention)
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
    ahead, causal = mask.keys - mask.queries, mask.causal
    real, q_segments, k_segments = mask.real_bm, mask.q_segments_bn, mask.k_segments_bm

    def visible(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        seen = (k <= q + ahead) if causal else (k >= 0)
        if real is not None:
            seen = seen & real[b, k]
        if q_segments is not None and k_segments is not None:
            seen = seen & (q_segments[b, q] == k_segments[b, k])
        return seen

    rows = [x.shape[0] for x in (real, q_segments, k_segments) if x is not None]
    b = max(rows) if rows else None
    return create_block_mask(visible, b, None, mask.queries, mask.keys, device=mask.device)
