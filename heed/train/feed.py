"""The batches of each update, made ahead of time on another thread.

Which batches an update gets is a function of its number alone, so that prefetching, stopping and
resuming change nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from heed.data.batches import Batch, Batches, Plan
from heed.data.packing import PackedBatches

AHEAD = 4
"""Updates whose batches are made before they are needed."""


class Feed:
    """Update number to micro-batches."""

    def __init__(
        self, batches: Batches | PackedBatches, *, accumulate: int, device: torch.device
    ) -> None:
        self.batches, self.accumulate, self.device = batches, accumulate, device
        self._plan: tuple[int, Plan] = (0, batches.plan(0))
        self.steps_per_epoch = max(1, math.ceil(len(self._plan[1]) / accumulate))

    def epoch(self, step: int) -> int:
        """Which pass over the text update `step` is in."""
        return step // self.steps_per_epoch

    def micro_batches(self, step: int) -> list[Batch]:
        """The batches whose gradients make up update `step`; an epoch's last may have fewer."""
        epoch, place = divmod(step, self.steps_per_epoch)
        if self._plan[0] != epoch:
            self._plan = (epoch, self.batches.plan(epoch))
        plan = self._plan[1]
        first = place * self.accumulate
        numbers = range(first, min(first + self.accumulate, len(plan)))
        return [self.batches.batch(plan, i).to(self.device) for i in numbers]

    def walk(self, start: int, stop: int) -> Iterator[list[Batch]]:
        """The micro-batches of updates start … stop - 1."""
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="heed-feed") as worker:
            waiting: list[Future[list[Batch]]] = []
            try:
                for step in range(start, stop):
                    while len(waiting) < min(AHEAD, stop - step):
                        waiting.append(worker.submit(self.micro_batches, step + len(waiting)))
                    yield waiting.pop(0).result()
            finally:
                for future in waiting:
                    future.cancel()
