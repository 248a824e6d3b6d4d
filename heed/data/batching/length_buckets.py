"""Which shapes batches have: a dozen rectangles, chosen so that little of them is padding.

A captured graph serves one shape, and kernels and allocators like to meet the same ones again. So
a corpus gets few shapes, known before its first batch. A pair of texts is a point, the source's
length by the target's; a shape is a corner, and holds every point below it. Lengths go up a ladder
of four rungs an octave. The first shape holds everything; then, one at a time, the shape that saves
most cells is added, until another would save next to nothing. Every text takes the smallest shape
that holds it. All of this follows from the lengths alone.

Texts too few to fill a batch go up to the next shape that holds them. So every batch is full but
one, and few rows are blank where a graph needs the whole shape. Only a small corpus has more that
are not full: texts that fill no batch at all stay where going up would double their cells.

Grids: i rungs of the source by j of the target; one rung, 0, where there is no source.
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
"""Some texts to the tokens of each, of its source (0 where there is none) and of itself."""
Corners = list[tuple[int, int]]
"""Source by target, the smallest first."""

ALIGNED = 8
"""Lengths are multiples of this, which kernels like; the longest of all is as it is."""
OCTAVE = 4
"""Rungs from one length to twice that length."""
MOST = 12
"""Shapes a corpus may have."""
WORTH = 0.005
"""The share of all cells that one more shape must save."""
FARTHEST = 2
"""How many times its own cells a text may take where a corpus fills few batches."""
CHUNK = 1 << 18
"""Texts looked at together: few enough to hold."""


@dataclass(frozen=True)
class Shape:
    """What the batches of one shape measure; the last may have fewer texts."""

    texts: int
    length: int
    """Tokens a text, padding included; of a translation, of its target."""
    source_length: int | None = None


class Layout:
    """The shapes of some texts, from the smallest to the one that holds all, and who has which."""

    def __init__(
        self,
        lengths: Lengths,
        count: int,
        *,
        longest: int,
        paired: bool,
        size: Callable[[int], int],
        corners: Corners | None = None,
    ) -> None:
        """`size` is how many texts of a length a batch holds; `longest` bounds all lengths.

        Corners that hold all texts may be given; else they are chosen by these.
        """
        sides = _sides(longest, paired)
        found_ij = _found(lengths, count, sides)
        found = found_ij.ravel()
        corners = corners or choose(found_ij, *sides)
        self.shapes = [
            Shape(size(max(source, length)), length, source if paired else None)
            for source, length in corners
        ]
        self.above = [_holder(corners, number) for number in range(len(corners))]
        """The shape that takes what one has left over; the last keeps its own."""
        holds_ijk = np.stack(
            [(sides[0][:, None] <= source) & (sides[1] <= length) for source, length in corners], -1
        )
        number_of = holds_ijk.argmax(-1).astype(np.uint8).ravel()
        self._of = np.empty(count, np.uint8)
        for part in chunks(count):
            self._of[part] = number_of[_cell(lengths(part), sides)]
        self.counts = [int(found[number_of == number].sum()) for number in range(len(corners))]
        """How many texts each shape gets, the same in every order."""
        own = [sum(corner) for corner in corners]  # the fewest cells of any text that has come here
        for number, (shape, above) in enumerate(zip(self.shapes, self.above, strict=True)):
            full, left = divmod(self.counts[number], shape.texts)
            if full or sum(corners[above]) <= FARTHEST * own[number]:
                self.counts[number] -= left
                self.counts[above] += left
                own[above] = min(own[above], own[number])

    def shuffled(self, random: np.random.Generator) -> Rows:
        """All texts, shape by shape, in random order within one; what is left over, further up."""
        order, stop = np.empty(len(self._of), np.uint32), 0
        left: list[list[Rows]] = [[] for _ in self.shapes]
        for number, (count, above) in enumerate(zip(self.counts, self.above, strict=True)):
            texts = np.concatenate([*self._having(number), *left[number]])
            random.shuffle(texts)
            order[stop : stop + count] = texts[:count]
            left[above].append(texts[count:].copy())  # not a view, which would hold all the rest
            stop += count
        return order

    def _having(self, number: int) -> Iterator[Rows]:
        """The texts of one shape, in order."""
        yield np.empty(0, np.uint32)
        for part in chunks(len(self._of)):
            yield (np.flatnonzero(self._of[part] == number) + part.start).astype(np.uint32)


def common_corners(
    editions: Sequence[tuple[Lengths, int]], *, longest: int, paired: bool
) -> Corners:
    """Corners for texts that come in several editions, of other lengths each time, and so many."""
    sides = _sides(longest, paired)
    found_ij = sum(_found(lengths, count, sides) for lengths, count in editions)
    return choose(np.asarray(found_ij), *sides)


def _sides(longest: int, paired: bool) -> tuple[Array, Array]:
    """The rungs of source and target."""
    rungs = ladder(longest)
    return (rungs if paired else np.zeros(1, np.int64)), rungs


def _found(lengths: Lengths, count: int, sides: tuple[Array, Array]) -> Array:
    """[i, j]: how many texts there are between each rung and the one below, on either side."""
    found = np.zeros(len(sides[0]) * len(sides[1]), np.int64)
    for part in chunks(count):
        found += np.bincount(_cell(lengths(part), sides), minlength=len(found))
    return found.reshape(len(sides[0]), len(sides[1]))


def ladder(longest: int) -> NDArray[np.int64]:
    """The lengths a batch may have, up to `longest`."""
    rungs = [min(ALIGNED, longest)]
    while rungs[-1] < longest:
        octave = 1 << (rungs[-1].bit_length() - 1)
        rungs.append(min(longest, rungs[-1] + max(ALIGNED, octave // OCTAVE)))
    return np.array(rungs, np.int64)


def chunks(count: int) -> Iterator[slice]:
    """The numbers below `count`, a stretch at a time."""
    for start in range(0, count, CHUNK):
        yield slice(start, min(start + CHUNK, count))


def choose(found_ij: Array, sources_i: Array, lengths_j: Array) -> Corners:
    """Corners (source, length) that hold all texts with few cells; the smallest first.

    `found_ij` counts the texts between each rung and the one below, on either side.
    """
    cells_ij = sources_i[:, None] + lengths_j
    occupied = np.argwhere(found_ij)
    corners = [tuple(occupied.max(axis=0, initial=0))]
    cost_ij = np.full_like(cells_ij, cells_ij[corners[0]])
    while len(corners) < MOST:
        saved_ij = _saved(found_ij, cost_ij, cells_ij)
        best = np.unravel_index(saved_ij.argmax(), saved_ij.shape)
        if saved_ij[best] <= WORTH * (found_ij * cost_ij).sum():
            break
        corners.append(best)
        below = cost_ij[: best[0] + 1, : best[1] + 1]
        np.minimum(below, cells_ij[best], out=below)
    corners.sort(key=lambda corner: (cells_ij[corner], corner))
    return [(int(sources_i[i]), int(lengths_j[j])) for i, j in corners]


def _saved(found_ij: Array, cost_ij: Array, cells_ij: Array) -> Array:
    """Cells that one more shape would save, for each corner it might have."""
    saved_ij = np.zeros_like(cells_ij)
    for i, j in np.ndindex(cells_ij.shape):
        less = np.maximum(0, cost_ij[: i + 1, : j + 1] - cells_ij[i, j])
        saved_ij[i, j] = (found_ij[: i + 1, : j + 1] * less).sum()
    return saved_ij


def _cell(lengths: tuple[Array, Array], sides: tuple[Array, Array]) -> Array:
    """Which cell of the grid each text falls in, counted row by row."""
    i, j = (np.searchsorted(rungs, some) for rungs, some in zip(sides, lengths, strict=True))
    return i * len(sides[1]) + j


def _holder(corners: Corners, number: int) -> int:
    """The smallest other corner that holds this one; of the last, itself."""
    source, length = corners[number]
    above = range(number + 1, len(corners))
    return next((k for k in above if corners[k][0] >= source and corners[k][1] >= length), number)
