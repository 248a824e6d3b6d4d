"""Bias tables per query: products of queries with learned vectors, and their gradients.

Shapes: n queries, d head width, c buckets (`COUNT` columns, and `BUCKETS` the power of two that
holds them).
"""

from __future__ import annotations

import triton.language as tl

from heed.nn.kernels.triton import kernel
from heed.nn.kernels.triton.tile import NEAR, clipped, load, visible


@kernel
def vectors_of(x: tl.tuple) -> tl.tensor:
    """The learned vectors [BUCKETS, D] in the queries' dtype."""
    each, columns = tl.arange(0, x.shape.BUCKETS)[:, None], tl.arange(0, x.shape.D)[None, :]
    inside = (each <= x.bias.last) & (columns < x.shape.WIDTH)
    vectors = tl.load(x.bias.vectors + each * x.shape.WIDTH + columns, mask=inside, other=0.0)
    return vectors.to(x.q.data.dtype.element_ty)


@kernel
def own_tables(data: tl.tensor, x: tl.tuple, b: tl.tensor, h: int, rows: tl.tensor) -> tl.tensor:
    """Addresses of the tables of some queries [rows, 1], in a tensor with the table's layout."""
    start = data + b.to(tl.int64) * x.bias.b + h * x.bias.h
    return start + rows[:, None] * x.bias.n


@kernel
def write_tables(q_rd: tl.tensor, x: tl.tuple, b: tl.tensor, h: int, rows: tl.tensor) -> None:
    """Write each query's table, for all threads of the block and for the backward pass to read."""
    each = tl.arange(0, x.shape.BUCKETS)[None, :]
    tables = tl.dot(q_rd, tl.trans(vectors_of(x)), input_precision=x.shape.PRECISION)
    inside = (rows[:, None] < x.n) & (each < x.shape.COUNT)
    put = own_tables(x.bias.table, x, b, h, rows) + each
    tl.store(put, (tables * x.scale).to(x.bias.table.dtype.element_ty), mask=inside)
    tl.debug_barrier()


@kernel
def store_single(
    d_scores: tl.tensor,
    x: tl.tuple,
    d_table: tl.tensor,
    b: tl.tensor,
    h: int,
    row: int,
    column: int,
    R: tl.constexpr,
    C: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Store a tile's gradients in the tables' gradient, in an exact block.

    There each key is alone in its bucket, except in the first and the last. Returns the sums of
    the stored gradients and of the last bucket's.
    """
    rows, columns = row + tl.arange(0, R), column + tl.arange(0, C)[None, :]
    which = clipped(columns - x.ahead - rows[:, None], x.bias.reach)
    seen = visible(x, b, rows[:, None], columns, NEAR) & (which > 0)
    alone = seen & (which < x.bias.last)
    put = own_tables(d_table, x, b, h, rows) + which
    tl.store(put, d_scores.to(d_table.dtype.element_ty), mask=alone)
    last = tl.where(seen & (which == x.bias.last), d_scores, 0.0)
    return tl.sum(tl.where(alone, d_scores, 0.0), axis=1), tl.sum(last, axis=1)


@kernel
def clear_tables(
    d_table: tl.tensor, x: tl.tuple, b: tl.tensor, h: int, rows: tl.tensor, size: int
) -> None:
    """Set the gradients of tables to zero."""
    each = tl.arange(0, x.shape.BUCKETS)[None, :]
    inside = (rows[:, None] < size) & (each < x.shape.COUNT)
    zeros = tl.zeros([rows.shape[0], x.shape.BUCKETS], d_table.dtype.element_ty)
    tl.store(own_tables(d_table, x, b, h, rows) + each, zeros, mask=inside)
    tl.debug_barrier()


@kernel
def through_tables(
    middle: tl.tensor,
    outer: tl.tensor,
    x: tl.tuple,
    d_table: tl.tensor,
    b: tl.tensor,
    h: int,
    rows: tl.tensor,
    size: int,
) -> tl.tensor:
    """Complete the gradients of the queries' tables; returns what they add to dq.

    The gradients of a row's scores sum to zero: bucket 0 gets what balances the others.
    """
    each = tl.arange(0, x.shape.BUCKETS)[None, :]
    at = own_tables(d_table, x, b, h, rows) + each
    inside = (rows[:, None] < size) & (each < x.shape.COUNT)
    ends = tl.where(each == 0, -(middle + outer)[:, None], outer[:, None])
    at_end = inside & ((each == 0) | (each == x.bias.last))
    tl.store(at, ends.to(d_table.dtype.element_ty), mask=at_end)
    tl.debug_barrier()
    d_tables = tl.load(at, mask=inside, other=0.0)
    return tl.dot(d_tables, vectors_of(x), input_precision=x.shape.PRECISION) * x.scale


@kernel
def vectors_kernel(
    x: tl.tuple, d_table: tl.tensor, sums: tl.tensor, batch: int, blocks: int, R: tl.constexpr
) -> None:
    """The gradient of the vectors, from so many blocks of one head's queries: [h, parts, c, d]."""
    h, part = tl.program_id(1), tl.program_id(0)
    each, columns = tl.arange(0, x.shape.BUCKETS), tl.arange(0, x.shape.D)
    total = tl.zeros([x.shape.BUCKETS, x.shape.D], tl.float32)
    size = tl.cdiv(x.n, R)
    for block in range(part * blocks, tl.minimum((part + 1) * blocks, batch * size)):
        b, rows = block // size, block % size * R + tl.arange(0, R)
        q_rd = load(x.q, x.shape, b, h, rows, x.n)
        inside = (rows[:, None] < x.n) & (each[None, :] < x.shape.COUNT)
        at = own_tables(d_table, x, b, h, rows) + each[None, :]
        d_tables = tl.load(at, mask=inside, other=0.0)
        total = tl.dot(tl.trans(d_tables), q_rd, total, input_precision=x.shape.PRECISION)
    put = (h * tl.num_programs(0) + part) * (x.bias.last + 1) + each[:, None]
    inside = (each[:, None] <= x.bias.last) & (columns[None, :] < x.shape.WIDTH)
    tl.store(sums + put * x.shape.WIDTH + columns[None, :], total * x.scale, mask=inside)
