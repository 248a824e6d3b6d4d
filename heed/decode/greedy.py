"""Greedy search: the most probable token at every step."""

from __future__ import annotations

from torch import Tensor

from heed.decode.state import DecodeState
from heed.decode.strategy import IndependentStrategy


class Greedy(IndependentStrategy):
    """One hypothesis per input."""

    def pick(self, logits_bkv: Tensor, state: DecodeState) -> Tensor:
        """The most probable token."""
        return logits_bkv.argmax(dim=-1)
