"""Beam search: the k most probable hypotheses of each input, extended together.

Each step considers the 2k most probable continuations of the k running hypotheses:

1. Those among the first k that end are finished. `_keep_best_finished` merges them with the ones
   that finished before, keeps the k best by score and drops the rest.
2. The k most probable that do not end are the running hypotheses of the next step.
3. An input is done when it has k finished hypotheses and no running one, ended now, would score
   better than the worst of them; with `early_stop`, as soon as k have finished.
4. At the length limit `_fill_with_cut` puts the best running hypotheses, marked as cut, behind the
   finished ones.

This is the search of Hugging Face's `generate`, and gives the same results; `decode/plain.py` has
it in a dozen lines.

The score is log P(y|x) / |y|^α + β Σ_j log min(Σ_i a_ij, 1): length penalty α, and a coverage
penalty β (Wu et al. 2016, equation 14) on source tokens j that no target token i attended to.

Shapes: b inputs, k hypotheses per input, m source tokens, v vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from heed.decode.state import DecodeState, StateTensors, gather_parents
from heed.decode.strategy import Array, Strategy

MIN_ATTENTION = 1e-6
"""Attention to a source token below this counts as this much, so that its logarithm is finite."""


class Beam(Strategy):
    """Beam search with `width` hypotheses per input, of which the best `nbest` are returned."""

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
        self.coverage_penalty, self.needs_attention = coverage_penalty, coverage_penalty > 0

    def begin(
        self, limits: Sequence[int], numbers: Sequence[int], device: torch.device
    ) -> StateTensors:
        """The tensors of every strategy, and the parents of each step.

        All hypotheses start equal, so all but the first start with probability 0.
        """
        tensors = super().begin(limits, numbers, device)
        tensors["logprobs"][0][:, 1:] = -torch.inf
        history, grow = tensors["tokens"]
        return tensors | {"parents": (history.clone(), grow)}

    def choose(
        self, logits_bkv: Tensor, attention_bkm: Tensor | None, state: DecodeState
    ) -> Tensor | None:
        """Extend the running hypotheses by one token, and keep the best finished ones."""
        k, length = self.beams, state.generated + 1
        logprobs, tokens, parents = self.candidates(logits_bkv, state)
        scores = self.score(logprobs, length)
        if attention_bkm is not None:
            scores += self._coverage_penalties(attention_bkm, state).gather(1, parents)
        ends = tokens == self.eos
        self._keep_best_finished(state, scores, logprobs, parents, ends)
        # The first k that do not end: a stable sort puts them first and keeps their order.
        running = ends.byte().sort(dim=1, stable=True).indices[:, :k]
        logprobs, tokens, parents, scores = (
            x.gather(1, running) for x in (logprobs, tokens, parents, scores)
        )
        finished_scores = state["out.score"]
        stop = finished_scores[:, -1] > -torch.inf
        if not self.early_stop:
            stop &= scores.amax(dim=1) <= finished_scores[:, -1]
        at_limit = length >= state["limit"]
        self._fill_with_cut(state, scores, logprobs, at_limit & ~state["done"])
        state["done"].logical_or_(stop | at_limit)
        state["logprobs"].copy_(logprobs)
        state.append(tokens, parents)
        if attention_bkm is not None:
            state["coverage"].copy_(gather_parents(state["coverage"], parents))
        return parents

    def candidates(self, logits_bkv: Tensor, state: DecodeState) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probability, token and parent of the 2k most probable continuations, best first.

        At most 2k of them can come from one hypothesis, so top-k over the vocabulary is taken per
        hypothesis, on the logits.
        """
        k, per_beam = self.beams, min(2 * self.beams, logits_bkv.shape[-1])
        tokens = logits_bkv.topk(per_beam, dim=-1).indices
        token_logprobs = logits_bkv.log_softmax(dim=-1).gather(-1, tokens)
        totals = state["logprobs"][..., None] + token_logprobs
        totals, order = totals.flatten(1).sort(dim=1, descending=True, stable=True)
        order = order[:, : 2 * k]
        parents = order.div(per_beam, rounding_mode="floor")
        return totals[:, : 2 * k], tokens.flatten(1).gather(1, order), parents

    def _coverage_penalties(self, attention_bkm: Tensor, state: DecodeState) -> Tensor:
        """β Σ_j log min(Σ_i a_ij, 1) of every hypothesis, this step's attention included."""
        state["coverage"].add_(attention_bkm)
        return self.coverage_penalty * coverage(state["coverage"], state["source_real"][:, None])

    def _keep_best_finished(
        self, state: DecodeState, scores: Tensor, logprobs: Tensor, parents: Tensor, ends: Tensor
    ) -> None:
        """Keep the k best of the hypotheses that finished before or finish now; drop the rest."""
        k, names = self.beams, ("logprob", "steps", "beam")
        finished = ends & ~state["done"][:, None]
        finished[:, k:] = False
        merged = torch.cat([state["out.score"], torch.where(finished, scores, -torch.inf)], dim=1)
        best = merged.sort(dim=1, descending=True, stable=True).indices[:, :k]
        # An input that is done keeps its order: a cut hypothesis there may have a better score.
        unchanged = torch.arange(k, device=best.device).expand_as(best)
        best = torch.where(state["done"][:, None], unchanged, best)
        state["out.score"].copy_(merged.gather(1, best))
        values = (logprobs, state.generated.expand_as(parents), parents)
        for name, new in zip(names, values, strict=True):
            both = torch.cat([state[f"out.{name}"], new], dim=1)
            torch.gather(both, 1, best, out=state[f"out.{name}"])

    def _fill_with_cut(
        self, state: DecodeState, scores: Tensor, logprobs: Tensor, cut_b: Tensor
    ) -> None:
        """At the length limit, fill free places with the best running hypotheses, marked as cut."""
        best, beams = scores.sort(dim=1, descending=True, stable=True)
        free = state["out.score"] == -torch.inf
        rank = (free.cumsum(dim=1) - 1).clamp(min=0)
        beams = beams.gather(1, rank)
        cut = free & cut_b[:, None]
        state.record(
            cut,
            score=best.gather(1, rank),
            logprob=logprobs.gather(1, beams),
            steps=(state.generated + 1).expand_as(beams),
            beam=beams,
            cut=cut,
        )

    def order(self, scores_k: Array) -> list[int]:
        """Finished hypotheses, the best first, then cut ones; places without any are left out."""
        return [j for j in range(len(scores_k)) if scores_k[j] > -float("inf")][: self.nbest]


def coverage(attention: Tensor, real: Tensor) -> Tensor:
    """Σ_j log min(attention_j, 1) over the source's real tokens."""
    return attention.clamp(MIN_ATTENTION, 1.0).log().masked_fill(~real, 0.0).sum(dim=-1)
