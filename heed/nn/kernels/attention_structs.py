"""Heads and masks as the attention kernels in C read them (`c/heads.h`).

Shapes: b batch, n queries, m keys, h heads, d head width.
"""

from __future__ import annotations

from ctypes import Structure, c_int64, c_void_p

import torch
from torch import Tensor

from heed.nn.kernels.availability import on_cpu
from heed.nn.kernels.short_attention import mask_tensors
from heed.nn.masks import Mask


class HeadsStruct(Structure):
    """Heads [b, heads, n, d] with their strides; d is contiguous."""

    _fields_ = (("start", c_void_p), *((name, c_int64) for name in ("b", "h", "n")))

    @classmethod
    def of(cls, x_bhnd: Tensor) -> HeadsStruct:
        """The struct of a tensor, which must live as long as it."""
        return cls(x_bhnd.data_ptr(), *x_bhnd.stride()[:3])


class PerTokenStruct(Structure):
    """One number for each token [b, n] with its stride over the batch; or none."""

    _fields_ = (("start", c_void_p), ("b", c_int64))

    @classmethod
    def of(cls, x_bn: Tensor | None) -> PerTokenStruct:
        """The struct of a tensor, which must live as long as it."""
        return cls() if x_bn is None else cls(x_bn.data_ptr(), x_bn.stride(0))


def are_heads(q_bhnd: Tensor, k_bgmd: Tensor, v_bgmd: Tensor) -> bool:
    """Whether C can read these as the heads of one attention: it neither broadcasts nor checks."""
    if not (on_cpu(q_bhnd) and on_cpu(k_bgmd) and on_cpu(v_bgmd)):
        return False
    (b, h, _, d), g, m = q_bhnd.shape, k_bgmd.shape[1], k_bgmd.shape[2]
    if min(q_bhnd.numel(), k_bgmd.numel()) == 0 or h % g:
        return False
    return k_bgmd.shape == v_bgmd.shape == (b, g, m, d)


def mask_rows(mask: Mask | None, b: int, n: int, m: int) -> list[Tensor | None]:
    """What a mask has beside causality, as C reads it."""
    found = (None, None, None) if mask is None else mask_tensors(mask)
    types, counts = (torch.bool, torch.int64, torch.int64), (m, n, m)
    return [
        None if x is None else token_rows(x.to(dtype), b, count)
        for x, dtype, count in zip(found, types, counts, strict=True)
    ]


def token_rows(x_bn: Tensor, b: int, n: int) -> Tensor:
    """One row of n adjacent numbers for each sequence; an error where there are not as many."""
    if x_bn.device.type != "cpu":
        raise ValueError(f"A mask or positions on {x_bn.device}, for heads on the CPU.")
    return x_bn.expand(-1, n).contiguous().expand(b, -1)


def adjacent(x: Tensor) -> Tensor:
    """The tensor, copied where the numbers of a row are not adjacent."""
    return x if x.stride(-1) == 1 else x.contiguous()
