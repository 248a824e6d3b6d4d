"""Attention over short texts on a GPU, in a form that autograd and torch.compile know.

The kernels themselves are in `heed.nn.kernels.triton.short_attention`. Where queries, keys and
values lie side by side
in memory, as one map made them, so do their gradients, and nothing has to be put together.

Shapes: b batch, n queries, m keys, h query heads, g key and value heads, d head width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from heed.nn.kernels.distance_attention import empty_heads
from heed.nn.kernels.heads import PendingRotation
from heed.nn.kernels.qkv_layout import room
from heed.nn.masks import Mask


def attend_short(
    q_bhnd: Tensor,
    k_bgmd: Tensor,
    v_bgmd: Tensor,
    *,
    mask: Mask | None = None,
    rotation: PendingRotation | None = None,
    scale: float | None = None,
) -> Tensor:
    """softmax(q kᵀ · scale) v, with q and k rotated first, where a rotation is pending."""
    # An operation costs a tenth of a millisecond to call. Only a compiler needs one.
    run: Any = _forward if torch.compiler.is_compiling() else _Eagerly.apply
    out: Tensor = run(
        q_bhnd,
        k_bgmd,
        v_bgmd,
        *((None, None) if rotation is None else rotation.tables()),
        *((None, None, None) if mask is None else _hidden(mask)),
        mask is not None and mask.causal,
        q_bhnd.shape[-1] ** -0.5 if scale is None else scale,
    )
    return out


def _hidden(mask: Mask) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """What hides keys beside their order: padding, and segments of queries and of keys."""
    if mask.q_segments_bn is None or mask.k_segments_bm is None:
        return mask.real_bm, None, None
    return mask.real_bm, mask.q_segments_bn, mask.k_segments_bm


# ------------------------------------------------------------------ operations, as torch knows them

_READ = (
    "Tensor q, Tensor k, Tensor v, Tensor? q_turns, Tensor? k_turns, "
    "Tensor? real, Tensor? q_segments, Tensor? k_segments, bool causal, float scale"
)
_DIFFERENTIABLE = 3
"""q, k and v come first."""
Grads = tuple[Tensor, Tensor, Tensor]


def _run(*call: Any) -> Tensor:
    from heed.nn.kernels.triton import short_attention

    out = empty_heads(call[0])
    short_attention.forward(short_attention.Call(*call), out)
    return out


def _run_back(d_out: Tensor, *call: Any, place: Callable[..., list[Tensor]] | None = None) -> Grads:
    from heed.nn.kernels.triton import short_attention

    parts = call[:_DIFFERENTIABLE]
    dq, dk, dv = [empty_heads(x) for x in parts] if place is None else place(parts)
    short_attention.backward(short_attention.Call(*call), d_out, [dq, dk, dv])
    return dq, dk, dv


_forward = torch.library.custom_op(
    "heed::short", _run, mutates_args=(), schema=f"({_READ}) -> Tensor"
)
# What an operation returns must not share memory, so these gradients lie apart.
_backward = torch.library.custom_op(
    "heed::short_backward",
    lambda d_out, *call: _run_back(d_out, *call),
    mutates_args=(),
    schema=f"(Tensor d_out, {_READ}) -> (Tensor, Tensor, Tensor)",
)


@_forward.register_fake
def _forward_shapes(q: Tensor, *rest: Any) -> Tensor:
    return empty_heads(q)


@_backward.register_fake
def _backward_shapes(d_out: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Grads:
    return empty_heads(q), empty_heads(k), empty_heads(v)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.causal, ctx.scale = inputs
    ctx.there = [x is not None for x in tensors]
    ctx.save_for_backward(*(x for x in tensors if x is not None))


def _call(ctx: Any) -> list[Any]:
    left = iter(ctx.saved_tensors)
    return [*(next(left) if there else None for there in ctx.there), ctx.causal, ctx.scale]


def _differentiate(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
    call = _call(ctx)
    return *_backward(d_out, *call), *[None] * (len(call) - _DIFFERENTIABLE)


torch.library.register_autograd("heed::short", _differentiate, setup_context=_remember)


class _Eagerly(torch.autograd.Function):
    """The same two operations, called directly, with gradients side by side where they can be."""

    @staticmethod
    def forward(ctx: Any, *call: Any) -> Tensor:
        output = _run(*call)
        _remember(ctx, call, output)
        return output

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        call = _call(ctx)
        grads = _run_back(d_out, *call, place=room)
        return *grads, *[None] * (len(call) - _DIFFERENTIABLE)
