"""Throughput of training steps: on a recipe's own data, and on one batch shape without padding."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from heed.bench.flops import count_operations
from heed.bench.timing import seconds, synchronize
from heed.data.batching.batch import IGNORE_INDEX, Batch
from heed.data.batching.length_buckets import BatchShape
from heed.data.tokenizers.special_tokens import MASK
from heed.train.loop import Loop

WARM, SHORTEST, LONGEST = 5.0, 3.0, 20.0
"""Seconds: at most of warm-up; at least and at most of timing, where an epoch takes longer."""
FEWEST = 3
"""Minimum steps of warm-up and of timing, however long they take."""


@dataclass(frozen=True)
class Pace:
    """The throughput of some steps. Tokens count both source and target."""

    updates: int
    seconds: float
    updates_per_second: float
    padded_tokens_per_second: float
    """Tokens and padding."""
    real_tokens_per_second: float
    target_tokens_per_second: float
    """Target tokens, or labels of a classifier, that the loss counts."""
    padding: float
    """The fraction of padding in the batches."""
    tflops: float
    """TFLOP/s, padding included, causal attention counted by half."""


@dataclass
class Counts:
    """The batches and tokens of some steps."""

    updates: int = 0
    seconds: float = 0.0
    shapes: Counter[BatchShape] = field(default_factory=Counter)
    """Number of batches of each shape."""
    real: int = 0
    targets: int = 0

    @property
    def padded(self) -> int:
        """Tokens and padding of all batches."""
        return sum(cells(shape) * number for shape, number in self.shapes.items())

    def take(self, batches: list[Batch]) -> None:
        """Count the tokens of batches, on any device."""
        for batch in batches:
            self.real += batch.count_real_tokens()
            self.targets += batch.count

    def pace(self, loop: Loop) -> Pace:
        """These counts per second."""
        model, elapsed = loop.setup.model, self.seconds
        work = sum(count_operations(model, shape).needed * k for shape, k in self.shapes.items())
        return Pace(
            updates=self.updates,
            seconds=elapsed,
            updates_per_second=self.updates / elapsed,
            padded_tokens_per_second=self.padded / elapsed,
            real_tokens_per_second=self.real / elapsed,
            target_tokens_per_second=self.targets / elapsed,
            padding=1.0 - self.real / self.padded,
            tflops=work / elapsed / 1e12,
        )


def shape_of(batch: Batch) -> BatchShape:
    """The shape of a batch."""
    source = None if batch.source is None else batch.source.shape[1]
    texts, length = batch.ids.shape
    return BatchShape(texts, length, source)


def cells(shape: BatchShape) -> int:
    """Tokens that a batch of this shape has room for."""
    return shape.batch_size * (shape.length + (shape.source_length or 0))


def warm_up(loop: Loop, walk: Iterator[list[Batch]]) -> dict[BatchShape, Batch]:
    """Train until every batch shape occurred, or for a while; the fullest batch of each shape."""
    missing, fullest = len(loop.setup.train.shapes()), dict[BatchShape, Batch]()
    began = time.perf_counter()
    for done, batches in enumerate(walk, start=1):
        loop.update(batches)
        for batch in batches:
            best = fullest.setdefault(shape_of(batch), batch)
            fullest[shape_of(batch)] = max(best, batch, key=lambda batch: batch.count)
        spent = time.perf_counter() - began
        if done >= FEWEST and (len(fullest) >= missing or spent > WARM):
            break
    synchronize(loop.state.device)
    return fullest


def real_pace(loop: Loop, walk: Iterator[list[Batch]], updates: int | None) -> Counts:
    """Time the next steps: `updates` of them, or whole epochs while these are short.

    The device is synchronized as often as training reads the loss.
    """
    first, device = loop.state.step, loop.state.device
    epoch, counts = loop.loader.steps_per_epoch, Counts()
    began = time.perf_counter()
    for batches in walk:
        loop.update(batches)
        counts.updates += 1
        counts.shapes.update(map(shape_of, batches))
        if counts.updates % loop.settings.log_every == 0:
            synchronize(device)
        spent = time.perf_counter() - began
        over = spent > SHORTEST and (counts.updates % epoch == 0 or spent > LONGEST)
        if counts.updates == updates or (updates is None and over and counts.updates >= FEWEST):
            break
    synchronize(device)
    counts.seconds = time.perf_counter() - began
    for step in range(first, first + counts.updates):  # the same batches, built again
        counts.take(loop.loader.micro_batches(step))
    return counts


def fixed_pace(loop: Loop, batch: Batch, updates: int | None) -> Counts:
    """Time steps on one full batch that is already on the device."""
    batches = [batch] * loop.settings.accumulate

    def update() -> None:
        loop.update(batches)

    device = loop.state.device
    once = min(seconds(update, device) for _ in range(FEWEST))
    calls = updates or max(FEWEST, math.ceil(SHORTEST / once))
    counts = Counts(calls, calls * seconds(update, device, calls=calls))
    counts.shapes[shape_of(batch)] = calls * len(batches)
    for _ in range(calls):
        counts.take(batches)
    return counts


def fill_padding(batch: Batch, vocab: int) -> Batch:
    """A batch with random tokens in place of its padding, all of them counted by the loss."""
    if batch.segments is not None:  # packed: almost no padding
        return batch

    def random(ids: Tensor) -> Tensor:
        return torch.randint_like(ids, MASK + 1, vocab)

    tensors = {
        "ids": torch.where(batch.mask, batch.ids, random(batch.ids)),
        "mask": torch.ones_like(batch.mask),
    }
    if batch.source is not None and batch.source_mask is not None:
        tensors["source"] = torch.where(batch.source_mask, batch.source, random(batch.source))
        tensors["source_mask"] = torch.ones_like(batch.source_mask)
    count = batch.count
    if batch.targets.shape == batch.mask.shape:
        # Targets of real tokens stay: a masked LM predicts masked tokens only.
        unchanged = (batch.targets != IGNORE_INDEX) | batch.mask
        tensors["targets"] = torch.where(unchanged, batch.targets, random(batch.targets))
        count = int((tensors["targets"] != IGNORE_INDEX).sum())
    return batch.with_tensors(tensors, count=count)
