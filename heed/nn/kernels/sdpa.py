"""Torch's scaled_dot_product_attention (SDPA), with mask and bias as one dense tensor.

Shapes: b batch, n queries, m keys, h query heads, g key and value heads, d head width.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from threading import Lock

import torch
import torch.nn.functional as F
from torch import Tensor

from heed.nn.kernels.position_bias import PositionBias
from heed.nn.masks import Mask, masked_bias, to_additive

CUDNN_PAYS = 512
"""Beyond so many queries or keys cuDNN's kernel is used without gradients, too: a plan is short
beside what such calls compute. Where exactly it pays was not measured."""


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
    added = None if causal else mask_and_bias(mask, bias, q_bhnd)
    settings: AbstractContextManager[object] = nullcontext()
    if widened:
        settings = torch.autocast("cpu", enabled=False)
    elif _avoids_cudnn(q_bhnd, k_bgmd, added):
        settings = _WITHOUT_CUDNN
    with settings:
        out = F.scaled_dot_product_attention(
            q_bhnd,
            k_bgmd,
            v_bgmd,
            attn_mask=added,
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


def _avoids_cudnn(q_bhnd: Tensor, k_bgmd: Tensor, added: Tensor | None) -> bool:
    """Whether SDPA should choose among its other kernels: on a GPU, short, without gradients.

    cuDNN builds a plan for every new shape. Training repeats its shapes, but plans took 3.4 of the
    3.6 seconds of a run's first evaluation.
    """
    # A compiler chooses once for each shape, while it traces, and compiles for longer than that.
    if torch.compiler.is_compiling() or torch.is_grad_enabled() or q_bhnd.device.type != "cuda":
        return False
    if max(q_bhnd.shape[2], k_bgmd.shape[2]) > CUDNN_PAYS:
        return False
    # FlashAttention takes no tensor as a mask. Memory-efficient attention takes one with adjacent
    # numbers in a row, but no grouped heads. Without both, only the plain formula would be left.
    return added is None or (added.stride(-1) == 1 and q_bhnd.shape[1] == k_bgmd.shape[1])


class _WithoutCudnn:
    """A context in which SDPA does not choose cuDNN's kernel.

    Torch has one switch for all threads: the first one in turns it off, the last one out restores
    it. `torch.nn.attention.sdpa_kernel` would restore what another thread had switched off.
    """

    def __init__(self) -> None:
        self._lock, self._inside, self._enabled = Lock(), 0, False

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._enabled = torch.backends.cuda.cudnn_sdp_enabled()
                torch.backends.cuda.enable_cudnn_sdp(False)
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                torch.backends.cuda.enable_cudnn_sdp(self._enabled)


_WITHOUT_CUDNN = _WithoutCudnn()


def _trains_in_16_bits(x: Tensor) -> bool:
    """Whether gradients are needed and SDPA computes in 16 bits: autocast narrows float32."""
    device = x.device.type
    narrowed = torch.is_autocast_enabled(device) and x.dtype == torch.float32
    dtype = torch.get_autocast_dtype(device) if narrowed else x.dtype
    return torch.is_grad_enabled() and dtype.itemsize == 2
