"""Queries, keys and values as parts of one tensor, the output of one linear layer.

Their gradients are parts of one tensor, too: no pass over memory is spent on splitting them and
putting them together.

Shapes: b batch, n tokens, d head width, w all heads · d.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from heed.nn.kernels.custom_op import once_differentiable


def empty_heads(like: Tensor) -> Tensor:
    """An empty tensor [b, heads, n, d], each token's heads adjacent: as a linear layer reads it."""
    b, heads, n, d = like.shape
    return like.new_empty(b, n, heads, d).transpose(1, 2)


def split_heads(packed_bnw: Tensor, counts: Sequence[int], width: int) -> tuple[Tensor, ...]:
    """Split [b, n, w] into one view [b, heads, n, d] for each count of heads."""
    trains = torch.is_grad_enabled() and packed_bnw.requires_grad
    if not (trains or torch.compiler.is_compiling()):
        return _view_heads(packed_bnw, counts, width)
    # Split before the transpose, so that the gradient is concatenated in memory order.
    parts = packed_bnw.unflatten(2, (-1, width)).split(list(counts), dim=2)
    return tuple(x.transpose(1, 2) for x in parts)


def _view_heads(packed_bnw: Tensor, counts: Sequence[int], width: int) -> tuple[Tensor, ...]:
    """`split_heads` without gradients: one operation for each part."""
    (b, n, _), (stride_b, stride_n, stride) = packed_bnw.shape, packed_bnw.stride()
    strides, step = (stride_b, width * stride, stride_n, stride), width * stride
    parts, at = [], packed_bnw.storage_offset()
    for count in counts:
        parts.append(packed_bnw.as_strided((b, count, n, width), strides, at))
        at += count * step
    return tuple(parts)


def split_heads_autograd(
    packed_bnw: Tensor, counts: Sequence[int], width: int
) -> tuple[Tensor, ...]:
    """`split_heads` with gradients that are copied only where they are not adjacent."""
    run: Any = _Split.apply
    parts: tuple[Tensor, ...] = run(packed_bnw, tuple(counts), width)
    return parts


def find_packed(parts: Sequence[Tensor]) -> Tensor | None:
    """The tensor [b, n, w] of which these are the heads in order; None where there is none."""
    first = parts[0]
    (b, _, n, d), (stride_b, _, stride_n, _) = first.shape, first.stride()
    storage, at = first.untyped_storage().data_ptr(), first.data_ptr()
    for x in parts:
        same_layout = x.shape == (b, x.shape[1], n, d) and x.stride() == (stride_b, d, stride_n, 1)
        is_next = x.data_ptr() == at and x.untyped_storage().data_ptr() == storage
        if not same_layout or not is_next or x.dtype != first.dtype:
            return None
        at += x.shape[1] * d * x.element_size()
    w = sum(x.shape[1] for x in parts) * d
    return first.as_strided((b, n, w), (stride_b, stride_n, 1))


def empty_grads(parts: Sequence[Tensor], dtype: torch.dtype | None = None) -> list[Tensor]:
    """Empty gradients of these parts, adjacent in memory where the parts are.

    That may be all of them (queries, keys and values of one linear layer), or the last two (keys
    and values in cross-attention).
    """
    if len(parts) == 1 or find_packed(parts) is not None:
        return _empty_packed(parts, dtype)
    return [*_empty_packed(parts[:1], dtype), *empty_grads(parts[1:], dtype)]


def empty_sums(parts: Sequence[Tensor]) -> list[Tensor]:
    """Empty sums over the tokens of each sequence of the parts' gradients [b, heads, 1, d].

    They are float32, and adjacent in memory where the parts are.
    """
    return empty_grads([x[:, :, :1] for x in parts], torch.float32)


def _empty_packed(parts: Sequence[Tensor], dtype: torch.dtype | None) -> list[Tensor]:
    b, _, n, d = parts[0].shape
    counts = [x.shape[1] for x in parts]
    return list(split_heads(parts[0].new_empty(b, n, sum(counts) * d, dtype=dtype), counts, d))


class _Split(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, packed_bnw: Tensor, counts: tuple[int, ...], width: int
    ) -> tuple[Tensor, ...]:
        from heed.nn.kernels.gradient_sums import wants_sums

        ctx.sums_gradient = wants_sums(packed_bnw)
        return split_heads(packed_bnw, counts, width)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        from heed.nn.kernels.gradient_sums import attach_sums, attached_sums

        packed = pack_heads(grads)
        sums = [attached_sums(x) for x in grads]
        known = [x for x in sums if x is not None]
        if len(known) == len(sums):
            attach_sums(packed, pack_heads(known).squeeze(1).contiguous())
        return packed, None, None


def pack_heads(parts: Sequence[Tensor]) -> Tensor:
    """The tensor [b, n, w] of these heads [b, heads, n, d]: their own memory, or a copy."""
    existing = find_packed(parts)
    if existing is not None:
        return existing
    if parts[0].device.type == "cpu":
        return torch.cat([x.transpose(1, 2).flatten(2) for x in parts], dim=2)
    from heed.nn.kernels.triton.pack_heads import pack

    b, _, n, d = parts[0].shape
    packed = parts[0].new_empty(b, n, sum(x.shape[1] for x in parts) * d)
    pack(list(parts), list(split_heads(packed, [x.shape[1] for x in parts], d)))
    return packed
