"""Length buckets: about a dozen batch shapes, chosen so that little of a batch is padding.

A CUDA graph serves one shape, and kernels and allocators run faster on shapes they have met before.
So a corpus gets few batch shapes, known before its first batch. An example is a point: source
length by target length. A bucket is given by its upper bounds and holds every example within them.
Bounds come from a short list of lengths, four per doubling (`bucket_lengths`). The first bucket
holds everything. Then the bucket that saves the most cells is added, one at a time, until another
would save almost nothing. Every example takes the smallest bucket that holds it. All of this
follows from the lengths alone.

Examples that do not fill a batch move to the next larger bucket. So every batch but one is full,
and few rows are blank where a CUDA graph needs the whole shape. Only a small corpus has more
partial batches: examples that fill no batch at all stay where they are if moving would double their
cells.

Grids: i source lengths by j target lengths; a single source length, 0, where there is no source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Rows = NDArray[np.uint32]
Lengths = Callable[[slice], tuple[Array, Array]]
"""Maps some examples to the token counts of each: of its source (0 if none) and of its target."""
Bounds = list[tuple[int, int]]
"""Largest source and target length of each bucket, the smallest bucket first."""

LENGTH_MULTIPLE = 8
"""Lengths are multiples of this, which suits the kernels; only the maximum is taken as it is."""
STEPS_PER_DOUBLING = 4
"""Lengths between one length and twice that length."""
MAX_BUCKETS = 12
"""Most buckets a corpus may have."""
MIN_SAVING = 0.005
"""Share of all cells that one more bucket must save."""
MAX_GROWTH = 2
"""Factor by which an example's padded size may grow where a corpus fills few batches."""
CHUNK = 1 << 18
"""Examples processed together, few enough to fit in memory."""


@dataclass(frozen=True)
class BatchShape:
    """Shape of the batches of one bucket; the last batch may have fewer rows."""

    batch_size: int
    length: int
    """Tokens per row, padding included; for translation, of the target."""
    source_length: int | None = None


class Buckets:
    """The buckets of a set of examples, from the smallest to the one that holds all."""

    def __init__(
        self,
        lengths: Lengths,
        count: int,
        *,
        longest: int,
        paired: bool,
        size: Callable[[int], int],
        bounds: Bounds | None = None,
    ) -> None:
        """Count lengths, choose bounds unless they are given, and assign every example to a bucket.

        `size` gives the batch size for a length; `longest` bounds all lengths. Given `bounds` must
        hold all examples.
        """
        sides = _side_lengths(longest, paired)
        count_ij = _count_lengths(lengths, count, sides)
        counts = count_ij.ravel()
        bounds = bounds or choose_bounds(count_ij, *sides)
        self.shapes = [
            BatchShape(size(max(source, length)), length, source if paired else None)
            for source, length in bounds
        ]
        self.next_larger = [_next_larger(bounds, bucket) for bucket in range(len(bounds))]
        """The bucket that takes the examples left over; the last keeps its own."""
        holds_ijk = np.stack(
            [(sides[0][:, None] <= source) & (sides[1] <= length) for source, length in bounds], -1
        )
        bucket_of_cell = holds_ijk.argmax(-1).astype(np.uint8).ravel()
        self._bucket_of = np.empty(count, np.uint8)
        for part in chunk_slices(count):
            self._bucket_of[part] = bucket_of_cell[_grid_cell(lengths(part), sides)]
        self.counts = [int(counts[bucket_of_cell == bucket].sum()) for bucket in range(len(bounds))]
        """Examples in each bucket, the same in every order."""
        fewest_cells = [
            sum(bound) for bound in bounds
        ]  # of any example in this bucket, moved ones included
        for bucket, (shape, next_larger) in enumerate(
            zip(self.shapes, self.next_larger, strict=True)
        ):
            full_batches, left = divmod(self.counts[bucket], shape.batch_size)
            if full_batches or sum(bounds[next_larger]) <= MAX_GROWTH * fewest_cells[bucket]:
                self.counts[bucket] -= left
                self.counts[next_larger] += left
                fewest_cells[next_larger] = min(fewest_cells[next_larger], fewest_cells[bucket])

    def shuffle(self, random: np.random.Generator) -> Rows:
        """Shuffle the examples of each bucket; those that do not fill a batch move up a bucket."""
        order, stop = np.empty(len(self._bucket_of), np.uint32), 0
        left: list[list[Rows]] = [[] for _ in self.shapes]
        for bucket, (count, next_larger) in enumerate(
            zip(self.counts, self.next_larger, strict=True)
        ):
            examples = np.concatenate([*self._members(bucket), *left[bucket]])
            random.shuffle(examples)
            order[stop : stop + count] = examples[:count]
            left[next_larger].append(
                examples[count:].copy()
            )  # not a view, which would hold all the rest
            stop += count
        return order

    def _members(self, bucket: int) -> Iterator[Rows]:
        """The examples of one bucket, in order."""
        yield np.empty(0, np.uint32)
        for part in chunk_slices(len(self._bucket_of)):
            yield (np.flatnonzero(self._bucket_of[part] == bucket) + part.start).astype(np.uint32)


def common_bounds(versions: Sequence[tuple[Lengths, int]], *, longest: int, paired: bool) -> Bounds:
    """Bounds that hold the examples in every version; versions differ in lengths and count."""
    sides = _side_lengths(longest, paired)
    count_ij = sum(_count_lengths(lengths, count, sides) for lengths, count in versions)
    return choose_bounds(np.asarray(count_ij), *sides)


def _side_lengths(longest: int, paired: bool) -> tuple[Array, Array]:
    """The bucket lengths of source and target."""
    lengths = bucket_lengths(longest)
    return (lengths if paired else np.zeros(1, np.int64)), lengths


def _count_lengths(lengths: Lengths, count: int, sides: tuple[Array, Array]) -> Array:
    """[i, j]: examples between each bucket length and the one below, on either side."""
    counts = np.zeros(len(sides[0]) * len(sides[1]), np.int64)
    for part in chunk_slices(count):
        counts += np.bincount(_grid_cell(lengths(part), sides), minlength=len(counts))
    return counts.reshape(len(sides[0]), len(sides[1]))


def bucket_lengths(longest: int) -> NDArray[np.int64]:
    """The lengths that a batch may have, up to `longest`."""
    lengths = [min(LENGTH_MULTIPLE, longest)]
    while lengths[-1] < longest:
        power_of_two = 1 << (lengths[-1].bit_length() - 1)
        lengths.append(
            min(longest, lengths[-1] + max(LENGTH_MULTIPLE, power_of_two // STEPS_PER_DOUBLING))
        )
    return np.array(lengths, np.int64)


def chunk_slices(count: int) -> Iterator[slice]:
    """Slices that cover the numbers below `count`."""
    for start in range(0, count, CHUNK):
        yield slice(start, min(start + CHUNK, count))


def choose_bounds(count_ij: Array, sources_i: Array, lengths_j: Array) -> Bounds:
    """Bounds (source, length) that hold all examples with few cells, the smallest bucket first.

    `count_ij` counts the examples between each bucket length and the one below, on either side.
    """
    cells_ij = sources_i[:, None] + lengths_j
    occupied = np.argwhere(count_ij)
    bounds = [tuple(occupied.max(axis=0, initial=0))]
    cost_ij = np.full_like(cells_ij, cells_ij[bounds[0]])
    while len(bounds) < MAX_BUCKETS:
        saved_ij = _saved_cells(count_ij, cost_ij, cells_ij)
        best = np.unravel_index(saved_ij.argmax(), saved_ij.shape)
        if saved_ij[best] <= MIN_SAVING * (count_ij * cost_ij).sum():
            break
        bounds.append(best)
        below = cost_ij[: best[0] + 1, : best[1] + 1]
        np.minimum(below, cells_ij[best], out=below)
    bounds.sort(key=lambda cell: (cells_ij[cell], cell))
    return [(int(sources_i[i]), int(lengths_j[j])) for i, j in bounds]


def _saved_cells(count_ij: Array, cost_ij: Array, cells_ij: Array) -> Array:
    """Cells that one more bucket would save, for each pair of bounds it might have."""
    saved_ij = np.zeros_like(cells_ij)
    for i, j in np.ndindex(cells_ij.shape):
        less = np.maximum(0, cost_ij[: i + 1, : j + 1] - cells_ij[i, j])
        saved_ij[i, j] = (count_ij[: i + 1, : j + 1] * less).sum()
    return saved_ij


def _grid_cell(example_lengths: tuple[Array, Array], sides: tuple[Array, Array]) -> Array:
    """Grid cell of each example, counted row by row."""
    i, j = (
        np.searchsorted(edges, values) for edges, values in zip(sides, example_lengths, strict=True)
    )
    return i * len(sides[1]) + j


def _next_larger(bounds: Bounds, bucket: int) -> int:
    """The smallest other bucket whose bounds contain this one's; for the last, itself."""
    source, length = bounds[bucket]
    larger = range(bucket + 1, len(bounds))
    return next((k for k in larger if bounds[k][0] >= source and bounds[k][1] >= length), bucket)
