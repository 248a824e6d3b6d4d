"""Rotary position embedding (RoPE) in few passes over memory.

On a GPU one kernel rotates, as an operator that autograd and torch.compile know
(`heed.nn.kernels.triton.rotary`). In training on a CPU it is one in C
(`heed.nn.kernels.rotary_cpu`). Elsewhere torch's own functions write into the output directly.

Shapes: b batch, n tokens, h heads, d head width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from heed.nn.kernels.custom_op import DifferentiableOp, Kernel
from heed.nn.kernels.qkv_layout import empty_heads


def rotate(parts: list[Tensor], positions_bn: Tensor, frequencies: Tensor) -> list[Tensor]:
    """One or two tensors [b, h, n, d], pairs (i, i + d/2) rotated by position · frequency."""
    first, second = parts[0], parts[-1]
    if len(parts) == 1:
        b, _, n, d = first.shape
        second = first.new_empty(b, 0, n, d)
    rotated: tuple[Tensor, Tensor] = _rotary(first, second, positions_bn, frequencies, 1.0)
    return list(rotated[: len(parts)])


def _launch(
    first: Tensor, second: Tensor, positions: Tensor, frequencies: Tensor, direction: float
) -> tuple[Tensor, Tensor]:
    from heed.nn.kernels.triton.rotary import rotate

    return rotate(first, second, positions, frequencies, direction)


def _save(ctx: Any, inputs: tuple[Any, ...], outputs: tuple[Tensor, Tensor]) -> None:
    _, _, positions, frequencies, ctx.direction = inputs
    ctx.save_for_backward(positions, frequencies)


def _differentiate(ctx: Any, launch: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
    """The gradient of a rotation is the rotation back."""
    return *launch(*grads, *ctx.saved_tensors, -ctx.direction), None, None, None


_KERNEL = Kernel(
    "rotary",
    "(Tensor first, Tensor second, Tensor positions, Tensor frequencies, float direction) "
    "-> (Tensor, Tensor)",
    _launch,
    lambda first, second, *_: (empty_heads(first), empty_heads(second)),
)
_rotary = DifferentiableOp(
    _KERNEL, _KERNEL, save=_save, differentiate=_differentiate, differentiable_outputs=2
)


def rotate_by_tables(parts: list[Tensor], cos: Tensor, sin: Tensor) -> list[Tensor]:
    """Tensors [b, h, n, d] rotated by angles with these cosines and sines [b or 1, 1, n, d/2].

    This is the plain formula, written into the output without a copy.
    """
    run: Any = _RotateByTables.apply
    return list(run(torch.is_grad_enabled(), cos, sin, *parts))


class _RotateByTables(torch.autograd.Function):
    """Autograd alone would pass twice as often over the numbers, above all in the backward pass."""

    @staticmethod
    def forward(
        ctx: Any, trains: bool, cos: Tensor, sin: Tensor, *parts: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.save_for_backward(cos, sin)
        return tuple(_rotate_halves(x, cos, sin, trains=trains) for x in parts)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """The gradient of a rotation is the rotation back."""
        cos, sin = ctx.saved_tensors
        run: Any = _RotateByTables.apply
        return None, None, None, *run(True, cos, -sin, *grads)


def _rotate_halves(x_bhnd: Tensor, cos: Tensor, sin: Tensor, *, trains: bool) -> Tensor:
    """(x cos - y sin, y cos + x sin) of the halves x and y, in float32 at least."""
    if trains:  # otherwise nothing waits for a kernel to be compiled
        from heed.nn.kernels.rotary_cpu import can_rotate, rotate_heads

        if can_rotate(x_bhnd, cos, sin):
            return rotate_heads(x_bhnd, cos, sin)
    wide_bhnd = x_bhnd.to(torch.promote_types(x_bhnd.dtype, cos.dtype))
    cos, sin = cos.to(wide_bhnd.dtype), sin.to(wide_bhnd.dtype)
    out_bhnd = torch.empty_like(wide_bhnd)
    (x, y), (x_out, y_out) = wide_bhnd.chunk(2, dim=-1), out_bhnd.chunk(2, dim=-1)
    torch.mul(x, cos, out=x_out).addcmul_(y, sin, value=-1)
    torch.mul(y, cos, out=y_out).addcmul_(x, sin)
    return out_bhnd.to(x_bhnd.dtype)
