"""The step of AdamW and Adam on a CPU over all tensors of a parameter group (`c/adamw.c`).

The norm by which gradients are clipped before it is computed here, too.

Torch divides clipped gradients in a pass of its own, adds to each tensor's step by an operation of
its own, and starts its threads for each tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import CDLL, POINTER, Structure, byref, c_double, c_int32, c_int64
from functools import cache
from math import sqrt

import torch
from torch import Tensor

from heed.nn.kernels.cpu_library import cpu_library

MIN_NUMBERS = 2**15
"""With fewer numbers one thread is faster than several."""


class SettingsStruct(Structure):
    """Settings of a step; as in the C source."""

    _fields_ = (
        *((name, c_double) for name in ("lr", "divisor", "beta1", "beta2", "eps", "decay")),
        ("is_decoupled", c_int64),
    )


@cache
def load_kernel() -> CDLL | None:
    """The kernel, compiled when it is first needed; None where nothing compiles."""
    library = cpu_library("adamw")
    if library is not None:
        table, settings = POINTER(c_int64), POINTER(SettingsStruct)
        library.update.argtypes = [table, c_int64, settings, c_int32]
        library.update.restype = None
        library.count_chunks.argtypes, library.count_chunks.restype = [table, c_int64], c_int64
        library.sum_squares.argtypes = [table, c_int64, POINTER(c_double), c_int32]
        library.sum_squares.restype = c_double
    return library


def update(
    rows: Sequence[Sequence[Tensor]],
    *,
    lr: float,
    divisor: float,
    betas: tuple[float, float],
    eps: float,
    decay: float,
    decoupled: bool,
) -> None:
    """One step of AdamW (`decoupled`) or Adam, with gradients divided by `divisor`.

    `rows` are parameters, gradients, means, means of squares, and steps: contiguous, in float32. C
    checks nothing, so that sizes are checked here. The formulas are those of the kernel on a GPU
    (`triton/adamw.py`).
    """
    library = load_kernel()
    if library is None:
        raise RuntimeError("The kernel for AdamW is not compiled.")
    n, (sizes, *others, steps) = len(rows[0]), [[x.numel() for x in row] for row in rows]
    if any(other != sizes for other in others) or steps != [1] * n:
        raise ValueError("Gradients or states of AdamW have other sizes than their parameters.")
    addresses = [tensor.data_ptr() for row in rows for tensor in row]
    table = (c_int64 * (6 * n))(*addresses, *sizes)
    threads = torch.get_num_threads() if sum(sizes) >= MIN_NUMBERS else 1
    settings = SettingsStruct(lr, divisor, *betas, eps, decay, decoupled)
    library.update(table, n, byref(settings), threads)


def norm(tensors: Sequence[Tensor]) -> Tensor:
    """The Euclidean norm of all numbers of contiguous float32 tensors, as `get_total_norm` has it.

    Torch launches an operation for each tensor.
    """
    library = load_kernel()
    if library is None:
        raise RuntimeError("The kernel for AdamW is not compiled.")
    n, sizes = len(tensors), [x.numel() for x in tensors]
    table = (c_int64 * (2 * n))(*(x.data_ptr() for x in tensors), *sizes)
    sums = (c_double * library.count_chunks((c_int64 * n)(*sizes), n))()
    threads = torch.get_num_threads() if sum(sizes) >= MIN_NUMBERS else 1
    total = library.sum_squares(table, n, sums, threads)
    return torch.tensor(sqrt(total), dtype=torch.float32, device="cpu")
