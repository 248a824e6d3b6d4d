"""Bucketed batches: few shapes, little padding, an order set by seed, epoch and step alone.

The lengths of the examples decide the batch shapes (`heed.data.batching.length_buckets`). Which
examples are in batch i of epoch e depends only on those, the seed, e and i: a resumed run continues
with the very batch that an uninterrupted one would have had next.

With BPE dropout each epoch reads the next pre-sampled segmentation. All share the same buckets and
batch count; where one would have fewer batches, its largest are split.

`batch_tokens` bounds the cells of a batch, padding included; for translation, those of its longer
side.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heed.data.batching.batch import (
    Batch,
    Ids,
    TokenSpan,
    causal_lm_batch,
    classification_batch,
    concat_batches,
    mask_tokens,
    masked_lm_batch,
    translation_batch,
)
from heed.data.batching.denoising import add_noise
from heed.data.batching.directions import Directions
from heed.data.batching.length_buckets import (
    BatchShape,
    Buckets,
    Rows,
    bucket_lengths,
    chunk_slices,
    common_bounds,
)
from heed.data.token_store import SEGMENTATIONS, Side, Store

DEFAULT_BATCH_TOKENS = 4096
UNBUCKETED = -1
NOISE_STREAM = 1
"""Seeds the generator of denoising noise apart from that of masking."""


@dataclass(frozen=True)
class Plan:
    """One epoch: which examples are in which batch, in order."""

    order: Rows
    starts: NDArray[np.int64]
    """Start of each batch in `order`."""
    stops: NDArray[np.int64]
    """End of each batch in `order`."""
    buckets: NDArray[np.int8]
    """Bucket of each batch; UNBUCKETED where its longest example sets the length."""
    epoch: int

    def __len__(self) -> int:
        return len(self.starts)

    def items(self, number: int) -> Rows:
        """The examples of one batch."""
        return self.order[self.starts[number] : self.stops[number]]


class BucketedBatches:
    """The batches of one split for one task: examples of similar length together.

    A language-model example longer than `max_length` is read in several windows; for other tasks it
    is truncated. Memory is one byte per example for its bucket and four for the order of an epoch.
    """

    def __init__(
        self,
        store: Store,
        task: str,
        *,
        max_length: int,
        batch_tokens: int | None = None,
        batch_size: int | None = None,
        seed: int = 0,
        rows: Rows | None = None,
        mask_share: float = 0.0,
        bidirectional: bool = False,
        denoise: float = 0.0,
    ) -> None:
        """Measure all lengths and prepare the directions.

        `rows` are the examples to use, all by default. `mask_share` is the share of tokens that a
        masked language model predicts; 0 means a causal one. For a classifier, or a translator's
        source, it is the share masked in training; evaluation masks nothing. With `bidirectional`,
        an epoch has every pair in both directions. With `denoise`, this share of pairs is denoised
        as well.
        """
        self.store, self.task, self.max_length, self.seed = store, task, max_length, seed
        self.batch_tokens, self.batch_size, self.mask_share = batch_tokens, batch_size, mask_share
        self.bidirectional, self.denoise = bidirectional, denoise
        self.rows: Rows | range = range(len(store)) if rows is None else rows
        self.starts: Rows | None = None
        """Start of each window in its example; None where every example is one window."""
        framed = task == "classify" or (task == "generate" and mask_share > 0)
        self._specials_added = 2 if framed else 1
        """Special tokens added to each example."""
        self.truncated = 0
        """Number of examples longer than max_length."""
        windows, longest = 0, 1
        for part in chunk_slices(len(self.rows)):
            lengths = self._full_lengths(part)
            longest = max(longest, int(lengths.max()))
            self.truncated += int((lengths > max_length).sum())
            windows += int(_window_counts(lengths, max_length).sum())
        if task == "generate":
            self.truncated = 0
            if longest > max_length:
                self.rows, self.starts = self._split_windows(windows)
        self._longest = min(longest, max_length)
        self.directions = Directions(
            len(self.rows),
            store.sides[0].specials,
            bidirectional=bidirectional,
            denoise=denoise,
            seed=seed,
        )

    @property
    def example_count(self) -> int:
        """Number of examples, in however many windows they are read."""
        return len(self.rows) if self.starts is None else int((self.starts == 0).sum())

    def subset(self, rows: NDArray[Any]) -> BucketedBatches:
        """Batches with the same settings over some rows of the store."""
        return BucketedBatches(
            self.store,
            self.task,
            max_length=self.max_length,
            batch_tokens=self.batch_tokens,
            batch_size=self.batch_size,
            seed=self.seed,
            rows=rows.astype(np.uint32),
            mask_share=self.mask_share,
            bidirectional=self.bidirectional,
            denoise=self.denoise,
        )

    def shapes(self) -> list[BatchShape]:
        """The batch shapes, the same in every epoch."""
        versions = self._buckets
        counts = [max(each) for each in zip(*(version.counts for version in versions), strict=True)]
        each = zip(versions[0].shapes, counts, strict=True)
        return [
            replace(shape, batch_size=min(shape.batch_size, count))
            for shape, count in each
            if count
        ]

    def plan(self, epoch: int) -> Plan:
        """A shuffled epoch: examples shuffled within buckets, then the batches of all buckets."""
        random = np.random.Generator(np.random.PCG64([self.seed, epoch]))
        buckets = self._buckets[epoch % len(self._buckets)]
        order, (bucket_of, sizes) = buckets.shuffle(random), _batches_by_bucket(buckets)
        most = max(len(_batches_by_bucket(one)[1]) for one in self._buckets)
        while len(sizes) < most:
            large = np.argsort(-sizes, kind="stable")[: most - len(sizes)]
            large = np.sort(large[sizes[large] > 1])
            halves = sizes[large] // 2
            sizes[large] -= halves
            sizes = np.insert(sizes, large, halves)
            bucket_of = np.insert(bucket_of, large, bucket_of[large])
        permutation, stops = random.permutation(len(bucket_of)), np.cumsum(sizes)
        return Plan(
            order, (stops - sizes)[permutation], stops[permutation], bucket_of[permutation], epoch
        )

    def plan_in_order(self) -> Plan:
        """Every example once, in file order, for evaluation."""
        order = np.arange(len(self.rows), dtype=np.uint32)
        sizes = batch_sizes(len(order), self._batch_size(self._bucket_length(self._longest)))
        stops = np.cumsum(sizes)
        return Plan(order, stops - sizes, stops, np.full(len(sizes), UNBUCKETED, np.int8), epoch=-1)

    @cached_property
    def _buckets(self) -> list[Buckets]:
        """Buckets of every version of the examples; built for training only."""
        options: dict[str, Any] = {"longest": self.max_length, "paired": self.task == "translate"}
        epochs = range(self._versions)
        versions = [(partial(self._sizes, epoch=epoch), len(self.directions)) for epoch in epochs]
        bounds = common_bounds(versions, **options)
        return [
            Buckets(*each, size=self._batch_size, bounds=bounds, **options) for each in versions
        ]

    @property
    def _versions(self) -> int:
        """Number of epochs after which the same segmentations and denoised pairs return."""
        return len(self.store.segmentations) or (SEGMENTATIONS if self.denoise else 1)

    def _sides(self, epoch: int) -> tuple[Side, ...]:
        """The sides in the segmentation of this epoch; epoch -1 has no dropout."""
        segmentations = self.store.segmentations
        if not segmentations or epoch < 0:
            return self.store.sides
        return segmentations[epoch % len(segmentations)]

    def _batch_size(self, length: int) -> int:
        """Examples per batch at this length."""
        if self.batch_size is not None:
            return self.batch_size
        return max(1, (self.batch_tokens or DEFAULT_BATCH_TOKENS) // length)

    def _bucket_length(self, length: int) -> int:
        """The smallest bucket length that holds this length."""
        lengths = bucket_lengths(self.max_length)
        return int(lengths[np.searchsorted(lengths, length)])

    def _full_lengths(self, places: slice) -> Ids:
        """Untruncated tokens of each example: of its longer side, in its longest segmentation."""
        rows, longest = take_rows(self.rows, places), np.zeros(places.stop - places.start, np.int64)
        for side in chain(self.store.sides, *self.store.segmentations):
            np.maximum(longest, side.lengths(rows), out=longest)
        return longest + self._specials_added

    def _sizes(self, places: slice | Rows, epoch: int) -> tuple[Ids, Ids]:
        """Source tokens (0 without a source) and target tokens at each place, as a batch has them.

        They count from the start of the window and are clipped at `max_length`.
        """
        direction, example = self.directions.locate(places, epoch % self._versions)
        rows, each = take_rows(self.rows, example), np.arange(len(example))
        lengths = (
            np.stack([side.lengths(rows) for side in self._sides(epoch)]) + self._specials_added
        )
        if self.task == "translate":
            input_side, output_side, _ = np.array(self.directions.entries).T
            source, target = (
                lengths[input_side[direction], each],
                lengths[output_side[direction], each],
            )
        else:
            source, target = np.zeros_like(lengths[0]), lengths[0]
        if self.starts is not None:
            target = target - self.starts[example]
        return np.clip(source, 0, self.max_length), np.clip(target, 0, self.max_length)

    def _split_windows(self, count: int) -> tuple[Rows, Rows]:
        """Rows and starts of all `count` windows of at most `max_length` tokens."""
        rows, starts, stop = np.empty(count, np.uint32), np.empty(count, np.uint32), 0
        for part in chunk_slices(len(self.rows)):
            counts = _window_counts(self._full_lengths(part), self.max_length)
            ends = np.cumsum(counts)
            here = slice(stop, stop + int(ends[-1]))
            number = np.arange(ends[-1]) - np.repeat(ends - counts, counts)
            rows[here] = np.repeat(take_rows(self.rows, part), counts)
            starts[here] = number * self.max_length
            stop = here.stop
        return rows, starts

    def batch(self, plan: Plan, number: int) -> Batch:
        """Batch `number` of a plan."""
        places = plan.items(number)
        source_sizes, sizes = self._sizes(places, plan.epoch)
        if plan.buckets[number] == UNBUCKETED:
            length, source_length = (
                self._bucket_length(sizes.max()),
                self._bucket_length(source_sizes.max()),
            )
        else:
            shape = self._buckets[0].shapes[plan.buckets[number]]
            length, source_length = shape.length, shape.source_length or 0
        if self.task == "translate":
            batch = self._translation_batch(
                plan, number, (source_sizes, sizes), (source_length, length)
            )
            return self._mask_tokens(batch, plan, number)
        rows, side = take_rows(self.rows, places), self._sides(plan.epoch)[0]
        starts = np.zeros_like(sizes) if self.starts is None else self.starts[places].astype("i8")
        span = TokenSpan(side, rows, starts, sizes)
        if self.task == "classify":
            labels = self.store.labels
            batch = classification_batch(span, length, None if labels is None else labels[rows])
            return self._mask_tokens(batch, plan, number)
        if not self.mask_share:
            return causal_lm_batch(span, length)
        random = self._random(plan, number)
        return masked_lm_batch(
            span, length, share=self.mask_share, vocab=self.store.vocab, random=random
        )

    def _translation_batch(
        self, plan: Plan, number: int, sizes: tuple[Ids, Ids], lengths: tuple[int, int]
    ) -> Batch:
        """Sentence pairs of all directions in one batch, with their source and target sizes."""
        direction, example = self.directions.locate(plan.items(number), plan.epoch % self._versions)
        rows, sides = take_rows(self.rows, example), self._sides(plan.epoch)
        random, parts = self._random(plan, number, NOISE_STREAM), []
        for which in np.unique(direction).tolist():
            here, kind = direction == which, self.directions.entries[which]
            from_start = np.zeros(here.sum(), np.int64)
            sources, targets = (
                TokenSpan(sides[side], rows[here], from_start, each[here], kind.first_token)
                for side, each in zip((kind.input_side, kind.output_side), sizes, strict=True)
            )
            part = translation_batch(sources, targets, *lengths)
            parts.append(add_noise(part, random, targets.specials) if kind.is_denoising else part)
        return concat_batches(parts)

    def _mask_tokens(self, batch: Batch, plan: Plan, number: int) -> Batch:
        """Mask tokens in a training batch; an evaluation batch stays as it is."""
        if not self.mask_share or plan.epoch < 0:
            return batch
        random, specials = self._random(plan, number), self.store.sides[0].specials
        return mask_tokens(batch, self.mask_share, random, specials)

    def _random(self, plan: Plan, number: int, *use: int) -> np.random.Generator:
        """Generator of one batch and use, the same whenever the batch is built."""
        return np.random.Generator(np.random.PCG64([self.seed, plan.epoch + 1, number, *use]))


def take_rows(rows: Rows | range, places: slice | Rows) -> Rows:
    """The rows at these places. A range of all rows is written out only where needed."""
    if not isinstance(rows, range):
        return rows[places]
    if isinstance(places, slice):
        return np.arange(places.start, places.stop, dtype=np.uint32)
    return places


def _batches_by_bucket(buckets: Buckets) -> tuple[NDArray[np.int8], NDArray[np.int64]]:
    """Bucket and size of every batch, bucket by bucket."""
    each = [
        batch_sizes(n, s.batch_size) for n, s in zip(buckets.counts, buckets.shapes, strict=True)
    ]
    bucket_of = np.repeat(np.arange(len(each), dtype=np.int8), [len(sizes) for sizes in each])
    return bucket_of, np.concatenate(each)


def _window_counts(lengths: Ids, size: int) -> Ids:
    """Windows of `size` tokens that each example needs."""
    return np.maximum(1, -(-lengths // size))


def batch_sizes(count: int, size: int) -> NDArray[np.int64]:
    """Sizes of the batches of `count` examples, the last one smaller."""
    full, rest = divmod(count, size)
    return np.array([size] * full + [rest] * (rest > 0), np.int64)
