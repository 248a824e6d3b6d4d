"""A search that is listened to: every token is heard as it is written, and a text can be ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from heed.decode.cuda_graph import Step
from heed.decode.model_step import GenerativeModel, Prompt
from heed.decode.search import Search
from heed.decode.state import DecodeState
from heed.decode.strategy import Hypothesis, IndependentStrategy

Hear = Callable[[int, list[int]], bool]
"""Told a text's number and its next tokens, answers whether that is enough of it."""


class StreamingSearch(Search):
    """Writes one hypothesis a text, aloud.

    Hearing waits for the device at every token, so it is slower than a search in silence.
    """

    alone = True

    def __init__(
        self,
        models: Sequence[GenerativeModel],
        how: IndependentStrategy,
        hear: Hear,
        **options: Any,
    ) -> None:
        if how.lanes != 1:
            raise ValueError("Of several hypotheses none can be told before all are written.")
        super().__init__(models, how, **options)
        self.hear = hear
        self._numbers: list[int] = []
        self._heard = 0

    def _batch(
        self, reading: Prompt, limits: list[int], numbers: list[int]
    ) -> list[list[Hypothesis]]:
        self._numbers, self._heard = numbers, 0
        return super()._batch(reading, limits, numbers)

    def _move(self, board: DecodeState, rows: list[int], room: int) -> tuple[DecodeState, Step]:
        """The same, and who sits where."""
        self._numbers = [self._numbers[row] for row in rows]
        return super()._move(board, rows, room)

    def _told(self, board: DecodeState) -> None:
        """Tell what is new of the texts that go on, and end those that are enough."""
        written = int(board.at)
        new_bl = board["tokens"][:, self._heard : written, 0].tolist()
        steps, done = board["out.steps"][:, 0].tolist(), board["done"].tolist()
        enough = []
        for row, number in enumerate(self._numbers):
            # One that has ended just now has so many tokens; one that ended before has none new.
            count = (steps[row] if done[row] else written) - self._heard
            tokens = new_bl[row][: max(0, count)]
            if tokens and self.hear(number, tokens) and not done[row]:
                enough.append(row)
        self._heard = written
        if enough:
            self._end(board, torch.tensor(enough, device=self.device), written)

    def _end(self, board: DecodeState, rows: torch.Tensor, written: int) -> None:
        """These texts are finished as they stand."""
        board["ended"][rows] = True
        board["done"][rows] = True
        logprobs = board["logprobs"][rows]
        length = torch.full_like(logprobs, written, dtype=torch.long)
        board["out.logprob"][rows] = logprobs
        board["out.score"][rows] = self.how.rate(logprobs, length)
        board["out.steps"][rows] = length
        board["out.cut"][rows] = False
