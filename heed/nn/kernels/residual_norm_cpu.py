"""Residual add, dropout and norm for training on a CPU, as C computes them (`c/residual_norm.c`).

The dropout mask follows from a seed, which is drawn when it is used from torch's own generator: a
checkpoint saves the generator's state. Dropout by itself has the same mask for the same seed.

Shapes: r rows, w width.
"""

from __future__ import annotations

from ctypes import CDLL, c_double, c_float, c_int32, c_int64, c_uint64, c_void_p
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from heed.nn.kernels.availability import on_cpu
from heed.nn.kernels.cpu_library import cpu_library
from heed.nn.kernels.custom_op import once_differentiable

MAX_WIDTH = 8192
"""A thread holds two rows on its stack."""
BLOCK = 64
"""Rows whose gradients of weight and bias are added up together, as in the C source."""
DROPOUT = (c_uint64, c_double, c_int32)
"""Seed, probability and threads: the last arguments of every function."""


def add_norm_in_c(
    x: Tensor, branch: Tensor | None, norm: nn.Module, dropped: float, *, for_linear: bool
) -> tuple[Tensor, Tensor] | None:
    """x + dropout(branch) and its norm, as `add_norm` has them; None where C does not serve."""
    if x.dtype != torch.float32 or not isinstance(norm, nn.LayerNorm | nn.RMSNorm):
        return None
    weight, eps, is_centered = norm.weight, norm.eps, isinstance(norm, nn.LayerNorm)
    bias = norm.bias if isinstance(norm, nn.LayerNorm) else None
    library = _library()
    if library is None or eps is None or not _serves(x, branch, weight, bias):
        return None
    is_narrow = for_linear and _narrows()
    run: Any = _AddNorm.apply
    return run(library, x, branch, weight, bias, is_centered, eps, dropped, is_narrow)


def drop_in_c(x: Tensor, dropped: float) -> Tensor | None:
    """x · mask / (1 - p); None where C does not serve."""
    serves = x.dtype == torch.float32 and x.is_contiguous() and x.dim() > 0
    library = _library() if serves else None
    if library is None:
        return None
    run: Any = _Dropout.apply
    return run(library, x, dropped)


def draw_seed() -> int:
    """A dropout seed from torch's generator."""
    return int(torch.randint(2**63 - 1, ()))


@cache
def _library() -> CDLL | None:
    library = cpu_library("residual_norm")
    if library is None:
        return None
    sizes, flags = (c_int64, c_int32), (c_int32,) * 3
    library.drop_rows.argtypes = (*(c_void_p,) * 2, *sizes, *DROPOUT)
    library.add_norm.argtypes = (*(c_void_p,) * 7, *sizes, c_float, *flags, *DROPOUT)
    library.add_norm_backward.argtypes = (*(c_void_p,) * 10, *sizes, *flags, *DROPOUT)
    for function in (library.drop_rows, library.add_norm, library.add_norm_backward):
        function.restype = None
    return library


def _serves(x: Tensor, branch: Tensor | None, weight: Tensor | None, bias: Tensor | None) -> bool:
    w = x.shape[-1]
    if weight is None or not 0 < w <= MAX_WIDTH or not x.is_contiguous():
        return False
    if not _is_plain(weight, w) or not (bias is None or _is_plain(bias, w)):
        return False
    if branch is None:
        return True
    is_known = branch.dtype == torch.float32 or branch.dtype == torch.bfloat16
    return is_known and on_cpu(branch) and branch.shape == x.shape and branch.is_contiguous()


def _is_plain(parameter_w: Tensor, w: int) -> bool:
    is_float = parameter_w.dtype == torch.float32 and on_cpu(parameter_w)
    return is_float and parameter_w.shape == (w,) and parameter_w.is_contiguous()


def _narrows() -> bool:
    """Whether linear layers read bfloat16, which a norm before them then writes."""
    return torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") == torch.bfloat16


class _AddNorm(torch.autograd.Function):
    """The C functions as one differentiable function."""

    @staticmethod
    def forward(
        ctx: Any,
        library: CDLL,
        x: Tensor,
        branch: Tensor | None,
        weight: Tensor,
        bias: Tensor | None,
        is_centered: bool,
        eps: float,
        dropped: float,
        is_narrow: bool,
    ) -> tuple[Tensor, Tensor]:
        w = x.shape[-1]
        rows = x.numel() // w
        stream = x if branch is None else torch.empty_like(x)
        normed = torch.empty_like(x, dtype=torch.bfloat16 if is_narrow else None)
        moments_2r = x.new_empty(2, rows)
        seed = draw_seed() if dropped else 0
        ctx.branch_dtype = None if branch is None else branch.dtype
        flags = is_centered, ctx.branch_dtype == torch.bfloat16, is_narrow
        ctx.config = *flags, seed, dropped
        library.add_norm(
            *(_address(part) for part in (x, branch, weight, bias, stream, normed, moments_2r)),
            *(rows, w, eps, *ctx.config, torch.get_num_threads()),
        )
        ctx.save_for_backward(stream, moments_2r, weight)
        ctx.library = library
        ctx.set_materialize_grads(False)
        return stream, normed

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, d_stream: Tensor | None, d_normed: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        stream, moments_2r, weight = ctx.saved_tensors
        is_centered, is_branch_narrow, is_normed_narrow, seed, dropped = ctx.config
        w, rows = weight.shape[0], moments_2r.shape[1]
        if d_normed is None:
            d_normed = torch.zeros_like(stream)
            is_normed_narrow = False
        d_normed = d_normed.contiguous()
        d_stream = None if d_stream is None else d_stream.contiguous()
        dx, d_branch = torch.empty_like(stream), None
        if ctx.branch_dtype is not None and (dropped or is_branch_narrow):
            d_branch = torch.empty_like(stream, dtype=ctx.branch_dtype)
        d_weight, d_bias = torch.empty_like(weight), torch.empty_like(weight)
        parts = weight.new_empty(-(-rows // BLOCK), 2, w)
        tensors = stream, moments_2r, weight, d_stream, d_normed, dx, d_branch
        ctx.library.add_norm_backward(
            *(_address(part) for part in (*tensors, d_weight, d_bias, parts)),
            *(rows, w, is_centered, is_branch_narrow, is_normed_narrow),
            *(seed, dropped, torch.get_num_threads()),
        )
        if ctx.branch_dtype is not None and d_branch is None:
            d_branch = dx
        gradients = dx, d_branch, d_weight, d_bias
        needed = zip(gradients, ctx.needs_input_grad[1:], strict=False)
        return None, *(part if is_needed else None for part, is_needed in needed), *[None] * 4


class _Dropout(torch.autograd.Function):
    """Dropout by a seed: the gradient has the output's mask."""

    @staticmethod
    def forward(ctx: Any, library: CDLL, x: Tensor, dropped: float) -> Tensor:
        ctx.config = library, draw_seed(), dropped
        return _drop(x, *ctx.config)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[None, Tensor, None]:
        return None, _drop(d_out.contiguous(), *ctx.config), None


def _drop(x: Tensor, library: CDLL, seed: int, dropped: float) -> Tensor:
    out, w = torch.empty_like(x), max(1, x.shape[-1])
    sizes, threads = (x.numel() // w, w), torch.get_num_threads()
    library.drop_rows(x.data_ptr(), out.data_ptr(), *sizes, seed, dropped, threads)
    return out


def _address(x: Tensor | None) -> int | None:
    return None if x is None else x.data_ptr()
