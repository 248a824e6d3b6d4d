"""Greedy decoding: the likeliest token, again and again."""

from __future__ import annotations

from torch import Tensor

from heed.decode.state import DecodeState
from heed.decode.strategy import IndependentStrategy


class Greedy(IndependentStrategy):
    """One hypothesis a text."""

    def pick(self, logits_bkv: Tensor, board: DecodeState) -> Tensor:
        """The likeliest."""
        return logits_bkv.argmax(dim=-1)
