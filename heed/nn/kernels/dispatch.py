"""The fused formulas: what `attend` computes, without ever holding all the weights.

`fused` takes what `attend` takes and returns the output alone. Behind it stand six kernels. On a
GPU short texts without a bias go to our own (`heed.nn.kernels.short_attention`), a step of
decoding to another
(`heed.nn.kernels.decode_attention`), long texts with a bias or a mask to a third
(`heed.nn.kernels.distance_attention`) or, where only an
encoding's `score_mod` knows the bias, to FlexAttention: there memory is linear in length. On a CPU
a step of decoding is two products (`heed.nn.kernels.decode_attention_cpu`). All else, dropout and
machines without Triton
too, goes to torch's scaled_dot_product_attention (SDPA), with the bias as a tensor.

Shapes: b batch, n queries, m keys, h query heads, g key and value heads, d head width.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from heed.nn.kernels import qkv_layout as heads
from heed.nn.kernels.decode_attention import ExplicitMask, attend_few, fits
from heed.nn.kernels.decode_attention_cpu import attend_lean, is_lean
from heed.nn.kernels.distance_attention import Relative, ScoreMod, attend_by_distance, plans
from heed.nn.kernels.position_bias import PositionBias, Source
from heed.nn.kernels.rotary import turn as turn_parts
from heed.nn.kernels.rotary import turn_halves
from heed.nn.kernels.short_attention import PendingRotation, attend_short
from heed.nn.masks import Mask, hide, merged

LONG, LONG_BY_QUERY = 512, 128
"""From how many tokens on a bias held as a tensor costs more than one made cell by cell: where all
queries share it, and where each has its own."""
WIDEST = 256
"""Heads wider than this don't fit into the kernels' tiles; SDPA takes them."""
SHORT, SHORT_BYTES = 128, 256
"""Up to how many queries or keys, and bytes a vector, one program can hold a whole head. Attention
is then bound by memory, and SDPA's kernels, made for long texts, take several times as long."""
SHORT_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
HAS_TRITON = find_spec("triton") is not None


def fused(
    q_bhnd: Tensor,
    k_bgmd: Tensor,
    v_bgmd: Tensor,
    *,
    mask: Mask | Tensor | None = None,
    bias: PositionBias | Tensor | None = None,
    scale: float | None = None,
    dropout: float = 0.0,
    turn: PendingRotation | None = None,
) -> Tensor:
    """softmax(q kᵀ · scale + bias) v, as `attend` has it, by the fastest kernel that can.

    With `turn`, queries and keys are not turned yet.
    """
    short = _short(q_bhnd, k_bgmd, v_bgmd) and dropout == 0.0
    if short and not isinstance(mask, Tensor | ExplicitMask) and _unbiased(bias):
        return attend_short(q_bhnd, k_bgmd, v_bgmd, mask=mask, turn=turn, scale=scale)
    if turn is not None:
        q_bhnd, k_bgmd = turn.turned(q_bhnd, k_bgmd)
    if isinstance(mask, ExplicitMask) and _few(q_bhnd, k_bgmd, v_bgmd) and dropout == 0.0:
        added = bias.dense() if isinstance(bias, PositionBias) else bias
        return attend_few(q_bhnd, k_bgmd, v_bgmd, mask=mask, bias=added, scale=scale)
    if isinstance(mask, Mask) and isinstance(bias, PositionBias):
        out = _long(q_bhnd, k_bgmd, v_bgmd, mask, bias, scale, dropout)
        if out is not None:
            return out
    return _sdpa(q_bhnd, k_bgmd, v_bgmd, mask, bias, scale, dropout)


def prepare(
    mask: Mask,
    q_positions: Tensor,
    k_positions: Tensor,
    position: Source,
    shared: PositionBias | None = None,
) -> None:
    """Make what all layers share before the first one runs: to a compiler they then look alike."""
    if _pays(mask, position) and (position.biased or not _simple(mask)):
        plans(mask, q_positions, k_positions, position.reach)
        if shared is not None:
            shared.relative()


def split(packed_bnw: Tensor, counts: Sequence[int], width: int) -> tuple[Tensor, ...]:
    """[b, n, all heads · d] to one view [b, heads, n, d] for each count of heads."""
    learns = torch.is_grad_enabled() and packed_bnw.requires_grad
    if learns and on_gpu(packed_bnw) and not torch.compiler.is_compiling():
        return heads.split_learning(packed_bnw, counts, width)
    return heads.split(packed_bnw, counts, width)


def share_heads(x_bgmd: Tensor, heads: int) -> Tensor:
    """Grouped-query attention: repeat each key or value head for its group of query heads."""
    groups = x_bgmd.shape[1]
    return x_bgmd if groups == heads else x_bgmd.repeat_interleave(heads // groups, dim=1)


def turned(parts: list[Tensor], positions_bn: Tensor, frequencies: Tensor) -> list[Tensor]:
    """Tensors [b, heads, n, d], each pair (i, i + d/2) turned by position · frequency."""
    if on_gpu(positions_bn):
        return turn_parts(parts, positions_bn, frequencies)
    angles = positions_bn[:, None, :, None].float() * frequencies
    cos, sin = angles.cos(), angles.sin()
    if torch.compiler.is_compiling():
        return [_turned(x, cos, sin) for x in parts]
    return turn_halves(parts, cos, sin)


def _turned(x_bhnd: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The formula as it stands: a compiler finds the fewest passes by itself."""
    x, y = x_bhnd.chunk(2, dim=-1)
    return torch.cat([x * cos - y * sin, y * cos + x * sin], dim=-1).to(x_bhnd.dtype)


def on_gpu(x: Tensor) -> bool:
    """Whether a kernel of ours could read it."""
    return HAS_TRITON and x.device.type == "cuda"


def _unbiased(bias: PositionBias | Tensor | None) -> bool:
    if bias is None or isinstance(bias, Tensor):
        return bias is None
    return not bias.position.biased and bias.dense() is None


def _short(q_bhnd: Tensor, k_bgmd: Tensor, v_bgmd: Tensor) -> bool:
    """Whether one program can hold a whole head, and learns from it.

    Where nothing learns, SDPA is fast enough, and no one waits for a kernel to be compiled.
    """
    n, (m, d) = q_bhnd.shape[2], k_bgmd.shape[2:]
    known = q_bhnd.dtype in SHORT_DTYPES and q_bhnd.dtype == k_bgmd.dtype == v_bgmd.dtype
    fits = 1 < n <= SHORT and m <= SHORT and d * q_bhnd.element_size() <= SHORT_BYTES
    return fits and known and torch.is_grad_enabled() and on_gpu(q_bhnd)


def _few(q_bhnd: Tensor, k_bgmd: Tensor, v_bgmd: Tensor) -> bool:
    """Whether one program can hold all queries of a key head."""
    return on_gpu(q_bhnd) and fits(q_bhnd, k_bgmd, v_bgmd)


def _simple(mask: Mask) -> bool:
    """Whether SDPA needs no tensor to know this mask."""
    return mask.sees_all or (mask.only_causal and mask.square)


def _long(
    q_bhnd: Tensor,
    k_bgmd: Tensor,
    v_bgmd: Tensor,
    mask: Mask,
    bias: PositionBias,
    scale: float | None,
    dropout: float,
) -> Tensor | None:
    """By a kernel for long sequences, where one can and pays. None of them has dropout."""
    if dropout > 0.0 or q_bhnd.shape[-1] > WIDEST or not _pays(mask, bias.position):
        return None
    relative = bias.relative()
    score_mod = bias.score_mod() if relative is None else None
    if score_mod is not None:
        return _flex(q_bhnd, k_bgmd, v_bgmd, mask, score_mod, scale)
    if relative is None and not _simple(mask) and bias.dense() is None:
        relative = Relative(bias.q_positions, bias.k_positions)
    if relative is None or not relative.fits():
        return None
    return attend_by_distance(q_bhnd, k_bgmd, v_bgmd, mask, relative, scale)


def _pays(mask: Mask, position: Source) -> bool:
    """Whether they are there, and the text is long enough for them."""
    long = LONG_BY_QUERY if position.bias_uses_query else LONG
    return HAS_TRITON and mask.device.type == "cuda" and min(mask.queries, mask.keys) >= long


# ------------------------------------------------------------------------------------------- SDPA


def _sdpa(
    q_bhnd: Tensor,
    k_bgmd: Tensor,
    v_bgmd: Tensor,
    mask: Mask | Tensor | None,
    bias: PositionBias | Tensor | None,
    scale: float | None,
    dropout: float,
) -> Tensor:
    dtype = q_bhnd.dtype
    # On a CPU the way back takes five times as long in bfloat16 as in float32.
    widened = q_bhnd.device.type == "cpu" and _learns_in_16_bits(q_bhnd)
    if widened:
        q_bhnd, k_bgmd, v_bgmd = q_bhnd.float(), k_bgmd.float(), v_bgmd.float()
    unbiased = bias is None or (not isinstance(bias, Tensor) and bias.dense() is None)
    if dropout == 0.0 and is_lean(q_bhnd, k_bgmd):
        added = _added(mask, None if unbiased else bias, q_bhnd)
        return attend_lean(q_bhnd, k_bgmd, v_bgmd, added, scale)
    causal = unbiased and isinstance(mask, Mask) and mask.only_causal and mask.square
    with torch.autocast("cpu", enabled=False) if widened else nullcontext():
        out = F.scaled_dot_product_attention(
            q_bhnd,
            k_bgmd,
            v_bgmd,
            attn_mask=None if causal else _added(mask, None if unbiased else bias, q_bhnd),
            dropout_p=dropout,
            is_causal=causal,
            scale=scale,
            enable_gqa=q_bhnd.shape[1] != k_bgmd.shape[1],
        )
    return out.to(dtype) if widened else out


def _learns_in_16_bits(x: Tensor) -> bool:
    """As SDPA would read it: autocast narrows what comes in as float32."""
    device = x.device.type
    narrowed = torch.is_autocast_enabled(device) and x.dtype == torch.float32
    dtype = torch.get_autocast_dtype(device) if narrowed else x.dtype
    return torch.is_grad_enabled() and dtype.itemsize == 2


def _added(
    mask: Mask | Tensor | None, bias: PositionBias | Tensor | None, like: Tensor
) -> Tensor | None:
    """Mask and bias as the one tensor that SDPA takes."""
    if bias is not None:
        visible = mask.dense() if isinstance(mask, Mask) else mask
        if isinstance(bias, Tensor):
            return merged(bias, visible, like.dtype)
        return bias.over(visible, like.dtype)
    if like.device.type != "cuda":
        return mask.dense() if isinstance(mask, Mask) else mask
    # cuDNN gives garbage, and NaN for gradients, where a boolean mask hides a whole row. It gives
    # zeros where numbers do.
    if isinstance(mask, Mask):
        return mask.added(like.dtype)
    return None if mask is None else hide(mask, like.dtype)


# ---------------------------------------------------------------------------------- FlexAttention


def _flex(
    q_bhnd: Tensor,
    k_bgmd: Tensor,
    v_bgmd: Tensor,
    mask: Mask,
    score_mod: ScoreMod,
    scale: float | None,
) -> Tensor:
    run: Any = flex_attention
    if not torch.compiler.is_compiling():
        run = torch.compile(flex_attention)
    out: Tensor = run(
        q_bhnd,
        k_bgmd,
        v_bgmd,
        score_mod=score_mod,
        block_mask=None if mask.sees_all else block_mask(mask),
        scale=scale,
        enable_gqa=q_bhnd.shape[1] != k_bgmd.shape[1],
    )
    return out


def block_mask(mask: Mask) -> BlockMask:
    """The mask by blocks, so that hidden ones are never computed."""
    ahead, causal = mask.keys - mask.queries, mask.causal
    real, q_segments, k_segments = mask.real_bm, mask.q_segments_bn, mask.k_segments_bm

    def visible(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        seen = (k <= q + ahead) if causal else (k >= 0)
        if real is not None:
            seen = seen & real[b, k]
        if q_segments is not None and k_segments is not None:
            seen = seen & (q_segments[b, q] == k_segments[b, k])
        return seen

    rows = [x.shape[0] for x in (real, q_segments, k_segments) if x is not None]
    b = max(rows) if rows else None
    return create_block_mask(visible, b, None, mask.queries, mask.keys, device=mask.device)
