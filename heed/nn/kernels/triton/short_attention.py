"""Attention over short sequences, forward and backward: one program holds all keys of a head.

So the softmax needs no running correction, and the backward pass recomputes it from queries and
keys: nothing else is saved. No sum depends on the order in which programs run. Queries and keys may
be rotated (RoPE) as they are read; their gradients are then rotated back as they are written.

A bias that all sequences share is added to the scores. Its gradient is the sum over sequences of
the scores' gradients, which the backward pass stores where that sum is wanted.

With RoPE a head is read in halves, because dimensions i and i + d/2 are rotated together; a dot
product of heads is the sum of the dot products of their halves. Without it the lower "half" is the
whole head, and the higher one is not used. A program multiplies R queries at a time by all C keys.

Weights are rounded to 16 bits before they are normalized, as FlashAttention does: the largest is
then 1 and exact, and the error of the output is a fifth smaller than with rounded, normalized ones.

Shapes: b batch, n queries, m keys, h query heads, g key and value heads, d head width, p = d/2
with RoPE and d without.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from heed.nn.kernels.triton import kernel
from heed.nn.kernels.triton.pack_heads import laid
from heed.nn.kernels.triton.tile import HIDDEN, LOG2E, Heads, load, load_per_token, store


class Side(NamedTuple):
    """Rotations, segments and padding of the queries or keys, each with its stride over the batch.

    Strides of tensors with one number per token, and both lengths, come as `odd` numbers.
    """

    rotations: Tensor | None
    """[b or 1, size, 2, p]: cosines and sines of each token's angles; None without RoPE."""
    rotations_b: int
    segments: Tensor | None
    segments_b: int
    real: Tensor | None
    real_b: int


class Call(NamedTuple):
    """The arguments of one attention, in the order of the operator's schema."""

    q: Tensor
    k: Tensor
    v: Tensor
    bias: Tensor | None
    q_rotations: Tensor | None
    k_rotations: Tensor | None
    real: Tensor | None
    q_segments: Tensor | None
    k_segments: Tensor | None
    causal: bool
    scale: float


class Cells(NamedTuple):
    """One number for each query and key: a contiguous tensor [b or 1, h, n, row], row ≥ m.

    Where rows are a multiple of 16, so are all strides, and one compiled kernel serves all lengths.
    """

    data: Tensor
    b: int
    h: int
    row: int


class Shape(NamedTuple):
    """Constants a kernel is compiled for."""

    CAUSAL: tl.constexpr
    SHARE: tl.constexpr
    """Query heads per key head."""
    WIDTH: tl.constexpr
    D: tl.constexpr
    """The head width, and the power of two that holds it."""
    HALF: tl.constexpr
    PAIRS: tl.constexpr
    """Half the head width with RoPE, all of it without, and the power of two that holds that."""
    PRECISION: tl.constexpr
    """Of float32 dot products: "ieee" or "tf32"."""
    WHOLE: tl.constexpr
    """Whether sequences fill their last blocks. Here they seldom do: bounds are always checked."""


class Inputs(NamedTuple):
    """Everything attention reads."""

    q: Heads
    k: Heads
    v: Heads
    bias: Cells | None
    queries: Side
    keys: Side
    n: int
    m: int
    """Number of queries and of keys, as `odd` numbers. Query i is aligned with key i + m - n."""
    scale: float
    shape: Shape


def odd(number: int) -> int:
    """Encode a number as an odd one above 1: Triton compiles anew for 1 and multiples of 16."""
    return 2 * number + 3


# ------------------------------------------------------------------------------- parts of kernels


@kernel
def _decode(number: tl.tensor) -> tl.tensor:
    """The number that `odd` encoded."""
    return (number - 3) // 2


@kernel
def _visible(
    x: tl.tuple, b: tl.tensor, rows: tl.tensor, columns: tl.tensor, n: tl.tensor, m: tl.tensor
) -> tl.tensor:
    """Which of these keys each of these queries may attend to [R, C]."""
    rows, columns = rows[:, None], columns[None, :]
    visible = (columns < m) & (rows < n)
    if x.shape.CAUSAL:
        visible = visible & (columns <= rows + m - n)
    if x.keys.real is not None:
        visible = visible & (
            load_per_token(x.keys.real, _decode(x.keys.real_b), b, columns, m) != 0
        )
    if x.keys.segments is not None:
        q_segment = load_per_token(x.queries.segments, _decode(x.queries.segments_b), b, rows, n)
        k_segment = load_per_token(x.keys.segments, _decode(x.keys.segments_b), b, columns, m)
        visible = visible & (q_segment == k_segment)
    return visible


@kernel
def _cos_sin(
    x: tl.tuple, side: tl.tuple, b: tl.tensor, at: tl.tensor, size: int, AGAIN: tl.constexpr
) -> tl.tuple:
    """Cosines and sines of each token's angles [tokens, p]; a placeholder without RoPE.

    With AGAIN they are read from memory again: kept in registers they would cost more.
    """
    if side.rotations is None:
        cos = tl.zeros([1, 1], tl.float32)
        sin = cos
    else:
        pairs = tl.arange(0, x.shape.PAIRS)[None, :]
        start = (
            side.rotations + b.to(tl.int64) * side.rotations_b + at[:, None] * (2 * x.shape.HALF)
        )
        inside = (at[:, None] < size) & (pairs < x.shape.HALF)
        cos = tl.load(start + pairs, mask=inside, other=0.0, volatile=AGAIN)
        sin = tl.load(start + x.shape.HALF + pairs, mask=inside, other=0.0, volatile=AGAIN)
    return cos, sin


@kernel
def _add(one: tl.tensor, other: tl.tensor) -> tl.tensor:
    return one + other


@kernel
def _materialize(x: tl.tensor) -> tl.tensor:
    """x. Without this the compiler repeats the rotation for each layout a dot product needs."""
    return tl.reduce(x[:, :, None], 2, _add)


@kernel
def _rotate(
    side: tl.tuple, low: tl.tensor, high: tl.tensor, cos: tl.tensor, sin: tl.tensor
) -> tl.tuple:
    """Both halves rotated, where there is RoPE; with -sin, rotated back."""
    if side.rotations is not None:
        first, second = low.to(tl.float32), high.to(tl.float32)
        low = _materialize((first * cos - second * sin).to(low.dtype))
        high = _materialize((second * cos + first * sin).to(high.dtype))
    return low, high


@kernel
def _load_halves(
    part: tl.tuple, x: tl.tuple, b: tl.tensor, h: int, at: tl.tensor, size: int
) -> tuple[tl.tensor, tl.tensor]:
    """Both halves of a head [tokens, p], zeros beyond its end; without RoPE the head, twice."""
    pairs = tl.arange(0, x.shape.PAIRS)[None, :]
    start = part.data + b.to(tl.int64) * part.b + h * part.h + at[:, None] * part.n + pairs
    inside = (at[:, None] < size) & (pairs < x.shape.HALF)
    low = tl.load(start, mask=inside, other=0.0)
    high = low
    if x.shape.HALF < x.shape.WIDTH:
        inside = inside & (pairs + x.shape.HALF < x.shape.WIDTH)
        high = tl.load(start + x.shape.HALF, mask=inside, other=0.0)
    return low, high


@kernel
def _store_halves(
    low: tl.tensor,
    high: tl.tensor,
    part: tl.tuple,
    x: tl.tuple,
    b: tl.tensor,
    h: int,
    at: tl.tensor,
    size: int,
) -> None:
    """Write both halves of a head."""
    pairs = tl.arange(0, x.shape.PAIRS)[None, :]
    start = part.data + b.to(tl.int64) * part.b + h * part.h + at[:, None] * part.n + pairs
    inside = (at[:, None] < size) & (pairs < x.shape.HALF)
    tl.store(start, low.to(part.data.dtype.element_ty), mask=inside)
    if x.shape.HALF < x.shape.WIDTH:
        inside = inside & (pairs + x.shape.HALF < x.shape.WIDTH)
        tl.store(start + x.shape.HALF, high.to(part.data.dtype.element_ty), mask=inside)


@kernel
def _store_sums(
    low: tl.tensor, high: tl.tensor, part: tl.tuple, x: tl.tuple, b: tl.tensor, h: int
) -> None:
    """Write both halves [p] of the sum over the tokens of one head of one sequence."""
    pairs = tl.arange(0, x.shape.PAIRS)
    start = part.data + b.to(tl.int64) * part.b + h * part.h + pairs
    tl.store(start, low, mask=pairs < x.shape.HALF)
    if x.shape.HALF < x.shape.WIDTH:
        inside = (pairs < x.shape.HALF) & (pairs + x.shape.HALF < x.shape.WIDTH)
        tl.store(start + x.shape.HALF, high, mask=inside)


@kernel
def _load_cells(
    part: tl.tuple, h: int, rows: tl.tensor, columns: tl.tensor, size: int
) -> tl.tensor:
    """The numbers of these queries and keys [R, C] that all sequences share."""
    rows, columns = rows[:, None], columns[None, :]
    start = part.data + h * part.h + rows * part.row + columns
    # A row's end, not the last key, bounds the columns: several numbers are then read at once.
    return tl.load(start, mask=(rows < size) & (columns < part.row), other=0.0)


@kernel
def _store_cells(
    values: tl.tensor,
    part: tl.tuple,
    b: tl.tensor,
    h: int,
    rows: tl.tensor,
    columns: tl.tensor,
    size: int,
) -> None:
    """Write the numbers of one sequence's queries and keys, to the ends of their rows."""
    rows, columns = rows[:, None], columns[None, :]
    start = part.data + b.to(tl.int64) * part.b + h * part.h + rows * part.row + columns
    tl.store(start, values, mask=(rows < size) & (columns < part.row))


@kernel
def _softmax(
    q_low: tl.tensor,
    q_high: tl.tensor,
    k_low: tl.tensor,
    k_high: tl.tensor,
    visible: tl.tensor,
    x: tl.tuple,
    h: int,
    rows: tl.tensor,
    columns: tl.tensor,
    n: int,
) -> tl.tuple:
    """exp(q kᵀ · scale + bias - max) [R, C], zeros where nothing is visible, and 1/row sums [R, 1].

    The sum of a row without visible keys is given as 1, so that multiplying by it gives zeros.
    """
    scores = tl.dot(q_low, tl.trans(k_low), input_precision=x.shape.PRECISION)
    if x.shape.HALF < x.shape.WIDTH:
        scores = tl.dot(q_high, tl.trans(k_high), scores, input_precision=x.shape.PRECISION)
    scores = scores * (x.scale * LOG2E)
    if x.bias is not None:
        scores += _load_cells(x.bias, h, rows, columns, n) * LOG2E
    scores = tl.where(visible, scores, HIDDEN)
    weights = tl.exp2(scores - tl.max(scores, axis=1)[:, None])
    weights = tl.where(visible, weights, 0.0)
    total = tl.sum(weights, axis=1)
    return weights, (1.0 / tl.where(total > 0.0, total, 1.0))[:, None]


# ---------------------------------------------------------------------------------------- kernels


@kernel
def _forward(
    x: tl.tuple,
    out: tl.tuple,
    heads: int,
    BLOCKS: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
) -> None:
    """One of BLOCKS blocks of queries of one head of one sequence: its output."""
    head = tl.program_id(0) // BLOCKS
    b, h = head // heads, head % heads
    g, n, m = h // x.shape.SHARE, _decode(x.n), _decode(x.m)
    rows, columns = tl.program_id(0) % BLOCKS * R + tl.arange(0, R), tl.arange(0, C)
    q_low, q_high = _load_halves(x.q, x, b, h, rows, n)
    k_low, k_high = _load_halves(x.k, x, b, g, columns, m)
    v_cd = load(x.v, x.shape, b, g, columns, m)
    cos, sin = _cos_sin(x, x.queries, b, rows, n, False)
    q_low, q_high = _rotate(x.queries, q_low, q_high, cos, sin)
    cos, sin = _cos_sin(x, x.keys, b, columns, m, False)
    k_low, k_high = _rotate(x.keys, k_low, k_high, cos, sin)
    visible = _visible(x, b, rows, columns, n, m)
    weights, share = _softmax(q_low, q_high, k_low, k_high, visible, x, h, rows, columns, n)
    out_rd = tl.dot(weights.to(v_cd.dtype), v_cd, input_precision=x.shape.PRECISION)
    store(out_rd * share, out, x.shape, b, h, rows, n)


@kernel
def _backward(
    x: tl.tuple,
    d_out: tl.tuple,
    dq: tl.tuple,
    dk: tl.tuple,
    dv: tl.tuple,
    d_scores_out: tl.tuple,
    sums: tl.tuple | None,
    heads: int,
    BLOCKS: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
) -> None:
    """One key head of one sequence and all queries that read it: their gradients.

    The gradients of scores are those of a bias, too, and stored where `d_scores_out` is given. Sums
    over the tokens of the gradients of q, k and v are stored where `sums` are given.
    """
    b, g = tl.program_id(0) // heads, tl.program_id(0) % heads
    n, m, columns = _decode(x.n), _decode(x.m), tl.arange(0, C)
    k_low, k_high = _load_halves(x.k, x, b, g, columns, m)
    v_cd = load(x.v, x.shape, b, g, columns, m)
    k_cos, k_sin = _cos_sin(x, x.keys, b, columns, m, False)
    k_low, k_high = _rotate(x.keys, k_low, k_high, k_cos, k_sin)
    dk_low = tl.zeros([C, x.shape.PAIRS], tl.float32)
    dk_high = dk_low
    dv_cd = tl.zeros([C, x.shape.D], tl.float32)
    dq_low_sum, dq_high_sum = tl.sum(dk_low, axis=0), tl.sum(dk_high, axis=0)
    for i in range(x.shape.SHARE * BLOCKS):
        h, rows = g * x.shape.SHARE + i // BLOCKS, i % BLOCKS * R + tl.arange(0, R)
        q_low, q_high = _load_halves(x.q, x, b, h, rows, n)
        d_out_rd = load(d_out, x.shape, b, h, rows, n)
        cos, sin = _cos_sin(x, x.queries, b, rows, n, False)
        q_low, q_high = _rotate(x.queries, q_low, q_high, cos, sin)
        visible = _visible(x, b, rows, columns, n, m)
        weights, share = _softmax(q_low, q_high, k_low, k_high, visible, x, h, rows, columns, n)
        weights = weights * share
        d_weights = tl.dot(d_out_rd, tl.trans(v_cd), input_precision=x.shape.PRECISION)
        delta = tl.sum(weights * d_weights, axis=1)
        d_scores = (weights * (d_weights - delta[:, None])).to(q_low.dtype)
        if d_scores_out is not None:
            _store_cells(d_scores, d_scores_out, b, h, rows, columns, n)
        weights_cr = tl.trans(weights.to(d_out_rd.dtype))
        dv_cd = tl.dot(weights_cr, d_out_rd, dv_cd, input_precision=x.shape.PRECISION)
        d_scores_cr = tl.trans(d_scores)
        dk_low = tl.dot(d_scores_cr, q_low, dk_low, input_precision=x.shape.PRECISION)
        dq_low = tl.dot(d_scores, k_low, input_precision=x.shape.PRECISION) * x.scale
        dq_high = dq_low
        if x.shape.HALF < x.shape.WIDTH:
            dk_high = tl.dot(d_scores_cr, q_high, dk_high, input_precision=x.shape.PRECISION)
            dq_high = tl.dot(d_scores, k_high, input_precision=x.shape.PRECISION) * x.scale
        cos, sin = _cos_sin(x, x.queries, b, rows, n, True)
        dq_low, dq_high = _rotate(x.queries, dq_low, dq_high, cos, -sin)
        _store_halves(dq_low, dq_high, dq, x, b, h, rows, n)
        if sums is not None:
            dq_low_sum += tl.sum(dq_low, axis=0)
            dq_high_sum += tl.sum(dq_high, axis=0)
            if (i + 1) % BLOCKS == 0:
                _store_sums(dq_low_sum, dq_high_sum, sums[0], x, b, h)
                dq_low_sum, dq_high_sum = tl.zeros_like(dq_low_sum), tl.zeros_like(dq_high_sum)
    k_cos, k_sin = _cos_sin(x, x.keys, b, columns, m, True)
    dk_low, dk_high = _rotate(x.keys, dk_low * x.scale, dk_high * x.scale, k_cos, -k_sin)
    _store_halves(dk_low, dk_high, dk, x, b, g, columns, m)
    store(dv_cd, dv, x.shape, b, g, columns, m)
    if sums is not None:
        low_sum, high_sum = tl.zeros([x.shape.PAIRS], tl.float32), tl.zeros([1], tl.float32)
        # What is added to all keys of a head moves all scores of a query alike, and no weight.
        if x.keys.rotations is not None:
            low_sum, high_sum = tl.sum(dk_low, axis=0), tl.sum(dk_high, axis=0)
        _store_sums(low_sum, high_sum, sums[1], x, b, g)
        width = tl.arange(0, x.shape.D)
        at = sums[2].data + b.to(tl.int64) * sums[2].b + g * sums[2].h + width
        tl.store(at, tl.sum(dv_cd, axis=0), mask=width < x.shape.WIDTH)


# ----------------------------------------------------------------------------------------- launch


class Tiling(NamedTuple):
    """Queries per step, warps, and the register limit of a thread."""

    rows: int
    warps: int
    registers: int | None = None


TILINGS = {
    "forward": {32: Tiling(32, 2), 64: Tiling(64, 4), 128: Tiling(64, 4)},
    "backward": {32: Tiling(32, 2, 128), 64: Tiling(64, 4, 168), 128: Tiling(128, 8)},
}
"""By the longer of queries and keys, for head width 64 in 16 bits: sizes that spill few registers
or none, and let several programs share one multiprocessor."""
ROPE_TILING = Tiling(32, 2, 160)
"""Of the backward pass up to 32 tokens with RoPE, which needs more registers."""


def tiling(kernel: str, longest: int, call: Call) -> Tiling:
    """Tile sizes that fit into registers: wider heads and float32 need smaller ones."""
    if call.q.element_size() > 2:
        return Tiling(16, 4 if longest <= 64 else 8)
    if call.q.shape[-1] > 64:
        return Tiling(32, 4 if longest <= 64 else 8)
    if kernel == "backward" and longest == 32 and call.q_rotations is not None:
        return ROPE_TILING
    return TILINGS[kernel][longest]


def forward(call: Call, out: Tensor) -> None:
    """Attention, written to `out` [b, h, n, d]."""
    b, heads, sizes = *call.q.shape[:2], _sizes("forward", call)
    if out.numel():
        grid = (b * heads * sizes["BLOCKS"],)
        _forward[grid](_inputs(call), laid(out), heads, **sizes)


def backward(
    call: Call,
    d_out: Tensor,
    grads: list[Tensor],
    d_scores: Tensor | None = None,
    sums: list[Tensor] | None = None,
) -> None:
    """The gradients of q, k and v, written to three tensors of their shapes.

    Those of scores are written to `d_scores` [b, h, n, row], rows as long as the bias has them.
    Sums over the tokens of the gradients of q, k and v are written to `sums` [b, h or g, 1, d].
    """
    b, heads, sizes = *call.k.shape[:2], _sizes("backward", call)
    if d_out.numel():
        tensors = [laid(x) for x in (d_out, *grads)]
        sums_laid = None if sums is None else tuple(laid(x) for x in sums)
        inputs, d_cells = _inputs(call), _cells(d_scores)
        _backward[(b * heads,)](inputs, *tensors, d_cells, sums_laid, heads, **sizes)


def _sizes(kernel: str, call: Call) -> dict[str, int]:
    # One size for queries and keys: every pair of sizes would be compiled separately.
    longest = max(32, triton.next_power_of_2(max(call.q.shape[2], call.k.shape[2])))
    rows, warps, registers = tiling(kernel, longest, call)
    rows = min(longest, rows)
    sizes = {"BLOCKS": longest // rows, "R": rows, "C": longest}
    sizes |= {"num_warps": warps, "num_stages": 1}
    return sizes if registers is None else sizes | {"maxnreg": registers}


def _inputs(call: Call) -> Inputs:
    n, m, width = call.q.shape[2], call.k.shape[2], call.q.shape[3]
    rotated = call.q_rotations is not None or call.k_rotations is not None
    half = triton.cdiv(width, 2) if rotated else width
    constants = (
        call.causal,
        call.q.shape[1] // call.k.shape[1],
        width,
        max(16, triton.next_power_of_2(width)),
        half,
        max(16, triton.next_power_of_2(half)),
        "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32",
        False,
    )
    return Inputs(
        laid(call.q),
        laid(call.k),
        laid(call.v),
        _cells(call.bias),
        _side(call.q_rotations, call.q_segments, None),
        _side(call.k_rotations, call.k_segments, call.real),
        odd(n),
        odd(m),
        call.scale,
        Shape(*(tl.constexpr(value) for value in constants)),
    )


def _side(rotations: Tensor | None, segments: Tensor | None, real: Tensor | None) -> Side:
    """Contiguous tensors [b or 1, …], with a stride of 0 where the batch shares one row."""
    tensors = [None if x is None else x.contiguous() for x in (rotations, segments, real)]
    strides = [0 if x is None or x.shape[0] == 1 else x.stride(0) for x in tensors]
    return Side(tensors[0], strides[0], tensors[1], odd(strides[1]), tensors[2], odd(strides[2]))


def _cells(x: Tensor | None) -> Cells | None:
    """A tensor [b or 1, h, n, row], copied if it is not contiguous."""
    if x is None:
        return None
    _, h, n, row = x.shape
    return Cells(x.contiguous(), h * n * row, n * row, row)
