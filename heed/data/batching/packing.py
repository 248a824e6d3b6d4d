"""Packed batches for language models: every row full, texts kept apart by segments.

The texts of an epoch, in that epoch's order, are laid end to end and cut into rows of
`max_length`; a text that meets the end of a row goes on in the next. Each row says which text every
token is of (`segments`) and where it stands in it (`positions`), so that texts don't see each other
and no cell is padding but the last row's.

Shapes: b rows, n tokens; p parts, each what one row has of one text; t tokens of all parts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from heed.data.batching.bucketed import (
    DEFAULT_TOKENS,
    IGNORED,
    Batch,
    Plan,
    Rows,
    Shape,
    at,
    batch_sizes,
)
from heed.data.batching.length_buckets import chunks
from heed.data.token_store import Store


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
        self.rows: Rows | range = range(len(store)) if rows is None else rows
        self.size = batch_size or max(1, (batch_tokens or DEFAULT_TOKENS) // max_length)

    @property
    def text_count(self) -> int:
        """How many texts there are, in however many rows they stand."""
        return len(self.rows)

    def shapes(self) -> list[Shape]:
        """The one shape of this text's batches."""
        side = self.store.sides[0]
        parts = (at(self.rows, part) for part in chunks(len(self.rows)))
        tokens = sum(int((side.lengths(rows) + 1).sum()) for rows in parts)
        return [Shape(min(self.size, -(-tokens // self.max_length)), self.max_length)]

    def plan(self, epoch: int) -> PackedPlan:
        """A shuffled epoch: texts in random order, the rows they fill in random order."""
        random = np.random.Generator(np.random.PCG64([self.seed, epoch]))
        texts = at(self.rows, slice(0, len(self.rows))).copy()
        random.shuffle(texts)
        ends = np.empty(len(texts), np.int64)
        for part in chunks(len(texts)):
            ends[part] = self.store.sides[0].lengths(texts[part]) + 1
        np.cumsum(ends, out=ends)
        count = -(-int(ends[-1]) // self.max_length)
        order = np.arange(count, dtype=np.uint32)
        random.shuffle(order)
        sizes = batch_sizes(count, self.size)
        stops, shapes = np.cumsum(sizes), np.zeros(len(sizes), np.int8)
        return PackedPlan(order, stops - sizes, stops, shapes, epoch, texts, ends)

    def batch(self, plan: Plan, number: int) -> Batch:
        """Batch `number` of a plan."""
        if not isinstance(plan, PackedPlan):
            raise TypeError("packed batches are made from their own plan")
        items_b, ends = plan.items(number).astype(np.int64), plan.ends
        # Each row's first and last token, counted from the epoch's first; then its parts.
        start_b = items_b * self.max_length
        stop_b = np.minimum(start_b + self.max_length, ends[-1])
        first_b = np.searchsorted(ends, start_b, side="right")
        parts_b = np.searchsorted(ends, stop_b - 1, side="right") - first_b + 1
        row_p, part_p = counted(parts_b)
        text_p = first_b[row_p] + part_p
        opens_p = np.where(text_p > 0, ends[text_p - 1], 0)
        from_p = np.maximum(opens_p, start_b[row_p])
        # Then their tokens: which part each is of, how far into it, and in which cell it stands.
        part_t, position_t = counted(np.minimum(ends[text_p], stop_b[row_p]) - from_p)
        cell_t = (row_p * self.max_length + from_p - start_b[row_p])[part_t] + position_t
        rows_p, offset_t = plan.texts[text_p], (from_p - opens_p)[part_t] + position_t
        side = self.store.sides[0]
        place_t = side.starts[rows_p].astype(np.int64)[part_t] + offset_t
        last_t = offset_t == side.lengths(rows_p)[part_t]
        marks = side.specials
        said_t = np.where(last_t, marks.eos, side.ids.take(place_t, mode="clip"))
        read_t = np.where(offset_t == 0, marks.bos, side.ids.take(place_t - 1, mode="clip"))

        def laid(values_t: NDArray[np.int64], blank: int) -> torch.Tensor:
            cells = np.full(len(items_b) * self.max_length, blank, np.int64)
            cells[cell_t] = values_t
            return torch.from_numpy(cells.reshape(len(items_b), -1))

        segments = laid(part_t, -1)
        return Batch(
            laid(read_t, marks.pad),
            laid(said_t, IGNORED),
            segments >= 0,
            laid(position_t, 0),
            count=len(cell_t),
            rows=tuple(rows_p.tolist()),
            segments=segments,
        )


def counted(counts: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Of groups so large, end to end: which group each member is of, and its number in it."""
    group = np.repeat(np.arange(len(counts)), counts)
    return group, np.arange(len(group)) - (np.cumsum(counts) - counts)[group]
