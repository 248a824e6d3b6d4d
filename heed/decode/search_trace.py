"""The trace of a search: every hypothesis of every step, with probabilities and alternatives.

Greedy search and sampling give a path, beam search a tree: a node is a hypothesis that was kept at
one step, and its parent is the hypothesis that it continues. All numbers come from the search
itself: a token's log-probability is the softmax that the search chose it by.

Shapes: b inputs (always one), k hypotheses per input, v vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from heed.decode.forced_prefix import ForcedChoice
from heed.decode.model_step import GenerativeModel, Prompt
from heed.decode.sampling import Sample
from heed.decode.search import Search
from heed.decode.state import DecodeState
from heed.decode.strategy import Hypothesis, IsCancelled, Strategy

ALTERNATIVES = 10
"""Tokens that are listed at each position."""


@dataclass(frozen=True)
class Alternative:
    """A token that the model could have chosen at a position."""

    id: int
    logprob: float
    """Its log-probability: the log-softmax of the model's logits."""
    drawn: float | None = None
    """The probability that sampling draws it, after temperature, top-k, top-p and min-p."""


@dataclass(frozen=True)
class TokenChoice(Alternative):
    """The token that was chosen at a position, and the likeliest tokens there."""

    rank: int = 0
    """How many tokens are likelier."""
    alternatives: tuple[Alternative, ...] = ()
    """The likeliest tokens, the best first; the chosen one may be among them."""


@dataclass(frozen=True)
class Node:
    """A hypothesis that a search kept at one step."""

    parent: int | None
    """The index of the node that it continues; None at the first step."""
    depth: int
    """How many tokens it has, the end token included."""
    choice: TokenChoice
    """Its last token."""
    logprob: float
    """The sum of the log-probabilities of its tokens."""
    score: float
    """What hypotheses are ranked by: the length-normalized log-probability, once it has ended with
    the coverage penalty."""
    ended: bool
    """Whether its last token is the end token."""


OnStep = Callable[[Sequence[Node]], None]
"""Called after each step with the new nodes. An exception that it raises ends the search."""


@dataclass(frozen=True)
class SearchTrace:
    """All nodes of a search, parents before children, and the hypotheses that it returned."""

    nodes: list[Node]
    hypotheses: list[Hypothesis]
    """The best first."""
    leaves: list[int]
    """For each hypothesis the index of its last node."""

    def path(self, node: int) -> list[int]:
        """The indices of the nodes from the first token to this one."""
        indices = [node]
        while (parent := self.nodes[indices[-1]].parent) is not None:
            indices.append(parent)
        return indices[::-1]

    @property
    def best(self) -> list[TokenChoice]:
        """The tokens of the best hypothesis, its end token included where it has one."""
        return [self.nodes[i].choice for i in self.path(self.leaves[0])]


class TracedSearch(Search):
    """A search over one input at a time that records every step.

    It waits for the device at every token and captures nothing, so it is slower than `Search`.
    """

    sequential = True

    def __init__(
        self,
        models: Sequence[GenerativeModel],
        strategy: Strategy,
        *,
        alternatives: int = ALTERNATIVES,
        on_step: OnStep | None = None,
        **options: Any,
    ) -> None:
        super().__init__(models, strategy, capture=False, **options)
        self.alternatives, self.on_step = alternatives, on_step
        chooser = strategy.strategy if isinstance(strategy, ForcedChoice) else strategy
        self._sampler = chooser if isinstance(chooser, Sample) else None
        self._begin()

    def _begin(self) -> None:
        self._nodes: list[Node] = []
        self._slots: list[int | None] = [None] * self.strategy.beams
        """The index of the node that each hypothesis has reached."""
        self._logits_kv = torch.empty(0)
        """The logits that the last step chose from."""
        self._is_done = False

    def trace_source(
        self, source: Sequence[int], *, max_ratio: float = 2.0, max_extra: int = 10
    ) -> SearchTrace:
        """The trace of the translation of one source (ids without an end token)."""
        (hypotheses,) = self.translate([source], max_ratio=max_ratio, max_extra=max_extra)
        return self._finish(hypotheses)

    def trace_prompt(self, prompt: Sequence[int], *, max_tokens: int) -> SearchTrace:
        """The trace of the continuation of one prompt (ids with the begin token)."""
        (hypotheses,) = self.generate([prompt], max_tokens=max_tokens)
        return self._finish(hypotheses)

    def _finish(self, hypotheses: list[Hypothesis]) -> SearchTrace:
        """The nodes so far, with the last node of each hypothesis."""
        ids_of = list[tuple[int, ...]]()
        for node in self._nodes:
            before = () if node.parent is None else ids_of[node.parent]
            ids_of.append((*before, node.choice.id))
        # Two samples may be equal: then either node has the same tokens and numbers.
        node_of = {ids: index for index, ids in enumerate(ids_of)}
        ends = [() if one.cut else (self.specials.eos,) for one in hypotheses]
        leaves = [node_of[(*one.ids, *end)] for one, end in zip(hypotheses, ends, strict=True)]
        return SearchTrace(self._nodes, hypotheses, leaves)

    def _decode_batch(
        self,
        prompt: Prompt,
        limits: list[int],
        numbers: list[int],
        *,
        is_cancelled: IsCancelled | None = None,
    ) -> list[list[Hypothesis]]:
        if len(limits) != 1:
            raise ValueError("A trace is of one input.")
        self._begin()
        return super()._decode_batch(prompt, limits, numbers, is_cancelled=is_cancelled)

    def _choose(self, state: DecodeState, logits_bkv: Tensor, attention_bkm: Tensor | None) -> None:
        """Also keep the logits, for `_after_step`."""
        self._logits_kv = logits_bkv[0]
        super()._choose(state, logits_bkv, attention_bkm)

    def _after_step(self, state: DecodeState) -> None:
        """Record the hypotheses that were extended, and those of a beam that ended."""
        if self._is_done:  # the loop runs on for a few steps before it looks
            return
        first, generated = len(self._nodes), int(state.generated)
        slots = range(self.strategy.beams)
        tokens, logprobs = state["ids"][0].tolist(), state["logprobs"][0].tolist()
        before, parents = self._slots, [*slots]
        if "parents" in state.tensors:
            parents = state["parents"][0, generated - 1].tolist()
            self._record_ended(state, generated)
        self._slots = [
            self._record(before[parent], parent, generated, tokens[slot], logprobs[slot])
            if self._goes_on(before[parent]) and logprobs[slot] > -torch.inf
            else before[parent]
            for slot, parent in zip(slots, parents, strict=True)
        ]
        self._is_done = bool(state["done"][0])
        if self.on_step is not None:
            self.on_step(self._nodes[first:])

    def _goes_on(self, node: int | None) -> bool:
        """Whether a hypothesis can be extended: an ended sample keeps its slot."""
        return node is None or not self._nodes[node].ended

    def _record_ended(self, state: DecodeState, generated: int) -> None:
        """Record the hypotheses of a beam that ended in this step, among the best so far."""
        names = ("steps", "beam", "logprob", "score", "cut")
        columns = [state[f"out.{name}"][0].tolist() for name in names]
        for steps, slot, logprob, score, cut in zip(*columns, strict=True):
            if steps == generated - 1 and score > -torch.inf and not cut:
                self._record(
                    self._slots[slot], slot, generated, self.specials.eos, logprob, score=score
                )

    def _record(
        self,
        parent: int | None,
        row: int,
        depth: int,
        token: int,
        logprob: float,
        *,
        score: float | None = None,
    ) -> int:
        """Add a node whose token was chosen from this row of the logits; returns its index."""
        if score is None:
            length = torch.tensor(depth)
            score = float(self.strategy.score(torch.tensor(logprob, dtype=torch.float64), length))
        choice = self._read_choice(self._logits_kv[row], token)
        ended = token == self.specials.eos
        self._nodes.append(Node(parent, depth, choice, logprob, score, ended))
        return len(self._nodes) - 1

    def _read_choice(self, logits_v: Tensor, token: int) -> TokenChoice:
        """The token, and the likeliest ones of this position."""
        logprobs_v = logits_v.log_softmax(dim=-1)
        drawn_v = (
            None if self._sampler is None else _sampling_probabilities(self._sampler, logits_v)
        )

        def read(index: int) -> tuple[int, float, float | None]:
            drawn = None if drawn_v is None else float(drawn_v[index])
            return index, float(logprobs_v[index]), drawn

        count = min(self.alternatives, len(logits_v))
        likeliest = logits_v.topk(count).indices.tolist()
        alternatives = [
            Alternative(*read(index)) for index in likeliest if logits_v[index] > -torch.inf
        ]
        rank = int((logits_v > logits_v[token]).sum())
        return TokenChoice(*read(token), rank, tuple(alternatives))


def _sampling_probabilities(sampler: Sample, logits_v: Tensor) -> Tensor:
    """The probability that sampling draws each token of the vocabulary [v]."""
    probabilities, tokens = sampler.candidates(logits_v)
    if tokens is None:
        return probabilities
    return torch.zeros_like(logits_v).scatter_(0, tokens, probabilities)
