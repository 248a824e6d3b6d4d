"""Linear layers and activations that train on a GPU: fewer passes over memory than torch's.

Matrix products are cuBLASLt's where that pays (`cublaslt`). The gradient of a bias is a sum over
all tokens: torch's kernel for it takes several times as long as reading the tokens does. Here the
kernel that writes the tokens' gradients adds them up (`gradient_sums`), else `triton/column_sum.py`
does. Gradients of parameters may have a stream of their own (`parameter_gradients`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heed.nn.kernels import cublaslt
from heed.nn.kernels.custom_op import once_differentiable
from heed.nn.kernels.gradient_sums import attached_sums
from heed.nn.kernels.parameter_gradients import ParameterStream, parameter_stream
from heed.nn.kernels.weight_copies import narrow


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """W x + b, in autocast's dtype; the gradients of W and b are sums in float32.

    Torch rounds W's gradient to 16 bits under autocast, and then widens it by another kernel.
    """
    device = x.device.type
    autocast, stream = torch.is_autocast_enabled(device), parameter_stream(weight, bias)
    if not autocast and stream is None and (bias is None or not bias.requires_grad):
        return F.linear(x, weight, bias)
    run: Any = _Linear.apply
    return run(x, weight, bias, torch.get_autocast_dtype(device) if autocast else x.dtype, stream)


def linear_activation(x: Tensor, up: nn.Linear, kind: str, *, gated: bool) -> Tensor:
    """activation(up(x)), or activation(gate) · value of up(x)'s two halves."""
    run: Any = _BiasActivation.apply
    return run(linear(x, up.weight), up.bias, kind, gated, parameter_stream(up.bias))


def has_gelu_products(x: Tensor, up: nn.Linear, down: nn.Linear) -> bool:
    """Whether cuBLASLt can compute GELU within the products of these layers: in 16 bits."""
    device = x.device.type
    if len(down.weight) != x.shape[-1] or not torch.is_autocast_enabled(device):
        return False
    dtype = torch.get_autocast_dtype(device)
    return cublaslt.serves(x.reshape(-1, x.shape[-1]), up.weight, dtype)


def feed_forward_gelu(x: Tensor, up: nn.Linear, down: nn.Linear) -> Tensor:
    """down(GELU(up(x))), with the tanh form of GELU inside the products."""
    run: Any = _FeedForward.apply
    parameters = up.weight, up.bias, down.weight, down.bias
    return run(x, *parameters, torch.bfloat16, parameter_stream(*parameters))


class _Layer(NamedTuple):
    """What the gradients of a linear layer's parameters need, and the stream for them, if any."""

    dtypes: tuple[torch.dtype, torch.dtype | None]
    """Of weight and bias."""
    parameters: tuple[Tensor, Tensor | None] | None
    """Kept for the stream alone: else a weight computed from others (LoRA) would stay in memory."""
    stream: ParameterStream | None

    @classmethod
    def of(cls, weight: Tensor, bias: Tensor | None, stream: ParameterStream | None) -> _Layer:
        """The layer with these parameters."""
        dtypes = weight.dtype, None if bias is None else bias.dtype
        return cls(dtypes, None if stream is None else (weight, bias), stream)

    def gradients(
        self, d_out: Tensor, x: Tensor, learns: Sequence[bool]
    ) -> tuple[Tensor | None, Tensor | None]:
        """Gradients of weight and bias from those of the outputs; none where the stream adds them.

        Call this before the gradient of x is computed: the stream waits for what came before.
        """
        rows, sums = d_out.reshape(-1, d_out.shape[-1]), attached_sums(d_out)

        def compute() -> tuple[Tensor | None, Tensor | None]:
            from heed.nn.kernels.triton.column_sum import add_parts, column_sums

            d_weight = d_bias = None
            weight_dtype, bias_dtype = self.dtypes
            if learns[0]:
                d_weight = _product(rows.mT, x.reshape(-1, x.shape[-1]), weight_dtype)
            if bias_dtype is not None and learns[1]:
                d_bias = (column_sums(rows) if sums is None else add_parts(sums)).to(bias_dtype)
            return d_weight, d_bias

        if self.stream is None or self.parameters is None:
            return compute()
        reads = (rows, x) if sums is None else (rows, x, sums)
        self.stream.add_gradients(self.parameters, compute, reads)
        return None, None


class _Linear(torch.autograd.Function):
    """W x + b in a dtype, which the weight's own may exceed."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        dtype: torch.dtype,
        stream: ParameterStream | None,
    ) -> Tensor:
        x_narrow, weight_narrow, bias_narrow = _narrow(dtype, x, weight, bias)
        ctx.save_for_backward(x_narrow, weight_narrow)
        ctx.layer, ctx.dtype = _Layer.of(weight, bias, stream), x.dtype
        ctx.sums_gradient = bias is not None and bias.requires_grad
        return _linear(x_narrow, weight_narrow, bias_narrow)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        x_learns, *learns = ctx.needs_input_grad[:3]
        rows = dy.reshape(-1, dy.shape[-1])
        gradients = ctx.layer.gradients(dy, x, learns)
        dx = _input_gradient(rows, weight, ctx.dtype).view(x.shape) if x_learns else None
        return dx, *gradients, None, None


class _FeedForward(torch.autograd.Function):
    """down(GELU(up(x))) in its tanh form, with GELU and its derivative inside the products."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        up: Tensor,
        up_bias: Tensor | None,
        down: Tensor,
        down_bias: Tensor | None,
        dtype: torch.dtype,
        stream: ParameterStream | None,
    ) -> Tensor:
        x_narrow, up_narrow, up_bias_narrow = _narrow(dtype, x, up, up_bias)
        activated, hidden = cublaslt.linear_gelu(x_narrow, up_narrow, up_bias_narrow)
        activated, down_narrow, down_bias_narrow = _narrow(dtype, activated, down, down_bias)
        ctx.save_for_backward(x_narrow, up_narrow, hidden, activated, down_narrow)
        ctx.layers = _Layer.of(up, up_bias, stream), _Layer.of(down, down_bias, stream)
        ctx.dtype = x.dtype
        ctx.sums_gradient = down_bias is not None and down_bias.requires_grad
        return _linear(activated, down_narrow, down_bias_narrow)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        x, up, hidden, activated, down = ctx.saved_tensors
        up_layer, down_layer = ctx.layers
        x_learns, *learns = ctx.needs_input_grad[:5]
        d_out = d_out.contiguous()
        rows = d_out.view(-1, d_out.shape[-1])
        down_gradients = down_layer.gradients(d_out, activated, learns[2:])
        d_hidden = cublaslt.product_gelu_backward(rows, down, hidden)
        up_gradients = up_layer.gradients(d_hidden, x, learns[:2])
        dx = _input_gradient(d_hidden, up, ctx.dtype).view(x.shape) if x_learns else None
        return dx, *up_gradients, *down_gradients, None, None


def _narrow(
    dtype: torch.dtype, x: Tensor, weight: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Inputs and parameters of a layer in this dtype."""
    return x.to(dtype), narrow(weight, dtype), None if bias is None else narrow(bias, dtype)


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if cublaslt.serves(x, weight):
        return cublaslt.linear(x, weight, bias)
    return F.linear(x, weight, bias)


def _input_gradient(rows: Tensor, weight: Tensor, dtype: torch.dtype) -> Tensor:
    if dtype == rows.dtype and cublaslt.serves(rows, weight):
        return cublaslt.product(rows, weight)
    return _product(rows, weight, dtype)


def _product(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """a b in this dtype, rounded once."""
    if a.dtype == dtype:
        return a @ b
    return torch.mm(a, b, out_dtype=dtype) if a.is_cuda else a.to(dtype) @ b.to(dtype)


class _BiasActivation(torch.autograd.Function):
    """activation(x + bias) as one kernel."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        bias: Tensor | None,
        kind: str,
        gated: bool,
        stream: ParameterStream | None,
    ) -> Tensor:
        from heed.nn.kernels.triton.bias_activation import activate

        rows = x.reshape(-1, x.shape[-1]).contiguous()
        ctx.save_for_backward(rows, bias)
        ctx.kind, ctx.shape, ctx.stream = (kind, gated), x.shape, stream
        out = activate(rows, bias, kind, gated)
        return out.view(*x.shape[:-1], out.shape[-1])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        from heed.nn.kernels.triton.bias_activation import differentiate
        from heed.nn.kernels.triton.column_sum import add_parts

        rows, bias = ctx.saved_tensors
        kind, gated = ctx.kind
        d_rows = d_out.reshape(-1, d_out.shape[-1]).contiguous()
        dx, sums = differentiate(rows, bias, kind, gated, d_rows)
        d_bias = None
        if sums is not None and ctx.stream is not None:
            ctx.stream.add_gradients((bias,), lambda: (add_parts(sums),), (sums,))
        elif sums is not None:
            d_bias = add_parts(sums).to(bias.dtype)
        return dx.view(ctx.shape), d_bias, None, None, None
