"""What a stack reads beside the vectors, and what it returns.

Shapes: b batch, n tokens, m keys, h heads, w model width. A tensor shared by all rows has b = 1.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from heed.nn.masks import count_positions, restart_positions


@dataclass
class Tokens:
    """What is known of each token beside its id."""

    positions_bn: Tensor
    real_bn: Tensor | None = None
    """True where a token is real, not padding; None where all are."""
    segments_bn: Tensor | None = None
    """The packed sequence that each token belongs to; None where a row holds one."""
    types_bn: Tensor | None = None
    """Each token's type (BERT has two: first and second sentence). Only embeddings read it."""

    @classmethod
    def of(
        cls,
        ids_bn: Tensor,
        *,
        mask: Tensor | None = None,
        positions: Tensor | None = None,
        segments: Tensor | None = None,
        types: Tensor | None = None,
        before: Tokens | None = None,
    ) -> Tokens:
        """The tokens of `ids_bn`, with positions counted where none are given.

        Only real tokens count, and counting restarts in each segment. Tokens after `before`
        continue from its last position, and belong to its last segment unless segments are given.
        """
        last = before.segments_bn[:, -1:] if before and before.segments_bn is not None else None
        if segments is None and last is not None:
            segments = last.expand(-1, ids_bn.shape[1])
        if positions is not None:
            positions = positions[None] if positions.dim() == 1 else positions
        elif segments is not None:
            positions = restart_positions(segments, mask)
            if before is not None and last is not None:
                positions = positions + (segments == last) * before.next_position()
        else:
            if mask is None:
                positions = torch.arange(ids_bn.shape[1], device=ids_bn.device)[None]
            else:
                positions = count_positions(mask)
            positions = positions if before is None else positions + before.next_position()
        return cls(positions, mask, segments, types)

    @classmethod
    def resolve(
        cls,
        ids_bn: Tensor,
        tokens: Tokens | None,
        mask: Tensor | None,
        before: Tokens | None = None,
    ) -> Tokens:
        """The tokens that a model is called with: `tokens`, or those of `ids_bn` with this mask."""
        if tokens is None:
            return cls.of(ids_bn, mask=mask, before=before)
        if mask is not None:
            raise ValueError("Pass either a mask or tokens: Tokens.of(ids, mask=mask, ...).")
        return tokens

    def next_position(self) -> Tensor:
        """The position of the next token of each row's last segment [b or 1, 1]."""
        after_bn = self.positions_bn + 1
        if self.real_bn is not None:
            after_bn = after_bn * self.real_bn
        if self.segments_bn is not None:
            after_bn = after_bn * (self.segments_bn == self.segments_bn[:, -1:])
        return after_bn.amax(dim=1, keepdim=True)

    def followed_by(self, new: Tokens) -> Tokens:
        """These tokens and then the new ones."""
        return Tokens(
            _concat(self.positions_bn, new.positions_bn),
            _concat_optional(self.real_bn, new.real_bn, self, new, default=1),
            _concat_optional(self.segments_bn, new.segments_bn, self, new, default=0),
        )

    def select(self, rows: Tensor) -> Tokens:
        """These rows of the batch; tensors shared by all rows stay shared."""
        return Tokens(
            _select(self.positions_bn, rows),
            None if self.real_bn is None else _select(self.real_bn, rows),
            None if self.segments_bn is None else _select(self.segments_bn, rows),
        )


@dataclass
class StackOutput:
    """A stack's vectors and, with `weights`, each layer's attention weights and hidden states."""

    x_bnw: Tensor
    self_weights: list[Tensor] = field(default_factory=list)
    """[b, h, n, m] per layer: self-attention."""
    cross_weights: list[Tensor] = field(default_factory=list)
    """[b, h, n, m] per layer: attention to the source."""
    hidden: list[Tensor] = field(default_factory=list)
    """[b, n, w]: the vectors that enter the first layer, then those after each layer."""


def _select(x: Tensor, rows: Tensor) -> Tensor:
    return x if x.shape[0] == 1 else x.index_select(0, rows)


def _concat(old: Tensor, new: Tensor) -> Tensor:
    b = max(old.shape[0], new.shape[0])
    return torch.cat([old.expand(b, -1), new.expand(b, -1)], dim=1)


def _concat_optional(
    old: Tensor | None, new: Tensor | None, before: Tokens, after: Tokens, *, default: int
) -> Tensor | None:
    """Concatenate tensors of which either may be missing: there `default` stands for it."""
    if old is None and new is None:
        return None
    dtype = (old if old is not None else new if new is not None else before.positions_bn).dtype
    if old is None:
        old = torch.full_like(before.positions_bn, default, dtype=dtype)
    if new is None:
        new = torch.full_like(after.positions_bn, default, dtype=dtype)
    return _concat(old, new)
