"""Beam search: the k likeliest hypotheses side by side.

At every step the 2k likeliest ways to go on are looked at. Those of the first k that end are kept
apart, with a score; the k likeliest that don't end go on. A text is finished when k hypotheses have
ended and none of those that go on would, ending now, get among them; or, with `early_stop`, as soon
as k have ended. That is the search of Hugging Face's `generate`, whose results it shares.

The score is log P(y|x) / |y|^α + β Σ_j log min(Σ_i a_ij, 1): length penalty α, and a coverage
penalty β (Wu et al. 2016, equation 14) on source tokens j that no target token i looked at.

Shapes: b texts, k hypotheses a text, m source tokens, v pieces.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from heed.decode.board import Board, Kept, picked
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

    def begin(self, limits: Sequence[int], numbers: Sequence[int], device: torch.device) -> Kept:
        """All begin alike, so the others do not count until the first has forked."""
        kept = super().begin(limits, numbers, device)
        kept["logprobs"][0][:, 1:] = -torch.inf
        return kept

    def choose(self, logits_bkv: Tensor, looked_bkm: Tensor | None, board: Board) -> Tensor | None:
        """The k likeliest ways to go on, and what ends on the way."""
        k, done, length = self.lanes, board["done"].clone(), board.at + 1
        logprobs, tokens, parents = self._candidates(logits_bkv, board["logprobs"])
        penalties_bk = self._penalties(looked_bkm, board)
        ends = tokens == self.end
        self._collect(board, logprobs, parents, ends, penalties_bk)
        # The first k that don't end: a stable sort puts them first and keeps their order.
        going = ends.byte().sort(dim=1, stable=True).indices[:, :k]
        logprobs, tokens, parents = (x.gather(1, going) for x in (logprobs, tokens, parents))
        scores = self.rate(logprobs, length) + penalties_bk.gather(1, parents)
        kept = board["out.score"]
        stop = kept[:, -1] > -torch.inf
        if not self.early_stop:
            stop &= scores.amax(dim=1) <= kept[:, -1]
        full = length >= board["limit"]
        board.note(
            (full & ~done & (kept[:, 0] == -torch.inf))[:, None],
            score=scores,
            logprob=logprobs,
            steps=length.expand_as(parents),
            lane=torch.arange(k, device=parents.device).expand_as(parents),
            cut=torch.ones_like(kept, dtype=torch.bool),
        )
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
        logits, tokens = logits_bkv.topk(most, dim=-1)
        shares = logits - logits_bkv.logsumexp(dim=-1, keepdim=True)
        totals = logprobs_bk[..., None] + shares.double()
        totals, order = totals.flatten(1).sort(dim=1, descending=True, stable=True)
        order = order[:, : 2 * k]
        parents = order.div(most, rounding_mode="floor")
        return totals[:, : 2 * k], tokens.flatten(1).gather(1, order), parents

    def _penalties(self, looked_bkm: Tensor | None, board: Board) -> Tensor:
        """β Σ_j log min(Σ_i a_ij, 1) of every hypothesis, the step just made included."""
        if looked_bkm is None:
            return torch.zeros_like(board["logprobs"])
        board["coverage"].add_(looked_bkm)
        return self.coverage_penalty * coverage(board["coverage"], board["source_real"][:, None])

    def _collect(
        self, board: Board, logprobs: Tensor, parents: Tensor, ends: Tensor, penalties_bk: Tensor
    ) -> None:
        """Keep the best k of those that ended before and those that end now."""
        k, names = self.lanes, ("logprob", "steps", "lane")
        now = ends & ~board["done"][:, None]
        now[:, k:] = False
        scores = self.rate(logprobs, board.at + 1) + penalties_bk.gather(1, parents)
        scores = torch.where(now, scores, -torch.inf)
        merged = torch.cat([board["out.score"], scores], dim=1)
        best, places = merged.sort(dim=1, descending=True, stable=True)
        board["out.score"].copy_(best[:, :k])
        for name, new in zip(names, (logprobs, board.at.expand_as(parents), parents), strict=True):
            both = torch.cat([board[f"out.{name}"], new], dim=1)
            board[f"out.{name}"].copy_(both.gather(1, places[:, :k]))

    def order(self, scores_k: Array) -> list[int]:
        """The best first; a place that no hypothesis took has no score."""
        ranked = sorted(range(len(scores_k)), key=lambda j: -float(scores_k[j]))
        return [j for j in ranked if scores_k[j] > -float("inf")][: self.nbest]


def coverage(looked: Tensor, real: Tensor) -> Tensor:
    """Σ_j log min(looked_j, 1) over the source's real tokens."""
    return looked.clamp(LEAST_LOOK, 1.0).log().masked_fill(~real, 0.0).sum(dim=-1)
