"""The feed-forward sublayer that trains on a CPU in float32, as one function of autograd.

Its kernels are those of its parts: `bias_activation_cpu`, and `matrix_product_cpu` or torch's
products. A small model spends a large part of its step between kernels, and every function of
autograd adds to that.

Shapes: r rows, w model width, f feed-forward width, k 2 with a gate and else 1, so that g = k · f.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from heed.nn.kernels import bias_activation_cpu as activation
from heed.nn.kernels.availability import on_cpu
from heed.nn.kernels.custom_op import once_differentiable
from heed.nn.kernels.matrix_product_cpu import product


def serves(x: Tensor, up: nn.Linear, kind: str, down: nn.Linear) -> bool:
    """Whether this function can compute the sublayer: float32 without autocast."""
    if torch.is_autocast_enabled("cpu") or not activation.has_kernel(x, kind):
        return False
    parts = x, up.weight, up.bias, down.weight, down.bias
    return all(x is None or (x.dtype == torch.float32 and on_cpu(x)) for x in parts)


def feed_forward(x: Tensor, up: nn.Linear, kind: str, gated: bool, down: nn.Linear) -> Tensor:
    """down(activation(up(x))) over the last dimension; it can be differentiated once."""
    run: Any = _FeedForward.apply
    return run(x, up.weight, up.bias, down.weight, down.bias, kind, gated)


class _FeedForward(torch.autograd.Function):
    """Both products and the activation, and their gradients."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        up_gw: Tensor,
        up_bias_g: Tensor | None,
        down_wf: Tensor,
        down_bias_w: Tensor | None,
        kind: str,
        gated: bool,
    ) -> Tensor:
        x_rw = x.reshape(-1, x.shape[-1])
        h_rg = product(x_rw, up_gw.mT)
        bias_g = (h_rg.new_zeros(len(up_gw)) if up_bias_g is None else up_bias_g).contiguous()
        a_rf = activation.activate(h_rg, bias_g, kind, gated)
        out_rw = product(a_rf, down_wf.mT, down_bias_w)
        ctx.save_for_backward(x_rw, up_gw, bias_g, down_wf, h_rg, a_rf)
        ctx.kind, ctx.gated, ctx.shape = kind, gated, x.shape
        return out_rw.view(*x.shape[:-1], len(down_wf))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        x_rw, up_gw, bias_g, down_wf, h_rg, a_rf = ctx.saved_tensors
        d_rw, needed = d_out.reshape(-1, d_out.shape[-1]), ctx.needs_input_grad
        dx = d_up = d_up_bias = d_down = d_down_bias = None
        if needed[3]:
            d_down = product(d_rw.mT, a_rf)
        if needed[4]:
            d_down_bias = d_rw.sum(dim=0)
        if any(needed[:3]):
            d_a = product(d_rw, down_wf)
            dh_rg, d_bias_g = activation.differentiate(h_rg, bias_g, d_a, ctx.kind, ctx.gated)
            if needed[0]:
                dx = product(dh_rg, up_gw).view(ctx.shape)
            if needed[1]:
                d_up = product(dh_rg.mT, x_rw)
            d_up_bias = d_bias_g if needed[2] else None
        return dx, d_up, d_up_bias, d_down, d_down_bias, None, None
