"""Torch's scaled_dot_product_attention (SDPA), with mask and bias as one dense tensor.

Shapes: b batch, n queries, m keys, h query heads, g key and value heads, d head width.
"""

from __future__ import annotations

from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor

from heed.nn.kernels.position_bias import PositionBias
from heed.nn.masks import Mask, masked_bias, to_additive


def attend_sdpa(
    q_bhnd: Tensor,
    k_bgmd: Tensor,
    v_bgmd: Tensor,
    *,
    mask: Mask | Tensor | None,
    bias: PositionBias | Tensor | None,
    scale: float | None,
    dropout: float,
) -> Tensor:
    """softmax(q kᵀ · scale + bias) v."""
    dtype = q_bhnd.dtype
    # On a CPU the backward pass takes five times as long in bfloat16 as in float32.
    widened = q_bhnd.device.type == "cpu" and _trains_in_16_bits(q_bhnd)
    if widened:
        q_bhnd, k_bgmd, v_bgmd = q_bhnd.float(), k_bgmd.float(), v_bgmd.float()
    causal = has_no_bias(bias) and isinstance(mask, Mask) and mask.only_causal and mask.square
    with torch.autocast("cpu", enabled=False) if widened else nullcontext():
        out = F.scaled_dot_product_attention(
            q_bhnd,
            k_bgmd,
            v_bgmd,
            attn_mask=None if causal else mask_and_bias(mask, bias, q_bhnd),
            dropout_p=dropout,
            is_causal=causal,
            scale=scale,
            enable_gqa=q_bhnd.shape[1] != k_bgmd.shape[1],
        )
    return out.to(dtype) if widened else out


def needs_no_tensor(mask: Mask) -> bool:
    """Whether SDPA knows this mask without a tensor: nothing hidden, or causal and square."""
    return mask.sees_all or (mask.only_causal and mask.square)


def has_no_bias(bias: PositionBias | Tensor | None) -> bool:
    """Whether nothing is added to the scores."""
    return bias is None or (not isinstance(bias, Tensor) and bias.dense() is None)


def mask_and_bias(
    mask: Mask | Tensor | None, bias: PositionBias | Tensor | None, like: Tensor
) -> Tensor | None:
    """Mask and bias as the one tensor that SDPA takes: boolean, or numbers to add."""
    if bias is not None and not has_no_bias(bias):
        visible = mask.dense() if isinstance(mask, Mask) else mask
        if isinstance(bias, Tensor):
            return masked_bias(bias, visible, like.dtype)
        return bias.masked(visible, like.dtype)
    if like.device.type != "cuda":
        return mask.dense() if isinstance(mask, Mask) else mask
    # cuDNN gives garbage, and NaN for gradients, where a boolean mask hides a whole row. It gives
    # zeros where an additive mask does.
    if isinstance(mask, Mask):
        return mask.additive(like.dtype)
    return None if mask is None else to_additive(mask, like.dtype)


def _trains_in_16_bits(x: Tensor) -> bool:
    """Whether gradients are needed and SDPA computes in 16 bits: autocast narrows float32."""
    device = x.device.type
    narrowed = torch.is_autocast_enabled(device) and x.dtype == torch.float32
    dtype = torch.get_autocast_dtype(device) if narrowed else x.dtype
    return torch.is_grad_enabled() and dtype.itemsize == 2
