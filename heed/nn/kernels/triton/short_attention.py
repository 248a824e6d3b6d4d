"""Attention over short texts, forward and backward: all that one head looks at fits a program.

A program holds all keys of a head at once. So a softmax is computed as it is written, and the
backward pass computes it again from queries and keys: nothing else is kept. No sum depends on the
order in which programs run. Queries and keys may be turned (RoPE) as they are read, and their
gradients are then turned back as they are written.

A head is read in halves, for dimension i turns with dimension i + d/2; a product of heads is the
sum of the products of their halves. R queries at a time meet all C keys. Shapes: b batch, n
queries, m keys, h query heads, g key and value heads, d head width, p = d/2.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from heed.nn.kernels.triton import kernel
from heed.nn.kernels.triton.pack_heads import laid
from heed.nn.kernels.triton.tile import HIDDEN, LOG2E, Heads, known, load, store


class Side(NamedTuple):
    """What is known of the queries or of the keys, each with the step from row to row.

    Steps of facts that have a number a token, and both lengths, come as `odd` numbers.
    """

    turns: Tensor | None
    """[b or 1, size, 2, p]: cosines and sines of a token's angles; None where nothing turns."""
    turns_b: int
    segments: Tensor | None
    segments_b: int
    real: Tensor | None
    real_b: int


class Call(NamedTuple):
    """One call of attention, as `heed.nn.kernels.short_attention` hands it over."""

    q: Tensor
    k: Tensor
    v: Tensor
    q_turns: Tensor | None
    k_turns: Tensor | None
    real: Tensor | None
    q_segments: Tensor | None
    k_segments: Tensor | None
    causal: bool
    scale: float


class Shape(NamedTuple):
    """What a kernel is compiled for."""

    CAUSAL: tl.constexpr
    SHARE: tl.constexpr
    """How many query heads read one key head."""
    WIDTH: tl.constexpr
    D: tl.constexpr
    """The head width, and the power of two that holds it."""
    HALF: tl.constexpr
    PAIRS: tl.constexpr
    """The same of half a head."""
    PRECISION: tl.constexpr
    """Of products of float32: "ieee" or "tf32"."""
    WHOLE: tl.constexpr
    """Whether texts fill their last blocks: here they seldom do, and it is always asked."""


class Inputs(NamedTuple):
    """All that attention reads."""

    q: Heads
    k: Heads
    v: Heads
    queries: Side
    keys: Side
    n: int
    m: int
    """How many queries and keys, as `odd` numbers. Query i stands beside key i + m - n."""
    scale: float
    shape: Shape


def odd(number: int) -> int:
    """A number for which no kernel is compiled anew, as Triton does for 1 and multiples of 16."""
    return 2 * number + 3


# ----------------------------------------------------------------------------------------- pieces


@kernel
def _even(number: tl.tensor) -> tl.tensor:
    """The number that `odd` was given."""
    return (number - 3) // 2


@kernel
def _seen(
    x: tl.tuple, b: tl.tensor, rows: tl.tensor, columns: tl.tensor, n: tl.tensor, m: tl.tensor
) -> tl.tensor:
    """Which of these keys each of these queries may see [R, C]."""
    rows, columns = rows[:, None], columns[None, :]
    seen = (columns < m) & (rows < n)
    if x.shape.CAUSAL:
        seen = seen & (columns <= rows + m - n)
    if x.keys.real is not None:
        seen = seen & (known(x.keys.real, _even(x.keys.real_b), b, columns, m) != 0)
    if x.keys.segments is not None:
        q_segment = known(x.queries.segments, _even(x.queries.segments_b), b, rows, n)
        k_segment = known(x.keys.segments, _even(x.keys.segments_b), b, columns, m)
        seen = seen & (q_segment == k_segment)
    return seen


@kernel
def _turn(
    x: tl.tuple, side: tl.tuple, b: tl.tensor, at: tl.tensor, size: int, AGAIN: tl.constexpr
) -> tl.tuple:
    """Cosine and sine of each token's angles [tokens, p]; nothing of worth where nothing turns.

    Asked AGAIN they are read again. A compiler would keep them, but room in registers is dearer.
    """
    if side.turns is None:
        cos = tl.zeros([1, 1], tl.float32)
        sin = cos
    else:
        pairs = tl.arange(0, x.shape.PAIRS)[None, :]
        start = side.turns + b.to(tl.int64) * side.turns_b + at[:, None] * (2 * x.shape.HALF)
        inside = (at[:, None] < size) & (pairs < x.shape.HALF)
        cos = tl.load(start + pairs, mask=inside, other=0.0, volatile=AGAIN)
        sin = tl.load(start + x.shape.HALF + pairs, mask=inside, other=0.0, volatile=AGAIN)
    return cos, sin


@kernel
def _either(one: tl.tensor, other: tl.tensor) -> tl.tensor:
    return one + other


@kernel
def _settled(x: tl.tensor) -> tl.tensor:
    """The same. Without it a compiler turns a head again for each layout a product wants it in."""
    return tl.reduce(x[:, :, None], 2, _either)


@kernel
def _turned(
    side: tl.tuple, low: tl.tensor, high: tl.tensor, cos: tl.tensor, sin: tl.tensor
) -> tl.tuple:
    """Both halves turned, where anything turns; with -sin, turned back."""
    if side.turns is not None:
        first, second = low.to(tl.float32), high.to(tl.float32)
        low = _settled((first * cos - second * sin).to(low.dtype))
        high = _settled((second * cos + first * sin).to(high.dtype))
    return low, high


@kernel
def _halves(
    part: tl.tuple, x: tl.tuple, b: tl.tensor, h: int, at: tl.tensor, size: int
) -> tuple[tl.tensor, tl.tensor]:
    """Both halves of a head [tokens, p], with zeros where there is nothing."""
    pairs = tl.arange(0, x.shape.PAIRS)[None, :]
    start = part.data + b.to(tl.int64) * part.b + h * part.h + at[:, None] * part.n + pairs
    inside = (at[:, None] < size) & (pairs < x.shape.HALF)
    low = tl.load(start, mask=inside, other=0.0)
    inside = inside & (pairs + x.shape.HALF < x.shape.WIDTH)
    return low, tl.load(start + x.shape.HALF, mask=inside, other=0.0)


@kernel
def _put_halves(
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
    inside = inside & (pairs + x.shape.HALF < x.shape.WIDTH)
    tl.store(start + x.shape.HALF, high.to(part.data.dtype.element_ty), mask=inside)


@kernel
def _weights(
    q_low: tl.tensor,
    q_high: tl.tensor,
    k_low: tl.tensor,
    k_high: tl.tensor,
    seen: tl.tensor,
    x: tl.tuple,
) -> tl.tensor:
    """softmax(q kᵀ · scale) over what is seen [R, C]; zeros for a query that sees nothing."""
    scores = tl.dot(q_low, tl.trans(k_low), input_precision=x.shape.PRECISION)
    scores = tl.dot(q_high, tl.trans(k_high), scores, input_precision=x.shape.PRECISION)
    scores = tl.where(seen, scores * (x.scale * LOG2E), HIDDEN)
    weights = tl.exp2(scores - tl.max(scores, axis=1)[:, None])
    weights = tl.where(seen, weights, 0.0)
    total = tl.sum(weights, axis=1)
    return weights / tl.where(total > 0.0, total, 1.0)[:, None]


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
    """One of BLOCKS blocks of queries of one head of one text: its output."""
    head = tl.program_id(0) // BLOCKS
    b, h = head // heads, head % heads
    g, n, m = h // x.shape.SHARE, _even(x.n), _even(x.m)
    rows, columns = tl.program_id(0) % BLOCKS * R + tl.arange(0, R), tl.arange(0, C)
    q_low, q_high = _halves(x.q, x, b, h, rows, n)
    k_low, k_high = _halves(x.k, x, b, g, columns, m)
    v_cd = load(x.v, x.shape, b, g, columns, m)
    cos, sin = _turn(x, x.queries, b, rows, n, False)
    q_low, q_high = _turned(x.queries, q_low, q_high, cos, sin)
    cos, sin = _turn(x, x.keys, b, columns, m, False)
    k_low, k_high = _turned(x.keys, k_low, k_high, cos, sin)
    seen = _seen(x, b, rows, columns, n, m)
    weights = _weights(q_low, q_high, k_low, k_high, seen, x)
    mixed = tl.dot(weights.to(v_cd.dtype), v_cd, input_precision=x.shape.PRECISION)
    store(mixed, out, x.shape, b, h, rows, n)


@kernel
def _backward(
    x: tl.tuple,
    d_out: tl.tuple,
    dq: tl.tuple,
    dk: tl.tuple,
    dv: tl.tuple,
    heads: int,
    BLOCKS: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
) -> None:
    """One key head of one text, and all queries of all heads that read it: their gradients."""
    b, g = tl.program_id(0) // heads, tl.program_id(0) % heads
    n, m, columns = _even(x.n), _even(x.m), tl.arange(0, C)
    k_low, k_high = _halves(x.k, x, b, g, columns, m)
    v_cd = load(x.v, x.shape, b, g, columns, m)
    k_cos, k_sin = _turn(x, x.keys, b, columns, m, False)
    k_low, k_high = _turned(x.keys, k_low, k_high, k_cos, k_sin)
    dk_low = tl.zeros([C, x.shape.PAIRS], tl.float32)
    dk_high = tl.zeros([C, x.shape.PAIRS], tl.float32)
    dv_cd = tl.zeros([C, x.shape.D], tl.float32)
    for i in range(x.shape.SHARE * BLOCKS):
        h, rows = g * x.shape.SHARE + i // BLOCKS, i % BLOCKS * R + tl.arange(0, R)
        q_low, q_high = _halves(x.q, x, b, h, rows, n)
        d_out_rd = load(d_out, x.shape, b, h, rows, n)
        cos, sin = _turn(x, x.queries, b, rows, n, False)
        q_low, q_high = _turned(x.queries, q_low, q_high, cos, sin)
        seen = _seen(x, b, rows, columns, n, m)
        weights = _weights(q_low, q_high, k_low, k_high, seen, x)
        d_weights = tl.dot(d_out_rd, tl.trans(v_cd), input_precision=x.shape.PRECISION)
        lost = tl.sum(weights * d_weights, axis=1)
        d_scores = (weights * (d_weights - lost[:, None])).to(q_low.dtype)
        back = tl.trans(weights.to(d_out_rd.dtype))
        dv_cd = tl.dot(back, d_out_rd, dv_cd, input_precision=x.shape.PRECISION)
        back = tl.trans(d_scores)
        dk_low = tl.dot(back, q_low, dk_low, input_precision=x.shape.PRECISION)
        dk_high = tl.dot(back, q_high, dk_high, input_precision=x.shape.PRECISION)
        dq_low = tl.dot(d_scores, k_low, input_precision=x.shape.PRECISION) * x.scale
        dq_high = tl.dot(d_scores, k_high, input_precision=x.shape.PRECISION) * x.scale
        cos, sin = _turn(x, x.queries, b, rows, n, True)
        dq_low, dq_high = _turned(x.queries, dq_low, dq_high, cos, -sin)
        _put_halves(dq_low, dq_high, dq, x, b, h, rows, n)
    k_cos, k_sin = _turn(x, x.keys, b, columns, m, True)
    dk_low, dk_high = _turned(x.keys, dk_low * x.scale, dk_high * x.scale, k_cos, -k_sin)
    _put_halves(dk_low, dk_high, dk, x, b, g, columns, m)
    store(dv_cd, dv, x.shape, b, g, columns, m)


# ----------------------------------------------------------------------------------------- launch


class Tiling(NamedTuple):
    """Queries at a time, and how a GPU works on them."""

    rows: int
    warps: int
    registers: int | None = None


TILINGS = {
    "forward": {32: Tiling(32, 2), 64: Tiling(64, 4), 128: Tiling(64, 4)},
    "backward": {32: Tiling(32, 2, 160), 64: Tiling(64, 4, 168), 128: Tiling(128, 8)},
}
"""By the longer of queries and keys, for heads of 64 numbers of 16 bits: what spills no register
and leaves room for several programs on one processor."""


def tiling(kernel: str, longest: int, call: Call) -> Tiling:
    """Sizes that fit: wider heads and float32 take more room."""
    if call.q.element_size() > 2:
        return Tiling(16, 4 if longest <= 64 else 8)
    if call.q.shape[-1] > 64:
        return Tiling(32, 4 if longest <= 64 else 8)
    return TILINGS[kernel][longest]


def forward(call: Call, out: Tensor) -> None:
    """Attention, written to `out` [b, h, n, d]."""
    b, heads, sizes = *call.q.shape[:2], _sizes("forward", call)
    if out.numel():
        grid = (b * heads * sizes["BLOCKS"],)
        _forward[grid](_inputs(call), laid(out), heads, **sizes)


def backward(call: Call, d_out: Tensor, grads: list[Tensor]) -> None:
    """The gradients of q, k and v, written to three tensors of their shapes."""
    b, heads, sizes = *call.k.shape[:2], _sizes("backward", call)
    if d_out.numel():
        given = [laid(x) for x in (d_out, *grads)]
        _backward[(b * heads,)](_inputs(call), *given, heads, **sizes)


def _sizes(kernel: str, call: Call) -> dict[str, int]:
    # One size for both, for every pair of sizes would be compiled for itself.
    longest = max(32, triton.next_power_of_2(max(call.q.shape[2], call.k.shape[2])))
    rows, warps, registers = tiling(kernel, longest, call)
    rows = min(longest, rows)
    sizes = {"BLOCKS": longest // rows, "R": rows, "C": longest}
    sizes |= {"num_warps": warps, "num_stages": 1}
    return sizes if registers is None else sizes | {"maxnreg": registers}


def _inputs(call: Call) -> Inputs:
    n, m, width = call.q.shape[2], call.k.shape[2], call.q.shape[3]
    half = triton.cdiv(width, 2)
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
        _side(call.q_turns, call.q_segments, None),
        _side(call.k_turns, call.k_segments, call.real),
        odd(n),
        odd(m),
        call.scale,
        Shape(*(tl.constexpr(value) for value in constants)),
    )


def _side(turns: Tensor | None, segments: Tensor | None, real: Tensor | None) -> Side:
    """Tensors [b or 1, …] without gaps, and steps of 0 where all rows of the batch share one."""
    told = [None if x is None else x.contiguous() for x in (turns, segments, real)]
    steps = [0 if x is None or x.shape[0] == 1 else x.stride(0) for x in told]
    return Side(told[0], steps[0], told[1], odd(steps[1]), told[2], odd(steps[2]))
