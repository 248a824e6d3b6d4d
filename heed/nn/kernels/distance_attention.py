"""Attention with a bias by distance on a GPU, without a dense bias in memory.

`DistanceBias` describes the bias; `attend_by_distance` is attention with it, as operators that
autograd and torch.compile know (`heed.nn.kernels.triton.distance_launch` launches the kernels).

Shapes: b batch, n queries, m keys, h query heads, g key and value heads, d head width, c buckets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from heed.nn.kernels.custom_op import (
    DifferentiableOp,
    Kernel,
    register_op,
    save_inputs,
    saved_inputs,
)
from heed.nn.kernels.qkv_layout import empty_heads
from heed.nn.masks import Mask

MAX_BUCKETS = 128
"""As many sums as a kernel can hold in its registers."""
BLOCK = 64
"""Tokens per block in the kernels' tile plans."""


@dataclass
class DistanceBias:
    """A slope per head times |distance|, or a table's entry for the distance's bucket, or nothing.

    A bucket is a range of distances that share an entry; buckets are numbered by rising distance.
    """

    q_positions: Tensor
    k_positions: Tensor
    slopes_h: Tensor | None = None
    vectors_cd: Tensor | None = None
    """Learned vectors: their products with a query, scaled like scores, are that query's table."""
    table_1h1c: Tensor | None = None
    """A learned table per head."""
    max_distance: int | None = None
    """Beyond it, in either direction, all distances share one bucket: the first or the last."""
    num_buckets: int = 0
    bucket_of: Tensor | None = None
    """[2 · max_distance + 1]: the bucket of each distance, rising; None: each is its own."""
    table_by_distance: Tensor | None = None
    """The table per head by distance [1, h, 1, 2 · max_distance + 1], without a gradient."""
    band: Tensor | None = None
    """The table less its first bucket, laid out for tiles of queries by keys and of keys by
    queries: [h, 2, BLOCK, columns]."""

    def fits(self) -> bool:
        """Whether the kernels can serve this bias."""
        return self.num_buckets <= MAX_BUCKETS


def tile_plans(
    mask: Mask, q_positions: Tensor, k_positions: Tensor, max_distance: int | None
) -> tuple[Tensor, Tensor]:
    """Which tiles the kernels visit, for blocks of queries and for blocks of keys."""
    return _plans(
        q_positions, k_positions, mask.real_bm, *_segments(mask), max_distance, mask.causal
    )


def attend_by_distance(
    q_bhnd: Tensor,
    k_bgmd: Tensor,
    v_bgmd: Tensor,
    mask: Mask,
    bias: DistanceBias,
    plans: tuple[Tensor, Tensor],
    scale: float | None,
) -> Tensor:
    """softmax(q kᵀ · scale + bias) v, over the tiles that are planned (`tile_plans`)."""
    out: Tensor = _attention(
        q_bhnd,
        k_bgmd,
        v_bgmd,
        bias.table_1h1c if bias.vectors_cd is None else bias.vectors_cd,
        bias.table_by_distance,
        bias.band,
        bias.bucket_of,
        bias.slopes_h,
        *plans,
        bias.q_positions,
        bias.k_positions,
        mask.real_bm,
        *_segments(mask),
        bias.max_distance or 0,
        bias.num_buckets,
        mask.causal,
        q_bhnd.shape[-1] ** -0.5 if scale is None else scale,
    )[0]
    return out


def _segments(mask: Mask) -> tuple[Tensor | None, Tensor | None]:
    packed = mask.q_segments_bn is not None and mask.k_segments_bm is not None
    return (mask.q_segments_bn, mask.k_segments_bm) if packed else (None, None)


# --------------------------------------------------------------------------------------- operators

_TOKENS = (
    "Tensor q_positions, Tensor k_positions, Tensor? real, Tensor? q_segments, Tensor? k_segments"
)
_INPUTS = (
    "Tensor q, Tensor k, Tensor v, Tensor? learned, Tensor? table_by_distance, Tensor? band, "
    f"Tensor? bucket_of, Tensor? slopes, Tensor q_plan, Tensor k_plan, {_TOKENS}, "
    "int max_distance, int num_buckets, bool causal, float scale"
)
_DIFFERENTIABLE = 4
"""q, k, v and the learned table or vectors are the first inputs; only they have gradients."""


def launch_tile_plans(*inputs: Any) -> tuple[Tensor, Tensor]:
    """Launch the kernels that plan which tiles are visited."""
    from heed.nn.kernels.triton import distance_launch

    return distance_launch.plans(*inputs)


def _fake_tile_plans(
    q_positions: Tensor,
    k_positions: Tensor,
    real: Tensor | None,
    q_segments: Tensor | None,
    k_segments: Tensor | None,
    *rest: Any,
) -> tuple[Tensor, Tensor]:
    tensors = (q_positions, k_positions, real, q_segments, k_segments)
    b = max(x.shape[0] for x in tensors if x is not None)
    q_plan, k_plan = (
        x.new_empty(b, -(-x.shape[1] // BLOCK), 5, dtype=torch.int32)
        for x in (q_positions, k_positions)
    )
    return q_plan, k_plan


_plans = register_op(
    Kernel(
        "distance_tile_plans",
        f"({_TOKENS}, int? max_distance, bool causal) -> (Tensor, Tensor)",
        launch_tile_plans,
        _fake_tile_plans,
    )
)


def _launch(*inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
    from heed.nn.kernels.triton import distance_launch

    return distance_launch.forward(distance_launch.Call(*inputs))


def _launch_backward(
    d_out: Tensor, out: Tensor, lse: Tensor, tables: Tensor, *inputs: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    from heed.nn.kernels.triton import distance_launch

    dq, dk, dv, d_learned = distance_launch.backward(
        distance_launch.Call(*inputs), out, lse, tables, d_out
    )
    return dq, dk, dv, dq.new_empty(0) if d_learned is None else d_learned


def _fake(q: Tensor, k: Tensor, v: Tensor, learned: Tensor | None, *rest: Any) -> Any:
    lse = q.new_empty(q.shape[:3], dtype=torch.float32)
    return empty_heads(q), lse, empty_tables(q, learned)


def _fake_backward(d_out: Tensor, out: Tensor, lse: Tensor, tables: Tensor, *inputs: Any) -> Any:
    q, k, v, learned = inputs[:_DIFFERENTIABLE]
    d_learned = q.new_empty(0) if learned is None else learned.new_empty(learned.shape)
    return empty_heads(q), empty_heads(k), empty_heads(v), d_learned


def _differentiate(
    ctx: Any, launch: Any, d_out: Tensor, *unused: Tensor | None
) -> tuple[Tensor | None, ...]:
    outputs, inputs = saved_inputs(ctx)
    *grads, d_learned = launch(d_out, *outputs, *inputs)
    grads.append(None if inputs[_DIFFERENTIABLE - 1] is None else d_learned)
    return *grads, *[None] * (len(inputs) - _DIFFERENTIABLE)


_attention = DifferentiableOp(
    Kernel("distance_attention", f"({_INPUTS}) -> (Tensor, Tensor, Tensor)", _launch, _fake),
    Kernel(
        "distance_attention_backward",
        f"(Tensor d_out, Tensor out, Tensor lse, Tensor tables, {_INPUTS}) "
        "-> (Tensor, Tensor, Tensor, Tensor)",
        _launch_backward,
        _fake_backward,
    ),
    save=save_inputs,
    differentiate=_differentiate,
)


def empty_tables(q_bhnd: Tensor, learned: Tensor | None) -> Tensor:
    """An empty table for each query [b, h, n, c or more], where vectors are learned.

    In memory the heads come first, and rows are padded to 8 columns: aligned rows are read faster.
    """
    if learned is None or learned.dim() != 2:
        return q_bhnd.new_empty(0)
    b, h, n, _ = q_bhnd.shape
    return q_bhnd.new_empty(h, b, n, -(-learned.shape[0] // 8) * 8).transpose(0, 1)
