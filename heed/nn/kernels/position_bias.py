"""A position's bias, computed in the form that a kernel needs, when it needs it.

Shapes: b batch, n queries, m keys, h heads, d head width.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from heed.nn.kernels.distance_attention import DistanceBias, tile_plans
from heed.nn.kernels.flex_attention import ScoreMod
from heed.nn.kernels.position_forms import form_of
from heed.nn.masks import Mask, masked_bias
from heed.nn.positions import Position

ROW_MULTIPLE = 16
"""Triton compiles a kernel anew for strides that are multiples of this, and for those that are not.
With padded rows all are; and several numbers are read at once."""


class TilePlans:
    """Which tiles the distance kernels visit: computed once per pass, shared by all layers."""

    def __init__(self, q_positions: Tensor, k_positions: Tensor) -> None:
        self.q_positions, self.k_positions = q_positions, k_positions
        self._plans: dict[int | None, tuple[Tensor, Tensor]] = {}

    def get(self, mask: Mask, max_distance: int | None) -> tuple[Tensor, Tensor]:
        """The plans for queries and for keys, by the distance beyond which a bias is constant."""
        if max_distance not in self._plans:
            self._plans[max_distance] = tile_plans(
                mask, self.q_positions, self.k_positions, max_distance
            )
        return self._plans[max_distance]


class PositionBias:
    """A position's bias, computed only in the form that a kernel needs, when it needs it.

    One object serves all layers when the bias does not depend on their queries.
    """

    def __init__(
        self,
        position: Position,
        q_positions: Tensor,
        k_positions: Tensor,
        *,
        q_bhnd: Tensor | None = None,
        scale: float = 1.0,
        plans: TilePlans | None = None,
    ) -> None:
        self.position, self.scale, self.q_bhnd = position, scale, q_bhnd
        self.q_positions, self.k_positions = q_positions, k_positions
        self.plans = TilePlans(q_positions, k_positions) if plans is None else plans
        self.form = form_of(position)
        self._dense: Tensor | None = None
        self._masked: tuple[Tensor | None, Tensor] | None = None
        self._of_batch: Tensor | None = None
        self._by_distance: DistanceBias | None = None

    def dense(self) -> Tensor | None:
        """The bias as a tensor to add to the scores; None where the encoding has no bias."""
        if self._dense is None:
            self._dense = self.position.bias(
                self._scaled_query(), self.q_positions, self.k_positions
            )
        return self._dense

    def block(self, start: int, end: int, keys: int) -> PositionBias:
        """The bias of the queries from `start` to `end` to the first keys."""
        return PositionBias(
            self.position,
            self.q_positions[:, start:end],
            self.k_positions[:, :keys],
            q_bhnd=None if self.q_bhnd is None else self.q_bhnd[:, :, start:end],
            scale=self.scale,
        )

    def masked(self, visible: Tensor | None, dtype: torch.dtype) -> Tensor | None:
        """The bias as a tensor that also hides what may not be seen, made once for all layers."""
        bias = self.dense()
        if bias is None:
            return None
        if self._masked is None or self._masked[0] is not visible:
            self._masked = visible, masked_bias(bias, visible, dtype)
        return self._masked[1]

    def of_batch(self) -> Tensor | None:
        """The bias that all sequences of the batch share, made once for all layers.

        It is contiguous [1, h, n, m] in float32, with rows padded to a multiple of ROW_MULTIPLE.
        None where there is no bias, or sequences have their own: by queries, or by positions.
        """
        if self._of_batch is None and self._is_shared():
            self._of_batch = self._pad_rows(self.dense())
        return self._of_batch

    def by_distance(self) -> DistanceBias | None:
        """The bias by distance; None where the encoding has no such form."""
        if self._by_distance is None:
            self._by_distance = self.form.distance_bias(
                self.position, self.q_positions, self.k_positions
            )
        return self._by_distance

    def score_mod(self) -> ScoreMod | None:
        """The bias as a function of one score; None where the encoding has no such form."""
        return self.form.score_mod(
            self.position, self._scaled_query(), self.q_positions, self.k_positions
        )

    def _is_shared(self) -> bool:
        """Whether the bias can be the same for all sequences: asked before it is computed."""
        one_row = self.q_positions.shape[0] == self.k_positions.shape[0] == 1
        return one_row and not self.position.bias_uses_query

    def _pad_rows(self, bias: Tensor | None) -> Tensor | None:
        n, m = self.q_positions.shape[1], self.k_positions.shape[1]
        if bias is None or bias.dim() != 4 or (len(bias), *bias.shape[2:]) != (1, n, m):
            return None
        missing = -m % ROW_MULTIPLE
        return (F.pad(bias, (0, missing)) if missing else bias).float().contiguous()

    def _scaled_query(self) -> Tensor | None:
        return None if self.q_bhnd is None else self.q_bhnd * self.scale


class KeptHeadsBias(PositionBias):
    """The bias of the heads that a pruned layer has, out of those that all layers share."""

    def __init__(self, shared: PositionBias, kept_heads: Tensor) -> None:
        super().__init__(
            shared.position, shared.q_positions, shared.k_positions, plans=shared.plans
        )
        self.shared, self.kept_heads = shared, kept_heads

    def dense(self) -> Tensor | None:
        """The bias of these heads as a tensor to add to the scores."""
        return self._select(self.shared.dense(), 1)

    def block(self, start: int, end: int, keys: int) -> PositionBias:
        """The bias of these heads for the queries from `start` to `end` to the first keys."""
        return KeptHeadsBias(self.shared.block(start, end, keys), self.kept_heads)

    def masked(self, visible: Tensor | None, dtype: torch.dtype) -> Tensor | None:
        """The bias of these heads as a tensor that also hides what may not be seen."""
        return self._select(self.shared.masked(visible, dtype), 1)

    def of_batch(self) -> Tensor | None:
        """The bias of these heads that all sequences of the batch share."""
        if self._of_batch is None:
            self._of_batch = self._select(self.shared.of_batch(), 1)
        return self._of_batch

    def by_distance(self) -> DistanceBias | None:
        """The bias of these heads by distance."""
        bias = self.shared.by_distance()
        if bias is None:
            return None
        return replace(
            bias,
            slopes_h=self._select(bias.slopes_h, 0),
            table_1h1c=self._select(bias.table_1h1c, 1),
            table_by_distance=self._select(bias.table_by_distance, 1),
            band=self._select(bias.band, 0),
        )

    def score_mod(self) -> ScoreMod | None:
        """The bias of these heads as a function of one score."""
        add, heads = self.shared.score_mod(), self.kept_heads
        if add is None:
            return None
        return lambda score, b, h, q, k: add(score, b, heads[h], q, k)

    def _select(self, x: Tensor | None, axis: int) -> Tensor | None:
        """These heads along an axis; one entry may stand for all."""
        if x is None or x.shape[axis] == 1:
            return x
        return x.index_select(axis, self.kept_heads)
