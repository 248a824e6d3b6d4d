"""Cross-entropy of rows of logits; its gradient overwrites them.

A program takes one row and reads it twice: for the softmax's maximum and sum, kept per lane and
combined at the end, then to write the gradient. The second time most of the row is still in the
cache. Shapes: r rows, v vocabulary.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from heed.nn.kernels.triton import kernel
from heed.nn.kernels.triton.tile import HIDDEN

LANES, PARTS, LANES_A_WARP, REGISTERS = 2048, 4, 256, 80
"""A program reads PARTS x LANES logits at a time, at most; a thread's lanes are 16 bytes of
bfloat16. With so few registers three of the largest programs share one multiprocessor."""
READS = 4
"""A row is read in about as many parts: fewer warps then wait for each other at its sums."""
CELLS, CELL_WARPS = 8192, 8
"""Numbers that a program scales, and its warps. Most programs find that there is nothing to do."""


@kernel
def load_own_logit(at: tl.tensor, target: tl.tensor, v: int) -> tl.tensor:
    """The target's logit, NaN for a target outside the vocabulary, which has no logit to read."""
    known = (target >= 0) & (target < v)
    return tl.load(at + target, mask=known, other=float("nan")).to(tl.float32)


@kernel
def softmax_of_row(
    at: tl.tensor,
    own: tl.tensor,
    v: int,
    SMOOTHING: tl.constexpr,
    PARTS: tl.constexpr,
    LANES: tl.constexpr,
) -> tl.tuple:
    """The largest logit, log Σ exp(x - largest), and the sum of x - own if labels are smoothed."""
    tile = tl.arange(0, PARTS)[:, None] * LANES + tl.arange(0, LANES)[None, :]
    best, total = tl.full([LANES], HIDDEN, tl.float32), tl.zeros([LANES], tl.float32)
    ahead = tl.zeros([LANES], tl.float32)
    whole = v // (PARTS * LANES) * (PARTS * LANES)
    for start in range(0, whole, PARTS * LANES):
        x = tl.load(at + start + tile, eviction_policy="evict_last").to(tl.float32)
        better = tl.maximum(best, tl.max(x, axis=0))
        total = total * tl.exp(best - better) + tl.sum(tl.exp(x - better[None, :]), axis=0)
        best = better
        if SMOOTHING > 0:
            ahead += tl.sum(x - own, axis=0)
    if whole < v:
        columns = whole + tile
        x = tl.load(at + columns, mask=columns < v, other=float("-inf")).to(tl.float32)
        better = tl.maximum(best, tl.max(x, axis=0))
        total = total * tl.exp(best - better) + tl.sum(tl.exp(x - better[None, :]), axis=0)
        best = better
        if SMOOTHING > 0:
            ahead += tl.sum(tl.where(columns < v, x - own, 0.0), axis=0)
    top = tl.max(best, axis=0)
    log_total = tl.log(tl.sum(total * tl.exp(best - top), axis=0))
    return top, log_total, tl.sum(ahead, axis=0)


@kernel
def is_prediction(
    at: tl.tensor,
    own: tl.tensor,
    top: tl.tensor,
    target: tl.tensor,
    PARTS: tl.constexpr,
    LANES: tl.constexpr,
) -> tl.tensor:
    """1 if the target has the largest logit, the first of equal ones as in argmax; else 0."""
    tile = tl.arange(0, PARTS)[:, None] * LANES + tl.arange(0, LANES)[None, :]
    equal = tl.zeros([LANES], tl.int32)
    if own == top:
        before = target.to(tl.int32)
        for start in range(0, before, PARTS * LANES):
            columns = start + tile
            x = tl.load(at + columns, mask=columns < before, other=float("-inf")).to(tl.float32)
            equal = tl.maximum(equal, tl.max((x == own).to(tl.int32), axis=0))
    return (own == top).to(tl.int32) - tl.max(equal, axis=0)


@kernel
def store_zeros(at: tl.tensor, step: int, v: int, PARTS: tl.constexpr, LANES: tl.constexpr) -> None:
    """Overwrite a row and its padding by zeros."""
    tile = tl.arange(0, PARTS)[:, None] * LANES + tl.arange(0, LANES)[None, :]
    for start in range(0, v, PARTS * LANES):
        columns = start + tile
        nothing = tl.zeros([PARTS, LANES], at.dtype.element_ty)
        tl.store(at + columns, nothing, mask=columns < step)


@kernel
def _cross_entropy(
    logits: tl.tensor,
    step: int,
    targets: tl.tensor,
    losses: tl.tensor,
    correct: tl.tensor,
    levels: tl.tensor | None,
    v: int,
    IGNORED: tl.constexpr,
    SMOOTHING: tl.constexpr,
    GRADIENT: tl.constexpr,
    PARTS: tl.constexpr,
    LANES: tl.constexpr,
) -> None:
    """One row: its loss, whether its prediction is correct, and the gradient of its logits."""
    row = tl.program_id(0).to(tl.int64)
    at = logits + row * step
    target = tl.load(targets + row)
    if target == IGNORED:
        tl.store(losses + row, 0.0)
        tl.store(correct + row, 0)
        if GRADIENT:
            store_zeros(at, step, v, PARTS, LANES)
    else:
        own = load_own_logit(at, target, v)
        top, log_total, ahead = softmax_of_row(at, own, v, SMOOTHING, PARTS, LANES)
        loss = (top - own) + log_total
        if SMOOTHING > 0:
            loss -= SMOOTHING * (ahead / v)
        tl.store(losses + row, loss)
        tl.store(correct + row, is_prediction(at, own, top, target, PARTS, LANES))
        if levels is not None:
            tl.store(levels + row, top + log_total)
        if GRADIENT:
            level, spread = top + log_total, SMOOTHING / v
            tile = tl.arange(0, PARTS)[:, None] * LANES + tl.arange(0, LANES)[None, :]
            for start in range(0, v, PARTS * LANES):
                columns = start + tile
                x = tl.load(at + columns, mask=columns < step, eviction_policy="evict_first")
                d = tl.exp(x.to(tl.float32) - level) - spread
                if (target >= start) & (target < start + PARTS * LANES):
                    d = tl.where(columns == target, d - (1 - SMOOTHING), d)
                # Padding counts in the products with the gradient: it must be zero.
                d = tl.where(columns < v, d, 0.0)
                tl.store(at + columns, d.to(at.dtype.element_ty), mask=columns < step)


@kernel
def _scale(x: tl.tensor, factor: tl.tensor, n: int, CELLS: tl.constexpr) -> None:
    by = tl.load(factor).to(tl.float32)
    if by != 1.0:
        cell = tl.program_id(0).to(tl.int64) * CELLS + tl.arange(0, CELLS)
        y = tl.load(x + cell, mask=cell < n).to(tl.float32) * by
        tl.store(x + cell, y.to(x.dtype.element_ty), mask=cell < n)


def scale(x: Tensor, factor: Tensor) -> Tensor:
    """x · factor, a tensor of one number, in place of x, which is contiguous.

    With a factor of 1 no memory is read, which the host could learn only by waiting for the GPU.
    """
    if n := x.numel():
        _scale[(triton.cdiv(n, CELLS),)](x, factor, n, CELLS=CELLS, num_warps=CELL_WARPS)
        torch.autograd.graph.increment_version(x)
    return x


def chunk_cross_entropy(
    logits_rv: Tensor,
    targets_r: Tensor,
    losses_r: Tensor,
    correct_r: Tensor,
    ignore_index: int,
    smoothing: float,
    gradient: bool,
    levels_r: Tensor | None = None,
) -> Tensor:
    """Write each row's loss (float32) and whether it is correct (int32); return the gradient.

    The gradient, if needed, overwrites the logits, and zeros the padding between two rows: with
    padded rows a thread moves 16 bytes at once, whatever the size of the vocabulary. `levels_r`, if
    given, gets the logarithm of the softmax's denominator of every row whose target is not ignored.
    """
    rows, v = logits_rv.shape
    lanes = min(LANES, max(64, triton.next_power_of_2(v) // (PARTS * READS)))
    _cross_entropy[(rows,)](
        logits_rv,
        logits_rv.stride(0),
        targets_r,
        losses_r,
        correct_r,
        levels_r,
        v,
        IGNORED=ignore_index,
        SMOOTHING=smoothing,
        GRADIENT=gradient,
        PARTS=min(PARTS, triton.next_power_of_2(triton.cdiv(v, lanes))),
        LANES=lanes,
        num_warps=max(1, lanes // LANES_A_WARP),
        maxnreg=REGISTERS,
    )
    return logits_rv
