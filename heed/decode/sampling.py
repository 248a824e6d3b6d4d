"""Sampling: the next token drawn from what the model says, or from the likelier part of it.

Every sample of every text has a stream of draws of its own, a function of the seed, the text's
number and the sample's number. So a sample does not depend on the batch it is drawn in.

Shapes: b texts, k samples a text, v pieces, c candidates.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from heed.decode.batch_plan import rung
from heed.decode.state import DecodeState, StateTensors
from heed.decode.strategy import IndependentStrategy

WORD = 1 << 32
COLDEST, HOTTEST = 1e-30, 1e30
"""Temperatures that a logit can be divided by and stay a number."""


class Sample(IndependentStrategy):
    """`samples` texts each, independent of one another."""

    def __init__(
        self,
        samples: int = 1,
        *,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float = 1.0,
        min_p: float = 0.0,
        seed: int = 0,
        length_penalty: float = 1.0,
    ) -> None:
        super().__init__(samples, length_penalty=length_penalty)
        self.temperature, self.seed = min(max(temperature, COLDEST), HOTTEST), seed
        self.top_k, self.top_p, self.min_p = top_k, top_p, min_p

    def begin(
        self, limits: Sequence[int], numbers: Sequence[int], device: torch.device
    ) -> StateTensors:
        """And every draw that may be needed."""
        draws_blk = np.zeros((len(limits), rung(max(limits)), self.lanes))
        for i, (limit, number) in enumerate(zip(limits, numbers, strict=True)):
            for lane in range(self.lanes):
                draws_blk[i, :limit, lane] = self.stream(number, lane).random(limit)
        draws = torch.from_numpy(draws_blk).to(device)
        return super().begin(limits, numbers, device) | {"draws": (draws, None)}

    def stream(self, number: int, lane: int) -> np.random.Generator:
        """What sample number `lane` of a text draws from."""
        # A word each: numpy would run those of a larger number into the next.
        high, low = divmod(number, WORD)
        return np.random.Generator(np.random.PCG64([self.seed, low, lane, high]))

    def pick(self, logits_bkv: Tensor, board: DecodeState) -> Tensor:
        """By the next draw of each sample's own stream."""
        draws_bk = board["draws"].index_select(1, board.at)[:, 0]
        shares, tokens = self.shares(logits_bkv)
        places = drawn(shares, draws_bk)
        return places if tokens is None else tokens.gather(-1, places[..., None])[..., 0]

    def shares(self, logits: Tensor) -> tuple[Tensor, Tensor | None]:
        """How likely each candidate is, and which token it is (None: its own number).

        Temperature comes first; then `top_k`, `top_p` and `min_p`, each on what is left. All three
        keep the first so many of the likeliest, so one sort serves them.
        """
        logits, tokens = logits / self.temperature, None
        if self.top_k is not None and self.top_k < logits.shape[-1]:
            logits, tokens = logits.topk(self.top_k, dim=-1)
        elif self.top_p < 1.0 or self.min_p > 0.0:
            logits, tokens = logits.sort(dim=-1, descending=True)
        shares = logits.softmax(dim=-1)
        if self.top_p < 1.0:
            before = shares.double().cumsum(dim=-1) - shares
            shares = shares.where(before < self.top_p, 0.0)
            shares = shares / shares.sum(dim=-1, keepdim=True)
        if self.min_p > 0.0:
            shares = shares.where(shares >= self.min_p * shares[..., :1], 0.0)
            shares = shares / shares.sum(dim=-1, keepdim=True)
        return shares, tokens


def drawn(shares_bkc: Tensor, draws_bk: Tensor) -> Tensor:
    """The first candidate at which the shares add up to more than the draw."""
    sums = shares_bkc.double().cumsum(dim=-1)
    passed = (sums <= draws_bk[..., None] * sums[..., -1:]).sum(dim=-1)
    # A draw just below 1 may round up to all there is: then the last that has a share.
    last = shares_bkc.shape[-1] - 1 - (shares_bkc > 0).flip(-1).byte().argmax(dim=-1)
    return passed.minimum(last)
