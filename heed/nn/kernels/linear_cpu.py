"""Linear layers that train on a CPU in float32, by a matrix product in C (`c/matrix_product.c`).

MKL, which torch takes matrix products from, is made for Intel's CPUs. On AMD's with AVX-512 the
products of a linear layer and of its gradients are 5 to 30% faster in C.

Shapes: r rows, w numbers in, f numbers out.
"""

from __future__ import annotations

from ctypes import CDLL, POINTER, Structure, byref, c_int32, c_int64, c_void_p
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from heed.nn.kernels.availability import on_cpu
from heed.nn.kernels.c_library import cpu_instructions, cpu_vendor
from heed.nn.kernels.cpu_library import cpu_library

LANES = 16
"""Numbers in and out must be multiples of this: columns of all products are whole registers."""


class ProductStruct(Structure):
    """A product of two matrices, with strides; as in the C source."""

    _fields_ = (
        *((name, c_void_p) for name in ("a", "b", "bias", "out")),
        *((name, c_int64) for name in ("a_i", "a_r", "b_r", "b_j", "out_i")),
        *((name, c_int64) for name in ("rows", "columns", "inner")),
    )


def serves(x: Tensor, weight_fw: Tensor, bias_f: Tensor | None) -> bool:
    """Whether C can compute a layer with these parameters and its gradients."""
    parts = (x, weight_fw) if bias_f is None else (x, weight_fw, bias_f)
    if torch.is_autocast_enabled("cpu") or any(part.dtype != torch.float32 for part in parts):
        return False
    if not all(on_cpu(part) and part.is_contiguous() for part in parts[1:]):
        return False
    fits = not any(size % LANES for size in weight_fw.shape)
    return fits and min(x.numel(), weight_fw.numel()) > 0 and _library() is not None


def linear(x: Tensor, weight_fw: Tensor, bias_f: Tensor | None) -> Tensor:
    """W x + b over the last dimension; it can be differentiated once."""
    run: Any = _Linear.apply
    return run(x, weight_fw, bias_f)


def multiply(a_ir: Tensor, b_rj: Tensor, bias_j: Tensor | None = None) -> Tensor:
    """a b + bias [i, j], of a and b with any strides; j is a multiple of 16."""
    library = _library()
    if library is None:
        raise RuntimeError("The matrix product in C is not compiled.")
    (rows, inner), columns = a_ir.shape, b_rj.shape[1]
    out_ij = a_ir.new_empty(rows, columns)
    bias = None if bias_j is None else bias_j.data_ptr()
    pointers = a_ir.data_ptr(), b_rj.data_ptr(), bias, out_ij.data_ptr()
    strides = *a_ir.stride(), *b_rj.stride(), columns
    product = ProductStruct(*pointers, *strides, rows, columns, inner)
    library.multiply(byref(product), torch.get_num_threads())
    return out_ij


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


@cache
def _library() -> CDLL | None:
    if cpu_vendor() != "AuthenticAMD" or "avx512f" not in cpu_instructions():
        return None
    library = cpu_library("matrix_product")
    if library is not None:
        library.multiply.argtypes, library.multiply.restype = (
            [POINTER(ProductStruct), c_int32],
            None,
        )
    return library
