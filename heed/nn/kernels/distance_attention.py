"""A bias by distance, described so that a kernel need never hold one number a cell.

`DistanceBias` says what is added to a score; `attend_by_distance` is attention with it on a GPU, as
two operations that autograd and torch.compile know (the kernels themselves are in
`heed.nn.kernels.triton`).

Shapes: b batch, n queries, m keys, h query heads, g key and value heads, d head width, c classes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from heed.nn.masks import Mask

MOST_CLASSES = 128
"""What a kernel can sum in its registers."""
BLOCK = 64
"""The kernels plan by blocks of so many tokens."""


@dataclass
class DistanceBias:
    """A slope a head times |distance|, or a table's entry for the distance's class, or nothing."""

    q_positions: Tensor
    k_positions: Tensor
    slopes_h: Tensor | None = None
    vectors_cd: Tensor | None = None
    """Learned vectors: their products with a query, scaled as its scores are, are its own table."""
    table_1h1c: Tensor | None = None
    """A learned table a head."""
    max_distance: int | None = None
    """Farther than this, in either direction, all distances are one class: the first, the last."""
    classes: int = 0
    class_of: Tensor | None = None
    """[2 · max_distance + 1]: the class of each distance, rising; None: each is its own."""
    spread: Tensor | None = None
    """A table a head again, by distance: [1, h, 1, 2 · max_distance + 1], without a gradient."""
    band: Tensor | None = None
    """And once more, less the first class, laid out for tiles of queries by keys and of keys by
    queries: [h, 2, BLOCK, columns]."""

    def fits(self) -> bool:
        """Whether the kernels can take it."""
        return self.classes <= MOST_CLASSES


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
    # An operation costs a tenth of a millisecond to call. Only a compiler needs one.
    run: Any = _forward if torch.compiler.is_compiling() else _Eagerly.apply
    out: Tensor = run(
        q_bhnd,
        k_bgmd,
        v_bgmd,
        bias.table_1h1c if bias.vectors_cd is None else bias.vectors_cd,
        bias.spread,
        bias.band,
        bias.class_of,
        bias.slopes_h,
        *plans,
        bias.q_positions,
        bias.k_positions,
        mask.real_bm,
        *_segments(mask),
        bias.max_distance or 0,
        bias.classes,
        mask.causal,
        q_bhnd.shape[-1] ** -0.5 if scale is None else scale,
    )[0]
    return out


def _segments(mask: Mask) -> tuple[Tensor | None, Tensor | None]:
    packed = mask.q_segments_bn is not None and mask.k_segments_bm is not None
    return (mask.q_segments_bn, mask.k_segments_bm) if packed else (None, None)


# ------------------------------------------------------------------ operations, as torch knows them

_TEXT = (
    "Tensor q_positions, Tensor k_positions, Tensor? real, Tensor? q_segments, Tensor? k_segments"
)
_READ = (
    "Tensor q, Tensor k, Tensor v, Tensor? learned, Tensor? spread, Tensor? band, "
    f"Tensor? class_of, Tensor? slopes, Tensor rows, Tensor columns, {_TEXT}, "
    "int reach, int classes, bool causal, float scale"
)
_DIFFERENTIABLE = 4
"""q, k, v and what is learned come first."""


@torch.library.custom_op(
    "heed::relative_plans",
    mutates_args=(),
    schema=f"({_TEXT}, int? reach, bool causal) -> (Tensor, Tensor)",
)
def _plans(*told: Any) -> tuple[Tensor, Tensor]:
    from heed.nn.kernels.triton import distance_launch

    return distance_launch.plans(*told)


def _run(*call: Any) -> tuple[Tensor, Tensor, Tensor]:
    from heed.nn.kernels.triton import distance_launch

    return distance_launch.forward(distance_launch.Call(*call))


def _run_back(
    d_out: Tensor, out: Tensor, lse: Tensor, tables: Tensor, *call: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    from heed.nn.kernels.triton import distance_launch

    dq, dk, dv, learned = distance_launch.backward(
        distance_launch.Call(*call), out, lse, tables, d_out
    )
    return dq, dk, dv, dq.new_empty(0) if learned is None else learned


_forward = torch.library.custom_op(
    "heed::relative", _run, mutates_args=(), schema=f"({_READ}) -> (Tensor, Tensor, Tensor)"
)
_backward = torch.library.custom_op(
    "heed::relative_backward",
    _run_back,
    mutates_args=(),
    schema=f"(Tensor d_out, Tensor out, Tensor lse, Tensor tables, {_READ}) "
    "-> (Tensor, Tensor, Tensor, Tensor)",
)


@_plans.register_fake
def _plans_shapes(
    q_positions: Tensor,
    k_positions: Tensor,
    real: Tensor | None,
    q_segments: Tensor | None,
    k_segments: Tensor | None,
    *rest: Any,
) -> tuple[Tensor, Tensor]:
    told = (q_positions, k_positions, real, q_segments, k_segments)
    b = max(x.shape[0] for x in told if x is not None)
    rows, columns = (
        x.new_empty(b, -(-x.shape[1] // BLOCK), 5, dtype=torch.int32)
        for x in (q_positions, k_positions)
    )
    return rows, columns


@_forward.register_fake
def _forward_shapes(q: Tensor, k: Tensor, v: Tensor, learned: Tensor | None, *rest: Any) -> Any:
    lse = q.new_empty(q.shape[:3], dtype=torch.float32)
    return empty_heads(q), lse, empty_tables(q, learned)


@_backward.register_fake
def _backward_shapes(d_out: Tensor, out: Tensor, lse: Tensor, tables: Tensor, *call: Any) -> Any:
    q, k, v, learned = call[:_DIFFERENTIABLE]
    d_learned = q.new_empty(0) if learned is None else learned.new_empty(learned.shape)
    return empty_heads(q), empty_heads(k), empty_heads(v), d_learned


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    tensors = [x for x in inputs if isinstance(x, Tensor)]
    ctx.save_for_backward(*output, *tensors)
    ctx.others = [None if isinstance(x, Tensor) else (x,) for x in inputs]


def _differentiate(
    ctx: Any, d_out: Tensor, run: Callable[..., tuple[Tensor, ...]]
) -> tuple[Tensor | None, ...]:
    out, lse, tables, *tensors = ctx.saved_tensors
    left = iter(tensors)
    call = [next(left) if other is None else other[0] for other in ctx.others]
    *grads, d_learned = run(d_out, out, lse, tables, *call)
    given = [*grads, None if call[_DIFFERENTIABLE - 1] is None else d_learned]
    return *given, *[None] * (len(call) - _DIFFERENTIABLE)


torch.library.register_autograd(
    "heed::relative",
    lambda ctx, d_out, *others: _differentiate(ctx, d_out, _backward),
    setup_context=_remember,
)


class _Eagerly(torch.autograd.Function):
    """The same two operations, called directly."""

    @staticmethod
    def forward(ctx: Any, *call: Any) -> tuple[Tensor, Tensor, Tensor]:
        output = _run(*call)
        _remember(ctx, call, output)
        ctx.mark_non_differentiable(*output[1:])
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return _differentiate(ctx, grads[0], _run_back)


def empty_heads(like: Tensor) -> Tensor:
    """A tensor of that shape, each token's heads side by side: what the next map wants to read."""
    b, heads, n, d = like.shape
    return like.new_empty(b, n, heads, d).transpose(1, 2)


def empty_tables(q_bhnd: Tensor, learned: Tensor | None) -> Tensor:
    """Room for a table a query [b, h, n, c or more], where vectors are learned; by head in memory.

    Some idle columns make it quick to read.
    """
    if learned is None or learned.dim() != 2:
        return q_bhnd.new_empty(0)
    b, h, n, _ = q_bhnd.shape
    return q_bhnd.new_empty(h, b, n, -(-learned.shape[0] // 8) * 8).transpose(0, 1)
