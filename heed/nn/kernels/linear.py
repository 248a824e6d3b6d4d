"""Linear layers, dropout and activations with few passes over memory.

Without Triton, without gradients and under torch.compile these are torch's own steps.

Shapes: w width, f feed-forward width.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from heed.nn.kernels.availability import on_gpu

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "swiglu": F.silu,
    "geglu": lambda x: F.gelu(x, approximate="tanh"),
}
GATES = {"swiglu": "silu", "geglu": "gelu_tanh"}
"""Gated activations, and the activation of their gate."""


class Linear(nn.Linear):
    """W x + b.

    The gradient of b is a sum over all tokens. Torch's kernel for it takes several times as long as
    reading the tokens does, so on a GPU `triton/column_sum.py` computes it.
    """

    def forward(self, x: Tensor) -> Tensor:
        """W x + b over the last dimension."""
        bias: Tensor | None = self.bias
        return linear(x, self.weight, bias) if _trains_on_gpu(x) else super().forward(x)


class OutputLinear(Linear):
    """The last linear layer of a residual branch: initialized smaller, the more branches add up."""

    ends_branch: ClassVar[bool] = True


class Dropout(nn.Dropout):
    """x · mask / (1 - p), each number kept with probability 1 - p (Srivastava et al. 2014).

    On a CPU torch draws a double for every number, which takes longer than the rest of dropout.
    Here 32 random bits decide, and the bits of two numbers are drawn at once. In training, one pass
    in C computes the bits from a seed.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Zero some of x while training."""
        drawn = self.training and 0.0 < self.p < 1.0 and x.device.type == "cpu"
        if not drawn or torch.compiler.is_compiling():
            return super().forward(x)
        if torch.is_grad_enabled():
            from heed.nn.kernels.residual_norm_cpu import drop_in_c

            found = drop_in_c(x, self.p)
            if found is not None:
                return found
        bits = torch.empty(-(-x.numel() // 2), dtype=torch.int64).random_(-(2**63), None)
        bits = bits.view(torch.int32)[: x.numel()].view(x.shape)
        mask = torch.empty(x.shape, dtype=x.dtype)
        torch.ge(bits, round(self.p * (2**32 - 1)) - 2**31, out=mask)
        return x * mask.mul_(1 / (1 - self.p))


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """W x + b on a GPU, in autocast's dtype; the gradients of W and b are sums in float32.

    Torch rounds W's gradient to 16 bits under autocast, and then widens it by another kernel.
    """
    device = x.device.type
    autocast = torch.is_autocast_enabled(device)
    if not autocast and (bias is None or not bias.requires_grad):
        return F.linear(x, weight, bias)
    run: Any = _Linear.apply
    return run(x, weight, bias, torch.get_autocast_dtype(device) if autocast else x.dtype)


def linear_activation(x: Tensor, up: nn.Linear, name: str) -> Tensor:
    """activation(up(x)); gated (Shazeer 2020), activation(gate) · value of up(x)'s two halves."""
    kind, gated = GATES.get(name, name), name in GATES
    if _trains_on_gpu(x):
        run: Any = _BiasActivation.apply
        return run(linear(x, up.weight), up.bias, kind, gated)
    if torch.is_grad_enabled():
        from heed.nn.kernels.bias_activation_cpu import bias_activation, has_kernel

        if has_kernel(x, kind):
            return bias_activation(F.linear(x, up.weight), up.bias, kind, gated)
    hidden = up(x)
    if name == "relu" and not torch.is_grad_enabled():
        return hidden.relu_()
    if not gated:
        return ACTIVATIONS[name](hidden)
    gate, value = hidden.chunk(2, dim=-1)
    return ACTIVATIONS[name](gate) * value


def _trains_on_gpu(x: Tensor) -> bool:
    trains = torch.is_grad_enabled() and not torch.compiler.is_compiling()
    return trains and on_gpu(x) and x.dtype != torch.float64


def without_autocast(x: Tensor) -> AbstractContextManager[Any]:
    """Autocast disabled on the tensor's device."""
    return torch.autocast(x.device.type, enabled=False)


def match_matmul_precision() -> AbstractContextManager[None]:
    """cuDNN's LSTM as exact as matrix products: it uses tf32 for float32 only where they do.

    By itself cuDNN allows tf32 whatever `torch.set_float32_matmul_precision` says.
    """
    cudnn = torch.backends.cudnn
    tf32 = torch.get_float32_matmul_precision() != "highest"
    if not cudnn.is_available() or cudnn.allow_tf32 == tf32:
        return nullcontext()
    return cudnn.flags(
        enabled=cudnn.enabled,
        benchmark=cudnn.benchmark,
        deterministic=cudnn.deterministic,
        allow_tf32=tf32,
    )


class _Linear(torch.autograd.Function):
    """W x + b in a dtype, which the weight's own may exceed."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype
    ) -> Tensor:
        from heed.nn.kernels.weight_copies import narrow

        x_narrow, w_narrow = x.to(dtype), narrow(weight, dtype)
        ctx.save_for_backward(x_narrow, w_narrow)
        ctx.dtypes = x.dtype, weight.dtype, None if bias is None else bias.dtype
        return F.linear(x_narrow, w_narrow, None if bias is None else bias.to(dtype))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        from heed.nn.kernels.triton.column_sum import column_sums

        (x, weight), (x_dtype, weight_dtype, bias_dtype) = ctx.saved_tensors, ctx.dtypes
        dx = d_weight = d_bias = None
        rows = dy.reshape(-1, dy.shape[-1])
        if ctx.needs_input_grad[0]:
            dx = _product(rows, weight, x_dtype).view(x.shape)
        if ctx.needs_input_grad[1]:
            d_weight = _product(rows.mT, x.reshape(-1, x.shape[-1]), weight_dtype)
        if ctx.needs_input_grad[2]:
            d_bias = column_sums(rows).to(bias_dtype)
        return dx, d_weight, d_bias, None


def _product(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """a b in this dtype, rounded once."""
    if a.dtype == dtype:
        return a @ b
    return torch.mm(a, b, out_dtype=dtype) if a.is_cuda else a.to(dtype) @ b.to(dtype)


class _BiasActivation(torch.autograd.Function):
    """activation(x + bias) as one kernel."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor | None, kind: str, gated: bool) -> Tensor:
        from heed.nn.kernels.triton.bias_activation import activate

        rows = x.reshape(-1, x.shape[-1]).contiguous()
        ctx.save_for_backward(rows, bias)
        ctx.kind, ctx.shape = (kind, gated), x.shape
        out = activate(rows, bias, kind, gated)
        return out.view(*x.shape[:-1], out.shape[-1])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        from heed.nn.kernels.triton.bias_activation import differentiate

        rows, bias = ctx.saved_tensors
        kind, gated = ctx.kind
        d_rows = d_out.reshape(-1, d_out.shape[-1]).contiguous()
        dx, d_bias = differentiate(rows, bias, kind, gated, d_rows)
        d_bias = None if d_bias is None else d_bias.to(bias.dtype)
        return dx.view(ctx.shape), d_bias, None, None
