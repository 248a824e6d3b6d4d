"""The step of AdamW and Adam over all tensors of a parameter group, in two launches.

The first adds 1 to the step tensors and computes the bias corrections, in float64. The second reads
gradients and updates parameters and both means, in one pass over memory: 28 bytes per parameter. A
skipped step (`found_inf`) reads no gradient and changes nothing.

The tensors have n addresses each in a table int64 [5, n]: parameters, gradients, means, means of
squares, steps. Programs update chunks of `CHUNK` numbers; a plan int32 [3, programs] has each
program's tensor, its chunk of that tensor, and the count of numbers there.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from heed.nn.kernels.triton import kernel

ROWS = 5
"""Addresses of each parameter in the table."""
CHUNK, WARPS = 2048, 8
"""Numbers of a program: 8 per thread, in two loads of 16 bytes from each tensor."""
TENSORS = 128
"""Tensors of a program that adds to their steps."""
SMALLEST_BETA = 1e-300
"""Stands for a beta of 0, which has no logarithm."""


@kernel
def _advance_steps(
    addresses: tl.tensor,
    corrections: tl.tensor,
    lr: tl.tensor,
    found_inf: tl.tensor,
    log_beta1: float,
    log_beta2: float,
    n: int,
    TENSORS: tl.constexpr,
) -> None:
    i = tl.program_id(0) * TENSORS + tl.arange(0, TENSORS)
    inside = i < n
    step = tl.load(addresses + 4 * n + i, mask=inside, other=0).to(tl.pointer_type(tl.float32))
    added = tl.where(tl.load(found_inf) == 0, 1.0, 0.0)
    t = tl.load(step, mask=inside, other=0.0) + added
    tl.store(step, t, mask=inside)
    # 1 - βᵗ loses up to three digits at first steps; a skipped first step divides by no zero.
    t = tl.maximum(t, 1.0).to(tl.float64)
    rate = tl.load(lr).to(tl.float64) / (1.0 - tl.exp(t * log_beta1))
    spread = 1.0 / tl.sqrt(1.0 - tl.exp(t * log_beta2))
    tl.store(corrections + i, rate.to(tl.float32), mask=inside)
    tl.store(corrections + n + i, spread.to(tl.float32), mask=inside)


@kernel
def _update_chunk(
    parameter: tl.tensor,
    grad: tl.tensor,
    mean: tl.tensor,
    square: tl.tensor,
    inside: tl.tensor,
    divisor: float,
    lr: float,
    rate: float,
    spread: float,
    rate1: float,
    beta2: float,
    rate2: float,
    eps: float,
    decay: float,
    DECOUPLED: tl.constexpr,
) -> None:
    g = tl.load(grad, mask=inside) / divisor
    p = tl.load(parameter, mask=inside)
    m = tl.load(mean, mask=inside)
    v = tl.load(square, mask=inside)
    if DECOUPLED:
        p *= 1.0 - lr * decay
    else:
        g += decay * p
    m += rate1 * (g - m)
    v = beta2 * v + rate2 * g * g
    p -= rate * (m / (tl.sqrt(v) * spread + eps))
    tl.store(parameter, p, mask=inside)
    tl.store(mean, m, mask=inside)
    tl.store(square, v, mask=inside)


@kernel
def _update(
    addresses: tl.tensor,
    plan: tl.tensor,
    corrections: tl.tensor,
    lr: tl.tensor,
    divisor: tl.tensor,
    found_inf: tl.tensor,
    rate1: float,
    beta2: float,
    rate2: float,
    eps: float,
    decay: float,
    n: int,
    DECOUPLED: tl.constexpr,
    CHUNK: tl.constexpr,
) -> None:
    program, programs = tl.program_id(0), tl.num_programs(0)
    i = tl.load(plan + program)
    chunk = tl.load(plan + programs + program).to(tl.int64)
    count = tl.load(plan + 2 * programs + program)
    count = tl.where(tl.load(found_inf) == 0, count, 0)
    parameter, grad = tl.load(addresses + i), tl.load(addresses + n + i)
    mean, square = tl.load(addresses + 2 * n + i), tl.load(addresses + 3 * n + i)
    scale, step_lr = tl.load(divisor), tl.load(lr)
    rate, spread = tl.load(corrections + i), tl.load(corrections + n + i)
    start, cell = chunk * CHUNK, tl.arange(0, CHUNK)
    # A gradient may be a view at any multiple of 4 bytes.
    aligned = ((parameter | grad | mean | square) & 15) == 0
    p = parameter.to(tl.pointer_type(tl.float32)) + start
    g = grad.to(tl.pointer_type(tl.float32)) + start
    m = mean.to(tl.pointer_type(tl.float32)) + start
    v = square.to(tl.pointer_type(tl.float32)) + start
    if (count == CHUNK) & aligned:
        # Without a mask, and with addresses known to be aligned, a load has 16 bytes.
        _update_chunk(
            tl.multiple_of(p, 16) + cell,
            tl.multiple_of(g, 16) + cell,
            tl.multiple_of(m, 16) + cell,
            tl.multiple_of(v, 16) + cell,
            None,
            scale,
            step_lr,
            rate,
            spread,
            rate1,
            beta2,
            rate2,
            eps,
            decay,
            DECOUPLED,
        )
    else:
        _update_chunk(
            p + cell,
            g + cell,
            m + cell,
            v + cell,
            cell < count,
            scale,
            step_lr,
            rate,
            spread,
            rate1,
            beta2,
            rate2,
            eps,
            decay,
            DECOUPLED,
        )


def plan_chunks(sizes: list[int], length: int = CHUNK) -> Tensor:
    """The plan [3, programs] for tensors of these sizes in chunks of a length, on the host."""
    size = torch.tensor(sizes, dtype=torch.int64)
    chunks = (size + length - 1) // length
    tensor = torch.arange(len(sizes)).repeat_interleave(chunks)
    chunk = torch.arange(len(tensor)) - (chunks.cumsum(0) - chunks)[tensor]
    count = (size[tensor] - chunk * length).clamp(max=length)
    return torch.stack([tensor, chunk, count]).to(torch.int32)


def update(
    addresses: Tensor,
    plan: Tensor,
    *,
    lr: Tensor,
    divisor: Tensor,
    found_inf: Tensor,
    betas: tuple[float, float],
    eps: float,
    decay: float,
    decoupled: bool,
) -> None:
    """One step of AdamW (`decoupled`) or Adam, with gradients divided by `divisor`.

    m ← m + (1 - β₁) (g - m) and v ← β₂ v + (1 - β₂) g², then
    θ ← θ - lr / (1 - β₁ᵗ) · m / (√v / √(1 - β₂ᵗ) + ε). Before that AdamW's θ ← (1 - lr · decay) θ,
    or Adam's g ← g + decay · θ. `lr`, `divisor` and `found_inf` are on the device.
    """
    n, (beta1, beta2) = addresses.shape[1], betas
    corrections = torch.empty(2, n, dtype=torch.float32, device=lr.device)
    log_beta1, log_beta2 = (math.log(max(beta, SMALLEST_BETA)) for beta in betas)
    _advance_steps[(triton.cdiv(n, TENSORS),)](
        addresses, corrections, lr, found_inf, log_beta1, log_beta2, n, TENSORS=TENSORS, num_warps=4
    )
    if plan.shape[1]:
        _update[(plan.shape[1],)](
            addresses,
            plan,
            corrections,
            lr,
            divisor,
            found_inf,
            1.0 - beta1,
            beta2,
            1.0 - beta2,
            float(eps),
            float(decay),
            n,
            DECOUPLED=decoupled,
            CHUNK=CHUNK,
            num_warps=WARPS,
        )
