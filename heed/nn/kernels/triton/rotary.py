"""Rotary position embedding: rotate pairs of dimensions by position, in one pass over memory.

Shapes: b batch, n tokens, d head width; dimensions i and i + d/2 are a pair.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from heed.nn.kernels.qkv_layout import empty_heads
from heed.nn.kernels.triton import kernel
from heed.nn.kernels.triton.tile import Heads

TOKENS, HEADS = 16, 4
"""Tokens and heads of one program, which computes each angle once for all its heads."""


@kernel
def _rotate(
    first: tl.tuple,
    first_out: tl.tuple,
    first_heads: int,
    second: tl.tuple,
    second_out: tl.tuple,
    second_heads: int,
    positions: tl.tensor,
    positions_b: int,
    frequencies: tl.tensor,
    n: int,
    direction: float,
    HALF: tl.constexpr,
    PAIRS: tl.constexpr,
    TOKENS: tl.constexpr,
    HEADS: tl.constexpr,
) -> None:
    """Some tokens of some heads, of the first or of the second tensor."""
    b = tl.program_id(2).to(tl.int64)
    rows = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    pairs = tl.arange(0, PAIRS)
    position = tl.load(positions + b * positions_b + rows, mask=rows < n, other=0)
    frequency = tl.load(frequencies + pairs, mask=pairs < HALF, other=0.0)
    angle = position.to(tl.float32)[:, None] * frequency[None, :]
    cos, sin = tl.cos(angle), tl.sin(angle) * direction
    inside = (rows[:, None] < n) & (pairs[None, :] < HALF)
    group = tl.program_id(1)
    if group < tl.cdiv(first_heads, HEADS):
        heads = first_heads
        get = first.data + b * first.b + rows[:, None] * first.n
        put = first_out.data + b * first_out.b + rows[:, None] * first_out.n
        get_h, put_h = first.h, first_out.h
    else:
        group = group - tl.cdiv(first_heads, HEADS)
        heads = second_heads
        get = second.data + b * second.b + rows[:, None] * second.n
        put = second_out.data + b * second_out.b + rows[:, None] * second_out.n
        get_h, put_h = second.h, second_out.h
    for i in tl.static_range(HEADS):
        h = group * HEADS + i
        here = inside & (h < heads)
        x = tl.load(get + h * get_h + pairs[None, :], mask=here, other=0.0).to(tl.float32)
        y = tl.load(get + h * get_h + pairs[None, :] + HALF, mask=here, other=0.0).to(tl.float32)
        at = put + h * put_h + pairs[None, :]
        tl.store(at, (x * cos - y * sin).to(at.dtype.element_ty), mask=here)
        tl.store(at + HALF, (y * cos + x * sin).to(at.dtype.element_ty), mask=here)


def rotate(
    first: Tensor, second: Tensor, positions: Tensor, frequencies: Tensor, direction: float
) -> tuple[Tensor, Tensor]:
    """Two tensors [b, heads, n, d], rotated by position · frequency (direction 1) or back (-1)."""
    parts = [x if x.stride(-1) == 1 else x.contiguous() for x in (first, second)]
    outs, positions = [empty_heads(x) for x in parts], positions.contiguous()
    b, _, n, d = first.shape
    sides: list[object] = []
    for x, out in zip(parts, outs, strict=True):
        sides += [Heads(x, *x.stride()[:3]), Heads(out, *out.stride()[:3]), x.shape[1]]
    groups = sum(triton.cdiv(x.shape[1], HEADS) for x in parts)
    if groups and b * n:
        _rotate[(triton.cdiv(n, TOKENS), groups, b)](
            *sides,
            positions,
            0 if positions.shape[0] == 1 else n,
            frequencies,
            n,
            direction,
            HALF=d // 2,
            PAIRS=triton.next_power_of_2(d // 2),
            TOKENS=TOKENS,
            HEADS=HEADS,
        )
    return outs[0], outs[1]
