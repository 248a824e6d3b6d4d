"""Attention as a course writes it, and the multi-head layer around it.

Shapes: b batch, n queries, m keys, h query heads, g key and value heads (h is a multiple of g), d
head width, w model width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heed.nn.cache import LayerCache
from heed.nn.kernels import dispatch
from heed.nn.kernels.heads import Heads, SharedPosition, rotate
from heed.nn.kernels.linear import Linear, OutputLinear
from heed.nn.kernels.position_bias import PositionBias
from heed.nn.masks import Mask
from heed.nn.merges import Merge
from heed.nn.positions import Position


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
    k_bhmd, v_bhmd = (repeat_heads(x, q_bhnd.shape[1]) for x in (k_bgmd, v_bgmd))
    scores_bhnm = (q_bhnd * scale) @ k_bhmd.mT
    if bias is not None:
        scores_bhnm = scores_bhnm + bias
    if mask is not None:
        scores_bhnm = scores_bhnm.masked_fill(~mask, torch.finfo(scores_bhnm.dtype).min)
    weights_bhnm = scores_bhnm.softmax(dim=-1, dtype=torch.float32).to(v_bhmd.dtype)
    if mask is not None:
        weights_bhnm = weights_bhnm.masked_fill(~mask, 0.0)
    return F.dropout(weights_bhnm, dropout, training=dropout > 0) @ v_bhmd, weights_bhnm


def repeat_heads(x_bgmd: Tensor, heads: int) -> Tensor:
    """Grouped-query attention: repeat each key or value head for its group of query heads."""
    groups = x_bgmd.shape[1]
    return x_bgmd if groups == heads else x_bgmd.repeat_interleave(heads // groups, dim=1)


@dataclass
class AttentionContext:
    """What all layers of one forward pass share: positions, mask and, across, the source."""

    q_positions: Tensor
    k_positions: Tensor
    """Of all keys, cached ones included."""
    mask: Mask | None = None
    real_bn: Tensor | None = None
    """True where a query is a token, not padding: for merges that span several tokens."""
    source_bmw: Tensor | None = None
    """In cross-attention, the vectors that keys and values are made of."""
    shared: SharedPosition = field(init=False, repr=False)
    """What the layers' kernels share of the position encoding."""

    def __post_init__(self) -> None:
        self.shared = SharedPosition(self.q_positions, self.k_positions)

    def prepare(self, position: Position) -> AttentionContext:
        """Compute what all layers share of this encoding, before the first of them runs."""
        if self.mask is not None:
            dispatch.prepare_shared(self.shared, self.mask, position)
        return self

    def visible(self) -> Tensor | None:
        """The mask as a boolean tensor; None where nothing is hidden."""
        return None if self.mask is None else self.mask.dense()


class AttentionInputs(NamedTuple):
    """What one layer's attention reads beside the vectors."""

    context: AttentionContext
    position: Position
    cache: LayerCache | None = None


class HeadEdit(Protocol):
    """A change of what some heads attend to, or of their outputs, while a model is studied."""

    @property
    def needs_weights(self) -> bool:
        """Whether it edits attention weights, which only `attend` returns."""

    def edit_weights(self, weights_bhnm: Tensor, context: AttentionContext) -> Tensor:
        """The weights that multiply the values, in place of the model's own."""

    def edit_outputs(self, out_bhnd: Tensor, context: AttentionContext) -> Tensor:
        """The outputs that the heads merge, in place of the model's own."""


class MultiHeadAttention(nn.Module):
    """Project to heads, apply the position encoding, attend, merge the heads, project back.

    With `source_width` the keys and values come from another sequence (cross-attention).
    """

    head_edit: HeadEdit | None = None
    """Set by `heed.probe.patch.edit_attention` for as long as its context lasts."""

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
        kept_heads: Sequence[int] | None = None,
    ) -> None:
        """`kept_heads`: in a pruned layer, which of the position encoding's heads these are."""
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
        kept = None if kept_heads is None else torch.tensor(kept_heads)
        self.register_buffer("kept_heads", kept, persistent=False)
        self.kept_heads: Tensor | None

    def forward(
        self,
        x_bnw: Tensor,
        context: AttentionContext,
        position: Position,
        cache: LayerCache | None = None,
        *,
        weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """The attended vectors and, with `weights`, the attention weights (else None)."""
        heads = self.project(x_bnw, context, position, cache)
        bias = context.shared.bias(position, heads.q_bhnd, self.scale, self.kept_heads)
        edit = self.head_edit
        if weights or position.needs_weights or (edit is not None and edit.needs_weights):
            out_bhnd, weights_bhnm = self._attend(heads, bias, context, position)
        else:
            out_bhnd, weights_bhnm = self._attend_fast(heads, bias, context), None
        if edit is not None:
            out_bhnd = edit.edit_outputs(out_bhnd, context)
        return self.out(self.merge(out_bhnd, context.real_bn)), weights_bhnm if weights else None

    def _attend(
        self, heads: Heads, bias: PositionBias, context: AttentionContext, position: Position
    ) -> tuple[Tensor, Tensor]:
        """Attention by the plain formula, with its weights and the position's value term."""
        q, k, v = heads.rotated()
        dropout, edit = self._dropout(), self.head_edit
        edits = edit is not None and edit.needs_weights
        # Values and the position's value term are multiplied by the same weights: one dropout.
        multiplies = edits or (position.needs_weights and dropout > 0.0)
        out_bhnd, weights_bhnm = attend(
            q,
            k,
            v,
            mask=context.visible(),
            bias=bias.dense(),
            scale=self.scale,
            dropout=0.0 if multiplies else dropout,
        )
        if edit is not None and edits:
            weights_bhnm = edit.edit_weights(weights_bhnm, context)
        dropped_bhnm = weights_bhnm
        if multiplies:
            dropped_bhnm = F.dropout(weights_bhnm, dropout, training=dropout > 0.0)
            out_bhnd = dropped_bhnm @ repeat_heads(v, self.heads)
        extra_bhnd = position.values(dropped_bhnm, context.q_positions, context.k_positions)
        return out_bhnd if extra_bhnd is None else out_bhnd + extra_bhnd, weights_bhnm

    def _attend_fast(self, heads: Heads, bias: PositionBias, context: AttentionContext) -> Tensor:
        """Attention by the fastest kernel, without weights."""
        return dispatch.attention(
            heads.q_bhnd,
            heads.k_bgmd,
            heads.v_bgmd,
            mask=context.mask,
            bias=bias,
            scale=self.scale,
            dropout=self._dropout(),
            rotation=heads.rotation,
        )

    def _dropout(self) -> float:
        return self.dropout if self.training else 0.0

    def project(
        self,
        x_bnw: Tensor,
        context: AttentionContext,
        position: Position,
        cache: LayerCache | None = None,
    ) -> Heads:
        """Queries, keys and values by head, normalized and rotated, the cached ones first."""
        q_positions, shared = context.q_positions, context.shared
        if not self.crosses:
            counts = (self.heads, self.kv_heads, self.kv_heads)
            q, k, v = dispatch.split_heads(self.qkv(x_bnw), counts, self.head_width)
            heads = shared.heads(self.q_norm(q), self.k_norm(k), v, position, q_positions)
        else:
            (q,) = dispatch.split_heads(self.q(x_bnw), (self.heads,), self.head_width)
            if cache is not None and cache.filled:
                # The source was projected and rotated at the first step.
                q, _ = rotate(position, self.q_norm(q), q[:, :0], q_positions, q_positions)
                return Heads(q, *cache.read())
            k, v = self.project_source(context.source_bmw)
            heads = shared.heads(self.q_norm(q), k, v, position, context.k_positions)
        if cache is None:
            return heads
        q, k, v = heads.rotated()
        return Heads(q, *cache.append(k, v))

    def project_source(self, source_bmw: Tensor | None) -> tuple[Tensor, Tensor]:
        """Keys and values of the source by head, the keys normalized and not yet rotated."""
        if source_bmw is None:
            raise ValueError("Cross-attention needs a source until its cache is filled.")
        counts = (self.kv_heads, self.kv_heads)
        k, v = dispatch.split_heads(self.kv(source_bmw), counts, self.head_width)
        return self.k_norm(k), v


class HeadlessAttention(nn.Module):
    """Attention whose heads were all pruned: its output bias at every token."""

    def __init__(self, width: int, *, bias: bool = True) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None

    def forward(
        self,
        x_bnw: Tensor,
        context: AttentionContext,
        position: Position,
        cache: LayerCache | None = None,
        *,
        weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """The bias and, with `weights`, those of no heads [b, 0, n, m]; arguments as above."""
        out_bnw = x_bnw * 0  # of the vectors, so that the norm before has a gradient: zero
        if self.bias is not None:
            out_bnw = out_bnw + self.bias.to(x_bnw.dtype)
        b, n = x_bnw.shape[:2]
        m = context.k_positions.shape[1]
        return out_bnw, x_bnw.new_zeros(b, 0, n, m) if weights else None


def has_head_edits(model: nn.Module) -> bool:
    """Whether some attention of a model is edited now, so that no copy of it may stand in."""
    return any(getattr(module, "head_edit", None) is not None for module in model.modules())
