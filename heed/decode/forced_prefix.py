"""Forced prefixes: the first tokens of every hypothesis are given, and the search continues them.

At each position of the prefix the given token is chosen, with the log-probability that the model
gives it. So scores and lengths are those of whole hypotheses, and the random number of a position
is the same with any prefix: forcing tokens that greedy search or sampling chose changes nothing.

Shapes: b inputs, k hypotheses per input, v vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from heed.decode.beam import Beam
from heed.decode.state import DecodeState, StateTensors
from heed.decode.strategy import IndependentStrategy, Strategy

FREE = -1
"""Stands after the prefix, where the strategy itself chooses."""


def force_prefix(strategy: Strategy, prefix: Sequence[int]) -> Strategy:
    """The strategy with these first tokens in every hypothesis; the last may be the end token."""
    if not prefix:
        return strategy
    if isinstance(strategy, Beam):
        return ForcedBeam(strategy, prefix)
    if isinstance(strategy, IndependentStrategy):
        return ForcedChoice(strategy, prefix)
    raise TypeError(f"{type(strategy).__name__} takes no prefix")


class ForcedChoice(IndependentStrategy):
    """Greedy search or sampling after a prefix."""

    def __init__(self, strategy: IndependentStrategy, prefix: Sequence[int]) -> None:
        super().__init__(strategy.beams, length_penalty=strategy.length_penalty)
        self.strategy, self.prefix = strategy, list(prefix)

    def begin(
        self, limits: Sequence[int], numbers: Sequence[int], device: torch.device
    ) -> StateTensors:
        """The tensors of the strategy, and the prefix."""
        return self.strategy.begin(limits, numbers, device) | _prefix_tensor(self.prefix, device)

    def pick(self, logits_bkv: Tensor, state: DecodeState) -> Tensor:
        """The next token of the prefix; after it, what the strategy picks."""
        forced = _forced_token(state)
        return torch.where(forced == FREE, self.strategy.pick(logits_bkv, state), forced)


class ForcedBeam(Beam):
    """Beam search after a prefix, which all hypotheses share."""

    def __init__(self, beam: Beam, prefix: Sequence[int]) -> None:
        super().__init__(
            beam.beams,
            nbest=beam.nbest,
            length_penalty=beam.length_penalty,
            coverage_penalty=beam.coverage_penalty,
            early_stop=beam.early_stop,
        )
        self.prefix = list(prefix)

    def begin(
        self, limits: Sequence[int], numbers: Sequence[int], device: torch.device
    ) -> StateTensors:
        """The tensors of beam search, and the prefix."""
        return super().begin(limits, numbers, device) | _prefix_tensor(self.prefix, device)

    def choose(
        self, logits_bkv: Tensor, attention_bkm: Tensor | None, state: DecodeState
    ) -> Tensor | None:
        """Extend the hypotheses; an input is also done when its prefix has ended them all."""
        parents = super().choose(logits_bkv, attention_bkm, state)
        state["done"].logical_or_(state["logprobs"].amax(dim=1) == -torch.inf)
        return parents

    def candidates(self, logits_bkv: Tensor, state: DecodeState) -> tuple[Tensor, Tensor, Tensor]:
        """The continuations of beam search; in the prefix only the given token is possible."""
        forced = _forced_token(state)[..., None]
        is_forced = forced != FREE
        others = is_forced & (torch.arange(logits_bkv.shape[-1], device=forced.device) != forced)
        masked = logits_bkv.masked_fill(others, -torch.inf)
        logprobs, tokens, parents = super().candidates(masked, state)
        # With all others masked, the given token has log-probability 0: add its real one.
        index = forced.clamp(min=0).expand(*logits_bkv.shape[:2], 1)
        gained = logits_bkv.log_softmax(dim=-1).gather(-1, index)[..., 0].gather(1, parents)
        return logprobs + torch.where(is_forced[..., 0], gained, 0.0), tokens, parents


def _prefix_tensor(prefix: Sequence[int], device: torch.device) -> StateTensors:
    return {"prefix": (torch.tensor([[*prefix, FREE]], device=device), None)}


def _forced_token(state: DecodeState) -> Tensor:
    """The token that the prefix has at this step [b or 1, 1]; FREE after it."""
    prefix = state["prefix"]
    return prefix.index_select(1, state.generated.clamp(max=prefix.shape[1] - 1))
