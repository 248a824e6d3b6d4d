"""Greedy decoding: the likeliest token, again and again."""

from __future__ import annotations

from torch import Tensor

from heed.decode.board import Board
from heed.decode.strategy import Apart


class Greedy(Apart):
    """One hypothesis a text."""

    def pick(self, logits_bkv: Tensor, board: Board) -> Tensor:
        """The likeliest."""
        return logits_bkv.argmax(dim=-1)
