"""The gradient of a table of biases: the gradients of scores, summed by class of distance.

The gradients of a row's scores sum to zero, so class 0 gets what balances the others, and tiles
that lie far before the block, most of a long causal text, are not looked at. Where positions are as
far apart as tokens are (the plan calls such a block exact), there are quicker ways; where they are
not, each class of each tile is summed by itself. Shapes: b batch, n queries, h heads, c classes.
"""

from __future__ import annotations

import triton.language as tl

from heed.nn.gpu import kernel
from heed.nn.gpu.attention import weighed
from heed.nn.gpu.plans import planned
from heed.nn.gpu.tables import own_tables, vectors_of
from heed.nn.gpu.tiles import AFTER, EXACT, NEAR, clipped, distances, load, store, visible


@kernel
def _by_class(sums: tl.tensor, d_scores: tl.tensor, which: tl.tensor, each: tl.tensor) -> tl.tensor:
    """Add a tile's gradients to sums [R, c] by class; class 0 is left out."""
    highest = tl.max(tl.max(which, axis=1), axis=0)
    lowest = tl.min(tl.min(tl.where(which > 0, which, 1 << 30), axis=1), axis=0)
    for one in range(lowest, highest + 1):
        part = tl.sum(tl.where(which == one, d_scores, 0.0), axis=1)
        sums += tl.where(each[None, :] == one, part[:, None], 0.0)
    return sums


@kernel
def _balanced(sums: tl.tensor, each: tl.tensor) -> tl.tensor:
    """Class 0, so that each row sums to zero."""
    return tl.where(each[None, :] == 0, -tl.sum(sums, axis=1)[:, None], sums)


@kernel
def _row_parts(
    x: tl.tuple,
    d_out: tl.tuple,
    lse: tl.tensor,
    delta: tl.tensor,
    b: tl.tensor,
    h: int,
    row: int,
    size: int,
    R: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """What the backward pass reads of a block of queries, up to `size`."""
    rows = row + tl.arange(0, R)
    at = (b * tl.num_programs(1) + h) * x.n + rows
    return (
        load(x.q, x.shape, b, h, rows, size),
        load(d_out, x.shape, b, h, rows, size),
        tl.load(lse + at, mask=rows < size, other=float("inf")),
        tl.load(delta + at, mask=rows < size, other=0.0),
    )


@kernel
def any_kernel(
    x: tl.tuple,
    d_out: tl.tuple,
    lse: tl.tensor,
    delta: tl.tensor,
    dq: tl.tuple,
    d_table: tl.tensor,
    plan: tl.tensor,
    plan_b: int,
    R: tl.constexpr,
    C: tl.constexpr,
) -> None:
    """A block of queries whatever its positions, if no quicker way has dealt with it.

    Where queries have tables of their own, d_table lies as these do, and the queries' gradient
    grows by what goes through them. Else d_table is [b, h, blocks, c], a sum a block.
    """
    row, h, b = tl.program_id(0) * R, tl.program_id(1), tl.program_id(2)
    rows, each = row + tl.arange(0, R), tl.arange(0, x.shape.CLASSES)
    _first, near, after, last, exact = planned(plan, plan_b, b, row, C)
    size = x.n * (1 - exact)  # Of an exact block nothing is read.
    end = near + (after - near) * (1 - exact)
    if x.bias.vectors is not None:
        last = after + (last - after) * (1 - exact)
    elif not x.shape.CAUSAL:
        size = x.n  # But where queries share a table, keys far after them are counted here.
    q_rd, d_out_rd, lse_r, delta_r = _row_parts(x, d_out, lse, delta, b, h, row, size, R)
    sums = tl.zeros([R, x.shape.CLASSES], tl.float32)
    for tile in range(near, end):
        d_scores, _ = weighed(q_rd, d_out_rd, lse_r, delta_r, x, b, h, row, tile * C, NEAR, R, C)
        keys = tile * C + tl.arange(0, C)[None, :]
        which = clipped(distances(x, b, rows[:, None], keys), x.bias.reach)
        if x.bias.class_of is not None:
            which = tl.load(x.bias.class_of + which)
        which = tl.where(visible(x, b, rows[:, None], keys, NEAR), which, 0)
        sums = _by_class(sums, d_scores, which, each)
    if not x.shape.CAUSAL:
        for tile in range(after, last):
            d_scores, _ = weighed(
                q_rd, d_out_rd, lse_r, delta_r, x, b, h, row, tile * C, AFTER, R, C
            )
            part = tl.sum(d_scores, axis=1)
            sums += tl.where(each[None, :] == x.bias.last, part[:, None], 0.0)
    sums = _balanced(sums, each)
    if x.bias.vectors is not None:
        inside = (rows[:, None] < size) & (each[None, :] < x.shape.COUNT)
        d_tables = sums.to(d_table.dtype.element_ty)
        tl.store(own_tables(d_table, x, b, h, rows) + each[None, :], d_tables, mask=inside)
        through = tl.dot(d_tables, vectors_of(x), input_precision=x.shape.PRECISION)
        dq_rd = load(dq, x.shape, b, h, rows, size).to(tl.float32) + through
        store(dq_rd, dq, x.shape, b, h, rows, size)
    else:
        block = (b * tl.num_programs(1) + h) * tl.num_programs(0) + tl.program_id(0)
        put = d_table + block * x.shape.COUNT + each
        tl.store(put, tl.sum(sums, axis=0), mask=each < x.shape.COUNT)


@kernel
def offsets_kernel(
    x: tl.tuple,
    d_out: tl.tuple,
    lse: tl.tensor,
    delta: tl.tensor,
    d_table: tl.tensor,
    plan: tl.tensor,
    plan_b: int,
    offsets: int,
    BLOCKS: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
) -> None:
    """BLOCKS exact blocks of queries that share a table, at one offset from block to tile.

    Tiles at one offset have the same classes in the same cells, so they are added up first and
    told apart by class once: d_table [b, h, programs, c]. R and C are the same.
    """
    h, b = tl.program_id(1), tl.program_id(2)
    each = tl.arange(0, x.shape.CLASSES)
    beside = (x.ahead + x.n * C) // C - x.n  # Rounded down, though `ahead` may be negative.
    tiles = tl.program_id(0) % offsets - x.bias.edge // C + 1 + beside
    cells = tl.zeros([R, C], tl.float32)
    first = tl.program_id(0) // offsets * BLOCKS
    for block in range(first, tl.minimum(first + BLOCKS, tl.cdiv(x.n, R))):
        row, tile = block * R, block + tiles
        _first, near, after, _last, exact = planned(plan, plan_b, b, row, C)
        meant = (exact != 0) & (tile >= near) & (tile < after)
        column = tl.where(meant, tile, 0) * C
        q_rd, d_out_rd, lse_r, delta_r = _row_parts(x, d_out, lse, delta, b, h, row, x.n, R)
        d_scores, _ = weighed(q_rd, d_out_rd, lse_r, delta_r, x, b, h, row, column, EXACT, R, C)
        cells += tl.where(meant, d_scores, 0.0)
    distance = tiles * C - x.ahead + tl.arange(0, C)[None, :] - tl.arange(0, R)[:, None]
    which = tl.load(x.bias.class_of + clipped(distance, x.bias.reach))
    sums = tl.zeros([R, x.shape.CLASSES], tl.float32)
    sums = _balanced(_by_class(sums, cells, which, each), each)
    put = ((b * tl.num_programs(1) + h) * tl.num_programs(0) + tl.program_id(0)) * x.shape.COUNT
    tl.store(d_table + put + each, tl.sum(sums, axis=0), mask=each < x.shape.COUNT)
