"""Pack heads into one tensor, in one pass over memory.

Shapes: b batch, n tokens, d head width, w all heads · d.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from heed.nn.kernels.triton import kernel
from heed.nn.kernels.triton.tile import Heads

TOKENS, HEADS = 16, 4
"""Tokens and heads that one program copies."""


class Part(NamedTuple):
    """Some heads: source, destination, how many, and which programs copy them."""

    source: Heads
    target: Heads
    heads: int
    first: int
    last: int


def laid(x: Tensor) -> Heads:
    """A tensor [b, heads, n, d] and its strides; copied if its last dimension is not contiguous."""
    x = x if x.stride(-1) == 1 else x.contiguous()
    return Heads(x, *x.stride()[:3])


@kernel
def _copy(
    part: tl.tuple,
    n: int,
    WIDTH: tl.constexpr,
    D: tl.constexpr,
    TOKENS: tl.constexpr,
    HEADS: tl.constexpr,
) -> None:
    b = tl.program_id(2).to(tl.int64)
    rows = (tl.program_id(0) * TOKENS + tl.arange(0, TOKENS))[:, None]
    columns = tl.arange(0, D)[None, :]
    get = part.source.data + b * part.source.b + rows.to(tl.int64) * part.source.n + columns
    put = part.target.data + b * part.target.b + rows.to(tl.int64) * part.target.n + columns
    inside = (rows < n) & (columns < WIDTH)
    for i in tl.static_range(HEADS):
        h = (tl.program_id(1) - part.first) * HEADS + i
        values = tl.load(get + h * part.source.h, mask=inside & (h < part.heads), other=0.0)
        tl.store(put + h * part.target.h, values, mask=inside & (h < part.heads))


@kernel
def _pack(
    parts: tl.tuple,
    n: int,
    COUNT: tl.constexpr,
    WIDTH: tl.constexpr,
    D: tl.constexpr,
    TOKENS: tl.constexpr,
    HEADS: tl.constexpr,
) -> None:
    for i in tl.static_range(COUNT):
        if (tl.program_id(1) >= parts[i].first) & (tl.program_id(1) < parts[i].last):
            _copy(parts[i], n, WIDTH, D, TOKENS, HEADS)


def pack(parts: list[Tensor], outs: list[Tensor]) -> None:
    """Copy tensors [b, heads, n, d] to others of their shapes."""
    b, _, n, d = parts[0].shape
    described, blocks = [], 0
    for x, out in zip(parts, outs, strict=True):
        first, blocks = blocks, blocks + triton.cdiv(x.shape[1], HEADS)
        described.append(Part(laid(x), laid(out), x.shape[1], first, blocks))
    if b * n * blocks:
        _pack[(triton.cdiv(n, TOKENS), blocks, b)](
            tuple(described),
            n,
            COUNT=len(described),
            WIDTH=d,
            D=triton.next_power_of_2(d),
            TOKENS=TOKENS,
            HEADS=HEADS,
        )
