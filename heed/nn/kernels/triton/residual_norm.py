"""Residual add, dropout and norm in one pass over memory.

A program holds whole rows in its registers. The dropout mask is never stored: both passes compute
it from the same seed by Philox, a counter-based generator (Salmon et al. 2011). The gradients of
the norm's parameters are sums over all rows, as is that of the bias of the linear layer that made
the branch. A fixed number of programs processes the rows, each writes partial sums, and these are
added in a fixed order.

Shapes: r rows, w width.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from heed.nn.kernels.triton import kernel

CELLS, CELLS_A_WARP, WARPS = 2048, 512, (4, 16)
"""Fewest numbers a program holds, numbers per warp, fewest and most warps."""
REGISTERS, RESIDENT = 128, 4
"""Register limit per thread, with which so many of the smallest programs share a multiprocessor."""
ROUNDS = 7
"""Rounds of Philox: the fewest with which it passes all of its authors' tests."""


@dataclass(frozen=True)
class NormConfig:
    """Kind of norm, and dropout of the branch."""

    centered: bool
    """LayerNorm subtracts the mean, RMSNorm does not."""
    eps: float
    dropped: float
    """Dropout probability."""


@kernel
def _keep_mask(
    seed: tl.tensor,
    row: tl.tensor,
    DROPPED: tl.constexpr,
    ROWS: tl.constexpr,
    WIDE: tl.constexpr,
    ROUNDS: tl.constexpr,
) -> tl.tensor:
    """Which numbers of these rows dropout keeps [ROWS, WIDE].

    16 random bits decide, so one call of Philox serves eight numbers.
    """
    nothing = tl.zeros([ROWS, WIDE // 8], tl.int32)
    eight = nothing + tl.arange(0, WIDE // 8)[None, :]
    a, b, c, d = tl.philox(
        tl.load(seed), eight, nothing + row[:, None], nothing, nothing, n_rounds=ROUNDS
    )
    words = tl.join(tl.join(a, b), tl.join(c, d))
    bits = tl.reshape(tl.join(words & 0xFFFF, words >> 16), [ROWS, WIDE])
    threshold: tl.constexpr = int(DROPPED * 2**16 + 0.5)
    return bits.to(tl.int32) >= threshold


@kernel
def _add_and_norm(
    x: tl.tensor,
    branch: tl.tensor,
    seed: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    joined: tl.tensor,
    normed: tl.tensor,
    means: tl.tensor,
    scales: tl.tensor,
    r: int,
    w: int,
    EPS: tl.constexpr,
    DROPPED: tl.constexpr,
    RESIDUAL: tl.constexpr,
    BRANCH: tl.constexpr,
    CENTERED: tl.constexpr,
    BIAS: tl.constexpr,
    ROWS: tl.constexpr,
    WIDE: tl.constexpr,
    ROUNDS: tl.constexpr,
) -> None:
    row, column = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDE)
    there = column < w
    inside = (row < r)[:, None] & there[None, :]
    cell = row.to(tl.int64)[:, None] * w + column[None, :]
    if RESIDUAL:
        total = tl.load(x + cell, mask=inside, other=0.0).to(tl.float32)
    if BRANCH:
        added = tl.load(branch + cell, mask=inside, other=0.0).to(tl.float32)
        if DROPPED > 0:
            keeps = _keep_mask(seed, row, DROPPED, ROWS, WIDE, ROUNDS)
            added = tl.where(keeps, added * (1 / (1 - DROPPED)), 0.0)
        if RESIDUAL:
            added += total
        rounded = added.to(joined.dtype.element_ty)
        tl.store(joined + cell, rounded, mask=inside)
        total = rounded.to(tl.float32)
    if CENTERED:
        mean = tl.sum(total, axis=1) / w
        tl.store(means + row, mean, mask=row < r)
        total = tl.where(inside, total - mean[:, None], 0.0)
    scale = tl.rsqrt(tl.sum(total * total, axis=1) / w + EPS)
    tl.store(scales + row, scale, mask=row < r)
    y = total * scale[:, None] * tl.load(weight + column, mask=there, other=0.0).to(tl.float32)
    if BIAS:
        y += tl.load(bias + column, mask=there, other=0.0).to(tl.float32)
    tl.store(normed + cell, y.to(normed.dtype.element_ty), mask=inside)


@kernel
def _add_and_norm_backward(
    joined: tl.tensor,
    means: tl.tensor,
    scales: tl.tensor,
    seed: tl.tensor,
    weight: tl.tensor,
    d_joined: tl.tensor,
    d_normed: tl.tensor,
    dx: tl.tensor,
    d_branch: tl.tensor,
    sums: tl.tensor,
    branch_sums: tl.tensor | None,
    r: int,
    w: int,
    DROPPED: tl.constexpr,
    RESIDUAL: tl.constexpr,
    BRANCH: tl.constexpr,
    PASSED: tl.constexpr,
    CENTERED: tl.constexpr,
    BIAS: tl.constexpr,
    ROWS: tl.constexpr,
    WIDE: tl.constexpr,
    ROUNDS: tl.constexpr,
    STAGES: tl.constexpr,
) -> None:
    program, column = tl.program_id(0), tl.arange(0, WIDE)
    there = column < w
    gain = tl.load(weight + column, mask=there, other=0.0).to(tl.float32)
    d_gain, d_bias = tl.zeros([ROWS, WIDE], tl.float32), tl.zeros([ROWS, WIDE], tl.float32)
    d_branch_bias = tl.zeros([ROWS, WIDE], tl.float32)
    for start in tl.range(program * ROWS, r, tl.num_programs(0) * ROWS, num_stages=STAGES):
        row = start + tl.arange(0, ROWS)
        inside = (row < r)[:, None] & there[None, :]
        cell = row.to(tl.int64)[:, None] * w + column[None, :]
        x = tl.load(joined + cell, mask=inside, other=0.0).to(tl.float32)
        dy = tl.load(d_normed + cell, mask=inside, other=0.0).to(tl.float32)
        if PASSED:  # read before the sums over a row, which all warps wait for
            passed = tl.load(d_joined + cell, mask=inside, other=0.0).to(tl.float32)
        scale = tl.load(scales + row, mask=row < r, other=0.0)
        if CENTERED:
            x -= tl.load(means + row, mask=row < r, other=0.0)[:, None]
        x *= scale[:, None]
        d_gain += dy * x
        if BIAS:
            d_bias += dy
        d = dy * gain[None, :]
        along = tl.sum(d * x, axis=1) / w
        if CENTERED:
            d -= (tl.sum(d, axis=1) / w)[:, None]
        d = (d - x * along[:, None]) * scale[:, None]
        if PASSED:
            d += passed
        if RESIDUAL:
            tl.store(dx + cell, d.to(dx.dtype.element_ty), mask=inside)
        if BRANCH:
            if DROPPED > 0:
                keeps = _keep_mask(seed, row, DROPPED, ROWS, WIDE, ROUNDS)
                d = tl.where(keeps, d * (1 / (1 - DROPPED)), 0.0)
            tl.store(d_branch + cell, d.to(d_branch.dtype.element_ty), mask=inside)
        if branch_sums is not None:  # zeros beyond the last row: its scale and `passed` are
            d_branch_bias += d
    at = sums + program * (2 if BIAS else 1) * w + column
    tl.store(at, tl.sum(d_gain, axis=0), mask=there)
    if BIAS:
        tl.store(at + w, tl.sum(d_bias, axis=0), mask=there)
    if branch_sums is not None:
        at = branch_sums + program * w + column
        tl.store(at, tl.sum(d_branch_bias, axis=0), mask=there)


def add_and_norm(
    x: Tensor | None,
    branch: Tensor | None,
    seed: Tensor | None,
    weight_w: Tensor,
    bias_w: Tensor | None,
    config: NormConfig,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    """x + dropout(branch), its norm in `dtype`, and each row's mean and 1/std [2, r].

    Of x and the branch one may be None.
    """
    parts = [part.contiguous() for part in (x, branch) if part is not None]
    first, last = parts[0], parts[-1]
    joined, w = first, first.shape[-1]
    if branch is not None:
        joined = torch.empty_like(first, dtype=torch.promote_types(first.dtype, last.dtype))
    normed, rows = torch.empty_like(first, dtype=dtype), first.numel() // w
    moments_2r = first.new_empty(2, rows, dtype=torch.float32)
    size = _size(w)
    if rows:
        _add_and_norm[(triton.cdiv(rows, size["ROWS"]),)](
            first,
            last,
            seed if seed is not None and config.dropped else first,
            weight_w,
            weight_w if bias_w is None else bias_w,
            joined,
            normed,
            *moments_2r,
            rows,
            w,
            EPS=config.eps,
            DROPPED=config.dropped,
            RESIDUAL=x is not None,
            BRANCH=branch is not None,
            CENTERED=config.centered,
            BIAS=bias_w is not None,
            ROUNDS=ROUNDS,
            **size,
        )
    return joined, normed, moments_2r


def add_and_norm_backward(
    joined: Tensor,
    moments_2r: Tensor,
    seed: Tensor | None,
    weight_w: Tensor,
    config: NormConfig,
    d_joined: Tensor | None,
    d_normed: Tensor,
    dtypes: tuple[torch.dtype | None, torch.dtype | None],
    biased: bool,
    sums_branch: bool,
) -> tuple[Tensor | None, Tensor | None, Tensor, Tensor | None]:
    """Gradients of x and of the branch, in `dtypes`, and of weight and bias, if any.

    Where a dtype is None, the forward pass had no such part. Without dropout and with equal dtypes
    the first two are one tensor. The third are partial sums in float32 [p, w, or 2w with a bias],
    and so are the last [p, w], with `sums_branch`: of the branch's gradient.
    """
    w, dropped = weight_w.shape[0], config.dropped
    d_normed = d_normed.contiguous()
    d_joined = None if d_joined is None else d_joined.contiguous()
    shares = dropped == 0 and dtypes[0] == dtypes[1]
    dx, d_branch = (
        None if dtype is None else torch.empty_like(joined, dtype=dtype)
        for dtype in (dtypes[0], None if shares else dtypes[1])
    )
    rows, size = joined.numel() // w, _size(w)
    programs = min(triton.cdiv(rows, size["ROWS"]), _max_resident(joined.device, size["num_warps"]))
    sums = joined.new_empty(programs, 1 + biased, w, dtype=torch.float32)
    branch_sums = sums.new_empty(programs, w) if sums_branch else None
    if rows:
        _add_and_norm_backward[(programs,)](
            joined,
            *moments_2r,
            joined if seed is None else seed,
            weight_w,
            d_normed if d_joined is None else d_joined,
            d_normed,
            joined if dx is None else dx,
            joined if d_branch is None else d_branch,
            sums,
            branch_sums,
            rows,
            w,
            DROPPED=dropped,
            RESIDUAL=dx is not None,
            BRANCH=d_branch is not None,
            PASSED=d_joined is not None,
            CENTERED=config.centered,
            BIAS=biased,
            ROUNDS=ROUNDS,
            STAGES=2 if size["ROWS"] <= 2 and _has_large_shared_memory(joined.device) else 1,
            **size,
            maxnreg=REGISTERS,
        )
    return dx, dx if shares else d_branch, sums.flatten(1), branch_sums


def _size(w: int) -> dict[str, int]:
    """Rows per step of a program, their padded width, and warps."""
    wide = max(8, triton.next_power_of_2(w))
    rows = max(1, CELLS // wide)
    warps = min(max(WARPS[0], wide // CELLS_A_WARP), WARPS[1])
    return {"ROWS": rows, "WIDE": wide, "num_warps": warps}


def _has_large_shared_memory(device: torch.device) -> bool:
    """Whether rows that are read ahead leave room for as many resident programs.

    Compute capabilities 8.0, 9.0 and 10.0 have 164 kB or more for each multiprocessor, 8.6, 8.9 and
    12.0 have 100.
    """
    if device.type != "cuda":
        return False
    return torch.cuda.get_device_capability(device) in ((8, 0), (9, 0), (10, 0))


@cache
def _max_resident(device: torch.device, warps: int) -> int:
    """How many programs run at once on this device."""
    if device.type != "cuda":
        return RESIDENT
    return RESIDENT * torch.cuda.get_device_properties(device).multi_processor_count * 4 // warps
