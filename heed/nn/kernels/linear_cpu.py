"""Linear layers that train on a CPU in float32, by matrix products in C (`matrix_product_cpu`).

Shapes: r rows, w numbers in, f numbers out.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from heed.nn.kernels.availability import on_cpu
from heed.nn.kernels.custom_op import once_differentiable
from heed.nn.kernels.matrix_product_cpu import LANES, load_kernel, multiply


def serves(x: Tensor, weight_fw: Tensor, bias_f: Tensor | None) -> bool:
    """Whether C can compute a layer with these parameters and its gradients.

    Numbers in and out must be multiples of LANES: columns of all products are whole registers.
    """
    if load_kernel() is None:
        return False
    parts = (x, weight_fw) if bias_f is None else (x, weight_fw, bias_f)
    if torch.is_autocast_enabled("cpu") or any(part.dtype != torch.float32 for part in parts):
        return False
    if not all(on_cpu(part) and part.is_contiguous() for part in parts[1:]):
        return False
    fits = x.shape[-1] == weight_fw.shape[1] and not any(size % LANES for size in weight_fw.shape)
    return fits and min(x.numel(), weight_fw.numel()) > 0


def linear(x: Tensor, weight_fw: Tensor, bias_f: Tensor | None) -> Tensor:
    """W x + b over the last dimension; it can be differentiated once."""
    run: Any = _Linear.apply
    return run(x, weight_fw, bias_f)


class _Linear(torch.autograd.Function):
    """W x + b and its gradients in C."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight_fw: Tensor, bias_f: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight_fw)
        out_rf = multiply(x.reshape(-1, x.shape[-1]), weight_fw.mT, bias_f)
        return out_rf.view(*x.shape[:-1], len(weight_fw))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight_fw = ctx.saved_tensors
        dy_rf = dy.reshape(-1, dy.shape[-1])
        dx = d_weight = d_bias = None
        if ctx.needs_input_grad[0]:
            dx = multiply(dy_rf, weight_fw).view(x.shape)
        if ctx.needs_input_grad[1]:
            d_weight = multiply(dy_rf.mT, x.reshape(-1, x.shape[-1]))
        if ctx.needs_input_grad[2]:
            d_bias = dy_rf.sum(dim=0)
        return dx, d_weight, d_bias
