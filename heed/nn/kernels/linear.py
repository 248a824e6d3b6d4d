"""Linear maps and what follows them, as machines like it: few passes over memory.

Where there is no Triton, where nothing learns, and for a compiler, these are torch's own steps.

Shapes: w width, f feed-forward width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from heed.nn.kernels.dispatch import on_gpu

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "swiglu": F.silu,
    "geglu": lambda x: F.gelu(x, approximate="tanh"),
}
GATES = {"swiglu": "silu", "geglu": "gelu_tanh"}
"""Those that gate, and what they do to the gate."""


class Linear(nn.Linear):
    """W x + b.

    The gradient of b is a sum over all tokens. Torch's kernel for that takes several times as long
    as reading them does, so on a GPU one of ours (`heed.nn.kernels.triton.column_sum`) takes its
    place.
    """

    def forward(self, x: Tensor) -> Tensor:
        """The map of the last dimension."""
        bias: Tensor | None = self.bias
        if bias is None or not bias.requires_grad or not _learns_on_gpu(x):
            return super().forward(x)
        run: Any = _LearnBias.apply
        return run(F.linear(x, self.weight, bias.detach()), bias)


class Dropout(nn.Dropout):
    """x · kept / (1 - p), each number kept with probability 1 - p (Srivastava et al. 2014).

    On a CPU torch draws a double for every number, which takes longer than all else here. 32 random
    bits say as much, and two numbers' worth are drawn at once.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Hide some of x while training."""
        drawn = self.training and 0.0 < self.p < 1.0 and x.device.type == "cpu"
        if not drawn or torch.compiler.is_compiling():
            return super().forward(x)
        bits = torch.empty(-(-x.numel() // 2), dtype=torch.int64).random_(-(2**63), None)
        bits = bits.view(torch.int32)[: x.numel()].view(x.shape)
        kept = torch.empty(x.shape, dtype=x.dtype)
        torch.ge(bits, round(self.p * (2**32 - 1)) - 2**31, out=kept)
        return x * kept.mul_(1 / (1 - self.p))


def activated(x: Tensor, up: nn.Linear, name: str) -> Tensor:
    """activation(up(x)); with a gate (Shazeer 2020) silu(gate) · up of the map's two halves."""
    gated = name in GATES
    if _learns_on_gpu(x):
        run: Any = _Activate.apply
        return run(F.linear(x, up.weight), up.bias, GATES.get(name, name), gated)
    hidden = up(x)
    if not gated:
        return ACTIVATIONS[name](hidden)
    gate, passed = hidden.chunk(2, dim=-1)
    return ACTIVATIONS[name](gate) * passed


def _learns_on_gpu(x: Tensor) -> bool:
    learns = torch.is_grad_enabled() and not torch.compiler.is_compiling()
    return learns and on_gpu(x) and x.dtype != torch.float64


class _LearnBias(torch.autograd.Function):
    """Vectors to which a bias was added already: its gradient is theirs, summed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor) -> Tensor:
        ctx.dtype = bias.dtype
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dx: Tensor) -> tuple[Tensor, Tensor]:
        from heed.nn.kernels.triton.column_sum import column_sums

        return dx, column_sums(dx).to(ctx.dtype)


class _Activate(torch.autograd.Function):
    """Add a bias, then activate."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor | None, kind: str, gated: bool) -> Tensor:
        from heed.nn.kernels.triton.bias_activation import activate

        rows = x.reshape(-1, x.shape[-1]).contiguous()
        ctx.save_for_backward(rows, bias)
        ctx.rule, ctx.shape = (kind, gated), x.shape
        out = activate(rows, bias, kind, gated)
        return out.view(*x.shape[:-1], out.shape[-1])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        from heed.nn.kernels.triton.bias_activation import differentiate

        rows, bias = ctx.saved_tensors
        kind, gated = ctx.rule
        d_rows = d_out.reshape(-1, d_out.shape[-1]).contiguous()
        dx, d_bias = differentiate(rows, bias, kind, gated, d_rows)
        d_bias = None if d_bias is None else d_bias.to(bias.dtype)
        return dx.view(ctx.shape), d_bias, None, None
