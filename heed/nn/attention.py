"""Attention, as a course writes it, and the multi-head layer around it.

Shapes, in names: b batch, n queries, m keys, h query heads, g key and value heads (h is a multiple
of g), d head width, w model width.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heed.nn.cache import LayerCache
from heed.nn.embedding import OutputLinear
from heed.nn.kernels import dispatch
from heed.nn.kernels.linear import Linear
from heed.nn.kernels.short_attention import PendingRotation
from heed.nn.masks import Mask
from heed.nn.merges import Merge
from heed.nn.positions import Position, PositionBias

STILL = Position()
"""No position, for queries and keys that the kernel will turn itself."""


def attend(
    q_bhnd: Tensor,
    k_bgmd: Tensor,
    v_bgmd: Tensor,
    *,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    scale: float | None = None,
    dropout: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """softmax(q kᵀ · scale + bias) v, and the weights (Vaswani et al. 2017, equation 1).

    `mask` is True where a query may see a key; a query that may see nothing gets zeros. The weights
    returned are those before dropout: what the model attends to, not what training hid of it.
    """
    scale = q_bhnd.shape[-1] ** -0.5 if scale is None else scale
    k_bhmd, v_bhmd = (dispatch.share_heads(x, q_bhnd.shape[1]) for x in (k_bgmd, v_bgmd))
    scores_bhnm = (q_bhnd * scale) @ k_bhmd.mT
    if bias is not None:
        scores_bhnm = scores_bhnm + bias
    if mask is not None:
        scores_bhnm = scores_bhnm.masked_fill(~mask, torch.finfo(scores_bhnm.dtype).min)
    weights_bhnm = scores_bhnm.softmax(dim=-1, dtype=torch.float32).to(v_bhmd.dtype)
    if mask is not None:
        weights_bhnm = weights_bhnm.masked_fill(~mask, 0.0)
    return F.dropout(weights_bhnm, dropout, training=dropout > 0) @ v_bhmd, weights_bhnm


@dataclass
class AttentionContext:
    """What all layers of one forward pass share: who stands where, and who may see whom."""

    q_positions: Tensor
    k_positions: Tensor
    """Of all keys, cached ones included."""
    mask: Mask | None = None
    real_bn: Tensor | None = None
    """Which queries are tokens, not padding, for merges that look past one token."""
    bias: PositionBias | None = None
    """The position's bias where it is the same for every layer; else each layer makes its own."""
    source_bmw: Tensor | None = None
    """Whose keys and values to attend to, in cross-attention."""
    _turn: PendingRotation | None = field(default=None, init=False, repr=False)

    def turn(self, position: Position) -> PendingRotation | None:
        """The turn of queries and keys, where an encoding's is one: kernels can do it.

        There is one for all layers, unless a compiler looks on: to it they are to look alike.
        """
        if position.frequencies() is None:
            return None
        if self._turn is not None and self._turn.position is position:
            return self._turn
        turn = PendingRotation(position, self.q_positions, self.k_positions)
        if not torch.compiler.is_compiling():
            self._turn = turn
        return turn


class MultiHeadAttention(nn.Module):
    """Project to heads, let positions act, attend, merge the heads, project back.

    With `source_width` the keys and values come from another sequence (cross-attention).
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        kv_heads: int | None = None,
        head_width: int | None = None,
        source_width: int | None = None,
        bias: bool = True,
        qk_norm: bool = False,
        scale: float | None = None,
        dropout: float = 0.0,
        merge: Merge | None = None,
    ) -> None:
        super().__init__()
        self.heads, self.kv_heads = heads, kv_heads or heads
        self.head_width = head_width or width // heads
        self.scale = self.head_width**-0.5 if scale is None else scale
        self.dropout = dropout
        inner, shared = self.heads * self.head_width, self.kv_heads * self.head_width
        if source_width is None:
            self.qkv = Linear(width, inner + 2 * shared, bias=bias)
        else:
            self.q = Linear(width, inner, bias=bias)
            self.kv = Linear(source_width, 2 * shared, bias=bias)
        self.crosses = source_width is not None
        self.out = OutputLinear(inner, width, bias=bias)
        self.q_norm = nn.RMSNorm(self.head_width) if qk_norm else nn.Identity()
        self.k_norm = nn.RMSNorm(self.head_width) if qk_norm else nn.Identity()
        self.merge = merge or Merge()

    def forward(
        self,
        x_bnw: Tensor,
        sight: AttentionContext,
        position: Position,
        *,
        cache: LayerCache | None = None,
        weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """The attended vectors and, with `weights`, what they attended to (else None)."""
        q_positions, k_positions, mask = sight.q_positions, sight.k_positions, sight.mask
        plain = weights or position.needs_weights
        turn = sight.turn(position) if cache is None and not plain else None
        rotates = position if turn is None else STILL
        q_bhnd, k_bgmd, v_bgmd = self._heads(x_bnw, sight, rotates, cache)
        bias = sight.bias or PositionBias(
            position, q_positions, k_positions, q_bhnd=q_bhnd, scale=self.scale
        )
        dropout = self.dropout if self.training else 0.0
        if plain:
            dense, added = mask.dense() if mask else None, bias.dense()
            heads_bhnd, weights_bhnm = attend(
                q_bhnd, k_bgmd, v_bgmd, mask=dense, bias=added, scale=self.scale, dropout=dropout
            )
            extra = position.values(weights_bhnm, q_positions, k_positions)
            heads_bhnd = heads_bhnd if extra is None else heads_bhnd + extra
        else:
            weights_bhnm = None
            heads_bhnd = dispatch.fused(
                q_bhnd,
                k_bgmd,
                v_bgmd,
                mask=mask,
                bias=bias,
                scale=self.scale,
                dropout=dropout,
                turn=turn,
            )
        return self.out(self.merge(heads_bhnd, sight.real_bn)), weights_bhnm if weights else None

    def _heads(
        self, x_bnw: Tensor, sight: AttentionContext, position: Position, cache: LayerCache | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values by head, normalised and rotated, the cached ones first."""
        q_positions, shared = sight.q_positions, self.kv_heads
        if not self.crosses:
            q, k, v = dispatch.split(self.qkv(x_bnw), (self.heads, shared, shared), self.head_width)
            q, k = position.rotate(self.q_norm(q), self.k_norm(k), q_positions, q_positions)
            return (q, k, v) if cache is None else (q, *cache.append(k, v))
        (q,) = dispatch.split(self.q(x_bnw), (self.heads,), self.head_width)
        q = self.q_norm(q)
        if cache is not None and cache.filled:
            # The source was projected and rotated at the first step: only the query turns.
            q, _ = position.rotate(q, q[:, :0], q_positions, q_positions)
            return (q, *cache.read())
        if sight.source_bmw is None:
            raise ValueError("Cross-attention needs a source until its cache is filled.")
        k, v = dispatch.split(self.kv(sight.source_bmw), (shared, shared), self.head_width)
        q, k = position.rotate(q, self.k_norm(k), q_positions, sight.k_positions)
        return (q, k, v) if cache is None else (q, *cache.append(k, v))
