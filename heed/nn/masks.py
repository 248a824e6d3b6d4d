"""Attention masks: causal order, padding and packed segments.

A `Mask` keeps its parts, so that each kernel can read them in its own form: as one flag, as a
boolean tensor, or cell by cell. True means "may be attended to", as everywhere.

Shapes: b batch, n queries, m keys. The queries are the last n of the m keys when causal.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(eq=False)
class Mask:
    """What each of n queries may attend to among m keys."""

    queries: int
    keys: int
    device: torch.device
    causal: bool = False
    real_bm: Tensor | None = None
    """True where a key is a real token, not padding."""
    q_segments_bn: Tensor | None = None
    k_segments_bm: Tensor | None = None
    """The packed sequence of each token; sequences don't attend to each other."""
    _dense: Tensor | None = field(default=None, init=False, repr=False)
    _additive: Tensor | None = field(default=None, init=False, repr=False)

    @property
    def only_causal(self) -> bool:
        """Whether this mask hides later keys and nothing else."""
        return self.causal and self.real_bm is None and self.k_segments_bm is None

    @property
    def sees_all(self) -> bool:
        """Whether nothing is hidden: no padding, no segments, and no key after any query."""
        hides = self.real_bm is not None or self.k_segments_bm is not None
        return not hides and (not self.causal or self.queries == 1)

    @property
    def square(self) -> bool:
        """Whether there are as many queries as keys."""
        return self.queries == self.keys

    def block(self, start: int, end: int, keys: int) -> Mask:
        """What the queries from `start` to `end` may attend to among the first keys.

        When causal, the last of these queries is that of the last of these keys.
        """
        q_segments, k_segments = self.q_segments_bn, self.k_segments_bm
        return Mask(
            end - start,
            keys,
            self.device,
            causal=self.causal,
            real_bm=None if self.real_bm is None else self.real_bm[:, :keys],
            q_segments_bn=None if q_segments is None else q_segments[:, start:end],
            k_segments_bm=None if k_segments is None else k_segments[:, :keys],
        )

    def dense(self) -> Tensor | None:
        """The mask as a boolean tensor [b or 1, 1, n, m]; None where nothing is hidden."""
        if self._dense is None and not self.sees_all:
            self._dense = self._build()
        return self._dense

    def additive(self, dtype: torch.dtype) -> Tensor | None:
        """The mask as numbers to add to scores, 0 or -inf; None where nothing is hidden."""
        if self._additive is None or self._additive.dtype != dtype:
            visible = self.dense()
            self._additive = None if visible is None else to_additive(visible, dtype)
        return self._additive

    def _build(self) -> Tensor:
        mask_bnm = torch.ones(1, self.queries, self.keys, dtype=torch.bool, device=self.device)
        if self.causal:
            mask_bnm = mask_bnm.tril(self.keys - self.queries)
        if self.real_bm is not None:
            mask_bnm = mask_bnm & self.real_bm[:, None, :]
        if self.q_segments_bn is not None and self.k_segments_bm is not None:
            mask_bnm = mask_bnm & (self.q_segments_bn[:, :, None] == self.k_segments_bm[:, None, :])
        return mask_bnm[:, None]


def to_additive(visible: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where a key may be attended to, -inf where not."""
    zero = torch.zeros((), dtype=dtype, device=visible.device)
    return torch.where(visible, zero, float("-inf"))


def masked_bias(bias: Tensor, visible: Tensor | None, dtype: torch.dtype) -> Tensor:
    """The bias with -inf where a key may not be attended to."""
    bias = bias.to(dtype)
    return bias if visible is None else bias.masked_fill(~visible, float("-inf"))


def count_positions(real_bn: Tensor) -> Tensor:
    """Positions that count real tokens from 0, whichever side the padding is on."""
    return (real_bn.long().cumsum(dim=1) - 1).clamp(min=0)


def restart_positions(segments_bn: Tensor, real_bn: Tensor | None) -> Tensor:
    """Positions that count real tokens from 0 within each packed segment."""
    real = torch.ones_like(segments_bn) if real_bn is None else real_bn.long()
    before = real.cumsum(dim=1) - real
    starts = segments_bn != segments_bn.roll(1, dims=1)
    starts[:, :1] = True
    first = torch.where(starts, before, 0).cummax(dim=1).values
    return before - first
