"""Attention over short sequences on a GPU, as operators that autograd and torch.compile know.

The Triton kernels are in `heed.nn.kernels.triton.short_attention`. Where queries, keys and values
are parts of one tensor, the output of one linear layer, so are their gradients: no pass over memory
is spent on putting them together.

Shapes: b batch, n queries, m keys, h query heads, g key and value heads, d head width.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor

from heed.nn.kernels.custom_op import DifferentiableOp, Kernel, save_inputs, saved_inputs
from heed.nn.kernels.heads import PendingRotation
from heed.nn.kernels.qkv_layout import empty_grads, empty_heads
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
    out: Tensor = _attention(
        q_bhnd,
        k_bgmd,
        v_bgmd,
        *((None, None) if rotation is None else rotation.tables()),
        *((None, None, None) if mask is None else _mask_tensors(mask)),
        mask is not None and mask.causal,
        q_bhnd.shape[-1] ** -0.5 if scale is None else scale,
    )
    return out


def _mask_tensors(mask: Mask) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Real keys, segments of queries, segments of keys: what a mask has beside causality."""
    if mask.q_segments_bn is None or mask.k_segments_bm is None:
        return mask.real_bm, None, None
    return mask.real_bm, mask.q_segments_bn, mask.k_segments_bm


# --------------------------------------------------------------------------------------- operators

_INPUTS = (
    "Tensor q, Tensor k, Tensor v, Tensor? q_rotations, Tensor? k_rotations, "
    "Tensor? real, Tensor? q_segments, Tensor? k_segments, bool causal, float scale"
)
_DIFFERENTIABLE = 3
"""q, k and v are the first inputs; only they have gradients."""
Grads = tuple[Tensor, Tensor, Tensor]


def _launch(*inputs: Any) -> Tensor:
    from heed.nn.kernels.triton import short_attention

    out = empty_heads(inputs[0])
    short_attention.forward(short_attention.Call(*inputs), out)
    return out


def _launch_backward(
    d_out: Tensor, *inputs: Any, allocate: Callable[..., list[Tensor]] | None = None
) -> Grads:
    from heed.nn.kernels.triton import short_attention

    qkv = inputs[:_DIFFERENTIABLE]
    dq, dk, dv = [empty_heads(x) for x in qkv] if allocate is None else allocate(qkv)
    short_attention.backward(short_attention.Call(*inputs), d_out, [dq, dk, dv])
    return dq, dk, dv


def _differentiate(ctx: Any, launch: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
    _, inputs = saved_inputs(ctx)
    return *launch(d_out, *inputs), *[None] * (len(inputs) - _DIFFERENTIABLE)


_attention = DifferentiableOp(
    Kernel("short_attention", f"({_INPUTS}) -> Tensor", _launch, lambda q, *_: empty_heads(q)),
    Kernel(
        "short_attention_backward",
        f"(Tensor d_out, {_INPUTS}) -> (Tensor, Tensor, Tensor)",
        lambda d_out, *inputs: _launch_backward(d_out, *inputs),
        lambda d_out, q, k, v, *_: (empty_heads(q), empty_heads(k), empty_heads(v)),
        # Gradients of q, k and v of one linear layer lie in one tensor, as the layer needs them.
        launch_eager=partial(_launch_backward, allocate=empty_grads),
    ),
    save=lambda ctx, inputs, out: save_inputs(ctx, inputs),
    differentiate=_differentiate,
)
