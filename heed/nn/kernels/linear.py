"""Linear layers, embeddings, dropout and activations with few passes over memory.

Without gradients and under torch.compile these are torch's own steps. What a GPU runs while it
trains is in `linear_gpu` and `embedding_lookup`; what a CPU runs, in `linear_cpu`,
`feed_forward_cpu`, `bias_activation_cpu` and `residual_norm_cpu`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heed.nn.kernels.availability import on_gpu, trains_on_cpu

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
    """W x + b; while it trains, by `linear_gpu` or `linear_cpu`."""

    def forward(self, x: Tensor) -> Tensor:
        """W x + b over the last dimension."""
        bias: Tensor | None = self.bias
        if _trains_on_gpu(x):
            from heed.nn.kernels import linear_gpu

            return linear_gpu.linear(x, self.weight, bias)
        return _linear_cpu(x, self.weight, bias) if trains_on_cpu(x) else super().forward(x)


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
        if trains_on_cpu(x):
            from heed.nn.kernels.residual_norm_cpu import drop_in_c

            found = drop_in_c(x, self.p)
            if found is not None:
                return found
        bits = torch.empty(-(-x.numel() // 2), dtype=torch.int64).random_(-(2**63), None)
        bits = bits.view(torch.int32)[: x.numel()].view(x.shape)
        mask = torch.empty(x.shape, dtype=x.dtype)
        torch.ge(bits, round(self.p * (2**32 - 1)) - 2**31, out=mask)
        return x * mask.mul_(1 / (1 - self.p))


def look_up(table: nn.Embedding, ids: Tensor, scale: float) -> Tensor:
    """The table's row for each id, times the scale."""
    weight = table.weight
    if weight.requires_grad and _trains_on_gpu(weight):
        from heed.nn.kernels import embedding_lookup

        return embedding_lookup.look_up(weight, ids, scale)
    return table(ids) * scale


def linear_activation(x: Tensor, up: nn.Linear, name: str) -> Tensor:
    """activation(up(x)); gated (Shazeer 2020), activation(gate) · value of up(x)'s two halves."""
    kind, gated = GATES.get(name, name), name in GATES
    if _trains_on_gpu(x):
        from heed.nn.kernels import linear_gpu

        return linear_gpu.linear_activation(x, up, kind, gated=gated)
    if trains_on_cpu(x):
        from heed.nn.kernels.bias_activation_cpu import bias_activation, has_kernel

        if has_kernel(x, kind):
            return bias_activation(_linear_cpu(x, up.weight, None), up.bias, kind, gated)
    hidden = up(x)
    if name == "relu" and not torch.is_grad_enabled():
        return hidden.relu_()
    if not gated:
        return ACTIVATIONS[name](hidden)
    gate, value = hidden.chunk(2, dim=-1)
    return ACTIVATIONS[name](gate) * value


def feed_forward(
    x: Tensor, up: nn.Linear, name: str, dropout: nn.Dropout, down: nn.Linear
) -> Tensor:
    """down(dropout(activation(up(x)))), as one function where a kernel of the device allows it."""
    drops = dropout.training and dropout.p > 0
    if name == "gelu_tanh" and not drops and _trains_on_gpu(x):
        from heed.nn.kernels import linear_gpu

        if linear_gpu.has_gelu_products(x, up, down):
            return linear_gpu.feed_forward_gelu(x, up, down)
    if not drops and trains_on_cpu(x):
        from heed.nn.kernels import feed_forward_cpu

        kind = GATES.get(name, name)
        if feed_forward_cpu.serves(x, up, kind, down):
            return feed_forward_cpu.feed_forward(x, up, kind, name in GATES, down)
    return down(dropout(linear_activation(x, up, name)))


def _linear_cpu(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """W x + b while it trains on a CPU."""
    from heed.nn.kernels import linear_cpu

    run = linear_cpu.linear if linear_cpu.serves(x, weight, bias) else F.linear
    return run(x, weight, bias)


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
