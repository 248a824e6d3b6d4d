"""Where a branch joins the residual stream: x + dropout(branch), and the norm of that.

Plainly these are three steps, and on a GPU each of them waits for memory. There one kernel does it,
and one more finds all gradients (`heed.nn.kernels.triton.residual_norm`). Which numbers dropout
hides then follows from
a seed, drawn on the device by torch's own generator: a checkpoint keeps its state, and each replay
of a captured graph draws anew. A compiler gets the plain steps, for it can join them by itself.

Shapes: b batch, n tokens, w model width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from heed.nn.kernels.dispatch import on_gpu

WIDEST = 8192
"""A kernel holds whole rows; wider ones it does not take."""
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SEED = 2
"""Numbers a seed: 16 bytes apart, all look alike to a kernel, which is then compiled once."""


def join(
    x_bnw: Tensor,
    branch_bnw: Tensor | None,
    norm: nn.Module,
    dropout: nn.Dropout,
    *,
    seed: Tensor | None = None,
    for_map: bool = False,
) -> tuple[Tensor, Tensor]:
    """x + dropout(branch), or x where there is no branch, and the norm of that.

    With `for_map` linear maps alone read the norm: under autocast a kernel writes it in their
    dtype. Dropout without a seed goes the plain way.
    """
    dropped = _share(dropout) if branch_bnw is not None else 0.0
    seeded = dropped == 0.0 or (seed is not None and dropped < 1.0)
    if seeded and _has_kernel(x_bnw, branch_bnw, norm):
        bias, rule = getattr(norm, "bias", None), (isinstance(norm, nn.LayerNorm), norm.eps)
        run: Any = _Join.apply
        return run(x_bnw, branch_bnw, norm.weight, bias, seed, *rule, dropped, for_map)
    if branch_bnw is not None:
        x_bnw = x_bnw + (branch_bnw if dropped == 0.0 else dropout(branch_bnw))
    return x_bnw, norm(x_bnw)


def draw_seeds(x: Tensor, dropout: nn.Dropout, *size: int) -> Tensor | None:
    """Seeds [*size, 2] for so many joins of one pass; None where they need none."""
    if _share(dropout) == 0.0 or not on_gpu(x):
        return None
    return torch.randint(2**63 - 1, (*size, SEED), device=x.device)


def _share(dropout: nn.Dropout) -> float:
    return dropout.p if dropout.training else 0.0


def _has_kernel(x: Tensor, branch: Tensor | None, norm: nn.Module) -> bool:
    if not on_gpu(x) or torch.compiler.is_compiling() or x.shape[-1] > WIDEST:
        return False
    if not isinstance(norm, nn.LayerNorm | nn.RMSNorm) or norm.eps is None:
        return False
    parts = (x, norm.weight) if branch is None else (x, branch, norm.weight)
    return all(part.dtype in DTYPES for part in parts)


class _Join(torch.autograd.Function):
    """The kernels, as autograd knows them."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        branch: Tensor | None,
        weight: Tensor,
        bias: Tensor | None,
        seed: Tensor | None,
        centred: bool,
        eps: float,
        dropped: float,
        for_map: bool,
    ) -> tuple[Tensor, Tensor]:
        from heed.nn.kernels.triton.residual_norm import Rule, join

        ctx.rule = Rule(centred, eps, dropped)
        ctx.dtypes = x.dtype, x.dtype if branch is None else branch.dtype
        dtype = _normed_dtype(torch.promote_types(*ctx.dtypes), x.device.type, for_map=for_map)
        joined, normed, moments = join(x, branch, seed, weight, bias, ctx.rule, dtype)
        ctx.save_for_backward(joined, moments, seed, weight)
        ctx.has = branch is not None, bias is not None
        ctx.set_materialize_grads(False)
        return joined, normed

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, d_joined: Tensor | None, d_normed: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        from heed.nn.kernels.triton.residual_norm import part

        joined, moments, seed, weight = ctx.saved_tensors
        has_branch, has_bias = ctx.has
        if d_normed is None:
            d_normed = torch.zeros_like(joined)
        dx, d_branch, sums = part(
            joined, moments, seed, weight, ctx.rule, d_joined, d_normed, ctx.dtypes, has_bias
        )
        sums = sums.to(weight.dtype)
        d_bias = sums[1] if has_bias else None
        return dx, d_branch if has_branch else None, sums[0], d_bias, *[None] * 5


def _normed_dtype(joined: torch.dtype, device: str, *, for_map: bool) -> torch.dtype:
    """What a norm gives. Under autocast that is float32, of which a map then makes its own."""
    if not torch.is_autocast_enabled(device):
        return joined
    return torch.get_autocast_dtype(device) if for_map else torch.float32
