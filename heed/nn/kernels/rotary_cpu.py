"""Rotary position embedding on a CPU in one pass over memory (`c/rotary.c`), for training.

Torch's functions take halves of heads, rows of a few numbers, and 16 bits in passes of their own.

Shapes: b batch, n tokens, h heads, d head width.
"""

from __future__ import annotations

from ctypes import CDLL, POINTER, Structure, byref, c_int32, c_int64, c_void_p
from functools import cache

import torch
from torch import Tensor

from heed.nn.kernels.attention_structs import HeadsStruct, adjacent
from heed.nn.kernels.availability import may_compute_in_c
from heed.nn.kernels.cpu_library import cpu_library
from heed.nn.kernels.qkv_layout import empty_heads

DTYPES = (torch.float32, torch.bfloat16)
MIN_NUMBERS = 2**15
"""With fewer numbers one thread is faster than several."""


class TableStruct(Structure):
    """Numbers of each token [b or 1, 1, n, d/2] with their strides; as in the C source."""

    _fields_ = (("start", c_void_p), ("b", c_int64), ("n", c_int64))

    @classmethod
    def of(cls, x: Tensor) -> TableStruct:
        """The struct of a tensor, which must live as long as it."""
        return cls(x.data_ptr(), x.stride(0) if len(x) > 1 else 0, x.stride(2))


class CallStruct(Structure):
    """The arguments of one rotation."""

    _fields_ = (
        *((name, HeadsStruct) for name in ("x", "out")),
        *((name, TableStruct) for name in ("cos", "sin")),
        *((name, c_int32) for name in ("sequences", "tokens", "heads", "half")),
        *((name, c_int32) for name in ("is_narrow", "threads")),
    )


@cache
def load_kernel() -> CDLL | None:
    """The kernel, compiled when it is first needed; None where nothing compiles."""
    library = cpu_library("rotary")
    if library is not None:
        library.rotate.argtypes, library.rotate.restype = [POINTER(CallStruct)], None
    return library


def can_rotate(x_bhnd: Tensor, cos: Tensor, sin: Tensor) -> bool:
    """Whether C can rotate these heads by these tables [b or 1, 1, n, d/2]: it checks nothing."""
    if x_bhnd.dtype not in DTYPES or not all(map(may_compute_in_c, (x_bhnd, cos, sin))):
        return False
    b, _, n, d = x_bhnd.shape
    known = cos.dtype == sin.dtype == torch.float32 and cos.shape == sin.shape
    fits = known and cos.shape[1:] == (1, n, d // 2) and len(cos) in (1, b) and d % 2 == 0
    return fits and x_bhnd.numel() > 0 and load_kernel() is not None


def rotate_heads(x_bhnd: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Each pair (i, i + d/2) rotated by its token's angle, each token's heads adjacent."""
    library = load_kernel()
    if library is None:
        raise RuntimeError("The kernel for rotary position embedding is not compiled.")
    (b, h, n, d), out_bhnd = x_bhnd.shape, empty_heads(x_bhnd)
    x_bhnd, cos, sin = map(adjacent, (x_bhnd, cos, sin))
    call = CallStruct(
        HeadsStruct.of(x_bhnd),
        HeadsStruct.of(out_bhnd),
        TableStruct.of(cos),
        TableStruct.of(sin),
        *(b, n, h, d // 2),
        x_bhnd.dtype == torch.bfloat16,
        torch.get_num_threads() if x_bhnd.numel() >= MIN_NUMBERS else 1,
    )
    library.rotate(byref(call))
    return out_bhnd
