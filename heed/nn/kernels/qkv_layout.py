"""Queries, keys and values lie side by side in one tensor, as one map made them, and so do their
gradients: no pass over memory is spent on taking them apart and putting them together again.

Shapes: b batch, n tokens, d head width, w all heads · d.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def split(packed_bnw: Tensor, counts: Sequence[int], width: int) -> tuple[Tensor, ...]:
    """[b, n, w] to one view [b, heads, n, d] for each count of heads."""
    # Split before heads and tokens change places, so that the gradient is put together in order.
    parts = packed_bnw.unflatten(2, (-1, width)).split(list(counts), dim=2)
    return tuple(x.transpose(1, 2) for x in parts)


def split_learning(packed_bnw: Tensor, counts: Sequence[int], width: int) -> tuple[Tensor, ...]:
    """The same on a GPU, with a gradient that is not copied where it need not be."""
    run: Any = _Split.apply
    parts: tuple[Tensor, ...] = run(packed_bnw, tuple(counts), width)
    return parts


def whole(parts: Sequence[Tensor]) -> Tensor | None:
    """The [b, n, w] whose heads these are in their order, if they do lie so in memory."""
    first = parts[0]
    (b, _, n, d), (step_b, _, step_n, _) = first.shape, first.stride()
    storage, at = first.untyped_storage().data_ptr(), first.data_ptr()
    for x in parts:
        shaped = x.shape == (b, x.shape[1], n, d) and x.stride() == (step_b, d, step_n, 1)
        placed = x.data_ptr() == at and x.untyped_storage().data_ptr() == storage
        if not shaped or not placed or x.dtype != first.dtype:
            return None
        at += x.shape[1] * d * x.element_size()
    w = sum(x.shape[1] for x in parts) * d
    return first.as_strided((b, n, w), (step_b, step_n, 1))


def room(parts: Sequence[Tensor]) -> list[Tensor]:
    """Empty tensors of these shapes, side by side in memory where the parts are: for gradients.

    It may be all of them (queries, keys and values of one map), or the last two (of a source).
    """
    if whole(parts) is not None:
        return _beside(parts)
    if len(parts) > 1:
        return [*_beside(parts[:1]), *room(parts[1:])]
    return _beside(parts)


def _beside(parts: Sequence[Tensor]) -> list[Tensor]:
    b, _, n, d = parts[0].shape
    counts = [x.shape[1] for x in parts]
    return list(split(parts[0].new_empty(b, n, sum(counts) * d), counts, d))


class _Split(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, packed_bnw: Tensor, counts: tuple[int, ...], width: int
    ) -> tuple[Tensor, ...]:
        return split(packed_bnw, counts, width)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return join(grads), None, None


def join(parts: Sequence[Tensor]) -> Tensor:
    """The [b, n, w] of these heads [b, heads, n, d]: the memory they lie in, or a copy."""
    found = whole(parts)
    if found is not None:
        return found
    from heed.nn.kernels.triton.pack_heads import pack

    b, _, n, d = parts[0].shape
    packed = parts[0].new_empty(b, n, sum(x.shape[1] for x in parts) * d)
    pack(list(parts), list(split(packed, [x.shape[1] for x in parts], d)))
    return packed
