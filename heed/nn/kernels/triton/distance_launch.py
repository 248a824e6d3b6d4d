"""Launch the kernels of attention with a bias by distance: grids, tile sizes, outputs."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from heed.nn.kernels.distance_attention import BLOCK, empty_tables
from heed.nn.kernels.qkv_layout import empty_heads
from heed.nn.kernels.triton import bias_gradient, distance_attention
from heed.nn.kernels.triton.pack_heads import laid
from heed.nn.kernels.triton.query_tables import vectors_kernel
from heed.nn.kernels.triton.tile import Back, Bias, Inputs, Kept, Shape, Side
from heed.nn.kernels.triton.tile_plan import make_plan


class Call(NamedTuple):
    """The arguments of one attention, in the order of the operator's schema."""

    q: Tensor
    k: Tensor
    v: Tensor
    learned: Tensor | None
    """Vectors [c, d], whose products with a query are its table, or tables by head [1, h, 1, c]."""
    table_by_distance: Tensor | None
    band: Tensor | None
    bucket_of: Tensor | None
    slopes: Tensor | None
    q_plan: Tensor
    k_plan: Tensor
    """Tile plans of blocks of queries and of blocks of keys."""
    q_positions: Tensor
    k_positions: Tensor
    real: Tensor | None
    q_segments: Tensor | None
    k_segments: Tensor | None
    max_distance: int
    num_buckets: int
    causal: bool
    scale: float

    @property
    def by_query(self) -> bool:
        """Whether each query has its own table."""
        return self.learned is not None and self.learned.dim() == 2


class Tiling(NamedTuple):
    """Queries and keys per tile, warps, pipeline stages, and the register limit of a thread."""

    rows: int
    columns: int
    warps: int
    stages: int
    registers: int | None = None

    def meta(self) -> dict[str, int]:
        """The keyword arguments of a launch."""
        rows, columns, warps, stages, registers = self
        sizes = {"R": rows, "C": columns, "num_warps": warps, "num_stages": stages}
        return sizes if registers is None else sizes | {"maxnreg": registers}


TILINGS = {
    "forward": Tiling(64, 64, 4, 2, 128),
    "queries": Tiling(64, 32, 4, 3, 168),
    "keys": Tiling(32, 64, 4, 2, 168),
    "table": Tiling(32, 32, 2, 2),
}
"""Fastest on an H200 for head width 64 in 16 bits."""


PARTS = 16
"""Partial sums of the stored tiles of one head and offset; a power of two."""
RESIDENT = 512
"""About as many programs keep a large GPU busy."""
VECTORS = 64
"""Queries per dot product in the gradient of vectors."""


def tiling(kernel: str, q: Tensor) -> Tiling:
    """Tile sizes that fit: wider heads and float32 need smaller ones."""
    width = q.shape[-1]
    if q.element_size() == 2 and width <= 128:
        sizes = TILINGS[kernel]
        return sizes if width <= 64 else sizes._replace(stages=2, registers=None)
    return Tiling(32, 32, 4, 1) if width * q.element_size() <= 512 else Tiling(16, 16, 4, 1)


def plans(
    q_positions: Tensor,
    k_positions: Tensor,
    real: Tensor | None,
    q_segments: Tensor | None,
    k_segments: Tensor | None,
    reach: int | None,
    causal: bool,
) -> tuple[Tensor, Tensor]:
    """Tile plans of the blocks of queries and of the blocks of keys."""
    sides = _side(q_positions, q_segments, None), _side(k_positions, k_segments, real)
    tensors = (q_positions, k_positions, real, q_segments, k_segments)
    b = max(x.shape[0] for x in tensors if x is not None)
    sizes = b, q_positions.shape[1], k_positions.shape[1]
    q_plan, k_plan = (
        make_plan(*sides, sizes, reach=reach, causal=causal, of_keys=of_keys)
        for of_keys in (False, True)
    )
    return q_plan, k_plan


def forward(call: Call) -> tuple[Tensor, Tensor, Tensor]:
    """The output [b, h, n, d], and what the backward pass reads: log sums, tables of queries."""
    b, h, n, _ = call.q.shape
    out, lse = empty_heads(call.q), call.q.new_empty(b, h, n, dtype=torch.float32)
    tables = empty_tables(call.q, call.learned)
    sizes = tiling("forward", call.q)
    distance_attention.forward_kernel[(triton.cdiv(n, sizes.rows), h, b)](
        _inputs(call, tables), laid(out), lse, *_plan(call.q_plan), **sizes.meta()
    )
    return out, lse, tables


def backward(
    call: Call, out: Tensor, lse: Tensor, tables: Tensor, d_out: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """The gradients of q, k, v and of the learned table or vectors, if there are any."""
    b, h, n, _ = call.q.shape
    dq, dk, dv = (empty_heads(part) for part in (call.q, call.k, call.v))
    x, d_out_heads, delta = _inputs(call, tables), laid(d_out), torch.empty_like(lse)
    d_tables = torch.empty_like(tables)
    sizes, q_plan = tiling("queries", call.q), _plan(call.q_plan)
    distance_attention.backward_q_kernel[(triton.cdiv(n, sizes.rows), h, b)](
        x, laid(out), d_out_heads, lse, delta, laid(dq), d_tables, *q_plan, **sizes.meta()
    )
    sizes, kept = tiling("keys", call.q), _empty_kept(call)
    distance_attention.backward_kv_kernel[(triton.cdiv(x.m, sizes.columns), call.k.shape[1], b)](
        x, Back(d_out_heads, lse, delta, kept), laid(dk), laid(dv), **sizes.meta()
    )
    if call.learned is None:
        return dq, dk, dv, None
    if kept.data is None:
        d_learned = _vectors_gradient(call, x, (d_out_heads, lse, delta, laid(dq)), d_tables)
    else:
        d_learned = _table_gradient(call, x, (d_out_heads, lse, delta), kept, kept.data)
    return dq, dk, dv, d_learned.to(call.learned.dtype)


def _vectors_gradient(call: Call, x: Inputs, back: tuple[object, ...], d_tables: Tensor) -> Tensor:
    """The gradient of vectors [c, d] whose products with queries are tables [b, h, n, c]."""
    b, h, n, width = call.q.shape
    grid, blocks, sizes = _table_grid(call)
    bias_gradient.own_kernel[grid](x, *back, d_tables, *_plan(call.q_plan), blocks, **sizes.meta())
    all_blocks = b * triton.cdiv(n, VECTORS)
    blocks = max(1, all_blocks * h // RESIDENT)
    parts = triton.cdiv(all_blocks, blocks)
    sums = call.q.new_empty(h, parts, call.num_buckets, width, dtype=torch.float32)
    vectors_kernel[(parts, h)](x, d_tables, sums, b, blocks, R=VECTORS)
    return sums.sum(dim=(0, 1))


def _table_gradient(
    call: Call, x: Inputs, back: tuple[object, ...], kept: Kept, data: Tensor
) -> Tensor:
    """The gradient of a table per head [1, h, 1, c], from stored tiles and from all others."""
    grid, blocks, tile = _table_grid(call)
    parts = grid[0] * grid[2]
    others = data.new_empty(grid[1], parts, x.shape.COUNT.value, dtype=torch.float32)
    bias_gradient.shared_kernel[grid](x, *back, others, *_plan(call.q_plan), blocks, **tile.meta())
    b, h, blocks, offsets, columns, rows = data.shape
    tiles, programs, sizes = b * blocks, PARTS * offsets, {"R": rows, "C": columns}
    cells = others.new_empty(h, programs, columns, rows)
    diagonals = others.new_empty(h, programs, 2 * columns)
    bias_gradient.diagonals_kernel[(programs, h)](
        x, kept, cells, diagonals, tiles, triton.cdiv(tiles, PARTS), **sizes
    )
    d_table = others.new_empty(1, h, 1, others.shape[2])
    bias_gradient.table_kernel[(h,)](
        x, diagonals, others, d_table, offsets, parts, **sizes, PARTS=PARTS, num_warps=8
    )
    return d_table


def _table_grid(call: Call) -> tuple[tuple[int, int, int], int, Tiling]:
    """Grid over blocks of queries, heads and sequences, blocks per program, and tile sizes."""
    b, h, n, _ = call.q.shape
    sizes = tiling("table", call.q)
    all_blocks = triton.cdiv(n, sizes.rows)
    blocks = max(1, all_blocks * b * h // RESIDENT)
    return (triton.cdiv(all_blocks, blocks), h, b), blocks, sizes


def _empty_kept(call: Call) -> Kept:
    """Empty storage for gradients of scores near the diagonal, where queries share a table."""
    b, h, n, _ = call.q.shape
    m, plan = call.k.shape[2], (*_plan(call.q_plan), *_plan(call.k_plan))
    if call.band is None:
        return Kept(None, 0, *plan)
    sizes = tiling("keys", call.q)
    # Offsets run from where all is bucket 0 to the diagonal, or to where no block of keys is near.
    # Where keys and queries don't begin together, tiles lie between these offsets.
    edge, ahead = _edge(call), m - n
    offsets = edge // sizes.rows
    if call.causal:
        offsets += ahead % sizes.rows > 0
    else:
        offsets += (edge - sizes.columns + (BLOCK if ahead % BLOCK else 0)) // sizes.rows
    blocks = triton.cdiv(m, sizes.columns)
    return Kept(call.q.new_empty(b, h, blocks, offsets, sizes.columns, sizes.rows), offsets, *plan)


def _inputs(call: Call, tables: Tensor) -> Inputs:
    n, m, width = call.q.shape[2], call.k.shape[2], call.q.shape[3]
    exact = torch.get_float32_matmul_precision() == "highest"
    count = 0 if call.learned is None else (tables if call.by_query else call.learned).shape[3]
    constants = (
        call.causal,
        call.q.shape[1] // call.k.shape[1],
        width,
        max(16, triton.next_power_of_2(width)),
        "ieee" if exact else "tf32",
        count,
        max(16, triton.next_power_of_2(count)),
        n % BLOCK == 0 and m % BLOCK == 0,
    )
    return Inputs(
        laid(call.q),
        laid(call.k),
        laid(call.v),
        _bias(call, tables),
        _side(call.q_positions, call.q_segments, None),
        _side(call.k_positions, call.k_segments, call.real),
        n,
        m,
        m - n,
        call.scale,
        Shape(*(tl.constexpr(value) for value in constants)),
    )


def _bias(call: Call, tables: Tensor) -> Bias:
    if call.learned is None:
        return Bias(call.slopes, None, None, 0, 0, 0, None, 0, 0, None, 0)
    vectors = call.learned.contiguous() if call.by_query else None
    table = tables if call.table_by_distance is None else call.table_by_distance
    steps = table.expand(*call.q.shape[:3], -1).stride()
    return Bias(
        None,
        vectors,
        table,
        steps[0],
        steps[1],
        steps[2],
        call.band,
        _edge(call),
        call.max_distance,
        call.bucket_of,
        call.num_buckets - 1,
    )


def _edge(call: Call) -> int:
    return 0 if call.band is None else (call.band.shape[3] - call.band.shape[2]) // 2


def _side(positions: Tensor, segments: Tensor | None, real: Tensor | None) -> Side:
    """Contiguous tensors [b or 1, size], with a stride of 0 where the batch shares one row."""
    tensors = [None if x is None else x.contiguous() for x in (segments, real)]
    b, s, r = (
        0 if x is None or x.shape[0] == 1 else x.shape[1] for x in (positions, segments, real)
    )
    return Side(positions.contiguous(), b, tensors[0], s, tensors[1], r)


def _plan(plan: Tensor) -> tuple[Tensor, int]:
    return plan, 0 if plan.shape[0] == 1 else plan.shape[1] * plan.shape[2]
