"""Random windows: language-model training on windows that start anywhere in the token stream.

The sequences stand end to end in file order. A window is `max_length` consecutive tokens. Only the
special tokens separate sequences: the model reads BOS where one starts and predicts EOS where one
ends. The windows of batch i of epoch e depend on the seed, e and i alone. An epoch has as many
windows as would cover the stream once; since their starts are random, some tokens are read twice
and some not at all.

Shapes: b windows, n tokens.
"""

from __future__ import annotations

import numpy as np
import torch

from heed.data.batching.batch import Batch
from heed.data.batching.bucketed import Plan, take_rows
from heed.data.batching.length_buckets import BatchShape, chunk_slices
from heed.data.batching.packing import PackedBatches, PackedPlan


class RandomWindows(PackedBatches):
    """The training batches of a language model: every row full, every batch of one size."""

    def shapes(self) -> list[BatchShape]:
        """The single batch shape."""
        return [BatchShape(self.batch_size, min(self.max_length, self._tokens()))]

    def plan(self, epoch: int) -> PackedPlan:
        """Start of each window of this epoch, in tokens from the start of the stream."""
        sequences = take_rows(self.rows, slice(0, len(self.rows)))
        ends = np.concatenate([self._lengths(part) for part in chunk_slices(len(sequences))])
        np.cumsum(ends, out=ends)
        tokens = int(ends[-1])
        batches = -(-tokens // (self.max_length * self.batch_size))
        random = np.random.Generator(np.random.PCG64([self.seed, epoch]))
        last = tokens - min(self.max_length, tokens)
        dtype = np.uint32 if last < 1 << 32 else np.uint64
        starts = random.integers(0, last, batches * self.batch_size, dtype, endpoint=True)
        stops = np.arange(1, batches + 1) * self.batch_size
        buckets = np.zeros(batches, np.int8)
        return PackedPlan(starts, stops - self.batch_size, stops, buckets, epoch, sequences, ends)

    def batch(self, plan: Plan, number: int) -> Batch:
        """Batch `number` of a plan."""
        if not isinstance(plan, PackedPlan):
            raise TypeError("random windows need a PackedPlan")
        side, ends = self.store.sides[0], plan.ends
        length = min(self.max_length, int(ends[-1]))
        cell_bn = plan.items(number).astype(np.int64)[:, None] + np.arange(length)
        sequence_bn = np.searchsorted(ends, cell_bn, side="right")
        rows_bn = plan.sequences[sequence_bn]
        size_bn = side.lengths(rows_bn)
        offset_bn = cell_bn - (ends[sequence_bn] - size_bn - 1)
        place_bn = side.starts[rows_bn].astype(np.int64) + offset_bn
        specials = side.specials
        next_bn = np.where(offset_bn == size_bn, specials.eos, side.ids.take(place_bn, mode="clip"))
        input_bn = np.where(offset_bn == 0, specials.bos, side.ids.take(place_bn - 1, mode="clip"))
        return Batch(
            torch.from_numpy(input_bn.astype(np.int64)),
            torch.from_numpy(next_bn.astype(np.int64)),
            torch.ones(cell_bn.shape, dtype=torch.bool),
            torch.arange(length)[None],
            count=cell_bn.size,
            rows=tuple(rows_bn[:, 0].tolist()),
        )

    def _lengths(self, places: slice) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """Tokens of these sequences, each with one special token."""
        return self.store.sides[0].lengths(take_rows(self.rows, places)) + 1

    def _tokens(self) -> int:
        return sum(int(self._lengths(part).sum()) for part in chunk_slices(len(self.rows)))
