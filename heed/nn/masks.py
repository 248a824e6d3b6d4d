"""Who may see whom: causal order, padding and packed segments.

A `Mask` keeps its parts, so that a kernel can read them the way it likes best: as one flag, as a
boolean tensor, or cell by cell. True means "may be attended to", as everywhere.

Shapes: b batch, n queries, m keys. The queries are the last n of the m keys when causal.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(eq=False)
class Mask:
    """What each of n queries may see among m keys."""

    queries: int
    keys: int
    device: torch.device
    causal: bool = False
    real_bm: Tensor | None = None
    """True where a key is a real token, not padding."""
    q_segments_bn: Tensor | None = None
    k_segments_bm: Tensor | None = None
    """Which packed text a token belongs to; texts don't see each other."""
    _dense: Tensor | None = field(default=None, init=False, repr=False)

    @property
    def only_causal(self) -> bool:
        """Whether order is all there is to this mask."""
        return self.causal and self.real_bm is None and self.k_segments_bm is None

    @property
    def sees_all(self) -> bool:
        """Whether nothing is hidden: no padding, no segments, and no key after any query."""
        hides = self.real_bm is not None or self.k_segments_bm is not None
        return not hides and (not self.causal or self.queries == 1)

    def dense(self) -> Tensor | None:
        """The mask as a boolean tensor [b or 1, 1, n, m]; None where everything may be seen."""
        if self._dense is None and not self.sees_all:
            self._dense = self._build()
        return self._dense

    def _build(self) -> Tensor:
        mask_bnm = torch.ones(1, self.queries, self.keys, dtype=torch.bool, device=self.device)
        if self.causal:
            mask_bnm = mask_bnm.tril(self.keys - self.queries)
        if self.real_bm is not None:
            mask_bnm = mask_bnm & self.real_bm[:, None, :]
        if self.q_segments_bn is not None and self.k_segments_bm is not None:
            mask_bnm = mask_bnm & (self.q_segments_bn[:, :, None] == self.k_segments_bm[:, None, :])
        return mask_bnm[:, None]


def count_positions(real_bn: Tensor) -> Tensor:
    """Positions that count real tokens from 0, whichever side the padding is on."""
    return (real_bn.long().cumsum(dim=1) - 1).clamp(min=0)


def restart_positions(segments_bn: Tensor, real_bn: Tensor | None) -> Tensor:
    """Positions that count real tokens from 0 within each packed segment."""
    real = torch.ones_like(segments_bn, dtype=torch.bool) if real_bn is None else real_bn
    counted = count_positions(real)
    changed = segments_bn[:, 1:] != segments_bn[:, :-1]
    starts = torch.cat([torch.zeros_like(changed[:, :1]), changed], dim=1)
    first = torch.where(starts, counted, 0).cummax(dim=1).values
    return (counted - first).clamp(min=0)
