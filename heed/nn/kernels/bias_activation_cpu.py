"""Bias and activation in one pass over memory on a CPU (`c/bias_activation.c`).

Torch takes passes of their own for a gate's product and for the sum of the bias's gradient, and its
GELU by tanh takes four times as long as this one.

Shapes: r rows, f feed-forward width, k 2 with a gate and else 1, so that g = k · f.
"""

from __future__ import annotations

from ctypes import CDLL, c_int32, c_int64, c_void_p
from functools import cache
from typing import Any

import torch
from torch import Tensor

from heed.nn.kernels.availability import on_cpu
from heed.nn.kernels.cpu_library import cpu_library
from heed.nn.kernels.custom_op import once_differentiable

KINDS = ("gelu", "gelu_tanh", "silu")
"""Activations, in the order of the C source. ReLU is not faster than torch's."""
DTYPES = (torch.float32, torch.bfloat16)
MIN_NUMBERS = 2**15
"""With fewer numbers one thread is faster than several, as in torch's own kernels."""


def has_kernel(x: Tensor, kind: str) -> bool:
    """Whether `bias_activation` can follow the product of these inputs and a weight."""
    if kind not in KINDS:
        return False
    dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else x.dtype
    if x.dtype not in DTYPES or dtype not in DTYPES:
        return False
    return _library() is not None


def bias_activation(h: Tensor, bias: Tensor | None, kind: str, gated: bool) -> Tensor:
    """activation(h + bias) [..., f] of h [..., g], in h's dtype; it can be differentiated once.

    With a gate, this is activation(gate) · value of the two halves of h + bias.
    """
    run: Any = _BiasActivation.apply
    return run(h, bias, kind, gated)


def activate(h_rg: Tensor, bias_g: Tensor, kind: str, gated: bool) -> Tensor:
    """activation(h + bias) [r, f] of a contiguous h.

    C checks nothing, so that shapes and devices are checked here.
    """
    if not (on_cpu(h_rg) and on_cpu(bias_g)):
        raise ValueError(f"{kind} in C reads the memory of a CPU alone.")
    if bias_g.shape != h_rg.shape[-1:]:
        raise ValueError(f"A bias {[*bias_g.shape]} for {h_rg.shape[-1]} numbers.")
    if gated and h_rg.shape[-1] % 2:
        raise ValueError(f"{h_rg.shape[-1]} numbers have no halves, a gate and a value.")
    out_rf = h_rg.new_empty(len(h_rg), h_rg.shape[-1] // (1 + gated))
    _launch("activate", [h_rg, bias_g, out_rf], out_rf, kind, gated)
    return out_rf


def differentiate(
    h_rg: Tensor, bias_g: Tensor, d_rf: Tensor, kind: str, gated: bool
) -> tuple[Tensor, Tensor]:
    """The gradients of h and of the bias for that of the output; all are contiguous."""
    dh_rg, d_bias_g = torch.empty_like(h_rg), torch.empty_like(bias_g)
    sums_bg = d_bias_g.new_empty(_block_count(len(h_rg)), len(d_bias_g))
    tensors = [h_rg, bias_g, d_rf, dh_rg, d_bias_g, sums_bg]
    _launch("differentiate", tensors, d_rf, kind, gated)
    return dh_rg, d_bias_g


class _BiasActivation(torch.autograd.Function):
    """activation(h + bias) as one kernel."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, bias: Tensor | None, kind: str, gated: bool) -> Tensor:
        h_rg = h.reshape(-1, h.shape[-1]).contiguous()
        bias_g = (h.new_zeros(h.shape[-1]) if bias is None else bias).float().contiguous()
        out_rf = activate(h_rg, bias_g, kind, gated)
        ctx.save_for_backward(h_rg, bias_g)
        ctx.kind, ctx.gated, ctx.shape = kind, gated, h.shape
        ctx.bias_dtype = None if bias is None else bias.dtype
        return out_rf.view(*h.shape[:-1], out_rf.shape[-1])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        h_rg, bias_g = ctx.saved_tensors
        d_rf = d_out.reshape(-1, d_out.shape[-1]).contiguous()
        dh_rg, d_bias_g = differentiate(h_rg, bias_g, d_rf, ctx.kind, ctx.gated)
        d_bias = d_bias_g.to(ctx.bias_dtype) if ctx.needs_input_grad[1] else None
        return dh_rg.view(ctx.shape), d_bias, None, None


def _launch(name: str, tensors: list[Tensor], out_rf: Tensor, kind: str, gated: bool) -> None:
    """Call a function of the C source. `out_rf` has the shape and the dtype of the output."""
    function = getattr(_library(), name)
    threads = torch.get_num_threads() if out_rf.numel() >= MIN_NUMBERS else 1
    pointers = [x.data_ptr() for x in tensors]
    is_bfloat16 = out_rf.dtype == torch.bfloat16
    function(*pointers, *out_rf.shape, KINDS.index(kind), gated, is_bfloat16, threads)


def _block_count(rows: int) -> int:
    library = _library()
    return 0 if library is None else library.block_count(rows)


@cache
def _library() -> CDLL | None:
    library = cpu_library("bias_activation")
    if library is None:
        return None
    for name, tensors in ("activate", 3), ("differentiate", 6):
        function = getattr(library, name)
        function.argtypes = [c_void_p] * tensors + [c_int64] * 2 + [c_int32] * 4
        function.restype = None
    library.block_count.argtypes, library.block_count.restype = [c_int64], c_int64
    return library
