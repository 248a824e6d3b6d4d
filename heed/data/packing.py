"""Packed batches for language models: every row full, texts kept apart by segments.

The texts of an epoch, in that epoch's order, are laid end to end and cut into rows of
`max_length`; a text that meets the end of a row goes on in the next. Each row says which text every
token is of (`segments`) and where it stands in it (`positions`), so that texts don't see each other
and no cell is padding but the last row's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from heed.data.batches import (
    DEFAULT_TOKENS,
    IGNORED,
    Batch,
    Ids,
    Plan,
    Rows,
    batch_sizes,
    batch_starts,
)
from heed.data.store import Store
from heed.data.tokenizer import BOS, EOS, PAD


@dataclass(frozen=True)
class PackedPlan(Plan):
    """One epoch: texts in their order, rows in theirs."""

    texts: Rows
    ends: NDArray[np.int64]
    """Where each of those texts ends, counted in tokens from the first."""


class PackedBatches:
    """The training batches of a language model, without padding."""

    def __init__(
        self,
        store: Store,
        *,
        max_length: int,
        batch_tokens: int | None = None,
        batch_size: int | None = None,
        seed: int = 0,
        rows: Rows | None = None,
    ) -> None:
        self.store, self.max_length, self.seed, self.cut = store, max_length, seed, 0
        self.rows = np.arange(len(store), dtype=np.uint32) if rows is None else rows
        self.size = batch_size or max(1, (batch_tokens or DEFAULT_TOKENS) // max_length)
        self._lengths = store.sides[0].lengths() + 1

    def plan(self, epoch: int) -> PackedPlan:
        """A shuffled epoch: texts in random order, the rows they fill in random order."""
        random = np.random.Generator(np.random.PCG64([self.seed, epoch]))
        texts = random.permutation(self.rows)
        ends = np.cumsum(self._lengths[texts], dtype=np.int64)
        count = -(-int(ends[-1]) // self.max_length)
        order = random.permutation(np.arange(count, dtype=np.uint32))
        starts = batch_starts(batch_sizes(count, self.size))
        return PackedPlan(order, starts, epoch, texts, ends)

    def batch(self, plan: Plan, number: int) -> Batch:
        """Batch `number` of a plan."""
        if not isinstance(plan, PackedPlan):
            raise TypeError("packed batches are made from their own plan")
        size, items = self.max_length, plan.items(number)
        read = np.full((len(items), size), PAD, np.int64)
        said = np.full((len(items), size), IGNORED, np.int64)
        segments = np.full((len(items), size), -1, np.int64)
        positions = np.zeros((len(items), size), np.int64)
        rows: list[int] = []
        for i, item in enumerate(items):
            self._fill(plan, int(item), read[i], said[i], segments[i], positions[i], rows)
        mask = segments >= 0
        return Batch(
            torch.from_numpy(read),
            torch.from_numpy(said),
            torch.from_numpy(mask),
            torch.from_numpy(positions),
            count=int(mask.sum()),
            rows=tuple(rows),
            segments=torch.from_numpy(segments),
        )

    def _fill(
        self,
        plan: PackedPlan,
        item: int,
        read: Ids,
        said: Ids,
        segments: Ids,
        positions: Ids,
        rows: list[int],
    ) -> None:
        """Lay into one row the stretch of the epoch's tokens that is its own."""
        size = self.max_length
        at, stop = item * size, min((item + 1) * size, int(plan.ends[-1]))
        place, first = int(np.searchsorted(plan.ends, at, side="right")), at
        while at < stop:
            row, end = int(plan.texts[place]), min(int(plan.ends[place]), stop)
            offset = at - (int(plan.ends[place]) - int(self._lengths[row]))
            text = self.store.sides[0][row]
            cells = slice(at - first, end - first)
            said[cells] = np.append(text, EOS)[offset : offset + end - at]
            read[cells] = np.append(BOS, text)[offset : offset + end - at]
            segments[cells], positions[cells] = len(rows), np.arange(end - at)
            rows.append(row)
            at, place = end, place + 1
