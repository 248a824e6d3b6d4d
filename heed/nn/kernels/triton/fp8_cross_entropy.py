"""Passes over memory around 8-bit matrix products: rounding of factors, the gradient of logits.

A program takes one tile, rounds it, and writes it twice, as it lies and transposed. Padding of rows
and columns is written as zeros.

No 8-bit number moves from one thread to another, because Triton 3.6 loses some of those. Pairs of
adjacent columns are read as one integer of 32 bits and written as one of 16. Four adjacent rows of
a column are packed into an integer of 32 bits, and such integers are transposed.

Shapes: n rows, r rows of a chunk, v vocabulary, w width.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from heed.nn.kernels.fp8_cross_entropy import GRADIENT_FACTOR
from heed.nn.kernels.triton import kernel
from heed.nn.kernels.triton.tile import LOG2E

FACTOR, LOG2_FACTOR = tl.constexpr(GRADIENT_FACTOR), tl.constexpr(math.log2(GRADIENT_FACTOR))
QUANTIZE_ROWS, QUANTIZE_COLUMNS, QUANTIZE_WARPS = 64, 64, 4
"""Tile and warps of `quantize`: half a cache line of 8-bit numbers each way."""
GRADIENT_ROWS, GRADIENT_COLUMNS, GRADIENT_WARPS = 64, 128, 8
"""Tile and warps of `logits_gradient`."""


@kernel
def _load_pairs(
    pairs: tl.tensor, row: tl.tensor, column: tl.tensor, end: tl.tensor, half: int
) -> tl.tuple:
    """Numbers of even and of odd columns in float32, zeros where a row's `end` is 0.

    `pairs` are two bfloat16 numbers each, `half` of them in a row, `column` is a pair's number.
    """
    inside = column[None, :] < end[:, None]
    bits = tl.load(pairs + row.to(tl.int64)[:, None] * half + column[None, :], mask=inside, other=0)
    return (bits << 16).to(tl.float32, bitcast=True), (bits & -65536).to(tl.float32, bitcast=True)


@kernel
def _round(values: tl.tensor, TYPE: tl.constexpr) -> tl.tensor:
    """Numbers rounded to 8 bits, each in an integer of 32 bits."""
    return values.to(TYPE).to(tl.uint8, bitcast=True).to(tl.int32)


@kernel
def _store_pairs(
    even: tl.tensor,
    odd: tl.tensor,
    y: tl.tensor,
    row: tl.tensor,
    column: tl.tensor,
    rows: int,
    half: int,
) -> None:
    """Write rounded numbers of even and of odd columns to y [rows, half], two in 16 bits."""
    inside = (row < rows)[:, None] & (column < half)[None, :]
    at = y + row.to(tl.int64)[:, None] * half + column[None, :]
    tl.store(at, (even | (odd << 8)).to(tl.int16), mask=inside)


@kernel
def _store_fours(
    packed: tl.tensor, y_t: tl.tensor, four: tl.tensor, column: tl.tensor, fours: int, columns: int
) -> None:
    """Write four rows of some columns at once to y_t [columns, fours], transposed."""
    inside = (column < columns)[:, None] & (four < fours)[None, :]
    at = y_t + column.to(tl.int64)[:, None] * fours + four[None, :]
    tl.store(at, tl.trans(packed), mask=inside)


@kernel
def _quantize(
    pairs: tl.tensor,
    inverse: tl.tensor,
    y: tl.tensor,
    y_t: tl.tensor,
    n: int,
    rows: int,
    columns: int,
    TYPE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    across, half = tl.cdiv(columns, COLUMNS), columns // 2
    four = tl.program_id(0) // across * (ROWS // 4) + tl.arange(0, ROWS // 4)
    column = tl.program_id(0) % across * (COLUMNS // 2) + tl.arange(0, COLUMNS // 2)
    factor = tl.load(inverse)
    even = tl.zeros([ROWS // 4, COLUMNS // 2], tl.int32)
    odd = tl.zeros([ROWS // 4, COLUMNS // 2], tl.int32)
    for i in tl.static_range(4):
        row = 4 * four + i
        first, second = _load_pairs(pairs, row, column, tl.where(row < n, half, 0), half)
        first, second = _round(first * factor, TYPE), _round(second * factor, TYPE)
        _store_pairs(first, second, y, row, column, rows, half)
        even |= first << (8 * i)
        odd |= second << (8 * i)
    _store_fours(even, y_t, four, 2 * column, rows // 4, columns)
    _store_fours(odd, y_t, four, 2 * column + 1, rows // 4, columns)


@kernel
def _gradient_of(
    x: tl.tensor,
    level: tl.tensor,
    spread: tl.tensor,
    target: tl.tensor,
    column: tl.tensor,
    size: int,
    SMOOTHING: tl.constexpr,
) -> tl.tensor:
    """The gradient of the logits x of some columns, times FACTOR; zeros from column `size` on."""
    values = tl.exp2(x * LOG2E - level[:, None])
    if SMOOTHING > 0:
        values -= spread[:, None]
    is_target = column[None, :] == target[:, None]
    values = tl.where(is_target, values - (1 - SMOOTHING) * FACTOR, values)
    return tl.where((column < size)[None, :], values, 0.0)


@kernel
def _logits_gradient(
    pairs: tl.tensor,
    targets: tl.tensor,
    levels: tl.tensor,
    d: tl.tensor,
    d_t: tl.tensor,
    r: int,
    size: int,
    rows: int,
    columns: int,
    TYPE: tl.constexpr,
    IGNORED: tl.constexpr,
    SMOOTHING: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    across, half = tl.cdiv(columns, COLUMNS), columns // 2
    four = tl.program_id(0) // across * (ROWS // 4) + tl.arange(0, ROWS // 4)
    column = tl.program_id(0) % across * (COLUMNS // 2) + tl.arange(0, COLUMNS // 2)
    even = tl.zeros([ROWS // 4, COLUMNS // 2], tl.int32)
    odd = tl.zeros([ROWS // 4, COLUMNS // 2], tl.int32)
    for i in tl.static_range(4):
        row = 4 * four + i
        target = tl.load(targets + row, mask=row < r, other=IGNORED)
        counted = target != IGNORED
        target = tl.where((target >= 0) & (target < size), target, -1).to(tl.int32)
        # Rows that do not count are not read: their exponentials are 2 to the power of -inf.
        level = tl.load(levels + row, mask=counted, other=float("inf"))
        level = level * LOG2E - LOG2_FACTOR
        spread = tl.where(counted, SMOOTHING * FACTOR / size, 0.0)
        first, second = _load_pairs(pairs, row, column, tl.where(counted, half, 0), half)
        first = _gradient_of(first, level, spread, target, 2 * column, size, SMOOTHING)
        second = _gradient_of(second, level, spread, target, 2 * column + 1, size, SMOOTHING)
        first, second = _round(first, TYPE), _round(second, TYPE)
        _store_pairs(first, second, d, row, column, rows, half)
        even |= first << (8 * i)
        odd |= second << (8 * i)
    _store_fours(even, d_t, four, 2 * column, rows // 4, columns)
    _store_fours(odd, d_t, four, 2 * column + 1, rows // 4, columns)


def quantize(x_nw: Tensor, inverse: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """x times `inverse` in float8_e4m3fn: [rows, w] and transposed [w, rows].

    x is bfloat16, `inverse` a tensor with one number. Rows after the n rows of x are zeros. `rows`
    and w are multiples of 4.
    """
    n, w = x_nw.shape
    y, y_t = (x_nw.new_empty(s, dtype=torch.float8_e4m3fn) for s in ((rows, w), (w, rows)))
    tiles = triton.cdiv(rows, QUANTIZE_ROWS) * triton.cdiv(w, QUANTIZE_COLUMNS)
    _quantize[(tiles,)](
        x_nw.contiguous().view(torch.int32),
        inverse,
        y.view(torch.int16),
        y_t.view(torch.int32),
        n,
        rows,
        w,
        TYPE=tl.float8e4nv,
        ROWS=QUANTIZE_ROWS,
        COLUMNS=QUANTIZE_COLUMNS,
        num_warps=QUANTIZE_WARPS,
    )
    return y, y_t


def logits_gradient(
    logits_rv: Tensor,
    targets_r: Tensor,
    levels_r: Tensor,
    d_rv: Tensor,
    d_vr: Tensor,
    v: int,
    ignore_index: int,
    smoothing: float,
) -> None:
    """Write the gradient of cross-entropy by logits, times `GRADIENT_FACTOR`, and its transpose.

    That is softmax - (1 - s) · onehot - s/v with label smoothing s, and zeros for ignored targets.
    Logits are bfloat16, contiguous and padded, as the gradient is: there are as many rows as
    targets, and `v` columns. `levels_r` are the logarithms of the softmax's denominators.
    """
    rows, columns = logits_rv.shape
    tiles = triton.cdiv(rows, GRADIENT_ROWS) * triton.cdiv(columns, GRADIENT_COLUMNS)
    _logits_gradient[(tiles,)](
        logits_rv.view(torch.int32),
        targets_r,
        levels_r,
        d_rv.view(torch.int16),
        d_vr.view(torch.int32),
        len(targets_r),
        v,
        rows,
        columns,
        TYPE=tl.float8e5,
        IGNORED=ignore_index,
        SMOOTHING=smoothing,
        ROWS=GRADIENT_ROWS,
        COLUMNS=GRADIENT_COLUMNS,
        num_warps=GRADIENT_WARPS,
    )
