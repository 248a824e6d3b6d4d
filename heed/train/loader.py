"""The prefetching batch loader: batches are built on a thread and copied to the device ahead.

The batches of a step depend on its number alone. So prefetching, stopping and resuming change
nothing.
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
from heed.train.distributed.ranks import SINGLE, World
from heed.train.distributed.sharding import shard_batch

PREFETCH = 4
"""Steps whose batches are built before they are needed."""


@dataclass
class _Prefetched:
    """The batches of one step, their tokens on all ranks, and the event of their copy to a GPU."""

    batches: list[Batch]
    tokens: int
    copied: torch.cuda.Event | None = None

    def wait(self) -> list[Batch]:
        """The batches; the current stream waits until they are copied."""
        if self.copied is not None:
            stream = torch.cuda.current_stream()
            stream.wait_event(self.copied)
            for batch in self.batches:
                for tensor in batch.tensors().values():
                    tensor.record_stream(stream)
        return self.batches


class Loader:
    """Maps a step to its micro-batches; each rank gets its rows of them.

    On a GPU every batch has one of a few known shapes: smaller ones are padded with empty rows.
    """

    def __init__(
        self,
        batches: BucketedBatches | PackedBatches,
        *,
        accumulate: int,
        device: torch.device,
        world: World = SINGLE,
    ) -> None:
        self.batches, self.accumulate, self.device = batches, accumulate, device
        self.world = world
        self.tokens = 0
        """Tokens of the last step that `iterate` gave, without padding, on all ranks."""
        self._plan: tuple[int, Plan] = (0, batches.plan(0))
        self.steps_per_epoch = max(1, math.ceil(len(self._plan[1]) / accumulate))
        self._batch_sizes = {(s.length, s.source_length): s.batch_size for s in batches.shapes()}
        self._copy_stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def epoch(self, step: int) -> int:
        """The epoch of a step."""
        return step // self.steps_per_epoch

    def micro_batches(self, step: int) -> list[Batch]:
        """The batches of a step for all ranks; the last step of an epoch may have fewer."""
        epoch, place = divmod(step, self.steps_per_epoch)
        planned, plan = self._plan
        if planned != epoch:
            plan = self.batches.plan(epoch)
            self._plan = epoch, plan
        first = place * self.accumulate
        numbers = range(first, min(first + self.accumulate, len(plan)))
        return [self.batches.batch(plan, i) for i in numbers]

    def example_batch(self) -> Batch:
        """The first batch as a step gets it, on the device."""
        batch = self._own_rows(self.micro_batches(0)[0])
        if self._copy_stream is not None:
            batch = pad_rows(batch, self._full_size(batch))
        return batch.to(self.device)

    def iterate(self, start: int, stop: int) -> Iterator[list[Batch]]:
        """The micro-batches of steps start … stop - 1."""
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="heed-loader") as worker:
            waiting: list[Future[_Prefetched]] = []
            try:
                for step in range(start, stop):
                    while len(waiting) < min(PREFETCH, stop - step):
                        waiting.append(worker.submit(self._prefetch, step + len(waiting)))
                    prefetched = waiting.pop(0).result()
                    self.tokens = prefetched.tokens
                    yield prefetched.wait()
            finally:
                for future in waiting:
                    future.cancel()

    def _prefetch(self, step: int) -> _Prefetched:
        """Build the batches of a step and start their copy on a separate stream."""
        whole = self.micro_batches(step)
        tokens = sum(batch.count_real_tokens() for batch in whole)
        batches = [self._own_rows(batch) for batch in whole]
        if self._copy_stream is None:
            return _Prefetched([batch.to(self.device) for batch in batches], tokens)
        full = [pad_rows(batch, self._full_size(batch)) for batch in batches]
        with torch.cuda.stream(self._copy_stream):
            sent = [_pin(batch).to(self.device) for batch in full]
            return _Prefetched(sent, tokens, self._copy_stream.record_event())

    def _own_rows(self, batch: Batch) -> Batch:
        """This rank's rows of a batch."""
        return shard_batch(batch, self.world) if self.world.is_distributed else batch

    def _full_size(self, batch: Batch) -> int:
        """The rows that a rank has of a full batch of this shape."""
        source = None if batch.source is None else batch.source.shape[1]
        size = self._batch_sizes.get((batch.ids.shape[1], source))
        return len(batch.ids) if size is None else -(-size // self.world.size)


def _pin(batch: Batch) -> Batch:
    """The batch in pinned memory, from which a GPU copies asynchronously."""
    return batch.with_tensors({name: t.pin_memory() for name, t in batch.tensors().items()})
