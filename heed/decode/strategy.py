"""What every strategy shares, and the strategies whose hypotheses are independent.

A strategy chooses the next token of every hypothesis and records which hypotheses finish.

Shapes: b inputs, k hypotheses per input, l tokens of capacity, m source tokens, v vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heed.data.tokenizers.special_tokens import DEFAULT_SPECIALS
from heed.decode.state import DecodeState, GrowAxis, StateTensors

if TYPE_CHECKING:
    from ctypes import CDLL

Array = NDArray[Any]
IsCancelled = Callable[[], bool]
"""Called while a search decodes; returns True to end it with a `DecodingCancelledError`."""
RESULTS = ("score", "logprob", "steps", "beam", "cut")


@dataclass(frozen=True)
class Hypothesis:
    """A finished hypothesis: its tokens and its scores."""

    ids: list[int]
    """The tokens, without the end token."""
    score: float
    """What hypotheses are ranked by: length-normalized log-probability and a strategy's terms."""
    logprob: float
    """The sum of the log-probabilities of all tokens, the end token included."""
    cut: bool
    """Whether the length limit ended it, not the model."""


class DecodingCancelledError(Exception):
    """A search was cancelled before its results were complete."""


class Strategy(ABC):
    """Extends k hypotheses per input by one token at a time, with tensor operations only."""

    needs_attention = False
    """Whether `choose` needs the cross-attention weights of each step."""
    eos = DEFAULT_SPECIALS.eos
    """The token that ends a hypothesis."""
    int8_library: CDLL | None = None
    """The kernels of int8 weights, which can choose tokens, too."""

    def __init__(self, beams: int = 1, *, length_penalty: float = 1.0) -> None:
        self.beams, self.length_penalty = beams, length_penalty

    def begin(
        self, limits: Sequence[int], numbers: Sequence[int], device: torch.device
    ) -> StateTensors:
        """The tensors of this strategy in a decode state, without capacity yet.

        `limits` are the maximum numbers of generated tokens. `numbers` identify the inputs
        independently of the batch they are in.
        """
        b, k = len(limits), self.beams

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
            "out.beam": (filled(0, torch.long), None),
            "out.cut": (filled(False, torch.bool), None),
        }

    @abstractmethod
    def choose(
        self, logits_bkv: Tensor, attention_bkm: Tensor | None, state: DecodeState
    ) -> Tensor | None:
        """Append the next token to every hypothesis, and record those that finish.

        Returns the parent of each hypothesis [b, k]; None where each continues itself.
        """

    def score(self, logprob: Tensor, length: Tensor) -> Tensor:
        """logprob / length^penalty, the end token counted in the length."""
        return logprob / length.double() ** self.length_penalty

    def read_results(self, state: DecodeState, rows: Tensor) -> list[list[Hypothesis]]:
        """The finished hypotheses of these inputs, the best first."""
        names = ["tokens", *(f"out.{name}" for name in RESULTS)]
        names += ["parents"] if "parents" in state.tensors else []
        arrays = _to_numpy([state[name].index_select(0, rows) for name in names])
        tokens_blk, score, logprob, steps, beam, cut, *parents_blk = arrays
        paths = _backtrack(tokens_blk, parents_blk[0] if parents_blk else None, steps, beam)
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
        """The indices of an input's hypotheses in the order they are returned."""
        return list(range(len(scores_k)))


class IndependentStrategy(Strategy):
    """Strategies whose hypotheses are independent: each continues itself (greedy, sampling)."""

    def begin(
        self, limits: Sequence[int], numbers: Sequence[int], device: torch.device
    ) -> StateTensors:
        """The tensors of every strategy, and which hypotheses have ended."""
        tensors = super().begin(limits, numbers, device)
        tensors["out.beam"][0].copy_(torch.arange(self.beams, device=device))
        ended = torch.zeros(len(limits), self.beams, dtype=torch.bool, device=device)
        return tensors | {"ended": (ended, None)}

    @abstractmethod
    def pick(self, logits_bkv: Tensor, state: DecodeState) -> Tensor:
        """The next token of each hypothesis [b, k]."""

    def pick_scored(self, logits_bkv: Tensor, state: DecodeState) -> tuple[Tensor, Tensor]:
        """The next token of each hypothesis and its log-probability, each [b, k]."""
        tokens_bk = self.pick(logits_bkv, state)
        return tokens_bk, logits_bkv.log_softmax(dim=-1).gather(2, tokens_bk[..., None])[..., 0]

    def choose(
        self, logits_bkv: Tensor, attention_bkm: Tensor | None, state: DecodeState
    ) -> Tensor | None:
        """Append the picked tokens; sum log-probabilities until a hypothesis ends."""
        tokens_bk, gained = self.pick_scored(logits_bkv, state)
        ended, logprobs, length = state["ended"], state["logprobs"], state.generated + 1
        logprobs.add_(gained.masked_fill_(ended, 0.0))
        continues = tokens_bk != self.eos
        finished = ((length >= state["limit"])[:, None] | ~continues) & ~ended
        score, steps = self.score(logprobs, length), state.generated + continues
        state.record(finished, score=score, logprob=logprobs, steps=steps, cut=continues)
        ended |= finished
        state["done"].logical_or_(ended.all(dim=1))
        state.append(tokens_bk)
        return None


def _to_numpy(tensors: Sequence[Tensor]) -> list[Array]:
    """Copy tensors to host memory with a single synchronization."""
    copies = [x.to("cpu", non_blocking=True) for x in tensors]
    if tensors[0].is_cuda:
        torch.cuda.current_stream(tensors[0].device).synchronize()
    return [x.numpy() for x in copies]


def _backtrack(
    tokens_blk: Array, parents_blk: Array | None, steps_bk: Array, beam_bk: Array
) -> Array:
    """The tokens of each hypothesis [b, k, l], followed through its parents from last to first."""
    paths = np.zeros((*steps_bk.shape, int(steps_bk.max(initial=0))), np.int64)
    rows, beam_bk = np.arange(len(tokens_blk))[:, None], beam_bk.copy()
    for step in reversed(range(paths.shape[2])):
        on_path = step < steps_bk
        paths[:, :, step] = tokens_blk[rows, step, beam_bk]
        if parents_blk is not None:
            beam_bk = np.where(on_path, parents_blk[rows, step, beam_bk], beam_bk)
    return paths
