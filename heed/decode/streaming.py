"""Streaming search: a callback gets the tokens of each step, and can end an input early."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from heed.decode.cuda_graph import Step
from heed.decode.model_step import GenerativeModel, Prompt
from heed.decode.search import Search
from heed.decode.state import DecodeState
from heed.decode.strategy import Hypothesis, IndependentStrategy, IsCancelled

OnTokens = Callable[[int, list[int]], bool]
"""Called with an input's number and its new tokens; returns True to end that input."""


class StreamingSearch(Search):
    """A search with one hypothesis per input that reports tokens as they are generated.

    It waits for the device at every token, so it is slower than `Search`.
    """

    sequential = True

    def __init__(
        self,
        models: Sequence[GenerativeModel],
        strategy: IndependentStrategy,
        on_tokens: OnTokens,
        **options: Any,
    ) -> None:
        if strategy.beams != 1:
            raise ValueError("Streaming needs exactly one hypothesis per input.")
        super().__init__(models, strategy, **options)
        self.on_tokens = on_tokens
        self._numbers: list[int] = []
        self._reported = 0

    def _decode_batch(
        self,
        prompt: Prompt,
        limits: list[int],
        numbers: list[int],
        *,
        is_cancelled: IsCancelled | None = None,
    ) -> list[list[Hypothesis]]:
        self._numbers, self._reported = numbers, 0
        return super()._decode_batch(prompt, limits, numbers, is_cancelled=is_cancelled)

    def _resize(
        self, state: DecodeState, rows: list[int], capacity: int
    ) -> tuple[DecodeState, Step]:
        """Also track which input is in which slot."""
        self._numbers = [self._numbers[row] for row in rows]
        return super()._resize(state, rows, capacity)

    def _after_step(self, state: DecodeState) -> None:
        """Report the new tokens of unfinished inputs, and end those that the callback ends."""
        generated = int(state.generated)
        new_bl = state["tokens"][:, self._reported : generated, 0].tolist()
        steps, done = state["out.steps"][:, 0].tolist(), state["done"].tolist()
        ended, ends = [], dict[int, bool]()
        for row, number in enumerate(self._numbers):
            # `steps` counts the tokens of a finished input; one that ended before has none new.
            count = (steps[row] if done[row] else generated) - self._reported
            tokens = new_bl[row][: max(0, count)]
            if tokens and number not in ends:  # a copy of an input is not reported
                ends[number] = self.on_tokens(number, tokens)
            if tokens and ends[number] and not done[row]:
                ended.append(row)
        self._reported = generated
        if ended:
            self._end(state, torch.tensor(ended, device=self.device), generated)

    def _end(self, state: DecodeState, rows: torch.Tensor, generated: int) -> None:
        """Finish these inputs with the tokens they have."""
        state["ended"][rows] = True
        state["done"][rows] = True
        logprobs = state["logprobs"][rows]
        length = torch.full_like(logprobs, generated, dtype=torch.long)
        state["out.logprob"][rows] = logprobs
        state["out.score"][rows] = self.strategy.score(logprobs, length)
        state["out.steps"][rows] = length
        state["out.cut"][rows] = False
