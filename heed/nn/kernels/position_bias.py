"""A position's bias, in whatever form a kernel asks for it.

Shapes: b batch, n queries, m keys, h heads, d head width.
"""

from __future__ import annotations

from typing import ClassVar, Protocol

import torch
from torch import Tensor

from heed.nn.kernels.distance_attention import Relative, ScoreMod
from heed.nn.masks import merged


class Source(Protocol):
    """What can be asked of an encoding: `heed.nn.positions.Position` says what each means."""

    bias_uses_query: ClassVar[bool]
    reach: int | None

    @property
    def biased(self) -> bool: ...

    def bias(self, q: Tensor | None, q_positions: Tensor, k_positions: Tensor) -> Tensor | None: ...

    def score_mod(
        self, q: Tensor | None, q_positions: Tensor, k_positions: Tensor
    ) -> ScoreMod | None: ...

    def relative(
        self, q: Tensor | None, scale: float, q_positions: Tensor, k_positions: Tensor
    ) -> Relative | None: ...


class PositionBias:
    """A position's bias, made only in the form and at the moment a kernel asks for it.

    One object serves all layers when the bias does not depend on their queries.
    """

    def __init__(
        self,
        position: Source,
        q_positions: Tensor,
        k_positions: Tensor,
        *,
        q_bhnd: Tensor | None = None,
        scale: float = 1.0,
    ) -> None:
        self.position, self.scale, self.q_bhnd = position, scale, q_bhnd
        self.q_positions, self.k_positions = q_positions, k_positions
        self._dense: Tensor | None = None
        self._merged: tuple[Tensor | None, Tensor] | None = None
        self._relative: Relative | None = None

    def dense(self) -> Tensor | None:
        """As a tensor to add to the scores; None where the encoding has no bias."""
        if self._dense is None:
            self._dense = self.position.bias(self._query(), self.q_positions, self.k_positions)
        return self._dense

    def over(self, visible: Tensor | None, dtype: torch.dtype) -> Tensor | None:
        """As a tensor that also hides what may not be seen, made once for all who share it."""
        bias = self.dense()
        if bias is None:
            return None
        if self._merged is None or self._merged[0] is not visible:
            self._merged = visible, merged(bias, visible, dtype)
        return self._merged[1]

    def relative(self) -> Relative | None:
        """As a rule by distance; None where it is no such rule."""
        if self._relative is None:
            self._relative = self.position.relative(
                self.q_bhnd, self.scale, self.q_positions, self.k_positions
            )
        return self._relative

    def score_mod(self) -> ScoreMod | None:
        """As a function of one score; None where the encoding has no bias."""
        return self.position.score_mod(self._query(), self.q_positions, self.k_positions)

    def _query(self) -> Tensor | None:
        return None if self.q_bhnd is None else self.q_bhnd * self.scale
