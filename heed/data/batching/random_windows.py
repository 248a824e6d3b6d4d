"""Training on blocks that begin anywhere: all texts are one stream, and chance says where to read.

The texts stand end to end in the order of their files. A block is `max_length` tokens in a row,
with nothing to part one text from the next but the marks: where a text begins the model reads BOS,
where it ends it should say EOS. Which blocks batch i of epoch e has, hangs on seed, e and i alone.
An epoch has as many blocks as would cover the stream once; being drawn, they cover some of it twice
and some not at all.

Shapes: b blocks, n tokens.
"""

from __future__ import annotations

import numpy as np
import torch

from heed.data.batching.bucketed import Batch, Plan, Shape, at
from heed.data.batching.length_buckets import chunks
from heed.data.batching.packing import PackedBatches, PackedPlan


class RandomBlocks(PackedBatches):
    """The training batches of a language model: every row full, every batch of one size."""

    def shapes(self) -> list[Shape]:
        """The one shape there is."""
        return [Shape(self.size, min(self.max_length, self._tokens()))]

    def plan(self, epoch: int) -> PackedPlan:
        """Where each block of this epoch begins, counted in tokens from the first."""
        texts = at(self.rows, slice(0, len(self.rows)))
        ends = np.concatenate([self._lengths(part) for part in chunks(len(texts))])
        np.cumsum(ends, out=ends)
        tokens = int(ends[-1])
        batches = -(-tokens // (self.max_length * self.size))
        random = np.random.Generator(np.random.PCG64([self.seed, epoch]))
        last = tokens - min(self.max_length, tokens)
        dtype = np.uint32 if last < 1 << 32 else np.uint64
        starts = random.integers(0, last, batches * self.size, dtype, endpoint=True)
        stops = np.arange(1, batches + 1) * self.size
        shapes = np.zeros(batches, np.int8)
        return PackedPlan(starts, stops - self.size, stops, shapes, epoch, texts, ends)

    def batch(self, plan: Plan, number: int) -> Batch:
        """Batch `number` of a plan."""
        if not isinstance(plan, PackedPlan):
            raise TypeError("blocks are made from their own plan")
        side, ends = self.store.sides[0], plan.ends
        length = min(self.max_length, int(ends[-1]))
        cell_bn = plan.items(number).astype(np.int64)[:, None] + np.arange(length)
        text_bn = np.searchsorted(ends, cell_bn, side="right")
        rows_bn = plan.texts[text_bn]
        size_bn = side.lengths(rows_bn)
        offset_bn = cell_bn - (ends[text_bn] - size_bn - 1)
        place_bn = side.starts[rows_bn].astype(np.int64) + offset_bn
        marks = side.specials
        said_bn = np.where(offset_bn == size_bn, marks.eos, side.ids.take(place_bn, mode="clip"))
        read_bn = np.where(offset_bn == 0, marks.bos, side.ids.take(place_bn - 1, mode="clip"))
        return Batch(
            torch.from_numpy(read_bn.astype(np.int64)),
            torch.from_numpy(said_bn.astype(np.int64)),
            torch.ones(cell_bn.shape, dtype=torch.bool),
            torch.arange(length)[None],
            count=cell_bn.size,
            rows=tuple(rows_bn[:, 0].tolist()),
        )

    def _lengths(self, places: slice) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """Tokens of these texts, each with its mark."""
        return self.store.sides[0].lengths(at(self.rows, places)) + 1

    def _tokens(self) -> int:
        return sum(int(self._lengths(part).sum()) for part in chunks(len(self.rows)))
