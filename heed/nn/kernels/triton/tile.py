"""One tile of attention with a bias by distance: scores and visibility of its cells.

The score of a cell is q·k · scale + bias, where the bias depends on the distance from the query's
position to the key's. It is a slope times that distance, or a table's entry for it, or nothing.
Beyond `reach` (max_distance) a table is constant: all keys so far before a query are in bucket 0,
all so far after it in the last one. A row's softmax does not change when a number is added to the
whole row, so bucket 0 is taken to be 0, and only tiles near the diagonal read the table.

Scores are kept in base 2, because a GPU's exponential is 2^x. Shapes: b batch, n queries, m keys, h
query heads, g key and value heads, d head width, c buckets.
"""

from __future__ import annotations

from typing import NamedTuple

import triton.language as tl
from torch import Tensor

from heed.nn.kernels.distance_attention import BLOCK
from heed.nn.kernels.triton import kernel

LOG2E = tl.constexpr(1.4426950408889634)
HIDDEN = tl.constexpr(-1e38)
"""The score of a hidden cell: finite, so that no difference is NaN."""
BEFORE, AFTER, EXACT, NEAR = (tl.constexpr(kind) for kind in range(4))
"""Kinds of tile: all keys in bucket 0; all in the last bucket; some near, with distances of
positions equal to distances of tokens; some near, with any positions."""
UNIT = tl.constexpr(BLOCK)
"""Tokens per block in tile plans; no tile is larger."""


class Heads(NamedTuple):
    """A tensor [b, heads, n, d] with contiguous d, and its other strides."""

    data: Tensor
    b: int
    h: int
    n: int


class Side(NamedTuple):
    """Positions, segments and padding of queries or keys, each with its stride over the batch."""

    positions: Tensor
    positions_b: int
    segments: Tensor | None
    segments_b: int
    real: Tensor | None
    real_b: int


class Bias(NamedTuple):
    """A slope per head, or a table by clipped distance, or neither."""

    slopes: Tensor | None
    vectors: Tensor | None
    """[c, d]: their products with a query, scaled as its scores are, are that query's table, which
    the forward pass writes. None: queries share a table."""
    table: Tensor | None
    """[b, h, n, 2 · reach + 1 or more], with strides that may be 0."""
    b: int
    h: int
    n: int
    band: Tensor | None
    """[h, 2, UNIT, 2 · edge + UNIT], where all queries share a table: at (0, r, edge + x) and at
    (1, x, edge + r) it has the table's entry for the distance x - r, less that of bucket 0. So a
    tile's bias is a part of it, whichever way the tile lies."""
    edge: int
    reach: int
    bucket_of: Tensor | None
    """The bucket of each of the table's distances; None where each is its own."""
    last: int
    """The last bucket."""


class Kept(NamedTuple):
    """Gradients of scores near the diagonal, stored tile by tile for the gradient of a table."""

    data: Tensor | None
    """[b, h, blocks of keys, offsets, keys, queries]; an offset is a tile's from the diagonal."""
    offsets: int
    rows: Tensor
    rows_b: int
    columns: Tensor
    columns_b: int
    """Plans by queries and by keys: a tile is stored where both plan it as near and exact."""


class Back(NamedTuple):
    """What the backward pass by keys reads beside the inputs of attention."""

    d_out: Heads
    lse: Tensor
    delta: Tensor
    kept: Kept


class Shape(NamedTuple):
    """Constants a kernel is compiled for."""

    CAUSAL: tl.constexpr
    SHARE: tl.constexpr
    """Query heads per key head."""
    WIDTH: tl.constexpr
    D: tl.constexpr
    """The head width, and the power of two that holds it."""
    PRECISION: tl.constexpr
    """Of float32 dot products: "ieee" or "tf32"."""
    COUNT: tl.constexpr
    BUCKETS: tl.constexpr
    """Columns of a learned table, padding included, and the power of two that holds them."""
    WHOLE: tl.constexpr
    """Whether queries and keys fill their last blocks, so that bounds need no check."""


class Inputs(NamedTuple):
    """Everything attention reads."""

    q: Heads
    k: Heads
    v: Heads
    bias: Bias
    queries: Side
    keys: Side
    n: int
    m: int
    ahead: int
    """m - n: query i is aligned with key i + ahead."""
    scale: float
    shape: Shape


@kernel
def load(
    part: tl.tuple, shape: tl.tuple, b: tl.tensor, h: int, rows: tl.tensor, size: int
) -> tl.tensor:
    """Rows of one head [rows, D], zeros beyond its end."""
    columns = tl.arange(0, shape.D)
    start = part.data + b.to(tl.int64) * part.b + h * part.h
    at = start + rows[:, None] * part.n + columns[None, :]
    if shape.WHOLE and shape.WIDTH == shape.D:
        values = tl.load(at)
    else:
        inside = (rows[:, None] < size) & (columns[None, :] < shape.WIDTH)
        values = tl.load(at, mask=inside, other=0.0)
    return values


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
    put = start + rows[:, None] * part.n + columns[None, :]
    if shape.WHOLE and shape.WIDTH == shape.D:
        tl.store(put, values.to(part.data.dtype.element_ty))
    else:
        inside = (rows[:, None] < size) & (columns[None, :] < shape.WIDTH)
        tl.store(put, values.to(part.data.dtype.element_ty), mask=inside)


@kernel
def load_per_token(data: tl.tensor, step: int, b: tl.tensor, at: tl.tensor, size: int) -> tl.tensor:
    """The numbers that `data` has for the tokens `at`."""
    return tl.load(data + b * step + at, mask=at < size, other=0)


@kernel
def distances(x: tl.tuple, b: tl.tensor, rows: tl.tensor, columns: tl.tensor) -> tl.tensor:
    """The distance from each cell's query to its key."""
    q_position = load_per_token(x.queries.positions, x.queries.positions_b, b, rows, x.n)
    k_position = load_per_token(x.keys.positions, x.keys.positions_b, b, columns, x.m)
    return k_position.to(tl.int32) - q_position.to(tl.int32)


@kernel
def clipped(distance: tl.tensor, reach: int) -> tl.tensor:
    """The index of the table's entry for a distance, which is clipped to ±reach."""
    return tl.maximum(tl.minimum(distance, reach), -reach) + reach


@kernel
def lowest(x: tl.tuple, R: tl.constexpr) -> int:
    """The first offset of a near tile of keys from its queries, in units of R tokens."""
    beside = (x.ahead + x.n * R) // R - x.n  # Rounded down, though `ahead` may be negative.
    return beside - x.bias.edge // R + 1


@kernel
def visible(
    x: tl.tuple, b: tl.tensor, rows: tl.tensor, columns: tl.tensor, KIND: tl.constexpr
) -> tl.tensor:
    """Which cells are visible. A tile that the diagonal crosses is always EXACT or NEAR."""
    if x.shape.CAUSAL and KIND >= EXACT:
        seen = columns <= rows + x.ahead
    else:
        seen = (columns >= 0) & (rows >= 0)
    if not x.shape.WHOLE:
        seen = seen & (columns < x.m) & (rows < x.n)
    if x.keys.real is not None:
        seen = seen & (load_per_token(x.keys.real, x.keys.real_b, b, columns, x.m) != 0)
    if x.keys.segments is not None:
        q_segment = load_per_token(x.queries.segments, x.queries.segments_b, b, rows, x.n)
        k_segment = load_per_token(x.keys.segments, x.keys.segments_b, b, columns, x.m)
        seen = seen & (q_segment == k_segment)
    return seen


@kernel
def _from_band(
    x: tl.tuple,
    h: int,
    row: int,
    column: int,
    R: tl.constexpr,
    C: tl.constexpr,
    ACROSS: tl.constexpr,
) -> tl.tensor:
    """What a shared table adds to a tile in which distances of positions equal those of tokens."""
    # Beyond its edges the band is constant: a tile out there equals one at the edge.
    edge, wide = x.bias.edge, tl.multiple_of(2 * x.bias.edge + UNIT, 16)
    if ACROSS:
        block = column // UNIT * UNIT
        at = tl.minimum(tl.maximum(row + x.ahead - block, -edge), edge) + edge
        if x.shape.WHOLE:
            at = tl.multiple_of(at, 16)  # So that several numbers are read at once.
        begin = x.bias.band + ((2 * h + 1) * UNIT + (column - block)) * wide + at
        added = tl.load(begin + tl.arange(0, C)[:, None] * wide + tl.arange(0, R)[None, :])
    else:
        block = row // UNIT * UNIT
        at = tl.minimum(tl.maximum(column - block - x.ahead, -edge), edge) + edge
        if x.shape.WHOLE:
            at = tl.multiple_of(at, 16)
        begin = x.bias.band + (2 * h * UNIT + (row - block)) * wide + at
        added = tl.load(begin + tl.arange(0, R)[:, None] * wide + tl.arange(0, C)[None, :])
    return added * LOG2E


@kernel
def _from_table(
    x: tl.tuple,
    b: tl.tensor,
    h: int,
    rows: tl.tensor,
    columns: tl.tensor,
    KIND: tl.constexpr,
) -> tl.tensor:
    """What the table adds to each cell of a tile, or the same to all cells of a query."""
    row_table = x.bias.table + b.to(tl.int64) * x.bias.b + h * x.bias.h + rows * x.bias.n
    entry = 2 * x.bias.reach
    if KIND == NEAR:
        entry = clipped(distances(x, b, rows, columns), x.bias.reach)
    if x.shape.WHOLE:
        added, zero = tl.load(row_table + entry), tl.load(row_table)
    else:
        inside = rows < x.n
        added = tl.load(row_table + entry, mask=inside, other=0.0)
        zero = tl.load(row_table, mask=inside, other=0.0)
    return (added.to(tl.float32) - zero.to(tl.float32)) * LOG2E


@kernel
def scores_of(
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
    """Scores of a tile of dot products q·k [R, C]; hidden cells get HIDDEN. ACROSS: [C, R]."""
    if ACROSS:
        rows, columns = row + tl.arange(0, R)[None, :], column + tl.arange(0, C)[:, None]
    else:
        rows, columns = row + tl.arange(0, R)[:, None], column + tl.arange(0, C)[None, :]
    scores = products * (x.scale * LOG2E)
    if x.bias.slopes is not None:
        slope = tl.load(x.bias.slopes + h) * LOG2E
        scores -= slope * tl.abs(distances(x, b, rows, columns)).to(tl.float32)
    if x.bias.table is not None and KIND != BEFORE:
        if KIND == EXACT:
            scores += _from_band(x, h, row, column, R, C, ACROSS)
        else:
            scores += _from_table(x, b, h, rows, columns, KIND)
    if KIND != BEFORE or x.keys.real is not None or x.keys.segments is not None:
        scores = tl.where(visible(x, b, rows, columns, KIND), scores, HIDDEN)
    return scores
