"""The batches of each update, made ahead of time on another thread and on their way to the device.

Which batches an update gets is a function of its number alone, so that prefetching, stopping and
resuming change nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch

from heed.data.batching.batch import Batch, pad_rows
from heed.data.batching.bucketed import BucketedBatches, Plan
from heed.data.batching.packing import PackedBatches
from heed.train.distributed.ranks import ALONE, World
from heed.train.distributed.sharding import share

AHEAD = 4
"""Updates whose batches are made before they are needed."""


@dataclass
class _Staged:
    """Batches of one update, and the moment from which on the device has them."""

    batches: list[Batch]
    there: torch.cuda.Event | None = None

    def arrived(self) -> list[Batch]:
        """The batches, for work that the device begins after they are there."""
        if self.there is not None:
            stream = torch.cuda.current_stream()
            stream.wait_event(self.there)
            for batch in self.batches:
                for tensor in batch.tensors().values():
                    tensor.record_stream(stream)
        return self.batches


class Feed:
    """Update number to micro-batches, of which each rank gets its rows.

    On a GPU every batch has one of the shapes known beforehand: a smaller one is filled up.
    """

    def __init__(
        self,
        batches: BucketedBatches | PackedBatches,
        *,
        accumulate: int,
        device: torch.device,
        world: World = ALONE,
    ) -> None:
        self.batches, self.accumulate, self.device = batches, accumulate, device
        self.world = world
        self._plan: tuple[int, Plan] = (0, batches.plan(0))
        self.steps_per_epoch = max(1, math.ceil(len(self._plan[1]) / accumulate))
        self._texts = {(s.length, s.source_length): s.batch_size for s in batches.shapes()}
        self._copies = torch.cuda.Stream(device) if device.type == "cuda" else None

    def epoch(self, step: int) -> int:
        """Which pass over the text update `step` is in."""
        return step // self.steps_per_epoch

    def micro_batches(self, step: int) -> list[Batch]:
        """The batches of all ranks for update `step`; an epoch's last may have fewer."""
        epoch, place = divmod(step, self.steps_per_epoch)
        if self._plan[0] != epoch:
            self._plan = (epoch, self.batches.plan(epoch))
        plan = self._plan[1]
        first = place * self.accumulate
        numbers = range(first, min(first + self.accumulate, len(plan)))
        return [self.batches.batch(plan, i) for i in numbers]

    def _stage(self, step: int) -> _Staged:
        """The batches of update `step`, sent to the device beside what it is doing."""
        batches = [share(batch, self.world) for batch in self.micro_batches(step)]
        if self._copies is None:
            return _Staged([batch.to(self.device) for batch in batches])
        whole = [pad_rows(batch, self._full(batch)) for batch in batches]
        with torch.cuda.stream(self._copies):
            sent = [_pinned(batch).to(self.device) for batch in whole]
            return _Staged(sent, self._copies.record_event())

    def example(self) -> Batch:
        """Some batch as an update will meet it, on the device."""
        batch = share(self.micro_batches(0)[0], self.world)
        if self._copies is not None:
            batch = pad_rows(batch, self._full(batch))
        return batch.to(self.device)

    def _full(self, batch: Batch) -> int:
        """How many texts a rank has of a batch of this shape when it is full."""
        source = None if batch.source is None else batch.source.shape[1]
        texts = self._texts.get((batch.ids.shape[1], source))
        return len(batch.ids) if texts is None else -(-texts // self.world.size)

    def walk(self, start: int, stop: int) -> Iterator[list[Batch]]:
        """The micro-batches of updates start … stop - 1."""
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="heed-feed") as worker:
            waiting: list[Future[_Staged]] = []
            try:
                for step in range(start, stop):
                    while len(waiting) < min(AHEAD, stop - step):
                        waiting.append(worker.submit(self._stage, step + len(waiting)))
                    yield waiting.pop(0).result().arrived()
            finally:
                for future in waiting:
                    future.cancel()


def _pinned(batch: Batch) -> Batch:
    """The batch in memory that a GPU can fetch by itself."""
    return batch.with_tensors({name: t.pin_memory() for name, t in batch.tensors().items()})
