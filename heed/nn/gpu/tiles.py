"""One tile of attention with a bias by distance: its cells, their scores, and who is seen.

The score of a cell is q·k · scale + bias, where the bias depends on the distance from the query's
position to the key's. It is a slope times that distance, or a table's entry for it, or nothing.
Beyond `reach` a table is even: all keys so far before a query are its class 0, all so far after it
the last one. A row's softmax does not change when a number is added to the whole row, so class 0
is taken to be 0, and only tiles near the diagonal read the table.

Scores are kept in base 2, for a GPU's exponential is 2^x. Shapes: b batch, n queries, m keys, h
query heads, g key and value heads, d head width, c classes.
"""

from __future__ import annotations

from typing import NamedTuple

import triton.language as tl
from torch import Tensor

from heed.nn.gpu import kernel
from heed.nn.relative import BLOCK

LOG2E = tl.constexpr(1.4426950408889634)
HIDDEN = tl.constexpr(-1e38)
"""The score of a cell that may not be seen: finite, so that no difference is ever NaN."""
BEFORE, AFTER, EXACT, NEAR = (tl.constexpr(kind) for kind in range(4))
"""Kinds of tile: all its keys of class 0; all of the last class; some near, each as many positions
from a query as it is tokens; some near, anyhow."""
UNIT = tl.constexpr(BLOCK)
"""Plans count in blocks of so many tokens; no tile is larger."""


class Heads(NamedTuple):
    """A tensor [b, heads, n, d] with d side by side, and the steps between its other parts."""

    data: Tensor
    b: int
    h: int
    n: int


class Side(NamedTuple):
    """What is known of the queries or of the keys, each with the step from row to row."""

    places: Tensor
    places_b: int
    segments: Tensor | None
    segments_b: int
    real: Tensor | None
    real_b: int


class Bias(NamedTuple):
    """A slope a head, or a table by clipped distance, or neither."""

    slopes: Tensor | None
    vectors: Tensor | None
    """[c, d]: their products with a query are the query's own table, which the forward pass
    writes; else queries share a table."""
    table: Tensor | None
    """[b, h, n, 2 · reach + 1 or more], with steps between its parts that may be 0."""
    b: int
    h: int
    n: int
    band: Tensor | None
    """[h, UNIT, 2 · edge + UNIT], where all queries share a table: at (r, edge + x) it has the
    table's entry for the distance x - r, so that a tile's bias is a part of it."""
    edge: int
    reach: int
    class_of: Tensor | None
    """The class of each of the table's distances, or None where each is a class of its own."""
    last: int
    """The last class."""


class Shape(NamedTuple):
    """What a kernel is compiled for."""

    CAUSAL: tl.constexpr
    SHARE: tl.constexpr
    """How many query heads read one key head."""
    WIDTH: tl.constexpr
    D: tl.constexpr
    """The head width, and the power of two that holds it."""
    PRECISION: tl.constexpr
    """Of products of float32: "ieee" or "tf32"."""
    COUNT: tl.constexpr
    CLASSES: tl.constexpr
    """How many columns a learned table has, and the power of two that holds them."""


class Inputs(NamedTuple):
    """All that attention reads."""

    q: Heads
    k: Heads
    v: Heads
    bias: Bias
    queries: Side
    keys: Side
    n: int
    m: int
    ahead: int
    """m - n: query i stands beside key i + ahead."""
    scale: float
    shape: Shape


@kernel
def load(
    part: tl.tuple, shape: tl.tuple, b: tl.tensor, h: int, rows: tl.tensor, size: int
) -> tl.tensor:
    """Rows of one head [rows, D], with zeros where there is nothing."""
    columns = tl.arange(0, shape.D)
    start = part.data + b.to(tl.int64) * part.b + h * part.h
    inside = rows[:, None] < size
    if shape.WIDTH != shape.D:
        inside = inside & (columns[None, :] < shape.WIDTH)
    return tl.load(start + rows[:, None] * part.n + columns[None, :], mask=inside, other=0.0)


@kernel
def store(
    values: tl.tensor,
    part: tl.tuple,
    shape: tl.tuple,
    b: tl.tensor,
    h: int,
    rows: tl.tensor,
    size: int,
) -> None:
    """Write rows of one head."""
    columns = tl.arange(0, shape.D)
    start = part.data + b.to(tl.int64) * part.b + h * part.h
    inside = (rows[:, None] < size) & (columns[None, :] < shape.WIDTH)
    put = start + rows[:, None] * part.n + columns[None, :]
    tl.store(put, values.to(part.data.dtype.element_ty), mask=inside)


@kernel
def known(data: tl.tensor, step: int, b: tl.tensor, at: tl.tensor, size: int) -> tl.tensor:
    """What `data` says of the tokens `at`."""
    return tl.load(data + b * step + at, mask=at < size, other=0)


@kernel
def distances(x: tl.tuple, b: tl.tensor, rows: tl.tensor, columns: tl.tensor) -> tl.tensor:
    """From each cell's query to its key."""
    q_place = known(x.queries.places, x.queries.places_b, b, rows, x.n).to(tl.int32)
    return known(x.keys.places, x.keys.places_b, b, columns, x.m).to(tl.int32) - q_place


@kernel
def clipped(distance: tl.tensor, reach: int) -> tl.tensor:
    """Which of the table's entries is for this distance: it ends at `reach` either way."""
    return tl.maximum(tl.minimum(distance, reach), -reach) + reach


@kernel
def visible(
    x: tl.tuple, b: tl.tensor, rows: tl.tensor, columns: tl.tensor, KIND: tl.constexpr
) -> tl.tensor:
    """Which cells may be seen. A tile that the diagonal crosses is always EXACT or NEAR."""
    seen = (columns < x.m) & (rows < x.n)
    if x.shape.CAUSAL and KIND >= EXACT:
        seen = seen & (columns <= rows + x.ahead)
    if x.keys.real is not None:
        seen = seen & (known(x.keys.real, x.keys.real_b, b, columns, x.m) != 0)
    if x.keys.segments is not None:
        q_segment = known(x.queries.segments, x.queries.segments_b, b, rows, x.n)
        k_segment = known(x.keys.segments, x.keys.segments_b, b, columns, x.m)
        seen = seen & (q_segment == k_segment)
    return seen


@kernel
def _from_table(
    x: tl.tuple,
    b: tl.tensor,
    h: int,
    row: int,
    column: int,
    KIND: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
) -> tl.tensor:
    """What the table adds to the cells of a tile [R, C], or to all of a row alike [R, 1]."""
    rows, columns = row + tl.arange(0, R)[:, None], column + tl.arange(0, C)[None, :]
    inside = rows < x.n
    own = x.bias.table + b.to(tl.int64) * x.bias.b + h * x.bias.h + rows * x.bias.n
    if KIND == EXACT:
        # Beyond the edges the band is even, so a tile out there is the same as one at the edge.
        block = row // UNIT * UNIT
        shift = tl.minimum(tl.maximum(column - block - x.ahead, -x.bias.edge), x.bias.edge)
        wide = 2 * x.bias.edge + UNIT
        band = x.bias.band + (h * UNIT + (row - block)) * wide + (shift + x.bias.edge)
        added = tl.load(band + tl.arange(0, R)[:, None] * wide + tl.arange(0, C)[None, :])
        nothing = tl.load(x.bias.table + h * x.bias.h)
    elif KIND == NEAR:
        entry = clipped(distances(x, b, rows, columns), x.bias.reach)
        added = tl.load(own + entry, mask=inside, other=0.0)
        nothing = tl.load(own, mask=inside, other=0.0)
    else:
        added = tl.load(own + 2 * x.bias.reach, mask=inside, other=0.0)
        nothing = tl.load(own, mask=inside, other=0.0)
    return (added.to(tl.float32) - nothing.to(tl.float32)) * LOG2E


@kernel
def scored(
    products: tl.tensor,
    x: tl.tuple,
    b: tl.tensor,
    h: int,
    row: int,
    column: int,
    KIND: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
    ACROSS: tl.constexpr,
) -> tl.tensor:
    """The scores of a tile of q·k [R, C], hidden cells far below. ACROSS, all is [C, R]."""
    if ACROSS:
        rows, columns = row + tl.arange(0, R)[None, :], column + tl.arange(0, C)[:, None]
    else:
        rows, columns = row + tl.arange(0, R)[:, None], column + tl.arange(0, C)[None, :]
    scores = products * (x.scale * LOG2E)
    if x.bias.slopes is not None:
        slope = tl.load(x.bias.slopes + h) * LOG2E
        scores -= slope * tl.abs(distances(x, b, rows, columns)).to(tl.float32)
    if x.bias.table is not None and KIND != BEFORE:
        # Read along the rows of the table, whichever way the tile lies.
        added = _from_table(x, b, h, row, column, KIND, R, C)
        scores += tl.trans(added) if ACROSS else added
    if KIND != BEFORE or x.keys.real is not None or x.keys.segments is not None:
        scores = tl.where(visible(x, b, rows, columns, KIND), scores, HIDDEN)
    return scores
