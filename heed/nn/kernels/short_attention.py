"""Attention over short sequences on a GPU, as operators that autograd and torch.compile know.

The Triton kernels are in `heed.nn.kernels.triton.short_attention`. Where queries, keys and values
are parts of one tensor, the output of one linear layer, so are their gradients: no pass over memory
is spent on putting them together. Where that layer has a bias, the kernel also adds up its gradient
(`gradient_sums`).

A bias may be added that all sequences share. Its gradient is added up in float32 over the batch, in
a fixed order.

Shapes: b batch, n queries, m keys, h query heads, g key and value heads, d head width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from heed.nn.kernels.custom_op import DifferentiableOp, Kernel, save_inputs, saved_inputs
from heed.nn.kernels.heads import PendingRotation
from heed.nn.kernels.qkv_layout import empty_grads, empty_heads, empty_sums
from heed.nn.masks import Mask


def attend_short(
    q_bhnd: Tensor,
    k_bgmd: Tensor,
    v_bgmd: Tensor,
    *,
    mask: Mask | None = None,
    bias: Tensor | None = None,
    rotation: PendingRotation | None = None,
    scale: float | None = None,
) -> Tensor:
    """softmax(q kᵀ · scale + bias) v, with q and k rotated first, where a rotation is pending.

    The bias is [1, h or 1, n, m]. Its rows may be padded to a multiple of 16, so that one compiled
    kernel serves all lengths.
    """
    rows = 1, *q_bhnd.shape[1:3]
    if bias is not None and bias.shape[:3] != rows:
        bias = bias.expand(*rows, -1)
    out: Tensor = _attention(
        q_bhnd,
        k_bgmd,
        v_bgmd,
        bias,
        *((None, None) if rotation is None else rotation.tables()),
        *((None, None, None) if mask is None else mask_tensors(mask)),
        mask is not None and mask.causal,
        q_bhnd.shape[-1] ** -0.5 if scale is None else scale,
    )
    return out


def mask_tensors(mask: Mask) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Real keys, segments of queries, segments of keys: what a mask has beside causality."""
    if mask.q_segments_bn is None or mask.k_segments_bm is None:
        return mask.real_bm, None, None
    return mask.real_bm, mask.q_segments_bn, mask.k_segments_bm


# --------------------------------------------------------------------------------------- operators

_INPUTS = (
    "Tensor q, Tensor k, Tensor v, Tensor? bias, Tensor? q_rotations, Tensor? k_rotations, "
    "Tensor? real, Tensor? q_segments, Tensor? k_segments, bool causal, float scale"
)
_BIAS, _DIFFERENTIABLE = 3, 4
"""q, k, v and the bias are the first inputs; only they have gradients."""
Grads = tuple[Tensor, Tensor, Tensor, Tensor]
"""Of q, k, v and the bias; the last is empty where it is not wanted."""


def _launch(*inputs: Any) -> Tensor:
    from heed.nn.kernels.triton import short_attention

    out = empty_heads(inputs[0])
    short_attention.forward(short_attention.Call(*inputs), out)
    return out


def _launch_backward(d_out: Tensor, bias_learns: bool, *inputs: Any) -> Grads:
    return _differentiate_into([empty_heads(x) for x in inputs[:3]], d_out, bias_learns, *inputs)


def _launch_backward_eager(d_out: Tensor, bias_learns: bool, *inputs: Any) -> Grads:
    """Gradients of q, k and v of one linear layer lie in one tensor, as the layer needs them."""
    from heed.nn.kernels.gradient_sums import attach_sums, wants_sums

    qkv = inputs[:3]
    sums = empty_sums(qkv) if all(map(wants_sums, qkv)) else None
    grads = _differentiate_into(empty_grads(qkv), d_out, bias_learns, *inputs, sums=sums)
    for gradient, sums_bh1d in zip(grads, sums or (), strict=False):
        attach_sums(gradient, sums_bh1d)
    return grads


def _differentiate_into(
    d_qkv: list[Tensor],
    d_out: Tensor,
    bias_learns: bool,
    *inputs: Any,
    sums: list[Tensor] | None = None,
) -> Grads:
    from heed.nn.kernels.triton import short_attention

    (q, _, _, bias), call = inputs[:_DIFFERENTIABLE], short_attention.Call(*inputs)
    d_scores = q.new_empty(len(q), *bias.shape[1:]) if bias_learns else None
    short_attention.backward(call, d_out, d_qkv, d_scores, sums)
    dq, dk, dv = d_qkv
    if d_scores is None:
        return dq, dk, dv, _no_gradient(q)
    return dq, dk, dv, d_scores.sum(dim=0, keepdim=True, dtype=torch.float32)


def _empty_gradients(
    d_out: Tensor, bias_learns: bool, q: Tensor, k: Tensor, v: Tensor, bias: Tensor, *_: Any
) -> Grads:
    d_qkv = empty_heads(q), empty_heads(k), empty_heads(v)
    if not bias_learns:
        return *d_qkv, _no_gradient(q)
    return *d_qkv, bias.new_empty(bias.shape, dtype=torch.float32)


def _no_gradient(like: Tensor) -> Tensor:
    """An operator has to return a tensor."""
    return like.new_empty(0, dtype=torch.float32)


def _differentiate(ctx: Any, launch: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
    _, inputs = saved_inputs(ctx)
    bias_learns = ctx.needs_input_grad[_BIAS]
    *d_qkv, d_bias = launch(d_out, bias_learns, *inputs)
    rest = [None] * (len(inputs) - _DIFFERENTIABLE)
    return *d_qkv, d_bias if bias_learns else None, *rest


_attention = DifferentiableOp(
    Kernel("short_attention", f"({_INPUTS}) -> Tensor", _launch, lambda q, *_: empty_heads(q)),
    Kernel(
        "short_attention_backward",
        f"(Tensor d_out, bool bias_learns, {_INPUTS}) -> (Tensor, Tensor, Tensor, Tensor)",
        lambda d_out, *inputs: _launch_backward(d_out, *inputs),
        _empty_gradients,
        launch_eager=_launch_backward_eager,
    ),
    save=lambda ctx, inputs, out: save_inputs(ctx, inputs),
    differentiate=_differentiate,
)
