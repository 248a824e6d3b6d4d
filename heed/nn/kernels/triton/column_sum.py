"""Column sums of a tall matrix: the gradient of a bias.

Each program sums some rows of some columns; a second step adds the partial sums in a fixed order,
so the result is deterministic. Shapes: r rows, w width.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from heed.nn.kernels.triton import kernel

ROWS, COLUMNS, WARPS = 32, 128, 4
"""Rows and columns of one read, and warps: 64 bytes of bfloat16 per thread."""
RESIDENT = 528
"""About as many programs run at once on a large GPU."""


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


def column_sums(x: Tensor) -> Tensor:
    """Sums over all dimensions but the last [w], in float32."""
    w = x.shape[-1]
    x, r = x.contiguous(), x.numel() // w
    groups = triton.cdiv(w, COLUMNS)
    parts = min(triton.cdiv(r, ROWS), triton.cdiv(RESIDENT, groups))
    sums = x.new_empty(parts, w, dtype=torch.float32)
    if r:
        _column_sums[(groups, parts)](x, sums, r, w, ROWS=ROWS, COLUMNS=COLUMNS, num_warps=WARPS)
    return sums.sum(dim=0)
