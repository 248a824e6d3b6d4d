"""How the next token is chosen: what every strategy shares, and those that never look back.

Shapes: b texts, k hypotheses a text, l tokens there is room for, m source tokens, v pieces.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heed.data.tokenizers.special_tokens import OWN
from heed.decode.state import DecodeState, GrowAxis, StateTensors

Array = NDArray[Any]
RESULTS = ("score", "logprob", "steps", "lane", "cut")


@dataclass(frozen=True)
class Hypothesis:
    """A hypothesis that is finished."""

    ids: list[int]
    """Without the end mark."""
    score: float
    """What hypotheses are ranked by: log-probability by length, and what else a strategy adds."""
    logprob: float
    """The sum over all tokens, the end mark too."""
    cut: bool
    """Whether the limit ended it, not the model."""


class Strategy(ABC):
    """Writes k hypotheses a text, a token at a time, by tensors alone."""

    looks = False
    """Whether it must know where in the source each token was found."""
    end = OWN.eos
    """What ends a text."""

    def __init__(self, lanes: int = 1, *, length_penalty: float = 1.0) -> None:
        self.lanes, self.length_penalty = lanes, length_penalty

    def begin(
        self, limits: Sequence[int], numbers: Sequence[int], device: torch.device
    ) -> StateTensors:
        """What this strategy keeps on a board, with no room yet.

        `limits` are the tokens that may be written for each text; `numbers` tell texts apart,
        whatever batch they are in.
        """
        b, k = len(limits), self.lanes

        def filled(value: float | bool, dtype: torch.dtype = torch.float64) -> Tensor:
            return torch.full((b, k), value, dtype=dtype, device=device)

        history = torch.zeros(b, 0, k, dtype=torch.long, device=device)
        return {
            "ids": (filled(0, torch.long), None),
            "tokens": (history, GrowAxis(axis=1)),
            "logprobs": (filled(0.0), None),
            "done": (torch.zeros(b, dtype=torch.bool, device=device), None),
            "limit": (torch.tensor(limits, device=device), None),
            "out.score": (filled(-torch.inf), None),
            "out.logprob": (filled(-torch.inf), None),
            "out.steps": (filled(0, torch.long), None),
            "out.lane": (filled(0, torch.long), None),
            "out.cut": (filled(False, torch.bool), None),
        }

    @abstractmethod
    def choose(
        self, logits_bkv: Tensor, looked_bkm: Tensor | None, board: DecodeState
    ) -> Tensor | None:
        """Write the next token of every hypothesis, and note what is finished.

        Returns which hypothesis each goes on from, where that may be another than itself.
        """

    def rate(self, logprob: Tensor, length: Tensor) -> Tensor:
        """logprob / length^penalty, the length with its end mark."""
        return logprob / length.double() ** self.length_penalty

    def read(self, board: DecodeState, rows: Tensor) -> list[list[Hypothesis]]:
        """The finished hypotheses of some texts, the best first."""
        names = ["tokens", *(f"out.{name}" for name in RESULTS)]
        names += ["parents"] if "parents" in board.tensors else []
        found = _fetched([board[name].index_select(0, rows) for name in names])
        tokens_blk, score, logprob, steps, lane, cut, *parents_blk = found
        paths = _trace_back(tokens_blk, parents_blk[0] if parents_blk else None, steps, lane)
        return [
            [
                Hypothesis(
                    paths[i, j, : steps[i, j]].tolist(),
                    float(score[i, j]),
                    float(logprob[i, j]),
                    bool(cut[i, j]),
                )
                for j in self.order(score[i])
            ]
            for i in range(len(rows))
        ]

    def order(self, scores_k: Array) -> list[int]:
        """In which order to return the hypotheses of a text."""
        return list(range(len(scores_k)))


class IndependentStrategy(Strategy):
    """Hypotheses that know nothing of one another: each takes its own next token."""

    def begin(
        self, limits: Sequence[int], numbers: Sequence[int], device: torch.device
    ) -> StateTensors:
        """And which of them have ended. Each keeps its lane."""
        kept = super().begin(limits, numbers, device)
        kept["out.lane"][0].copy_(torch.arange(self.lanes, device=device))
        ended = torch.zeros(len(limits), self.lanes, dtype=torch.bool, device=device)
        return kept | {"ended": (ended, None)}

    @abstractmethod
    def pick(self, logits_bkv: Tensor, board: DecodeState) -> Tensor:
        """The next token of each hypothesis [b, k]."""

    def choose(
        self, logits_bkv: Tensor, looked_bkm: Tensor | None, board: DecodeState
    ) -> Tensor | None:
        """Take it, and add up its log-probability until the hypothesis ends."""
        tokens_bk = self.pick(logits_bkv, board)
        gained = logits_bkv.log_softmax(dim=-1).gather(2, tokens_bk[..., None])[..., 0]
        ended, logprobs, length = board["ended"], board["logprobs"], board.at + 1
        logprobs.add_(gained.masked_fill_(ended, 0.0))
        goes_on = tokens_bk != self.end
        now = ((length >= board["limit"])[:, None] | ~goes_on) & ~ended
        score, steps = self.rate(logprobs, length), board.at + goes_on
        board.note(now, score=score, logprob=logprobs, steps=steps, cut=goes_on)
        ended |= now
        board["done"].logical_or_(ended.all(dim=1))
        board.write(tokens_bk)
        return None


def _fetched(tensors: Sequence[Tensor]) -> list[Array]:
    """The same in this machine's memory, after waiting once."""
    copies = [x.to("cpu", non_blocking=True) for x in tensors]
    if tensors[0].is_cuda:
        torch.cuda.current_stream(tensors[0].device).synchronize()
    return [x.numpy() for x in copies]


def _trace_back(
    tokens_blk: Array, parents_blk: Array | None, steps_bk: Array, lane_bk: Array
) -> Array:
    """The tokens of each hypothesis [b, k, l], from its last one back to its first."""
    paths = np.zeros((*steps_bk.shape, int(steps_bk.max(initial=0))), np.int64)
    rows, lane_bk = np.arange(len(tokens_blk))[:, None], lane_bk.copy()
    for step in reversed(range(paths.shape[2])):
        on_path = step < steps_bk
        paths[:, :, step] = tokens_blk[rows, step, lane_bk]
        if parents_blk is not None:
            lane_bk = np.where(on_path, parents_blk[rows, step, lane_bk], lane_bk)
    return paths
