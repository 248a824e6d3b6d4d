"""The gradient of a bias table: gradients of scores, summed by bucket of distance.

The gradients of a row's scores sum to zero, so bucket 0 gets what balances the others, and tiles
that lie far before the block, most of a long causal sequence, are not visited. Where distances of
positions equal distances of tokens (an exact block), a shared table is faster: the backward pass by
keys stores such tiles; those at one offset from the diagonal are added up, then their diagonals,
then buckets of diagonals. Elsewhere each bucket of each tile is summed by itself. Shapes: b batch,
n queries, h heads, c buckets.
"""

from __future__ import annotations

import triton.language as tl

from heed.nn.kernels.triton import kernel
from heed.nn.kernels.triton.distance_attention import score_gradients
from heed.nn.kernels.triton.query_tables import own_tables, vectors_of
from heed.nn.kernels.triton.tile import (
    AFTER,
    NEAR,
    clipped,
    distances,
    load,
    lowest,
    store,
    visible,
)
from heed.nn.kernels.triton.tile_plan import is_kept, load_plan


@kernel
def _sum_by_bucket(
    sums: tl.tensor, d_scores: tl.tensor, which: tl.tensor, each: tl.tensor
) -> tl.tensor:
    """Add a tile's gradients to sums [R, c] by bucket; bucket 0 is left out."""
    highest = tl.max(tl.max(which, axis=1), axis=0)
    lowest = tl.min(tl.min(tl.where(which > 0, which, 1 << 30), axis=1), axis=0)
    for one in range(lowest, highest + 1):
        part = tl.sum(tl.where(which == one, d_scores, 0.0), axis=1)
        sums += tl.where(each[None, :] == one, part[:, None], 0.0)
    return sums


@kernel
def _balanced(sums: tl.tensor, each: tl.tensor) -> tl.tensor:
    """Set bucket 0 so that each row sums to zero."""
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
    R: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """Load queries, d_out, lse and delta of a block of queries."""
    rows = row + tl.arange(0, R)
    at = (b * tl.num_programs(1) + h) * x.n + rows
    return (
        load(x.q, x.shape, b, h, rows, x.n),
        load(d_out, x.shape, b, h, rows, x.n),
        tl.load(lse + at, mask=rows < x.n, other=float("inf")),
        tl.load(delta + at, mask=rows < x.n, other=0.0),
    )


@kernel
def _sums(
    x: tl.tuple,
    d_out: tl.tuple,
    lse: tl.tensor,
    delta: tl.tensor,
    b: tl.tensor,
    h: int,
    row: int,
    near: int,
    end: int,
    after: int,
    last: int,
    R: tl.constexpr,
    C: tl.constexpr,
) -> tl.tensor:
    """The gradients of a block's scores by query and bucket [R, c].

    Tiles [near, end) count by each cell's bucket, tiles [after, last) as the last bucket.
    """
    rows, each = row + tl.arange(0, R), tl.arange(0, x.shape.BUCKETS)
    q_rd, d_out_rd, lse_r, delta_r = _row_parts(x, d_out, lse, delta, b, h, row, R)
    sums = tl.zeros([R, x.shape.BUCKETS], tl.float32)
    for tile in range(near, end):
        d_scores, _ = score_gradients(
            q_rd, d_out_rd, lse_r, delta_r, x, b, h, row, tile * C, NEAR, R, C
        )
        keys = tile * C + tl.arange(0, C)[None, :]
        which = clipped(distances(x, b, rows[:, None], keys), x.bias.reach)
        if x.bias.bucket_of is not None:
            which = tl.load(x.bias.bucket_of + which)
        which = tl.where(visible(x, b, rows[:, None], keys, NEAR), which, 0)
        sums = _sum_by_bucket(sums, d_scores, which, each)
    if not x.shape.CAUSAL:
        for tile in range(after, last):
            d_scores, _ = score_gradients(
                q_rd, d_out_rd, lse_r, delta_r, x, b, h, row, tile * C, AFTER, R, C
            )
            part = tl.sum(d_scores, axis=1)
            sums += tl.where(each[None, :] == x.bias.last, part[:, None], 0.0)
    return _balanced(sums, each)


@kernel
def own_kernel(
    x: tl.tuple,
    d_out: tl.tuple,
    lse: tl.tensor,
    delta: tl.tensor,
    dq: tl.tuple,
    d_table: tl.tensor,
    plan: tl.tensor,
    plan_b: int,
    blocks: int,
    R: tl.constexpr,
    C: tl.constexpr,
) -> None:
    """Gradients of tables per query, in so many blocks: those that are not exact.

    d_table has the layout of the tables; the gradient through them is added to the queries'.
    """
    h, b, begin = tl.program_id(1), tl.program_id(2), tl.program_id(0) * blocks
    each = tl.arange(0, x.shape.BUCKETS)
    for block in range(begin, tl.minimum(begin + blocks, tl.cdiv(x.n, R))):
        row = block * R
        _first, near, after, last, exact = load_plan(plan, plan_b, b, row, C)
        if exact == 0:
            sums = _sums(x, d_out, lse, delta, b, h, row, near, after, after, last, R, C)
            rows = row + tl.arange(0, R)
            inside = (rows[:, None] < x.n) & (each[None, :] < x.shape.COUNT)
            d_tables = sums.to(d_table.dtype.element_ty)
            tl.store(own_tables(d_table, x, b, h, rows) + each[None, :], d_tables, mask=inside)
            through = tl.dot(d_tables, vectors_of(x), input_precision=x.shape.PRECISION)
            dq_rd = load(dq, x.shape, b, h, rows, x.n).to(tl.float32) + through * x.scale
            store(dq_rd, dq, x.shape, b, h, rows, x.n)


@kernel
def shared_kernel(
    x: tl.tuple,
    d_out: tl.tuple,
    lse: tl.tensor,
    delta: tl.tensor,
    sums: tl.tensor,
    plan: tl.tensor,
    plan_b: int,
    blocks: int,
    R: tl.constexpr,
    C: tl.constexpr,
) -> None:
    """Gradient of a shared table from tiles that are not stored, in so many blocks [h, parts, c].

    These are all tiles of a block that is not exact, and the tiles far after every block.
    """
    h, b, begin = tl.program_id(1), tl.program_id(2), tl.program_id(0) * blocks
    each = tl.arange(0, x.shape.BUCKETS)
    total = tl.zeros([R, x.shape.BUCKETS], tl.float32)
    for block in range(begin, tl.minimum(begin + blocks, tl.cdiv(x.n, R))):
        row = block * R
        _first, near, after, last, exact = load_plan(plan, plan_b, b, row, C)
        end = near + (after - near) * (1 - exact)
        if end - near + (0 if x.shape.CAUSAL else last - after) > 0:
            total += _sums(x, d_out, lse, delta, b, h, row, near, end, after, last, R, C)
    part = (h * tl.num_programs(2) + b) * tl.num_programs(0) + tl.program_id(0)
    put = sums + part * x.shape.COUNT + each
    tl.store(put, tl.sum(total, axis=0), mask=each < x.shape.COUNT)


@kernel
def diagonals_kernel(
    x: tl.tuple,
    kept: tl.tuple,
    cells: tl.tensor,
    sums: tl.tensor,
    tiles: int,
    many: int,
    R: tl.constexpr,
    C: tl.constexpr,
) -> None:
    """Sums of the diagonals of stored tiles at one offset, for so many blocks of keys of one head.

    Tiles at one offset have the same buckets in the same cells. cells [h, programs, C, R] is
    scratch memory to transpose them; sums [h, programs, 2 · C].
    """
    h, program = tl.program_id(1), tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
    offset, begin = tl.program_id(0) % kept.offsets, tl.program_id(0) // kept.offsets * many
    blocks = tl.cdiv(x.m, C)
    cell = tl.arange(0, C)[:, None] * R + tl.arange(0, R)[None, :]
    total = tl.zeros([C, R], tl.float32)
    for one in range(begin, tl.minimum(begin + many, tiles)):
        b, column = one // blocks, one % blocks * C
        row = column - (lowest(x, R) + offset) * R
        there = (row >= 0) & (row < x.n)
        there = there & is_kept(kept, b, tl.where(there, row, 0), column, R, C)
        at = ((b * tl.num_programs(1) + h) * blocks + one % blocks) * kept.offsets + offset
        data = kept.data + at.to(tl.int64) * (C * R)
        total += tl.load(data + cell, mask=there, other=0.0).to(tl.float32)
    scratch = cells + program * (C * R)
    tl.store(scratch + cell, total)
    tl.debug_barrier()
    each, key = tl.arange(0, 2 * C), tl.arange(0, C)[None, :]
    query = key - each[:, None] + R - 1
    inside = (query >= 0) & (query < R)
    values = tl.load(scratch + key * R + query, mask=inside, other=0.0)
    tl.store(sums + program * (2 * C) + each, tl.sum(values, axis=1))


@kernel
def table_kernel(
    x: tl.tuple,
    diagonals: tl.tensor,
    others: tl.tensor,
    d_table: tl.tensor,
    offsets: int,
    parts: int,
    R: tl.constexpr,
    C: tl.constexpr,
    PARTS: tl.constexpr,
) -> None:
    """A head's gradient [h, c] from sums of diagonals [h, PARTS, offsets, 2 · C] and others."""
    h, each = tl.program_id(0), tl.arange(0, x.shape.BUCKETS)
    diagonal, part = tl.arange(0, 2 * C), tl.arange(0, PARTS)
    total = tl.zeros([x.shape.BUCKETS], tl.float32)
    for offset in range(offsets):
        at = ((h * PARTS + part) * offsets + offset) * (2 * C)
        along = tl.sum(tl.load(diagonals + at[:, None] + diagonal[None, :]), axis=0)
        distance = (lowest(x, R) + offset) * R - x.ahead + diagonal - (R - 1)
        which = tl.load(x.bias.bucket_of + clipped(distance, x.bias.reach))
        total += tl.sum(tl.where(which[None, :] == each[:, None], along[None, :], 0.0), axis=1)
    for begin in range(0, parts, PARTS):
        inside = (begin + part < parts)[:, None] & (each < x.shape.COUNT)[None, :]
        at = ((h * parts + begin + part) * x.shape.COUNT)[:, None] + each[None, :]
        total += tl.sum(tl.load(others + at, mask=inside, other=0.0), axis=0)
    balance = -tl.sum(tl.where(each > 0, total, 0.0))
    put = d_table + h * x.shape.COUNT + each
    tl.store(put, tl.where(each == 0, balance, total), mask=each < x.shape.COUNT)
