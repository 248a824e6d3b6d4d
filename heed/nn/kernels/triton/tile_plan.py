"""Plan which tiles a block of queries (or of keys) visits, and which of them read the bias table.

One small kernel reads all positions once per forward pass. So the plan is right for any positions
(padded on either side, packed, given by a caller). Where positions count upwards, few tiles are
near, and those are exact.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from heed.nn.kernels.triton import kernel
from heed.nn.kernels.triton.tile import UNIT, Side, load_per_token

SEGMENT_GAP = tl.constexpr(1 << 32)
"""Added to positions once per segment: segments are farther apart than tokens of one can be."""
FARTHEST = tl.constexpr(1 << 61)
MANY = 16
"""Tiles read at once."""
FIELDS = tl.constexpr(5)


@kernel
def _load_tokens(
    side: tl.tuple, b: tl.tensor, at: tl.tensor, size: int
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Positions and segments of the tokens `at`, and which of them are real."""
    inside = at < size
    position = load_per_token(side.positions, side.positions_b, b, at, size).to(tl.int64)
    segment = tl.zeros_like(position)
    if side.segments is not None:
        segment = load_per_token(side.segments, side.segments_b, b, at, size).to(tl.int64)
    if side.real is not None:
        inside = inside & (load_per_token(side.real, side.real_b, b, at, size) != 0)
    return position, segment, inside


@kernel
def _least(x: tl.tensor, among: tl.tensor, AXIS: tl.constexpr) -> tl.tensor:
    return tl.min(tl.where(among, x, FARTHEST), axis=AXIS)


@kernel
def _most(x: tl.tensor, among: tl.tensor, AXIS: tl.constexpr) -> tl.tensor:
    return tl.max(tl.where(among, x, -FARTHEST), axis=AXIS)


@kernel
def _make_plan(
    plan: tl.tensor,
    own: tl.tuple,
    other: tl.tuple,
    own_size: int,
    size: int,
    ahead: int,
    reach: int,
    LOOKS: tl.constexpr,
    OF_KEYS: tl.constexpr,
    CAUSAL: tl.constexpr,
    MANY: tl.constexpr,
) -> None:
    """The plan of one block of one sequence."""
    block, b = tl.program_id(0), tl.program_id(1)
    start = block * UNIT
    end = tl.minimum(start + UNIT, own_size)
    mine = start + tl.arange(0, UNIT)
    position, segment, there = _load_tokens(own, b, mine, own_size)
    low_segment, high_segment = _least(segment, there, 0), _most(segment, there, 0)
    low, high = (
        _least(position + segment * SEGMENT_GAP, there, 0),
        _most(position + segment * SEGMENT_GAP, there, 0),
    )
    tiles = tl.cdiv(size, UNIT)
    first, near, after, last = tiles, tiles, 0, 0
    for some in range(0, tiles, MANY):
        tile = some + tl.arange(0, MANY)
        at = tile[:, None] * UNIT + tl.arange(0, UNIT)[None, :]
        positions, segments, here = _load_tokens(other, b, at, size)
        seen = (_least(segments, here, 1) <= high_segment) & (
            _most(segments, here, 1) >= low_segment
        )
        first = tl.minimum(first, tl.min(tl.where(seen, tile, tiles)))
        last = tl.maximum(last, tl.max(tl.where(seen, tile + 1, 0)))
        if LOOKS:
            positions += segments * SEGMENT_GAP
            not_before = (tile < tiles) & (_most(positions, here, 1) - low > -reach)
            not_after = (tile < tiles) & (_least(positions, here, 1) - high < reach)
            near = tl.minimum(near, tl.min(tl.where(not_before, tile, tiles)))
            after = tl.maximum(after, tl.max(tl.where(not_after, tile + 1, 0)))
    if CAUSAL and OF_KEYS:
        # From the first query that sees any key of the block; near until one sees them all.
        first = tl.maximum(first, tl.maximum(start - ahead, 0) // UNIT)
        near = first
        after = tl.maximum(after, tl.cdiv(tl.maximum(end - 1 - ahead, 0), UNIT))
    elif CAUSAL:
        # Up to the last key that any query of the block sees; near from the first not seen by all.
        last = tl.minimum(last, tl.cdiv(tl.maximum(end + ahead, 0), UNIT))
        near = tl.minimum(near, tl.maximum(start + ahead + 1, 0) // UNIT)
        after = last
    near = tl.minimum(near, size // UNIT)  # A partial tile is always near.
    last = tl.maximum(last, first)
    near = tl.minimum(tl.maximum(near, first), last)
    after = tl.minimum(tl.maximum(after, near), last)
    exact = 0
    if LOOKS:
        # Exact: the block has one segment, in which position minus token index is the same for all
        # tokens that can see each other.
        shift = position - mine - (0 if OF_KEYS else ahead)
        low_shift, high_shift = _least(shift, there, 0), _most(shift, there, 0)
        for tile in range(near, after):
            at = tile * UNIT + tl.arange(0, UNIT)
            positions, segments, here = _load_tokens(other, b, at, size)
            shifts = positions - at - (ahead if OF_KEYS else 0)
            here = here & (segments == low_segment)
            low_shift = tl.minimum(low_shift, _least(shifts, here, 0))
            high_shift = tl.maximum(high_shift, _most(shifts, here, 0))
        exact = ((low_shift == high_shift) & (low_segment == high_segment)).to(tl.int32)
    put = plan + (b * tl.num_programs(0) + block) * FIELDS
    tl.store(put, first)
    tl.store(put + 1, near)
    tl.store(put + 2, after)
    tl.store(put + 3, last)
    tl.store(put + 4, exact)


@kernel
def load_plan(
    plan: tl.tensor, step: int, b: tl.tensor, token: int, TILE: tl.constexpr
) -> tuple[int, int, int, int, int]:
    """The plan of the block that holds a token, in tiles of TILE tokens."""
    at = plan + b * step + token // UNIT * FIELDS
    many = UNIT // TILE
    return (
        tl.load(at) * many,
        tl.load(at + 1) * many,
        tl.load(at + 2) * many,
        tl.load(at + 3) * many,
        tl.load(at + 4),
    )


@kernel
def is_kept(
    kept: tl.tuple, b: tl.tensor, row: int, column: int, R: tl.constexpr, C: tl.constexpr
) -> tl.tensor:
    """Whether the gradients of this tile's scores are stored."""
    tile, block = column // C, row // R
    _first, near, after, _last, exact = load_plan(kept.rows, kept.rows_b, b, row, C)
    in_rows = (exact != 0) & (tile >= near) & (tile < after)
    _first, near, after, _last, exact = load_plan(kept.columns, kept.columns_b, b, column, R)
    return in_rows & (block >= near) & (block < after)


def make_plan(
    queries: Side,
    keys: Side,
    sizes: tuple[int, int, int],
    *,
    reach: int | None,
    causal: bool,
    of_keys: bool,
) -> Tensor:
    """For each block of queries, four tiles of keys and a flag [b or 1, blocks, 5].

    Tiles [first, near) lie far before the block, [near, after) are near, [after, last) lie far
    after it; others are not visible. The flag `exact` says that in near tiles distances of
    positions equal distances of tokens. With `of_keys`: blocks of keys and tiles of queries.
    Without a `reach` only tiles that the diagonal crosses are near.
    """
    b, n, m = sizes
    shared = not any((*queries[1::2], *keys[1::2]))
    own, other, own_size, size = (keys, queries, m, n) if of_keys else (queries, keys, n, m)
    blocks, rows = triton.cdiv(own_size, UNIT.value), 1 if shared else b
    plan = torch.empty(rows, blocks, 5, dtype=torch.int32, device=queries.positions.device)
    _make_plan[(blocks, rows)](
        plan,
        own,
        other,
        own_size,
        size,
        m - n,
        reach or 0,
        LOOKS=reach is not None,
        OF_KEYS=of_keys,
        CAUSAL=causal,
        MANY=MANY,
    )
    return plan
