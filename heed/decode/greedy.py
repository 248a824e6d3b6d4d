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

    def pick_scored(self, logits_bkv: Tensor, state: DecodeState) -> tuple[Tensor, Tensor]:
        """The most probable token and its log-probability."""
        if self.int8_library is None:
            return super().pick_scored(logits_bkv, state)
        from heed.nn.kernels.int8_blocks import best_tokens

        return best_tokens(self.int8_library, logits_bkv)
