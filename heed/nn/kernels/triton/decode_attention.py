"""Attention of a decoding step: few queries over many keys, bound by memory.

One program processes all queries that read one key head of a sequence, so each key and value is
read once. Cells that are not written yet are not read, nor cells beyond a sequence's end; the
program reads from tensors where those begin.

A program multiplies all R queries by C keys at a time. Float32 products are exact (ieee): the
kernel waits for memory anyway. Shapes: b batch, n queries, m keys, h query heads, g key and value
heads, d head width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from heed.nn.kernels.triton import kernel
from heed.nn.kernels.triton.pack_heads import laid
from heed.nn.kernels.triton.tile import HIDDEN, LOG2E, Heads

C, WARPS, STAGES = 64, 2, 2
"""Keys per step, warps, and pipeline stages: fastest on an H200 in float32, with one query and with
five."""


class Call(NamedTuple):
    """The arguments of one attention."""

    q: Tensor
    k: Tensor
    v: Tensor
    visible: Tensor
    """[b, n, m]; strides may be 0."""
    bias: Tensor | None
    """[b, h, n, m]; strides may be 0."""
    cells: Tensor | None
    """The cache cell of each query; nothing is written beyond the last. None: all may be read."""
    ends: Tensor | None
    """How many keys the queries of each sequence may read."""
    scale: float


class Bias(NamedTuple):
    """A dense bias, or None, and its strides."""

    data: Tensor | None
    b: int
    h: int
    n: int


class Inputs(NamedTuple):
    """Everything attention reads except the mask."""

    q: Heads
    k: Heads
    v: Heads
    bias: Bias
    cells: Tensor | None
    ends: Tensor | None
    scale: float


# ---------------------------------------------------------------------------------------- kernels


@kernel
def _attend(
    x: tl.tuple,
    out: tl.tuple,
    visible: tl.tensor,
    visible_b: int,
    visible_n: int,
    size: int,
    heads: int,
    N: tl.constexpr,
    SHARE: tl.constexpr,
    WIDTH: tl.constexpr,
    D: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
    STAGES: tl.constexpr,
) -> None:
    """All queries of one key head of one sequence, with a running softmax over tiles of keys."""
    b, g = (tl.program_id(0) // heads).to(tl.int64), tl.program_id(0) % heads
    row, width = tl.arange(0, R), tl.arange(0, D)[None, :]
    h, n, there = (g * SHARE + row // N)[:, None], (row % N)[:, None], (row < SHARE * N)[:, None]
    inside = there & (width < WIDTH)
    q_rd = tl.load(x.q.data + b * x.q.b + h * x.q.h + n * x.q.n + width, mask=inside, other=0.0)
    k_start, v_start = x.k.data + b * x.k.b + g * x.k.h, x.v.data + b * x.v.b + g * x.v.h
    end = size
    if x.cells is not None:
        end = tl.minimum(end, tl.load(x.cells + N - 1).to(tl.int32) + 1)
    if x.ends is not None:
        end = tl.minimum(end, tl.load(x.ends + b).to(tl.int32))
    best, total = tl.full([R], HIDDEN, tl.float32), tl.zeros([R], tl.float32)
    mixed = tl.zeros([R, D], tl.float32)
    for start in tl.range(0, end, C, num_stages=STAGES):
        column, cell = start + tl.arange(0, C)[None, :], start + tl.arange(0, C)[:, None]
        written = (cell < end) & (width < WIDTH)
        k_cd = tl.load(k_start + cell * x.k.n + width, mask=written, other=0.0)
        v_cd = tl.load(v_start + cell * x.v.n + width, mask=written, other=0.0)
        table = visible + b * visible_b + n * visible_n + column
        seen = tl.load(table, mask=there & (column < end), other=0) != 0
        scores = tl.dot(q_rd, tl.trans(k_cd), input_precision="ieee") * (x.scale * LOG2E)
        if x.bias.data is not None:
            added = x.bias.data + b * x.bias.b + h * x.bias.h + n * x.bias.n + column
            scores += tl.load(added, mask=seen, other=0.0).to(tl.float32) * LOG2E
        scores = tl.where(seen, scores, HIDDEN)
        higher = tl.maximum(best, tl.max(scores, axis=1))
        weights = tl.where(seen, tl.exp2(scores - higher[:, None]), 0.0)
        faded = tl.exp2(best - higher)
        total = total * faded + tl.sum(weights, axis=1)
        mixed = mixed * faded[:, None]
        mixed = tl.dot(weights.to(v_cd.dtype), v_cd, mixed, input_precision="ieee")
        best = higher
    mixed = mixed / tl.where(total > 0.0, total, 1.0)[:, None]
    to = out.data + b * out.b + h * out.h + n * out.n + width
    tl.store(to, mixed.to(out.data.dtype.element_ty), mask=inside)


@kernel
def _write_kv(
    new: tl.tuple,
    buffers: tl.tuple,
    cells: tl.tensor,
    heads: int,
    COUNT: tl.constexpr,
    N: tl.constexpr,
    WIDTH: tl.constexpr,
    D: tl.constexpr,
    R: tl.constexpr,
) -> None:
    """Write the new keys and values of one key head of one sequence into their cells."""
    b, g = (tl.program_id(0) // heads).to(tl.int64), tl.program_id(0) % heads
    row, width = tl.arange(0, R)[:, None], tl.arange(0, D)[None, :]
    inside = (row < N) & (width < WIDTH)
    cell = tl.load(cells + row, mask=row < N, other=0)
    for i in tl.static_range(COUNT):
        get = new[i].data + b * new[i].b + g * new[i].h + row * new[i].n + width
        to = buffers[i].data + b * buffers[i].b + g * buffers[i].h + cell * buffers[i].n + width
        tl.store(to, tl.load(get, mask=inside, other=0.0), mask=inside)


# ----------------------------------------------------------------------------------------- launch


def attend(call: Call, out: Tensor) -> None:
    """Attention, written to `out` [b, h, n, d]."""
    (b, heads, size, width), n = call.k.shape, call.q.shape[2]
    share = call.q.shape[1] // heads
    visible = call.visible if call.visible.stride(2) == 1 else call.visible.contiguous()
    bias = Bias(None, 0, 0, 0)
    if call.bias is not None:
        data = call.bias if call.bias.stride(3) == 1 else call.bias.contiguous()
        bias = Bias(data, *data.stride()[:3])
    if out.numel():
        _attend[(b * heads,)](
            Inputs(
                laid(call.q), laid(call.k), laid(call.v), bias, call.cells, call.ends, call.scale
            ),
            laid(out),
            visible,
            *visible.stride()[:2],
            size,
            heads,
            N=n,
            SHARE=share,
            WIDTH=width,
            D=max(16, triton.next_power_of_2(width)),
            R=triton.next_power_of_2(n * share),
            C=C,
            STAGES=STAGES,
            num_warps=WARPS,
        )


def write_kv(new: Sequence[Tensor], buffers: Sequence[Tensor], cells: Tensor) -> None:
    """Write tensors [b, g, n, d] into their cells of buffers [b, g, m, d]."""
    b, heads, n, width = new[0].shape
    if new[0].numel():
        _write_kv[(b * heads,)](
            tuple(laid(x) for x in new),
            tuple(laid(x) for x in buffers),
            cells,
            heads,
            COUNT=len(new),
            N=n,
            WIDTH=width,
            D=triton.next_power_of_2(width),
            R=triton.next_power_of_2(n),
            num_warps=1,
        )
