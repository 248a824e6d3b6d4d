"""Sinusoids of positions, added to token vectors in one pass.

Torch makes the angles, their sines and cosines, and both in pairs by kernels of their own.
Shapes: r rows (tokens of all sequences), w model width.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from heed.nn.kernels.triton import kernel

ROWS, COLUMNS, WARPS = 4, 256, 4
"""Rows and columns of a program."""


@kernel
def _add_sinusoids(
    x: tl.tensor,
    positions: tl.tensor,
    out: tl.tensor,
    r: int,
    own_size: int,
    w: int,
    rate: float,
    HALVES: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (row < r)[:, None] & (column < w)[None, :]
    # One row of positions may stand for all sequences.
    position = tl.load(positions + row % own_size, mask=row < r, other=0).to(tl.float32)
    if HALVES:
        is_cosine, pair = column >= w // 2, column % (w // 2)
    else:
        is_cosine, pair = column % 2 == 1, column // 2
    frequency = tl.exp((2 * pair).to(tl.float32) * rate)
    angle = position[:, None] * frequency[None, :]
    wave = tl.where(is_cosine[None, :], tl.cos(angle), tl.sin(angle))
    cell = row[:, None] * w + column[None, :]
    y = tl.load(x + cell, mask=inside, other=0.0).to(tl.float32)
    wave = wave.to(out.dtype.element_ty).to(tl.float32)
    tl.store(out + cell, (y + wave).to(out.dtype.element_ty), mask=inside)


def add_sinusoids(x_bnw: Tensor, positions: Tensor, base: float, *, halves: bool) -> Tensor:
    """x + PE of the positions [b or 1, n]; their sines and cosines in pairs, or in halves."""
    x_bnw, w = x_bnw.contiguous(), x_bnw.shape[-1]
    out, r = torch.empty_like(x_bnw), x_bnw.numel() // w
    if r:
        columns = min(COLUMNS, triton.next_power_of_2(w))
        _add_sinusoids[(triton.cdiv(r, ROWS), triton.cdiv(w, columns))](
            x_bnw,
            positions.contiguous(),
            out,
            r,
            positions.numel(),
            w,
            -math.log(base) / w,
            HALVES=halves,
            ROWS=ROWS,
            COLUMNS=columns,
            num_warps=WARPS,
        )
    return out
