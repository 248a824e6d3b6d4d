"""Passes over memory around 8-bit matrix products: rounding of factors, the gradient of logits.

A program takes one tile, rounds it, and writes it twice, as it lies and transposed. Padding of rows
and columns is written as zeros. Shapes: n rows, r rows of a chunk, v vocabulary, w width.
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
"""Tile and warps of `logits_gradient`: 32 numbers per thread, which needs 64 registers."""


@kernel
def _store_twice(
    values: tl.tensor,
    y: tl.tensor,
    y_t: tl.tensor,
    row: tl.tensor,
    column: tl.tensor,
    rows: int,
    columns: int,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """Write a tile [ROWS, COLUMNS] to a matrix [rows, columns] and to its transpose."""
    down, along = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    start = y + row.to(tl.int64) * columns + column
    inside = (down < rows - row)[:, None] & (along < columns - column)[None, :]
    tl.store(start + down[:, None] * columns + along[None, :], values, mask=inside)
    start = y_t + column.to(tl.int64) * rows + row
    inside = (along < columns - column)[:, None] & (down < rows - row)[None, :]
    tl.store(start + along[:, None] * rows + down[None, :], tl.trans(values), mask=inside)


@kernel
def _quantize(
    x: tl.tensor,
    inverse: tl.tensor,
    y: tl.tensor,
    y_t: tl.tensor,
    n: int,
    rows: int,
    columns: int,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    across = tl.cdiv(columns, COLUMNS)
    row, column = tl.program_id(0) // across * ROWS, tl.program_id(0) % across * COLUMNS
    down, along = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    inside = (down < n - row)[:, None] & (along < columns - column)[None, :]
    at = x + row.to(tl.int64) * columns + column + down[:, None] * columns + along[None, :]
    values = tl.load(at, mask=inside, other=0.0).to(tl.float32) * tl.load(inverse)
    rounded = values.to(y.dtype.element_ty)
    _store_twice(rounded, y, y_t, row, column, rows, columns, ROWS, COLUMNS)


@kernel
def _gradient_of(
    x: tl.tensor,
    level: tl.tensor,
    spread: tl.tensor,
    target: tl.tensor,
    along: tl.tensor,
    end: int,
    SMOOTHING: tl.constexpr,
) -> tl.tensor:
    """The gradient of the logits x of some columns of a tile, times FACTOR.

    `target` is the target's column in the tile, `end` the tile's columns before the padding.
    """
    values = tl.exp2(x * LOG2E - level[:, None])
    if SMOOTHING > 0:
        values -= spread[:, None]
    is_target = along[None, :] == target[:, None]
    values = tl.where(is_target, values - (1 - SMOOTHING) * FACTOR, values)
    return tl.where((along < end)[None, :], values, 0.0)


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
    IGNORED: tl.constexpr,
    SMOOTHING: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """One tile of the gradient. Two bfloat16 logits are read as one integer of 32 bits.

    Where it sees a conversion from 16 bits, Triton computes the tile twice, once for each layout in
    which it is stored.
    """
    across = tl.cdiv(columns, COLUMNS)
    row, column = tl.program_id(0) // across * ROWS, tl.program_id(0) % across * COLUMNS
    down, along = tl.arange(0, ROWS), tl.arange(0, COLUMNS // 2)
    target = tl.load(targets + row + down, mask=down < r - row, other=IGNORED)
    counted = target != IGNORED
    # The target's column in this tile, in 32 bits; -1 where it lies in another.
    near = counted & (target >= column) & (target < column + COLUMNS)
    target_column = tl.where(near, target - column, -1).to(tl.int32)
    # Rows that do not count are not read: their exponentials are 2 to the power of -inf.
    level = tl.load(levels + row + down, mask=counted, other=float("inf"))
    level = level * LOG2E - LOG2_FACTOR
    spread = tl.where(counted, SMOOTHING * FACTOR / size, 0.0)
    half, start = columns // 2, row.to(tl.int64) * (columns // 2) + column // 2
    inside = counted[:, None] & (along < half - column // 2)[None, :]
    at = pairs + start + down[:, None] * half + along[None, :]
    bits = tl.load(at, mask=inside, other=0)
    first = (bits << 16).to(tl.float32, bitcast=True)
    second = (bits & -65536).to(tl.float32, bitcast=True)
    end = size - column
    first = _gradient_of(first, level, spread, target_column, 2 * along, end, SMOOTHING)
    second = _gradient_of(second, level, spread, target_column, 2 * along + 1, end, SMOOTHING)
    rounded = tl.interleave(first, second).to(d.dtype.element_ty)
    _store_twice(rounded, d, d_t, row, column, rows, columns, ROWS, COLUMNS)


def quantize(
    x_nw: Tensor, inverse: Tensor, rows: int, dtype: torch.dtype = torch.float8_e4m3fn
) -> tuple[Tensor, Tensor]:
    """x times `inverse`, a tensor with one number, rounded: [rows, w] and transposed [w, rows].

    Rows after the n rows of x are zeros.
    """
    n, w = x_nw.shape
    y, y_t = x_nw.new_empty(rows, w, dtype=dtype), x_nw.new_empty(w, rows, dtype=dtype)
    tiles = triton.cdiv(rows, QUANTIZE_ROWS) * triton.cdiv(w, QUANTIZE_COLUMNS)
    _quantize[(tiles,)](
        x_nw.contiguous(),
        inverse,
        y,
        y_t,
        n,
        rows,
        w,
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
        d_rv,
        d_vr,
        len(targets_r),
        v,
        rows,
        columns,
        IGNORED=ignore_index,
        SMOOTHING=smoothing,
        ROWS=GRADIENT_ROWS,
        COLUMNS=GRADIENT_COLUMNS,
        num_warps=GRADIENT_WARPS,
    )
