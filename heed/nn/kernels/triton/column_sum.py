"""Column sums of a tall matrix: the gradient of a bias.

Each program sums some rows of some columns; a second kernel adds the partial sums in a fixed order,
so the result is deterministic. Shapes: r rows, w width, p parts.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from heed.nn.kernels.triton import kernel

ROWS, COLUMNS, WARPS = 32, 64, 4
"""Rows and columns of one read, and warps: 32 bytes of bfloat16 per thread."""
RESIDENT = 1056
"""About as many programs run at once on a large GPU."""
PARTS, PART_COLUMNS = 256, 32
"""Partial sums and columns of one read, where partial sums are added."""


@kernel
def _column_sums(
    x: tl.tensor, sums: tl.tensor, r: int, w: int, ROWS: tl.constexpr, COLUMNS: tl.constexpr
) -> None:
    column, part = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS), tl.program_id(1)
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(part * ROWS, r, tl.num_programs(1) * ROWS):
        row = start + tl.arange(0, ROWS)
        inside = (row < r)[:, None] & (column < w)[None, :]
        cell = row.to(tl.int64)[:, None] * w + column[None, :]
        total += tl.load(x + cell, mask=inside, other=0.0).to(tl.float32)
    tl.store(sums + part * w + column, tl.sum(total, axis=0), mask=column < w)


@kernel
def _add_parts(
    sums: tl.tensor, out: tl.tensor, parts: int, w: int, PARTS: tl.constexpr, COLUMNS: tl.constexpr
) -> None:
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros([PARTS, COLUMNS], tl.float32)
    for start in range(0, parts, PARTS):
        part = start + tl.arange(0, PARTS)
        inside = (part < parts)[:, None] & (column < w)[None, :]
        total += tl.load(sums + part[:, None] * w + column[None, :], mask=inside, other=0.0)
    tl.store(out + column, tl.sum(total, axis=0), mask=column < w)


def add_parts(sums_pw: Tensor) -> Tensor:
    """The sum [w] of partial sums in float32; torch's kernel takes several times as long."""
    parts, w = sums_pw.shape
    out = sums_pw.new_empty(w)
    _add_parts[(triton.cdiv(w, PART_COLUMNS),)](
        sums_pw, out, parts, w, PARTS=PARTS, COLUMNS=PART_COLUMNS, num_warps=WARPS
    )
    return out


def column_sums(x: Tensor) -> Tensor:
    """Sums over all dimensions but the last [w], in float32."""
    w = x.shape[-1]
    x, r = x.contiguous(), x.numel() // w
    groups = triton.cdiv(w, COLUMNS)
    parts = min(triton.cdiv(r, ROWS), triton.cdiv(RESIDENT, groups))
    sums = x.new_empty(parts, w, dtype=torch.float32)
    if r:
        _column_sums[(groups, parts)](x, sums, r, w, ROWS=ROWS, COLUMNS=COLUMNS, num_warps=WARPS)
    return add_parts(sums)
