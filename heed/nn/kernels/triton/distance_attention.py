"""Attention with a bias by distance, forward and backward, in tiles.

Nothing of size [n, m] is held, and no sum depends on the order in which blocks run. The algorithm
is FlashAttention-2's (Dao 2023): a running softmax over tiles, and a backward pass that recomputes
the weights, once by queries and once by keys. The bias is described in `tile`.

A block of R queries visits tiles of C keys, or a block of C keys tiles of R queries. Shapes: b
batch, n queries, m keys, h query heads, g key and value heads, d head width.
"""

from __future__ import annotations

import triton.language as tl

from heed.nn.kernels.triton import kernel
from heed.nn.kernels.triton.query_tables import (
    clear_tables,
    store_single,
    through_tables,
    write_tables,
)
from heed.nn.kernels.triton.tile import (
    AFTER,
    BEFORE,
    EXACT,
    HIDDEN,
    NEAR,
    load,
    lowest,
    scores_of,
    store,
)
from heed.nn.kernels.triton.tile_plan import is_kept, load_plan

# ---------------------------------------------------------------------------------------- forward


@kernel
def _add_tile(
    best: tl.tensor,
    total: tl.tensor,
    mixed: tl.tensor,
    q_rd: tl.tensor,
    x: tl.tuple,
    b: tl.tensor,
    h: int,
    row: int,
    column: int,
    KIND: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Add a tile of keys to a running softmax: maximum score, sum, weighted sum of values."""
    columns = column + tl.arange(0, C)
    k_cd = load(x.k, x.shape, b, h // x.shape.SHARE, columns, x.m)
    products = tl.dot(q_rd, tl.trans(k_cd), input_precision=x.shape.PRECISION)
    scores = scores_of(products, x, b, h, row, column, KIND, R, C, False)
    better = tl.maximum(best, tl.max(scores, axis=1))
    weights = tl.exp2(scores - better[:, None])
    fade = tl.exp2(best - better)
    v_cd = load(x.v, x.shape, b, h // x.shape.SHARE, columns, x.m)
    mixed = mixed * fade[:, None]
    mixed = tl.dot(weights.to(v_cd.dtype), v_cd, mixed, input_precision=x.shape.PRECISION)
    return better, total * fade + tl.sum(weights, axis=1), mixed


@kernel
def forward_kernel(
    x: tl.tuple,
    out: tl.tuple,
    lse: tl.tensor,
    plan: tl.tensor,
    plan_b: int,
    R: tl.constexpr,
    C: tl.constexpr,
) -> None:
    """A block of queries: its output, and the logarithm (base 2) of each row's softmax sum."""
    row = (tl.num_programs(0) - 1 - tl.program_id(0)) * R  # Blocks with the most work first.
    h, b = tl.program_id(1), tl.program_id(2)
    rows = row + tl.arange(0, R)
    q_rd = load(x.q, x.shape, b, h, rows, x.n)
    best = tl.full([R], HIDDEN, tl.float32)
    total = tl.zeros([R], tl.float32)
    mixed = tl.zeros([R, x.shape.D], tl.float32)
    if x.bias.vectors is not None:
        write_tables(q_rd, x, b, h, rows)
    first, near, after, last, exact = load_plan(plan, plan_b, b, row, C)
    for tile in range(first, near):
        best, total, mixed = _add_tile(
            best, total, mixed, q_rd, x, b, h, row, tile * C, BEFORE, R, C
        )
    if x.bias.band is not None:
        for tile in range(near, near + (after - near) * exact):
            best, total, mixed = _add_tile(
                best, total, mixed, q_rd, x, b, h, row, tile * C, EXACT, R, C
            )
        near = near + (after - near) * exact
    for tile in range(near, after):
        best, total, mixed = _add_tile(best, total, mixed, q_rd, x, b, h, row, tile * C, NEAR, R, C)
    if not x.shape.CAUSAL:
        for tile in range(after, last):
            best, total, mixed = _add_tile(
                best, total, mixed, q_rd, x, b, h, row, tile * C, AFTER, R, C
            )
    # A row without visible keys gives zeros, and zero gradients in the backward pass.
    sees = best > HIDDEN
    total = tl.where(sees, total, 1.0)
    mixed = tl.where(sees[:, None], mixed / total[:, None], 0.0)
    store(mixed, out, x.shape, b, h, rows, x.n)
    put = lse + (b * tl.num_programs(1) + h) * x.n + rows
    tl.store(put, tl.where(sees, best + tl.log2(total), float("inf")), mask=rows < x.n)


# --------------------------------------------------------------------------- backward, by queries


@kernel
def score_gradients(
    q_rd: tl.tensor,
    d_out_rd: tl.tensor,
    lse_r: tl.tensor,
    delta_r: tl.tensor,
    x: tl.tuple,
    b: tl.tensor,
    h: int,
    row: int,
    column: int,
    KIND: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """The gradient of a tile's scores (in base e), and its keys."""
    columns = column + tl.arange(0, C)
    k_cd = load(x.k, x.shape, b, h // x.shape.SHARE, columns, x.m)
    v_cd = load(x.v, x.shape, b, h // x.shape.SHARE, columns, x.m)
    products = tl.dot(q_rd, tl.trans(k_cd), input_precision=x.shape.PRECISION)
    scores = scores_of(products, x, b, h, row, column, KIND, R, C, False)
    weights = tl.exp2(scores - lse_r[:, None])
    d_weights = tl.dot(d_out_rd, tl.trans(v_cd), input_precision=x.shape.PRECISION)
    return weights * (d_weights - delta_r[:, None]), k_cd


@kernel
def backward_q_kernel(
    x: tl.tuple,
    out: tl.tuple,
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
    """A block of queries: their gradient, and delta = Σ out · d_out, which other kernels read.

    Where each query has a table and the block is exact, also the gradients of these tables.
    """
    row = (tl.num_programs(0) - 1 - tl.program_id(0)) * R
    h, b = tl.program_id(1), tl.program_id(2)
    rows = row + tl.arange(0, R)
    q_rd = load(x.q, x.shape, b, h, rows, x.n)
    out_rd = load(out, x.shape, b, h, rows, x.n)
    d_out_rd = load(d_out, x.shape, b, h, rows, x.n)
    at = (b * tl.num_programs(1) + h) * x.n + rows
    lse_r = tl.load(lse + at, mask=rows < x.n, other=float("inf"))
    delta_r = tl.sum(out_rd.to(tl.float32) * d_out_rd.to(tl.float32), axis=1)
    tl.store(delta + at, delta_r, mask=rows < x.n)
    dq_rd = tl.zeros([R, x.shape.D], tl.float32)
    first, near, after, last, exact = load_plan(plan, plan_b, b, row, C)
    if x.bias.vectors is not None and exact != 0:
        # Plans count in larger blocks: the first of these tiles may lie wholly in bucket 0.
        near = tl.maximum(near, tl.minimum(after, (row + x.ahead - x.bias.reach + 1) // C))
    for tile in range(first, near):
        d_scores, k_cd = score_gradients(
            q_rd, d_out_rd, lse_r, delta_r, x, b, h, row, tile * C, BEFORE, R, C
        )
        dq_rd = tl.dot(d_scores.to(k_cd.dtype), k_cd, dq_rd, input_precision=x.shape.PRECISION)
    looked = near
    if x.bias.band is not None:
        looked = near + (after - near) * exact
        for tile in range(near, looked):
            d_scores, k_cd = score_gradients(
                q_rd, d_out_rd, lse_r, delta_r, x, b, h, row, tile * C, EXACT, R, C
            )
            dq_rd = tl.dot(d_scores.to(k_cd.dtype), k_cd, dq_rd, input_precision=x.shape.PRECISION)
    if x.bias.vectors is not None:
        clear_tables(d_table, x, b, h, rows, x.n * exact)
        middle, outer = tl.zeros([R], tl.float32), tl.zeros([R], tl.float32)
        looked = near + (after - near) * exact
        for tile in range(near, looked):
            d_scores, k_cd = score_gradients(
                q_rd, d_out_rd, lse_r, delta_r, x, b, h, row, tile * C, NEAR, R, C
            )
            dq_rd = tl.dot(d_scores.to(k_cd.dtype), k_cd, dq_rd, input_precision=x.shape.PRECISION)
            more_middle, more_outer = store_single(d_scores, x, d_table, b, h, row, tile * C, R, C)
            middle += more_middle
            outer += more_outer
    for tile in range(looked, after):
        d_scores, k_cd = score_gradients(
            q_rd, d_out_rd, lse_r, delta_r, x, b, h, row, tile * C, NEAR, R, C
        )
        dq_rd = tl.dot(d_scores.to(k_cd.dtype), k_cd, dq_rd, input_precision=x.shape.PRECISION)
    if not x.shape.CAUSAL:
        for tile in range(after, last):
            d_scores, k_cd = score_gradients(
                q_rd, d_out_rd, lse_r, delta_r, x, b, h, row, tile * C, AFTER, R, C
            )
            dq_rd = tl.dot(d_scores.to(k_cd.dtype), k_cd, dq_rd, input_precision=x.shape.PRECISION)
            if x.bias.vectors is not None:
                outer += tl.sum(d_scores, axis=1)
    dq_rd = dq_rd * x.scale
    if x.bias.vectors is not None:
        dq_rd += through_tables(middle, outer, x, d_table, b, h, rows, x.n * exact)
    store(dq_rd, dq, x.shape, b, h, rows, x.n)


# ------------------------------------------------------------------------------ backward, by keys


@kernel
def _store_tile(
    d_scores: tl.tensor,
    kept: tl.tuple,
    x: tl.tuple,
    b: tl.tensor,
    h: int,
    row: int,
    column: int,
    R: tl.constexpr,
    C: tl.constexpr,
) -> None:
    """Store a tile's gradients [keys, queries] for the gradient of a shared table."""
    offset = column // R - row // R - lowest(x, R)
    if is_kept(kept, b, row, column, R, C) & (offset >= 0) & (offset < kept.offsets):
        heads, blocks = tl.num_programs(1) * x.shape.SHARE, tl.cdiv(x.m, C)
        at = ((b * heads + h) * blocks + column // C) * kept.offsets + offset
        put = kept.data + at.to(tl.int64) * (C * R)
        tl.store(put + tl.arange(0, C)[:, None] * R + tl.arange(0, R)[None, :], d_scores)


@kernel
def _add_kv_gradients(
    dk_cd: tl.tensor,
    dv_cd: tl.tensor,
    k_cd: tl.tensor,
    v_cd: tl.tensor,
    x: tl.tuple,
    back: tl.tuple,
    b: tl.tensor,
    h: int,
    row: int,
    column: int,
    KIND: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Add a tile of queries to the gradients of the block's keys and values."""
    rows = row + tl.arange(0, R)
    q_rd = load(x.q, x.shape, b, h, rows, x.n)
    d_out_rd = load(back.d_out, x.shape, b, h, rows, x.n)
    at = (b * tl.num_programs(1) * x.shape.SHARE + h) * x.n + rows
    lse_r = tl.load(back.lse + at, mask=rows < x.n, other=float("inf"))
    delta_r = tl.load(back.delta + at, mask=rows < x.n, other=0.0)
    products = tl.dot(k_cd, tl.trans(q_rd), input_precision=x.shape.PRECISION)
    scores = scores_of(products, x, b, h, row, column, KIND, R, C, True)
    weights = tl.exp2(scores - lse_r[None, :])
    dv_cd = tl.dot(weights.to(d_out_rd.dtype), d_out_rd, dv_cd, input_precision=x.shape.PRECISION)
    d_weights = tl.dot(v_cd, tl.trans(d_out_rd), input_precision=x.shape.PRECISION)
    d_scores = (weights * (d_weights - delta_r[None, :])).to(q_rd.dtype)
    if KIND >= EXACT and back.kept.data is not None:
        _store_tile(d_scores, back.kept, x, b, h, row, column, R, C)
    dk_cd = tl.dot(d_scores, q_rd, dk_cd, input_precision=x.shape.PRECISION)
    return dk_cd, dv_cd


@kernel
def backward_kv_kernel(
    x: tl.tuple,
    back: tl.tuple,
    dk: tl.tuple,
    dv: tl.tuple,
    R: tl.constexpr,
    C: tl.constexpr,
) -> None:
    """A block of keys: the gradients of its keys and values, over all heads that share them.

    Where queries share a table, the gradients of scores near the diagonal are stored as well.
    """
    column, g, b = tl.program_id(0) * C, tl.program_id(1), tl.program_id(2)
    columns = column + tl.arange(0, C)
    k_cd = load(x.k, x.shape, b, g, columns, x.m)
    v_cd = load(x.v, x.shape, b, g, columns, x.m)
    dk_cd = tl.zeros([C, x.shape.D], tl.float32)
    dv_cd = tl.zeros([C, x.shape.D], tl.float32)
    first, near, after, last, exact = load_plan(
        back.kept.columns, back.kept.columns_b, b, column, R
    )
    looked = near
    if x.bias.band is not None:
        looked = near + (after - near) * exact
    for h in range(g * x.shape.SHARE, (g + 1) * x.shape.SHARE):
        if not x.shape.CAUSAL:
            # Queries far before the block: its keys lie far after them.
            for tile in range(first, near):
                dk_cd, dv_cd = _add_kv_gradients(
                    dk_cd, dv_cd, k_cd, v_cd, x, back, b, h, tile * R, column, AFTER, R, C
                )
        if x.bias.band is not None:
            for tile in range(near, looked):
                dk_cd, dv_cd = _add_kv_gradients(
                    dk_cd, dv_cd, k_cd, v_cd, x, back, b, h, tile * R, column, EXACT, R, C
                )
        for tile in range(looked, after):
            dk_cd, dv_cd = _add_kv_gradients(
                dk_cd, dv_cd, k_cd, v_cd, x, back, b, h, tile * R, column, NEAR, R, C
            )
        for tile in range(after, last):
            dk_cd, dv_cd = _add_kv_gradients(
                dk_cd, dv_cd, k_cd, v_cd, x, back, b, h, tile * R, column, BEFORE, R, C
            )
    store(dk_cd * x.scale, dk, x.shape, b, g, columns, x.m)
    store(dv_cd, dv, x.shape, b, g, columns, x.m)
