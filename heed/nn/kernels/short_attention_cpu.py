"""Attention over short sequences on a CPU, for training in float32 (`c/short_attention.c`).

SDPA's kernel for CPUs is made for long sequences: with few keys it spends more time around its
products than on them. Gradients of queries, keys and values that are parts of one linear layer's
output lie in one tensor, too: no pass over memory is spent on putting them together.

The structs mirror those of the C source, field by field.

Shapes: b batch, n queries, m keys, h query heads, g key and value heads, d head width.
"""

from __future__ import annotations

from ctypes import CDLL, POINTER, Structure, byref, c_float, c_int32, c_int64, c_void_p
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from heed.nn.kernels.attention_structs import (
    HeadsStruct,
    PerTokenStruct,
    adjacent,
    are_heads,
    mask_rows,
)
from heed.nn.kernels.cpu_library import cpu_library
from heed.nn.kernels.custom_op import once_differentiable
from heed.nn.kernels.qkv_layout import empty_grads, empty_heads
from heed.nn.masks import Mask

MAX_TOKENS = MAX_WIDTH = 128
"""The most queries or keys, and the widest head: what a thread's scratch memory holds."""
MULTIPLE = 16
"""Rows of the weights and of the bias are padded to a multiple of this."""


class CallStruct(Structure):
    """The arguments of one attention."""

    _fields_ = (
        *((name, HeadsStruct) for name in ("q", "k", "v")),
        *(("weights", c_void_p), ("bias", c_void_p)),
        *((name, c_int64) for name in ("bias_h", "bias_n")),
        *((name, PerTokenStruct) for name in ("real", "q_segments", "k_segments")),
        ("scale", c_float),
        *((name, c_int32) for name in ("sequences", "queries", "keys", "heads", "kv_heads")),
        *((name, c_int32) for name in ("width", "is_causal", "threads")),
    )


class GradientsStruct(Structure):
    """Where the backward pass reads and writes gradients."""

    _fields_ = (
        *((name, HeadsStruct) for name in ("d_out", "dq", "dk", "dv")),
        ("d_scores", c_void_p),
    )


@cache
def load_kernels() -> CDLL | None:
    """The kernels, compiled when they are first needed; None where nothing compiles."""
    library = cpu_library("short_attention")
    if library is None:
        return None
    library.attend.argtypes = [POINTER(CallStruct), POINTER(HeadsStruct)]
    library.differentiate.argtypes = [POINTER(CallStruct), POINTER(GradientsStruct)]
    library.sum_batch.argtypes = [c_void_p, c_void_p, c_int64, c_int64, c_int32]
    for function in (library.attend, library.differentiate, library.sum_batch):
        function.restype = None
    return library


def fits_short_cpu(q_bhnd: Tensor, k_bgmd: Tensor, v_bgmd: Tensor) -> bool:
    """Whether the kernels are there and hold heads of these shapes."""
    tokens = max(q_bhnd.shape[2], k_bgmd.shape[2])
    small = tokens <= MAX_TOKENS and q_bhnd.shape[3] <= MAX_WIDTH
    return small and are_heads(q_bhnd, k_bgmd, v_bgmd) and load_kernels() is not None


def attend_short_cpu(
    q_bhnd: Tensor,
    k_bgmd: Tensor,
    v_bgmd: Tensor,
    *,
    mask: Mask | None = None,
    bias: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """softmax(q kᵀ · scale + bias) v, computed in float32 and returned in the type of q.

    The bias is [1, h or 1, n, m]; its rows may be padded.
    """
    dtype, scale = q_bhnd.dtype, q_bhnd.shape[-1] ** -0.5 if scale is None else scale
    qkv = [x.float() for x in (q_bhnd, k_bgmd, v_bgmd)]
    if bias is not None:
        bias = _pad_bias(bias.float(), q_bhnd.shape[1], k_bgmd.shape[2])
    run: Any = _ShortAttention.apply
    out_bhnd: Tensor = run(*qkv, bias, mask, scale)
    return out_bhnd.to(dtype)


def _pad_bias(bias: Tensor, heads: int, keys: int) -> Tensor:
    """The bias for all heads, rows as long as those of the weights at least."""
    missing = keys + -keys % MULTIPLE - bias.shape[-1]
    if missing > 0:
        bias = F.pad(bias, (0, missing))
    return bias.expand(1, heads, -1, -1)


class _ShortAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        bias: Tensor | None,
        mask: Mask | None,
        scale: float,
    ) -> Tensor:
        q, k, v = map(adjacent, (q, k, v))
        bias = None if bias is None else adjacent(bias)
        (b, h, n, _), m = q.shape, k.shape[2]
        weights = q.new_empty(b, h, n, m + -m % MULTIPLE)
        tensors = q, k, v, weights, *mask_rows(mask, b, n, m)
        ctx.causal, ctx.scale = mask is not None and mask.causal, scale
        ctx.save_for_backward(*tensors)
        ctx.bias_row = 0 if bias is None else bias.shape[-1]
        out = empty_heads(q)
        call = _pack(ctx, tensors, bias)
        _kernels().attend(byref(call), byref(HeadsStruct.of(out)))
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, weights, *_ = tensors = ctx.saved_tensors
        bias_learns, d_out = ctx.needs_input_grad[3], adjacent(d_out)
        grads = empty_grads([q, k, v])
        d_scores = torch.empty_like(weights) if bias_learns else None
        call = _pack(ctx, tensors)
        structs = map(HeadsStruct.of, (d_out, *grads))
        pointers = GradientsStruct(*structs, None if d_scores is None else d_scores.data_ptr())
        _kernels().differentiate(byref(call), byref(pointers))
        d_bias = None
        if d_scores is not None:
            d_bias = _sum_batch(d_scores)
            # Rows of the bias may be longer than those of the weights.
            d_bias = F.pad(d_bias, (0, ctx.bias_row - d_bias.shape[-1]))
        return *grads, d_bias, None, None


def _kernels() -> CDLL:
    kernels = load_kernels()
    if kernels is None:
        raise RuntimeError("The kernels for short attention are not compiled.")
    return kernels


def _pack(ctx: Any, tensors: tuple[Any, ...], bias: Tensor | None = None) -> CallStruct:
    """The struct of a call; the backward pass needs no bias."""
    q, k, v, weights, *per_token = tensors
    return CallStruct(
        *map(HeadsStruct.of, (q, k, v)),
        weights.data_ptr(),
        *((None, 0, 0) if bias is None else (bias.data_ptr(), bias.stride(1), bias.stride(2))),
        *map(PerTokenStruct.of, per_token),
        ctx.scale,
        *(len(q), q.shape[2], k.shape[2], q.shape[1], k.shape[1], q.shape[3]),
        *(ctx.causal, torch.get_num_threads()),
    )


def _sum_batch(x_bhnm: Tensor) -> Tensor:
    """The sum over the batch [1, h, n, m], in the same order for any number of threads."""
    total = torch.empty_like(x_bhnm[:1])
    size, threads = total.numel(), torch.get_num_threads()
    _kernels().sum_batch(total.data_ptr(), x_bhnm.data_ptr(), len(x_bhnm), size, threads)
    return total
