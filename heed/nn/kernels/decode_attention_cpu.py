"""Attention of a decoding step on a CPU: few queries, many keys.

SDPA's kernel for CPUs processes one head at a time. With one query per head that takes several
times as long as reading the keys. Two matrix products over all heads at once are faster.

Shapes: b batch, n queries, m keys, h query heads, g key and value heads, d head width.
"""

from __future__ import annotations

import torch
from torch import Tensor

MAX_QUERIES = 8
"""Queries per key head. With about so many SDPA is as fast."""


def fits_decode_cpu(q_bhnd: Tensor, k_bgmd: Tensor) -> bool:
    """Whether `attend_decode_cpu` can serve and is faster than SDPA. It has no gradients."""
    rows = q_bhnd.shape[2] * q_bhnd.shape[1] // k_bgmd.shape[1]
    supported = q_bhnd.device.type == "cpu" and q_bhnd.dtype == torch.float32
    excluded = torch.is_grad_enabled() or torch.compiler.is_compiling()
    return supported and rows <= MAX_QUERIES and not excluded


def attend_decode_cpu(
    q_bhnd: Tensor, k_bgmd: Tensor, v_bgmd: Tensor, added: Tensor | None, scale: float | None
) -> Tensor:
    """softmax(q kᵀ · scale + added) v; a boolean `added` is True where a query may see a key."""
    (b, h, n, d), (g, m) = q_bhnd.shape, k_bgmd.shape[1:3]
    scale = d**-0.5 if scale is None else scale
    # Queries that share keys are batched, as if they were queries of one head.
    q = q_bhnd.reshape(b * g, -1, d)
    k, v = k_bgmd.reshape(b * g, m, d), v_bgmd.reshape(b * g, m, d)
    scores_bhnm = torch.bmm(q * scale, k.mT).view(b, h, n, m)
    blind = None
    if added is not None and added.dtype == torch.bool:
        scores_bhnm.masked_fill_(~added, -torch.inf)
        sees = added.any(dim=-1, keepdim=True)
        blind = None if bool(sees.all()) else ~sees
    elif added is not None:
        scores_bhnm += added
        blind = scores_bhnm.amax(dim=-1, keepdim=True) == -torch.inf
    weights = scores_bhnm.softmax(dim=-1)
    if blind is not None:  # A row that sees nothing gives zeros, not 0 / 0; any other NaN stays.
        weights.masked_fill_(blind, 0.0)
    return torch.bmm(weights.view(b * g, -1, m), v).view(b, h, n, d)
