"""The end of a step before its optimizer's: the gradient's norm, clipping and the counters.

The first launch reads all gradients, by a table of their addresses, and writes a sum of squares for
each program. One program then adds these in float64, and does all that depends on the norm: it
takes torch about twenty launches, each as long as this one.
"""

from __future__ import annotations

import torch
import triton.language as tl
from torch import Tensor

from heed.nn.kernels.triton import kernel

CHUNK, WARPS = 8192, 8
"""Numbers of a program: 32 per thread."""
LANES = 1024
"""Sums of programs that are added at once."""


@kernel
def _sum_squares(
    addresses: tl.tensor, plan: tl.tensor, sums: tl.tensor, CHUNK: tl.constexpr
) -> None:
    program, programs = tl.program_id(0), tl.num_programs(0)
    address = tl.load(addresses + tl.load(plan + program))
    start = tl.load(plan + programs + program).to(tl.int64) * CHUNK
    count = tl.load(plan + 2 * programs + program)
    grad, cell = address.to(tl.pointer_type(tl.float32)) + start, tl.arange(0, CHUNK)
    # A gradient may be a view at any multiple of 4 bytes.
    if (count == CHUNK) & ((address & 15) == 0):
        # Without a mask, and with an address known to be aligned, a load has 16 bytes.
        g = tl.load(tl.multiple_of(grad, 16) + cell)
        tl.store(sums + program, tl.sum(g * g, axis=0))
    else:
        g = tl.load(grad + cell, mask=cell < count, other=0.0)
        tl.store(sums + program, tl.sum(g * g, axis=0))


@kernel
def _finish(
    partial: tl.tensor,
    sums: tl.tensor,
    counts: tl.tensor,
    divisor: tl.tensor,
    finite: tl.tensor,
    n: int,
    clip: float,
    max_skipped: int,
    CLIPS: tl.constexpr,
    LANES: tl.constexpr,
) -> None:
    lane = tl.arange(0, LANES)
    squares = tl.zeros([LANES], tl.float64)
    for start in range(0, n, LANES):
        squares += tl.load(partial + start + lane, mask=start + lane < n, other=0.0).to(tl.float64)
    norm = tl.sqrt(tl.sum(squares, axis=0)).to(tl.float32)
    is_finite = (norm == norm) & (norm < float("inf"))
    targets = tl.load(sums + 2).to(tl.float32)
    by = targets
    if CLIPS:
        by = targets * tl.maximum((norm / targets + 1e-6) / clip, 1.0)
    tl.store(divisor, by)
    tl.store(finite, is_finite.to(tl.uint8))
    # `heed.train.counters`: sums of the step, of recent steps and of the epoch; counts.
    column = tl.arange(0, 4)
    inside = column < 3
    step = tl.load(sums + column, mask=inside, other=0.0)
    added = tl.where(is_finite, step, 0.0)
    recent = tl.load(sums + 3 + column, mask=inside, other=0.0)
    epoch = tl.load(sums + 6 + column, mask=inside, other=0.0)
    tl.store(sums + 3 + column, recent + added, mask=inside)
    tl.store(sums + 6 + column, epoch + added, mask=inside)
    tl.store(sums + column, tl.zeros([4], tl.float64), mask=inside)
    skipped = tl.where(is_finite, 0, 1).to(tl.int64)
    steps, failed_at = tl.load(counts), tl.load(counts + 3)
    in_a_row = (tl.load(counts + 2) + skipped) * skipped
    fails = (in_a_row > max_skipped) & (failed_at < 0)
    tl.store(counts + 1, tl.load(counts + 1) + skipped)
    tl.store(counts + 2, in_a_row)
    tl.store(counts + 3, tl.where(fails, steps, failed_at))
    tl.store(counts, steps + 1)


def finish_step(
    addresses: Tensor,
    plan: Tensor,
    sums: Tensor,
    counts: Tensor,
    *,
    clip: float,
    max_skipped: int,
) -> tuple[Tensor, Tensor]:
    """What to divide gradients by, and whether their norm is finite; the counters count the step.

    `addresses` int64 [1, n] are of n float32 gradients of the step's sum of losses, and `plan` is
    `heed.nn.kernels.triton.adamw.plan_chunks` of their sizes by `CHUNK`. `sums` float64 [3, 3] and
    `counts` int64 [4] are those of `heed.train.counters`, and are updated as it does.
    """
    programs, device = plan.shape[1], sums.device
    partial = torch.empty(programs, dtype=torch.float32, device=device)
    divisor = torch.empty((), dtype=torch.float32, device=device)
    finite = torch.empty((), dtype=torch.uint8, device=device)
    if programs:
        _sum_squares[(programs,)](addresses, plan, partial, CHUNK=CHUNK, num_warps=WARPS)
    _finish[(1,)](
        partial,
        sums,
        counts,
        divisor,
        finite,
        programs,
        float(clip),
        max_skipped,
        CLIPS=clip > 0,
        LANES=LANES,
        num_warps=WARPS,
    )
    return divisor, finite.view(torch.bool)
