"""The output map and its cross-entropy in one, so that the logits of a batch are never all held.

The logits of one chunk of rows at a time are made, judged, turned into their own gradient in place,
and multiplied into the gradients of vectors and map before the next chunk's take their room. What
is left for the backward pass is to scale these gradients, for a loss is a number.

Shapes: n rows, r rows of a chunk, v vocabulary, w width.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from heed.nn.kernels.availability import on_gpu
from heed.nn.rdrop import rdrop_loss_and_grad

HELD, HELD_ON_GPU = 2**22, 2**29
"""How many logits to hold at once: what a CPU's cache takes, and a gigabyte of bfloat16."""
ROWS_AT_LEAST = 256
"""A chunk with fewer rows would spend its time on moving the map's gradient."""
ROWS_ROUND = 128
"""Chunks of a round number of rows fill the tiles of a matrix product."""
HELD_IN_PAIRS = 2**26
"""Logits of pairs on a GPU: they take several times their room in float32."""
ALIGNED = 64
"""On a GPU rows of logits begin at multiples of this: products are slow where they do not."""


def linear_cross_entropy(
    x_nw: Tensor,
    weight_vw: Tensor,
    targets_n: Tensor,
    *,
    ignored: int = -100,
    label_smoothing: float = 0.0,
    bias_v: Tensor | None = None,
    held: int | None = None,
    rdrop: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Over targets other than `ignored`: the sum of losses, and how many are the best answer.

    As F.cross_entropy of F.linear(x, weight, bias).float() would have it, with all gradients; once
    differentiable. Products are made in x's dtype, or autocast's. `held` bounds how many logits
    there are at any moment.

    With `rdrop`, rows come in pairs, two passes over one text (`heed.nn.rdrop`): either counts for
    half, and what they say is to agree.
    """
    if targets_n.shape != x_nw.shape[:1]:
        raise ValueError(f"{len(x_nw)} rows, but targets {list(targets_n.shape)}")
    x_nw = x_nw.to(_product_dtype(x_nw))
    tensors = (x_nw, weight_vw, bias_v)
    wanted = [torch.is_grad_enabled() and x is not None and x.requires_grad for x in tensors]
    # An operation costs a tenth of a millisecond to call. Only a compiler needs one.
    run: Any = _operation if torch.compiler.is_compiling() else _Eagerly.apply
    held = held or (HELD_IN_PAIRS if rdrop and x_nw.is_cuda else None)
    total, right, *_ = run(*tensors, targets_n, ignored, label_smoothing, rdrop, held, wanted)
    return total, right


def chunk_rows(n: int, v: int, *, gpu: bool, held: int | None = None) -> int:
    """How many rows a chunk has, all but the last: as even as may be, few enough to be held."""
    most = max(1, (held or max(HELD_ON_GPU if gpu else HELD, ROWS_AT_LEAST * v)) // max(1, v))
    round_to = ROWS_ROUND if most >= ROWS_ROUND else 1
    most = most // round_to * round_to
    even = -(-n // max(1, -(-n // most)))
    return max(1, -(-even // round_to) * round_to)


def _product_dtype(x: Tensor) -> torch.dtype:
    """As autocast has it for a linear map, which leaves float64 alone."""
    device = x.device.type
    if x.dtype != torch.float64 and torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return x.dtype


def _sum_dtype(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


# ------------------------------------------------------------------------------------- the chunks


def _run(
    x_nw: Tensor,
    weight_vw: Tensor,
    bias_v: Tensor | None,
    targets_n: Tensor,
    ignored: int,
    smoothing: float,
    rdrop: float,
    held: int | None,
    wanted: list[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Losses, right answers, and the gradients of x, weight and bias, empty where not wanted."""
    with torch.autocast(x_nw.device.type, enabled=False):
        weight_vw, targets_n = weight_vw.to(x_nw.dtype), targets_n.contiguous()
        bias_v = None if bias_v is None else bias_v.to(x_nw.dtype)
        (n, _), v, sums = x_nw.shape, len(weight_vw), _sum_dtype(x_nw)
        losses_n = x_nw.new_empty(n, dtype=sums)
        right_n = x_nw.new_empty(n, dtype=torch.int32)
        dx, d_weight, d_bias = _empty_gradients(x_nw, weight_vw, wanted)
        if n == 0:
            d_weight.zero_()
            d_bias.zero_()
        rows = chunk_rows(n, v, gpu=x_nw.is_cuda, held=held)
        rows += rows % 2 if rdrop else 0
        room_rv = _room(x_nw, min(rows, n), v)
        judge = _judge_on_gpu if any(wanted) and _has_kernel(x_nw) else _judge
        if rdrop:
            judge = partial(_judge_pairs, judge, rdrop)
        for start in range(0, n, rows):
            part = slice(start, start + rows)
            x_rw, logits_rv = x_nw[part], room_rv[: n - start]
            _map(x_rw, weight_vw, bias_v, logits_rv)
            told = (logits_rv, targets_n[part], losses_n[part], right_n[part])
            d_rv = judge(*told, ignored, smoothing, any(wanted))
            if wanted[0]:
                torch.mm(d_rv, weight_vw, out=dx[part])
            if wanted[1]:
                _add_product(d_weight, d_rv.mT, x_rw, first=start == 0)
            if wanted[2]:
                columns = d_rv.sum(dim=0, dtype=sums)
                d_bias.copy_(columns if start == 0 else d_bias + columns)
        return losses_n.sum(), right_n.sum(), dx, d_weight, d_bias


def _empty_gradients(
    x_nw: Tensor, weight_vw: Tensor, wanted: list[bool]
) -> tuple[Tensor, Tensor, Tensor]:
    """Room for the gradients of x, weight and bias; the latter two are sums over all chunks."""
    v, w = weight_vw.shape
    sums = _sum_dtype(x_nw)
    return (
        x_nw.new_empty(x_nw.shape if wanted[0] else 0),
        x_nw.new_empty((v, w) if wanted[1] else 0, dtype=sums),
        x_nw.new_empty(v if wanted[2] else 0, dtype=sums),
    )


def _room(x_nw: Tensor, rows: int, v: int) -> Tensor:
    """Where logits [rows, v] go."""
    wide = -(-v // ALIGNED) * ALIGNED if x_nw.is_cuda else v
    return x_nw.new_empty(rows, wide)[:, :v]


def _map(x_rw: Tensor, weight_vw: Tensor, bias_v: Tensor | None, out_rv: Tensor) -> None:
    if bias_v is None:
        torch.mm(x_rw, weight_vw.mT, out=out_rv)
    else:
        torch.addmm(bias_v, x_rw, weight_vw.mT, out=out_rv)


def _add_product(sum_vw: Tensor, a_vr: Tensor, b_rw: Tensor, *, first: bool) -> None:
    """sum += a b, where the first product overwrites whatever was there."""
    kept = 0 if first else 1
    if a_vr.dtype == sum_vw.dtype:
        sum_vw.addmm_(a_vr, b_rw, beta=kept)
    elif sum_vw.is_cuda:
        torch.addmm(sum_vw, a_vr, b_rw, beta=kept, out_dtype=sum_vw.dtype, out=sum_vw)
    else:
        product = a_vr @ b_rw
        sum_vw.copy_(product if first else sum_vw + product)


def _has_kernel(x: Tensor) -> bool:
    return on_gpu(x) and x.dtype != torch.float64


def _judge_on_gpu(*told: Any) -> Tensor:
    from heed.nn.kernels.triton.cross_entropy import judge

    return judge(*told)


def _judge(
    logits_rv: Tensor,
    targets_r: Tensor,
    losses_r: Tensor,
    right_r: Tensor,
    ignored: int,
    smoothing: float,
    gradient: bool,
) -> Tensor:
    """Write each row's loss and whether it is right; return the gradient of the logits.

    That is softmax - (1 - s) · onehot - s/v with smoothing s, and zeros where nothing is asked.
    """
    scores_rv = logits_rv.to(losses_r.dtype)
    asked_r1 = (targets_r != ignored)[:, None]
    target_r1 = targets_r.long()[:, None].where(asked_r1, 0)
    best_r1, said_r1 = scores_rv.max(dim=-1, keepdim=True)
    own_r1 = scores_rv.gather(-1, target_r1)
    d_rv = torch.softmax(scores_rv, dim=-1)
    # The share of the best is 1/v at least, so its logarithm is sound: that of Σ exp(x - best).
    loss_r1 = (best_r1 - own_r1) - d_rv.gather(-1, said_r1).log()
    if smoothing > 0:
        loss_r1 -= smoothing * (scores_rv.mean(dim=-1, keepdim=True) - own_r1)
    losses_r.copy_(loss_r1.where(asked_r1, 0)[:, 0])
    right_r.copy_((asked_r1 & (said_r1 == target_r1))[:, 0])
    if not gradient:
        return logits_rv
    d_rv.scatter_add_(-1, target_r1, torch.full_like(own_r1, smoothing - 1))
    if smoothing > 0:
        d_rv -= smoothing / d_rv.shape[-1]
    d_rv.masked_fill_(~asked_r1, 0)
    return d_rv if d_rv.dtype == logits_rv.dtype else logits_rv.copy_(d_rv)


def _judge_pairs(
    judge: Callable[..., Tensor],
    rdrop: float,
    logits_rv: Tensor,
    targets_r: Tensor,
    losses_r: Tensor,
    right_r: Tensor,
    ignored: int,
    smoothing: float,
    gradient: bool,
) -> Tensor:
    """The same for pairs of rows: half of each one's cross-entropy, and what parts them."""
    pairs_r2v = logits_rv.to(losses_r.dtype).unflatten(0, (-1, 2))
    asked_r1 = (targets_r != ignored)[:, None]
    apart_r, apart_rv = rdrop_loss_and_grad(pairs_r2v, rdrop)
    d_rv = judge(logits_rv, targets_r, losses_r, right_r, ignored, smoothing, gradient)
    parted_r1 = apart_r[:, None].expand(-1, 2).flatten()[:, None]
    losses_r.add_(parted_r1.where(asked_r1, 0)[:, 0]).div_(2)
    if gradient:
        # In 16 bits d is rounded already; the sum is rounded once more.
        d_rv.div_(2).add_(apart_rv.flatten(0, 1).where(asked_r1, 0))
    return d_rv


# ------------------------------------------------------------------ an operation, as torch knows it

_operation = torch.library.custom_op(
    "heed::linear_cross_entropy",
    _run,
    mutates_args=(),
    schema="(Tensor x, Tensor weight, Tensor? bias, Tensor targets, int ignored, float smoothing, "
    "float rdrop, int? held, bool[] wanted) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)


@_operation.register_fake
def _shapes(
    x_nw: Tensor,
    weight_vw: Tensor,
    bias_v: Tensor | None,
    targets_n: Tensor,
    ignored: int,
    smoothing: float,
    rdrop: float,
    held: int | None,
    wanted: list[bool],
) -> tuple[Tensor, ...]:
    total, right = (
        x_nw.new_empty((), dtype=_sum_dtype(x_nw)),
        targets_n.new_empty((), dtype=torch.int64),
    )
    return total, right, *_empty_gradients(x_nw, weight_vw, wanted)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.wanted = inputs[-1]
    ctx.dtypes = [None if x is None else x.dtype for x in inputs[:3]]
    ctx.save_for_backward(*output[2:])


def _differentiate(ctx: Any, d_total: Tensor, *rest: Any) -> tuple[Tensor | None, ...]:
    told = zip(ctx.saved_tensors, ctx.wanted, ctx.dtypes, strict=True)
    found = [_scaled(x, d_total, dtype) if wanted else None for x, wanted, dtype in told]
    return *found, None, None, None, None, None, None


def _scaled(x: Tensor, by: Tensor, dtype: torch.dtype) -> Tensor:
    """x · by in one pass. As a tensor with a shape, `by` is not rounded to 16 bits before."""
    return torch.mul(x, by.reshape([1] * x.dim()), out=torch.empty_like(x, dtype=dtype))


torch.library.register_autograd(
    "heed::linear_cross_entropy", _differentiate, setup_context=_remember
)


class _Eagerly(torch.autograd.Function):
    """The same, called directly."""

    @staticmethod
    def forward(ctx: Any, *call: Any) -> tuple[Tensor, Tensor]:
        output = _run(*call)
        _remember(ctx, call, output)
        ctx.mark_non_differentiable(output[1])
        return output[:2]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return _differentiate(ctx, *grads)
