"""Beam search: the k likeliest hypotheses side by side.

At every step the 2k likeliest ways to go on are looked at. Those of the first k that end are kept
apart, with a score; the k likeliest that don't end go on. A text is finished when k hypotheses have
ended and none of those that go on would, ending now, get among them; or, with `early_stop`, as soon
as k have ended. That is the search of Hugging Face's `generate`, whose results it shares. Where the
limit on the length comes first, what was cut fills up the places behind what has ended.

The score is log P(y|x) / |y|^α + β Σ_j log min(Σ_i a_ij, 1): length penalty α, and a coverage
penalty β (Wu et al. 2016, equation 14) on source tokens j that no target token i looked at.

Shapes: b texts, k hypotheses a text, m source tokens, v pieces.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from heed.decode.state import DecodeState, StateTensors, picked
from heed.decode.strategy import Array, Strategy

LEAST_LOOK = 1e-6
"""A token that was looked at less counts as looked at so much: the logarithm has an end."""


class Beam(Strategy):
    """`width` hypotheses a text, of which the best `nbest` are returned."""

    def __init__(
        self,
        width: int,
        *,
        nbest: int = 1,
        length_penalty: float = 1.0,
        coverage_penalty: float = 0.0,
        early_stop: bool = False,
    ) -> None:
        super().__init__(width, length_penalty=length_penalty)
        self.nbest, self.early_stop = nbest, early_stop
        self.coverage_penalty, self.looks = coverage_penalty, coverage_penalty > 0

    def begin(
        self, limits: Sequence[int], numbers: Sequence[int], device: torch.device
    ) -> StateTensors:
        """All begin alike, so the others do not count until the first has forked."""
        kept = super().begin(limits, numbers, device)
        kept["logprobs"][0][:, 1:] = -torch.inf
        history, grows = kept["tokens"]
        return kept | {"parents": (history.clone(), grows)}

    def choose(
        self, logits_bkv: Tensor, looked_bkm: Tensor | None, board: DecodeState
    ) -> Tensor | None:
        """The k likeliest ways to go on, and what ends on the way."""
        k, length = self.lanes, board.at + 1
        logprobs, tokens, parents = self._candidates(logits_bkv, board["logprobs"])
        scores = self.rate(logprobs, length)
        if looked_bkm is not None:
            scores += self._penalties(looked_bkm, board).gather(1, parents)
        ends = tokens == self.end
        self._collect(board, scores, logprobs, parents, ends)
        # The first k that don't end: a stable sort puts them first and keeps their order.
        going = ends.byte().sort(dim=1, stable=True).indices[:, :k]
        logprobs, tokens, parents, scores = (
            x.gather(1, going) for x in (logprobs, tokens, parents, scores)
        )
        kept = board["out.score"]
        stop = kept[:, -1] > -torch.inf
        if not self.early_stop:
            stop &= scores.amax(dim=1) <= kept[:, -1]
        full = length >= board["limit"]
        self._fill(board, scores, logprobs, full & ~board["done"])
        board["done"].logical_or_(stop | full)
        board["logprobs"].copy_(logprobs)
        board.write(tokens, parents)
        if looked_bkm is not None:
            board["coverage"].copy_(picked(board["coverage"], parents))
        return parents

    def _candidates(self, logits_bkv: Tensor, logprobs_bk: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probability, token and parent of the 2k likeliest ways to go on, the best first.

        No more than 2k can come from one hypothesis, so the vocabulary is searched hypothesis by
        hypothesis, by logits as they are.
        """
        k, most = self.lanes, min(2 * self.lanes, logits_bkv.shape[-1])
        tokens = logits_bkv.topk(most, dim=-1).indices
        shares = logits_bkv.log_softmax(dim=-1).gather(-1, tokens)
        totals = logprobs_bk[..., None] + shares
        totals, order = totals.flatten(1).sort(dim=1, descending=True, stable=True)
        order = order[:, : 2 * k]
        parents = order.div(most, rounding_mode="floor")
        return totals[:, : 2 * k], tokens.flatten(1).gather(1, order), parents

    def _penalties(self, looked_bkm: Tensor, board: DecodeState) -> Tensor:
        """β Σ_j log min(Σ_i a_ij, 1) of every hypothesis, the step just made included."""
        board["coverage"].add_(looked_bkm)
        return self.coverage_penalty * coverage(board["coverage"], board["source_real"][:, None])

    def _collect(
        self, board: DecodeState, scores: Tensor, logprobs: Tensor, parents: Tensor, ends: Tensor
    ) -> None:
        """Keep the best k of those that ended before and those that end now."""
        k, names = self.lanes, ("logprob", "steps", "lane")
        now = ends & ~board["done"][:, None]
        now[:, k:] = False
        merged = torch.cat([board["out.score"], torch.where(now, scores, -torch.inf)], dim=1)
        places = merged.sort(dim=1, descending=True, stable=True).indices[:, :k]
        # A text that is done stays as it is: what was cut there may have the better score.
        as_they_are = torch.arange(k, device=places.device).expand_as(places)
        places = torch.where(board["done"][:, None], as_they_are, places)
        board["out.score"].copy_(merged.gather(1, places))
        for name, new in zip(names, (logprobs, board.at.expand_as(parents), parents), strict=True):
            both = torch.cat([board[f"out.{name}"], new], dim=1)
            torch.gather(both, 1, places, out=board[f"out.{name}"])

    def _fill(self, board: DecodeState, scores: Tensor, logprobs: Tensor, now_b: Tensor) -> None:
        """At the limit, the best of those that go on take the places that none has that ended."""
        best, lanes = scores.sort(dim=1, descending=True, stable=True)
        free = board["out.score"] == -torch.inf
        rank = (free.cumsum(dim=1) - 1).clamp(min=0)
        lanes = lanes.gather(1, rank)
        cut = free & now_b[:, None]
        board.note(
            cut,
            score=best.gather(1, rank),
            logprob=logprobs.gather(1, lanes),
            steps=(board.at + 1).expand_as(lanes),
            lane=lanes,
            cut=cut,
        )

    def order(self, scores_k: Array) -> list[int]:
        """As they stand: what ended, the best first, then what was cut; empty places are none."""
        return [j for j in range(len(scores_k)) if scores_k[j] > -float("inf")][: self.nbest]


def coverage(looked: Tensor, real: Tensor) -> Tensor:
    """Σ_j log min(looked_j, 1) over the source's real tokens."""
    return looked.clamp(LEAST_LOOK, 1.0).log().masked_fill(~real, 0.0).sum(dim=-1)
