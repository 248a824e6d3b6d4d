"""Matrix products in float32 on AMD's CPUs with AVX-512, in C (`c/matrix_product.c`).

Torch takes its products from MKL, which is made for Intel's CPUs. On AMD's it leaves a tenth to a
half of the speed.

Shapes: i rows and j columns of the result, r what is summed over.
"""

from __future__ import annotations

from ctypes import CDLL, POINTER, Structure, byref, c_int32, c_int64, c_void_p
from functools import cache

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from heed.nn.kernels.availability import on_cpu
from heed.nn.kernels.c_library import cpu_instructions, cpu_vendor
from heed.nn.kernels.cpu_library import cpu_library

LANES = 16
"""Columns of a register; torch computes those that fill no whole register."""


class ProductStruct(Structure):
    """A product of two matrices, with strides; as in the C source."""

    _fields_ = (
        *((name, c_void_p) for name in ("a", "b", "bias", "out")),
        *((name, c_int64) for name in ("a_i", "a_r", "b_r", "b_j", "out_i")),
        *((name, c_int64) for name in ("rows", "columns", "inner", "is_added")),
    )


@cache
def load_kernel() -> CDLL | None:
    """The kernel; None on other CPUs, and where nothing compiles."""
    if cpu_vendor() != "AuthenticAMD" or "avx512f" not in cpu_instructions():
        return None
    library = cpu_library("matrix_product")
    if library is not None:
        library.multiply.argtypes = [POINTER(ProductStruct), c_int32]
        library.multiply.restype = None
    return library


def can_multiply(a_ir: Tensor, b_rj: Tensor) -> bool:
    """Whether C multiplies these matrices; a mode that counts operations sees torch's alone."""
    if not on_cpu(a_ir) or load_kernel() is None:  # for a GPU's matrices nothing is compiled
        return False
    known = a_ir.dtype == b_rj.dtype == torch.float32 and on_cpu(b_rj)
    full = known and a_ir.numel() > 0 and b_rj.shape[1] >= LANES
    return full and not is_in_torch_dispatch_mode()


def product(
    a_ir: Tensor, b_rj: Tensor, bias_j: Tensor | None = None, *, out: Tensor | None = None
) -> Tensor:
    """a b + bias [i, j], in C where it multiplies these matrices, else by torch on any device."""
    if can_multiply(a_ir, b_rj):
        return multiply(a_ir, b_rj, bias_j, out=out)
    if bias_j is None:
        return torch.mm(a_ir, b_rj, out=out)
    return torch.addmm(bias_j, a_ir, b_rj, out=out)


def multiply(
    a_ir: Tensor,
    b_rj: Tensor,
    bias_j: Tensor | None = None,
    *,
    out: Tensor | None = None,
    adds: bool = False,
) -> Tensor:
    """a b + bias [i, j], of a and b with any strides; with `adds`, `out` + a b.

    The result is written to `out`, if there is one; the numbers of its rows are adjacent. C checks
    nothing, so that shapes are checked here.
    """
    library = load_kernel()
    if library is None:
        raise RuntimeError("The matrix product in C is not compiled.")
    (rows, inner), columns = a_ir.shape, b_rj.shape[1]
    out_ij = a_ir.new_empty(rows, columns) if out is None else out
    if len(b_rj) != inner or out_ij.shape != (rows, columns) or out_ij.stride(1) != 1:
        raise ValueError(f"{[*a_ir.shape]} times {[*b_rj.shape]} is not {[*out_ij.shape]}.")
    if bias_j is not None:
        if adds:
            raise ValueError("A product is added to a result without a bias.")
        bias_j = bias_j.expand(columns).contiguous()
    bias = None if bias_j is None else bias_j.data_ptr()
    pointers = a_ir.data_ptr(), b_rj.data_ptr(), bias, out_ij.data_ptr()
    strides = *a_ir.stride(), *b_rj.stride(), out_ij.stride(0)
    whole = columns - columns % LANES
    product = ProductStruct(*pointers, *strides, rows, whole, inner, adds)
    library.multiply(byref(product), torch.get_num_threads())
    if whole < columns:
        rest = a_ir @ b_rj[:, whole:]
        if bias_j is not None:
            rest += bias_j[whole:]
        out_ij[:, whole:] = out_ij[:, whole:] + rest if adds else rest
    return out_ij
