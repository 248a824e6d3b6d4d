"""Attention over long sequences on a CPU, in float32 (`c/long_attention.c`).

A bias is read by distance, so memory is linear in the length for every encoding that has such a
form (`position_forms`). The structs mirror those of the C source, field by field.

Shapes: b batch, n queries, m keys, h query heads, g key and value heads, d head width, t table.
"""

from __future__ import annotations

from ctypes import CDLL, POINTER, Structure, byref, c_float, c_int32, c_int64, c_void_p
from functools import cache
from typing import Any

import torch
from torch import Tensor

from heed.nn.kernels.attention_structs import (
    HeadsStruct,
    PerTokenStruct,
    adjacent,
    are_heads,
    mask_rows,
    token_rows,
)
from heed.nn.kernels.cpu_library import cpu_library
from heed.nn.kernels.custom_op import once_differentiable
from heed.nn.kernels.distance_attention import DistanceBias
from heed.nn.kernels.qkv_layout import empty_grads, empty_heads
from heed.nn.masks import Mask


class TableStruct(Structure):
    """A bias by distance [b, h, n, t] with its strides; or none."""

    _fields_ = (("start", c_void_p), *((name, c_int64) for name in ("b", "h", "n")))

    @classmethod
    def of(cls, x_bhnt: Tensor | None) -> TableStruct:
        """The struct of a tensor, which must live as long as it; 0 is the stride of a size of 1."""
        if x_bhnt is None:
            return cls()
        sizes = zip(x_bhnt.shape[:3], x_bhnt.stride()[:3], strict=True)
        return cls(x_bhnt.data_ptr(), *(stride if size > 1 else 0 for size, stride in sizes))


class CallStruct(Structure):
    """The arguments of one attention."""

    _fields_ = (
        *((name, HeadsStruct) for name in ("q", "k", "v", "out")),
        *(("log_sums", c_void_p), ("bias", TableStruct), ("slopes", c_void_p)),
        *((name, PerTokenStruct) for name in ("q_positions", "k_positions")),
        *((name, PerTokenStruct) for name in ("real", "q_segments", "k_segments")),
        ("scale", c_float),
        *((name, c_int32) for name in ("sequences", "queries", "keys", "heads", "kv_heads")),
        *((name, c_int32) for name in ("width", "reach", "is_causal", "threads")),
    )


class GradientsStruct(Structure):
    """Where the backward pass reads and writes gradients."""

    _fields_ = (
        *((name, HeadsStruct) for name in ("d_out", "dq", "dk", "dv")),
        ("d_bias", TableStruct),
    )


@cache
def load_kernels() -> CDLL | None:
    """The kernels, compiled when they are first needed; None where nothing compiles."""
    library = cpu_library("long_attention")
    if library is None:
        return None
    library.attend.argtypes = [POINTER(CallStruct)]
    library.differentiate.argtypes = [POINTER(CallStruct), POINTER(GradientsStruct)]
    for function in (library.attend, library.differentiate):
        function.restype = c_int32
    return library


def fits_long_cpu(q_bhnd: Tensor, k_bgmd: Tensor, v_bgmd: Tensor) -> bool:
    """Whether the kernels are there and can read these heads."""
    return are_heads(q_bhnd, k_bgmd, v_bgmd) and load_kernels() is not None


def fits_bias(bias: DistanceBias | None) -> bool:
    """Whether the kernels can compute a bias: it has a form by distance, and no learned slopes."""
    return bias is not None and (bias.slopes_h is None or not bias.slopes_h.requires_grad)


def attend_long_cpu(
    q_bhnd: Tensor,
    k_bgmd: Tensor,
    v_bgmd: Tensor,
    *,
    mask: Mask | None = None,
    bias: DistanceBias | None = None,
    scale: float | None = None,
) -> Tensor:
    """softmax(q kᵀ · scale + bias) v, computed in float32 and returned in the type of q."""
    dtype, scale = q_bhnd.dtype, q_bhnd.shape[-1] ** -0.5 if scale is None else scale
    q, k, v = (x.float() for x in (q_bhnd, k_bgmd, v_bgmd))
    with torch.autocast("cpu", enabled=False):
        table = None if bias is None else bias_table(bias, q * scale)
    run: Any = _LongAttention.apply
    out_bhnd: Tensor = run(q, k, v, table, bias, mask, scale)
    return out_bhnd.to(dtype)


def bias_table(bias: DistanceBias, q_bhnd: Tensor) -> Tensor | None:
    """The bias by distance, rising: [1, h, 1, t] or, by query, [b, h, n, t]; None for slopes.

    The query is scaled. Threads add to the gradients of different heads, so each has its own table.
    """
    learned = bias.table_1h1c
    if bias.vectors_cd is not None:
        learned = q_bhnd @ bias.vectors_cd.float().mT
    if learned is None:
        return None
    by_distance = learned if bias.bucket_of is None else learned[..., bias.bucket_of]
    return by_distance.float().expand(-1, q_bhnd.shape[1], -1, -1)


class _LongAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        table: Tensor | None,
        bias: DistanceBias | None,
        mask: Mask | None,
        scale: float,
    ) -> Tensor:
        q, k, v = map(adjacent, (q, k, v))
        table = None if table is None else table.contiguous()
        (b, h, n, _), m = q.shape, k.shape[2]
        slopes = q_positions = k_positions = None
        if bias is not None:
            q_positions = token_rows(bias.q_positions.long(), b, n)
            k_positions = token_rows(bias.k_positions.long(), b, m)
            if bias.slopes_h is not None:
                slopes = bias.slopes_h.float().expand(h).contiguous()
        log_sums = q.new_empty(b, h, n)
        out = empty_heads(q)
        ctx.causal, ctx.scale = mask is not None and mask.causal, scale
        of_tokens = q_positions, k_positions, *mask_rows(mask, b, n, m)
        tensors = q, k, v, out, log_sums, table, slopes, *of_tokens
        ctx.save_for_backward(*tensors)
        _check(_kernels().attend(byref(_pack(ctx, tensors))))
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, _, _, table, *_ = tensors = ctx.saved_tensors
        d_out, grads, d_table = adjacent(d_out), empty_grads([q, k, v]), None
        (_, h, _, _), (b, g, m, d) = q.shape, k.shape
        by_head = grads[1:] if h == g else [k.new_empty(b, h, m, d) for _ in "kv"]
        if ctx.needs_input_grad[3]:
            # One for each sequence, added up in their order: no two threads add to one number.
            d_table = table.new_zeros(len(q), *table.shape[1:])
        structs = map(HeadsStruct.of, (d_out, grads[0], *by_head))
        pointers = GradientsStruct(*structs, TableStruct.of(d_table))
        _check(_kernels().differentiate(byref(_pack(ctx, tensors)), byref(pointers)))
        if h != g:
            for gradient, parts in zip(grads[1:], by_head, strict=True):
                torch.sum(parts.unflatten(1, (g, -1)), dim=2, out=gradient)
        if d_table is not None and len(table) == 1:
            d_table = d_table.sum(dim=0, keepdim=True)
        return *grads, d_table, None, None, None


def _kernels() -> CDLL:
    kernels = load_kernels()
    if kernels is None:
        raise RuntimeError("The kernels for long attention are not compiled.")
    return kernels


def _check(is_done: int) -> None:
    if not is_done:
        raise MemoryError("There is no memory for attention.")


def _pack(ctx: Any, tensors: tuple[Any, ...]) -> CallStruct:
    """The struct of a call."""
    q, k, v, out, log_sums, table, slopes, *per_token = tensors
    return CallStruct(
        *map(HeadsStruct.of, (q, k, v, out)),
        *(log_sums.data_ptr(), TableStruct.of(table)),
        None if slopes is None else slopes.data_ptr(),
        *map(PerTokenStruct.of, per_token),
        ctx.scale,
        *(len(q), q.shape[2], k.shape[2], q.shape[1], k.shape[1], q.shape[3]),
        *(0 if table is None else table.shape[-1] // 2, ctx.causal, torch.get_num_threads()),
    )
