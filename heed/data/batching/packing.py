"""Packed batches for language models: every row is full, and segments keep sequences apart.

The sequences of an epoch, in that epoch's order, are laid end to end and cut into rows of
`max_length`; a sequence that meets the end of a row continues in the next. Each row says which
sequence every token belongs to (`segments`) and its position in it (`positions`). So sequences do
not attend to each other, and only the last row has padding.

Shapes: b rows, n tokens; p parts, each what one row has of one sequence; t tokens of all parts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from heed.data.batching.batch import IGNORE_INDEX, Batch
from heed.data.batching.bucketed import DEFAULT_BATCH_TOKENS, Plan, batch_sizes, take_rows
from heed.data.batching.length_buckets import BatchShape, Rows, chunk_slices
from heed.data.token_store import Store


@dataclass(frozen=True)
class PackedPlan(Plan):
    """One epoch: the order of the sequences, and that of the rows they fill."""

    sequences: Rows
    ends: NDArray[np.int64]
    """End of each sequence, in tokens from the start of the epoch."""


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
        self.store, self.max_length, self.seed, self.truncated = store, max_length, seed, 0
        self.rows: Rows | range = range(len(store)) if rows is None else rows
        self.batch_size = batch_size or max(1, (batch_tokens or DEFAULT_BATCH_TOKENS) // max_length)

    @property
    def example_count(self) -> int:
        """Number of sequences, in however many rows they stand."""
        return len(self.rows)

    def shapes(self) -> list[BatchShape]:
        """The single batch shape."""
        side = self.store.sides[0]
        parts = (take_rows(self.rows, part) for part in chunk_slices(len(self.rows)))
        tokens = sum(int((side.lengths(rows) + 1).sum()) for rows in parts)
        return [BatchShape(min(self.batch_size, -(-tokens // self.max_length)), self.max_length)]

    def plan(self, epoch: int) -> PackedPlan:
        """A shuffled epoch: sequences in random order, then the rows they fill in random order."""
        random = np.random.Generator(np.random.PCG64([self.seed, epoch]))
        sequences = take_rows(self.rows, slice(0, len(self.rows))).copy()
        random.shuffle(sequences)
        ends = np.empty(len(sequences), np.int64)
        for part in chunk_slices(len(sequences)):
            ends[part] = self.store.sides[0].lengths(sequences[part]) + 1
        np.cumsum(ends, out=ends)
        count = -(-int(ends[-1]) // self.max_length)
        order = np.arange(count, dtype=np.uint32)
        random.shuffle(order)
        sizes = batch_sizes(count, self.batch_size)
        stops, buckets = np.cumsum(sizes), np.zeros(len(sizes), np.int8)
        return PackedPlan(order, stops - sizes, stops, buckets, epoch, sequences, ends)

    def batch(self, plan: Plan, number: int) -> Batch:
        """Batch `number` of a plan."""
        if not isinstance(plan, PackedPlan):
            raise TypeError("packed batches need a PackedPlan")
        items_b, ends = plan.items(number).astype(np.int64), plan.ends
        # First and last token of each row, counted from the start of the epoch; then its parts.
        start_b = items_b * self.max_length
        stop_b = np.minimum(start_b + self.max_length, ends[-1])
        first_b = np.searchsorted(ends, start_b, side="right")
        parts_b = np.searchsorted(ends, stop_b - 1, side="right") - first_b + 1
        row_p, part_p = enumerate_groups(parts_b)
        sequence_p = first_b[row_p] + part_p
        sequence_start_p = np.where(sequence_p > 0, ends[sequence_p - 1], 0)
        from_p = np.maximum(sequence_start_p, start_b[row_p])
        # Then the tokens: the part of each, its offset in the part, and its cell.
        part_t, position_t = enumerate_groups(np.minimum(ends[sequence_p], stop_b[row_p]) - from_p)
        cell_t = (row_p * self.max_length + from_p - start_b[row_p])[part_t] + position_t
        rows_p, offset_t = (
            plan.sequences[sequence_p],
            (from_p - sequence_start_p)[part_t] + position_t,
        )
        side = self.store.sides[0]
        place_t = side.starts[rows_p].astype(np.int64)[part_t] + offset_t
        last_t = offset_t == side.lengths(rows_p)[part_t]
        specials = side.specials
        next_t = np.where(last_t, specials.eos, side.ids.take(place_t, mode="clip"))
        input_t = np.where(offset_t == 0, specials.bos, side.ids.take(place_t - 1, mode="clip"))

        def fill_cells(values_t: NDArray[np.int64], fill: int) -> torch.Tensor:
            cells = np.full(len(items_b) * self.max_length, fill, np.int64)
            cells[cell_t] = values_t
            return torch.from_numpy(cells.reshape(len(items_b), -1))

        segments = fill_cells(part_t, -1)
        return Batch(
            fill_cells(input_t, specials.pad),
            fill_cells(next_t, IGNORE_INDEX),
            segments >= 0,
            fill_cells(position_t, 0),
            count=len(cell_t),
            rows=tuple(rows_p.tolist()),
            segments=segments,
        )


def enumerate_groups(counts: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For groups of these sizes, end to end: the group of each member, and its number in it."""
    group = np.repeat(np.arange(len(counts)), counts)
    return group, np.arange(len(group)) - (np.cumsum(counts) - counts)[group]
