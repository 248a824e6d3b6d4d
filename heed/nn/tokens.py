"""What goes into a stack beside the vectors, and what comes out.

Shapes: b batch, n tokens, m keys, h heads, w model width. A fact shared by all rows has b = 1.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from heed.nn.masks import count_positions, restart_positions


@dataclass
class Tokens:
    """What is known of each token: where it stands, whether it is real, which text it is of."""

    positions_bn: Tensor
    real_bn: Tensor | None = None
    segments_bn: Tensor | None = None

    @classmethod
    def of(
        cls,
        ids_bn: Tensor,
        *,
        mask: Tensor | None = None,
        positions: Tensor | None = None,
        segments: Tensor | None = None,
        before: Tokens | None = None,
    ) -> Tokens:
        """What a caller said of `ids_bn`, with positions counted where none were given.

        Counting goes over real tokens and starts anew in each segment. Tokens after `before` go on
        from its last position, and are of its last segment unless they are told otherwise.
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
        return cls(positions, mask, segments)

    def next_position(self) -> Tensor:
        """Where the next token of each row's last segment stands [b or 1, 1]."""
        taken_bn = self.positions_bn + 1
        if self.real_bn is not None:
            taken_bn = taken_bn * self.real_bn
        if self.segments_bn is not None:
            taken_bn = taken_bn * (self.segments_bn == self.segments_bn[:, -1:])
        return taken_bn.amax(dim=1, keepdim=True)

    def followed_by(self, new: Tokens) -> Tokens:
        """These tokens and then the new ones."""
        return Tokens(
            _join(self.positions_bn, new.positions_bn),
            _join_known(self.real_bn, new.real_bn, self, new, absent=1),
            _join_known(self.segments_bn, new.segments_bn, self, new, absent=0),
        )

    def select(self, rows: Tensor) -> Tokens:
        """These rows of the batch; what is shared by all rows stays shared."""
        return Tokens(
            _pick(self.positions_bn, rows),
            None if self.real_bn is None else _pick(self.real_bn, rows),
            None if self.segments_bn is None else _pick(self.segments_bn, rows),
        )


@dataclass
class StackOutput:
    """A stack's vectors and, where asked for, what each layer attended to and held."""

    x_bnw: Tensor
    self_weights: list[Tensor] = field(default_factory=list)
    """[b, h, n, m] a layer: where each token looked in its own sequence."""
    cross_weights: list[Tensor] = field(default_factory=list)
    """[b, h, n, m] a layer: where each token looked in the source."""
    hidden: list[Tensor] = field(default_factory=list)
    """[b, n, w]: the vectors that entered the first layer, then what each layer made of them."""


def _pick(x: Tensor, rows: Tensor) -> Tensor:
    return x if x.shape[0] == 1 else x.index_select(0, rows)


def _join(old: Tensor, new: Tensor) -> Tensor:
    b = max(old.shape[0], new.shape[0])
    return torch.cat([old.expand(b, -1), new.expand(b, -1)], dim=1)


def _join_known(
    old: Tensor | None, new: Tensor | None, before: Tokens, after: Tokens, *, absent: int
) -> Tensor | None:
    """Join a fact that either side may not have been told, where silence means `absent`."""
    if old is None and new is None:
        return None
    dtype = (old if old is not None else new if new is not None else before.positions_bn).dtype
    if old is None:
        old = torch.full_like(before.positions_bn, absent, dtype=dtype)
    if new is None:
        new = torch.full_like(after.positions_bn, absent, dtype=dtype)
    return _join(old, new)
