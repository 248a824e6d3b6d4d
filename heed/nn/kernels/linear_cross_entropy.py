"""The output linear layer and its cross-entropy in one, without holding a batch's logits at once.

Logits are computed for one chunk of rows at a time. Their cross-entropy replaces them by its
gradient, which is multiplied into the gradients of inputs and weights before the next chunk reuses
the memory. The loss is a scalar, so the backward pass only scales these gradients. Training
differentiates the sum itself: then a factor of 1 leaves them as they are.

Shapes: n rows, r rows of a chunk, v vocabulary, p vocabulary with padding, w width.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from heed.nn.kernels import fp8_cross_entropy as fp8_kernels
from heed.nn.kernels.availability import on_cpu, on_gpu
from heed.nn.kernels.custom_op import DifferentiableOp, Kernel
from heed.nn.kernels.matrix_product_cpu import can_multiply, multiply, product
from heed.nn.kernels.padded_vocabulary import MULTIPLE, align, pad_rows, pad_weight
from heed.nn.kernels.parameter_gradients import ParameterStream, parameter_stream
from heed.nn.rdrop import rdrop_loss_and_grad

MAX_LOGITS, MAX_LOGITS_GPU = 2**22, 2**29
"""Logits to hold at once: what fits a CPU's cache, and a gigabyte of bfloat16."""
MIN_ROWS = 256
"""A chunk with fewer rows would spend its time on reading and writing the weights' gradient."""
ROWS_MULTIPLE = 128
"""Chunks of a multiple of so many rows fill the tiles of a matrix product."""
MAX_LOGITS_RDROP = 2**26
"""Logits to hold at once on a GPU with R-Drop's plain formula, which copies them in float32."""
MAX_LOGITS_KEPT = 2**26
"""Logits up to which the weight's gradient is computed beside what follows, and keeps them until
then. With more of them its product fills a GPU by itself."""


def linear_cross_entropy(
    x_nw: Tensor,
    weight_vw: Tensor,
    targets_n: Tensor,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    bias_v: Tensor | None = None,
    max_logits: int | None = None,
    rdrop: float = 0.0,
    fp8: bool = False,
) -> tuple[Tensor, Tensor]:
    """Sum of losses over targets other than `ignore_index`, and how many are predicted correctly.

    It equals F.cross_entropy of F.linear(x, weight, bias).float(), gradients included, and can be
    differentiated once. Matrix products are in x's dtype, or autocast's. `max_logits` bounds how
    many logits are held at any moment.

    With `rdrop`, rows are pairs: two passes over one sequence with different dropout
    (`heed.nn.rdrop`). Each row's cross-entropy counts half, and R-Drop's loss is added.

    With `fp8`, matrix products are in 8-bit floating point where
    `heed.nn.kernels.fp8_cross_entropy.find_obstacle` finds no obstacle and R-Drop is off.
    """
    if targets_n.shape != x_nw.shape[:1]:
        raise ValueError(f"{len(x_nw)} rows, but targets {list(targets_n.shape)}")
    if bias_v is not None and bias_v.shape != weight_vw.shape[:1]:
        raise ValueError(f"A bias {list(bias_v.shape)} for a vocabulary of {len(weight_vw)}")
    x_nw = x_nw.to(_product_dtype(x_nw))
    tensors = (x_nw, weight_vw, bias_v)
    needs_grad = [torch.is_grad_enabled() and x is not None and x.requires_grad for x in tensors]
    total, correct, *_ = _linear_cross_entropy(
        *tensors, targets_n, ignore_index, label_smoothing, rdrop, max_logits, fp8, needs_grad
    )
    return total, correct


def chunk_rows(n: int, v: int, *, gpu: bool, max_logits: int | None = None) -> int:
    """Rows of all chunks but the last: few enough for `max_logits`, chunks of equal size."""
    limit = max_logits or max(MAX_LOGITS_GPU if gpu else MAX_LOGITS, MIN_ROWS * v)
    most = max(1, limit // max(1, v))
    multiple = ROWS_MULTIPLE if most >= ROWS_MULTIPLE else 1
    most = most // multiple * multiple
    even = -(-n // max(1, -(-n // most)))
    return max(1, -(-even // multiple) * multiple)


def _product_dtype(x: Tensor) -> torch.dtype:
    """The dtype autocast gives a linear layer; float64 is left alone."""
    device = x.device.type
    if x.dtype != torch.float64 and torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return x.dtype


def _sum_dtype(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


# ------------------------------------------------------------------------------------- the chunks


def _launch(
    x_nw: Tensor,
    weight_vw: Tensor,
    bias_v: Tensor | None,
    targets_n: Tensor,
    ignore_index: int,
    smoothing: float,
    rdrop: float,
    max_logits: int | None,
    fp8: bool,
    needs_grad: list[bool],
    *,
    stream: ParameterStream | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Loss, correct predictions, and gradients of x, weight and bias, empty where not needed.

    The weight's gradient is computed on `stream`, if any, where few rows are one chunk.
    """
    with torch.autocast(x_nw.device.type, enabled=False):
        if fp8 and not rdrop and _has_fp8(x_nw, bias_v, needs_grad):
            return _launch_fp8(x_nw, weight_vw, targets_n, ignore_index, smoothing, max_logits)
        (n, _), v, sum_dtype = x_nw.shape, len(weight_vw), _sum_dtype(x_nw)
        # Without gradients a GPU uses the plain formula: it compiles nothing.
        use_triton = any(needs_grad) and _has_kernel(x_nw)
        p = align(v) if use_triton and v % MULTIPLE else v
        weight_pw, targets_n = pad_weight(weight_vw, p, x_nw.dtype), targets_n.contiguous()
        bias_p = None if bias_v is None else pad_rows(bias_v, p, x_nw.dtype)
        losses_n = x_nw.new_empty(n, dtype=sum_dtype)
        correct_n = x_nw.new_empty(n, dtype=torch.int32)
        dx, d_weight, d_bias = _empty_gradients(x_nw, weight_pw, needs_grad)
        if n == 0:
            d_weight.zero_()
            d_bias.zero_()
        if x_nw.is_cuda and not use_triton:
            limit = MAX_LOGITS_RDROP if rdrop else MAX_LOGITS_GPU
            max_logits = (max_logits or limit) // _plain_copies(x_nw)
        rows = chunk_rows(n, v, gpu=x_nw.is_cuda, max_logits=max_logits)
        rows += rows % 2 if rdrop else 0
        buffer_rp = _logits_buffer(x_nw, min(rows, n), p)
        cross_entropy = _chunk_function(x_nw, rdrop, use_triton)
        for start in range(0, n, rows):
            chunk = slice(start, start + rows)
            x_rw, logits_rp = x_nw[chunk], buffer_rp[: n - start]
            _linear(x_rw, weight_pw, bias_p, logits_rp)
            tensors = (logits_rp[:, :v], targets_n[chunk], losses_n[chunk], correct_n[chunk])
            d_rv = cross_entropy(*tensors, ignore_index, smoothing, any(needs_grad))
            # Kernels overwrite logits by their gradient, and padding by zeros.
            d_rp = logits_rp if use_triton else d_rv
            if needs_grad[0]:
                product(d_rp, weight_pw, out=dx[chunk])
            if needs_grad[1]:
                add = partial(_add_product, d_weight, d_rp.mT, x_rw, first=start == 0)
                if stream is not None and rows >= n and d_rp.numel() <= MAX_LOGITS_KEPT:
                    stream.run(add, (d_rp, x_rw, d_weight))
                else:
                    add()
            if needs_grad[2]:
                columns = d_rp.sum(dim=0, dtype=sum_dtype)
                d_bias.copy_(columns if start == 0 else d_bias + columns)
        return losses_n.sum(), correct_n.sum(), dx, d_weight[:v], d_bias[:v]


def _launch_eager(
    x_nw: Tensor, weight_vw: Tensor, bias_v: Tensor | None, *others: Any
) -> tuple[Tensor, ...]:
    """`_launch` with the active stream for gradients of parameters."""
    return _launch(x_nw, weight_vw, bias_v, *others, stream=parameter_stream(weight_vw, bias_v))


def _has_fp8(x_nw: Tensor, bias_v: Tensor | None, needs_grad: list[bool]) -> bool:
    if len(x_nw) == 0:
        return False
    settings = {"biased": bias_v is not None, "trained": all(needs_grad[:2])}
    return fp8_kernels.find_obstacle(x_nw.device, x_nw.dtype, x_nw.shape[1], **settings) is None


def _launch_fp8(
    x_nw: Tensor,
    weight_vw: Tensor,
    targets_n: Tensor,
    ignore_index: int,
    smoothing: float,
    max_logits: int | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The outputs of `_launch` by 8-bit products."""
    losses_n = x_nw.new_empty(len(x_nw), dtype=torch.float32)
    correct_n = x_nw.new_empty(len(x_nw), dtype=torch.int32)
    v = fp8_kernels.round_up(len(weight_vw), fp8_kernels.VOCAB_MULTIPLE)
    limit = max_logits or max(fp8_kernels.MAX_LOGITS, MIN_ROWS * v)
    dx, d_weight = fp8_kernels.fp8_cross_entropy(
        x_nw,
        weight_vw,
        targets_n.contiguous(),
        losses_n,
        correct_n,
        ignore_index,
        smoothing,
        chunk_rows(len(x_nw), v, gpu=True, max_logits=limit),
    )
    return losses_n.sum(), correct_n.sum(), dx, d_weight, losses_n.new_empty(0)


def _plain_copies(x: Tensor) -> int:
    """Memory of the plain formula per byte of logits: the logits, float32 logits, their softmax."""
    sum_bytes = _sum_dtype(x).itemsize
    copies = sum_bytes if x.dtype == _sum_dtype(x) else 2 * sum_bytes
    return -(-(x.element_size() + copies) // x.element_size())


def _empty_gradients(
    x_nw: Tensor, weight_vw: Tensor, needs_grad: list[bool]
) -> tuple[Tensor, Tensor, Tensor]:
    """Empty gradients of x, weight and bias; the latter two are sums over all chunks."""
    v, w = weight_vw.shape
    sum_dtype = _sum_dtype(x_nw)
    return (
        x_nw.new_empty(x_nw.shape if needs_grad[0] else 0),
        x_nw.new_empty((v, w) if needs_grad[1] else 0, dtype=sum_dtype),
        x_nw.new_empty(v if needs_grad[2] else 0, dtype=sum_dtype),
    )


def _logits_buffer(x_nw: Tensor, rows: int, v: int) -> Tensor:
    """An empty tensor for logits [rows, v]."""
    return x_nw.new_empty(rows, align(v) if x_nw.is_cuda else v)[:, :v]


def _linear(x_rw: Tensor, weight_vw: Tensor, bias_v: Tensor | None, out_rv: Tensor) -> None:
    product(x_rw, weight_vw.mT, bias_v, out=out_rv)


def _add_product(sum_vw: Tensor, a_vr: Tensor, b_rw: Tensor, *, first: bool) -> None:
    """sum += a b; the first product overwrites the uninitialized sum."""
    beta = 0 if first else 1
    if can_multiply(a_vr, b_rw):
        multiply(a_vr, b_rw, out=sum_vw, adds=not first)
    elif a_vr.dtype == sum_vw.dtype:
        sum_vw.addmm_(a_vr, b_rw, beta=beta)
    elif sum_vw.is_cuda:
        torch.addmm(sum_vw, a_vr, b_rw, beta=beta, out_dtype=sum_vw.dtype, out=sum_vw)
    else:
        add = sum_vw.copy_ if first else sum_vw.add_
        add(a_vr @ b_rw)


def _has_kernel(x: Tensor) -> bool:
    return on_gpu(x) and x.dtype != torch.float64


def _chunk_function(x: Tensor, rdrop: float, use_triton: bool) -> Callable[..., Tensor]:
    """The cross-entropy of a chunk of logits, with R-Drop or without."""
    if not use_triton:
        if rdrop:
            return partial(_chunk_rdrop, rdrop)
        return _compiled_cross_entropy(x) or chunk_cross_entropy
    if rdrop:
        from heed.nn.kernels.triton.rdrop_cross_entropy import chunk_rdrop

        return partial(chunk_rdrop, rdrop)
    from heed.nn.kernels.triton import cross_entropy

    return cross_entropy.chunk_cross_entropy


def _compiled_cross_entropy(x: Tensor) -> Callable[..., Tensor] | None:
    """The kernel in C on a CPU; None elsewhere, in other dtypes, and where nothing compiles."""
    if not on_cpu(x):
        return None
    from heed.nn.kernels.cross_entropy_cpu import DTYPES, load_kernel

    return load_kernel() if x.dtype in DTYPES else None


def chunk_cross_entropy(
    logits_rv: Tensor,
    targets_r: Tensor,
    losses_r: Tensor,
    correct_r: Tensor,
    ignore_index: int,
    smoothing: float,
    gradient: bool,
) -> Tensor:
    """Write each row's loss and whether its prediction is correct; return the logits' gradient.

    That is softmax - (1 - s) · onehot - s/v with label smoothing s, and zeros for ignored targets.
    """
    scores_rv = logits_rv.to(losses_r.dtype)
    counted_r1 = (targets_r != ignore_index)[:, None]
    target_r1 = targets_r.long()[:, None].where(counted_r1, 0)
    max_r1, predicted_r1 = scores_rv.max(dim=-1, keepdim=True)
    target_score_r1 = scores_rv.gather(-1, target_r1)
    d_rv = torch.softmax(scores_rv, dim=-1)
    # The largest probability is at least 1/v, so its logarithm is exact: -log Σ exp(x - max).
    loss_r1 = (max_r1 - target_score_r1) - d_rv.gather(-1, predicted_r1).log()
    if smoothing > 0:
        loss_r1 -= smoothing * (scores_rv.mean(dim=-1, keepdim=True) - target_score_r1)
    losses_r.copy_(loss_r1.where(counted_r1, 0)[:, 0])
    correct_r.copy_((counted_r1 & (predicted_r1 == target_r1))[:, 0])
    if not gradient:
        return logits_rv
    d_rv.scatter_add_(-1, target_r1, torch.full_like(target_score_r1, smoothing - 1))
    if smoothing > 0:
        d_rv -= smoothing / d_rv.shape[-1]
    d_rv.masked_fill_(~counted_r1, 0)
    return d_rv if d_rv.dtype == logits_rv.dtype else logits_rv.copy_(d_rv)


def _chunk_rdrop(
    rdrop: float,
    logits_rv: Tensor,
    targets_r: Tensor,
    losses_r: Tensor,
    correct_r: Tensor,
    ignore_index: int,
    smoothing: float,
    gradient: bool,
) -> Tensor:
    """Cross-entropy with R-Drop of pairs of rows: half of each row's loss plus R-Drop's loss."""
    pairs_r2v = logits_rv.to(losses_r.dtype).unflatten(0, (-1, 2))
    counted_r1 = (targets_r != ignore_index)[:, None]
    rdrop_r, d_rdrop_rv = rdrop_loss_and_grad(pairs_r2v, rdrop)
    d_rv = chunk_cross_entropy(
        logits_rv, targets_r, losses_r, correct_r, ignore_index, smoothing, gradient
    )
    rdrop_r1 = rdrop_r[:, None].expand(-1, 2).flatten()[:, None]
    losses_r.add_(rdrop_r1.where(counted_r1, 0)[:, 0]).div_(2)
    if gradient:
        # In 16 bits d_rv is rounded already; the sum is rounded once more.
        d_rv.div_(2).add_(d_rdrop_rv.flatten(0, 1).where(counted_r1, 0))
    return d_rv


# ---------------------------------------------------------------------------------------- operator


def _fake(
    x_nw: Tensor,
    weight_vw: Tensor,
    bias_v: Tensor | None,
    targets_n: Tensor,
    *settings: Any,
) -> tuple[Tensor, ...]:
    total = x_nw.new_empty((), dtype=_sum_dtype(x_nw))
    correct = targets_n.new_empty((), dtype=torch.int64)
    return total, correct, *_empty_gradients(x_nw, weight_vw, settings[-1])


def _save(ctx: Any, inputs: tuple[Any, ...], outputs: tuple[Tensor, ...]) -> None:
    ctx.needs_grad = inputs[-1]
    # Asked here, because a dry launch pretends to have a GPU in the forward pass alone.
    ctx.has_kernel = _has_kernel(inputs[0])
    ctx.dtypes = [None if x is None else x.dtype for x in inputs[:3]]
    ctx.stream = None if torch.compiler.is_compiling() else parameter_stream(*inputs[1:3])
    ctx.parameters = None if ctx.stream is None else inputs[1:3]
    ctx.save_for_backward(*outputs[2:])


def _differentiate(
    ctx: Any, launch: None, d_total: Tensor, *unused: Tensor | None
) -> tuple[Tensor | None, ...]:
    saved = tuple(zip(ctx.saved_tensors, ctx.dtypes, ctx.needs_grad, strict=True))

    def scaled(part: tuple[Tensor, torch.dtype, bool]) -> Tensor | None:
        x, dtype, needed = part
        return _scale(x, d_total, dtype, has_kernel=ctx.has_kernel) if needed else None

    gradients: tuple[Tensor | None, ...] = None, None
    if ctx.stream is None:
        gradients = tuple(map(scaled, saved[1:]))
    else:
        reads = d_total, *(x for x, *_ in saved[1:])
        ctx.stream.add_gradients(ctx.parameters, lambda: tuple(map(scaled, saved[1:])), reads)
    return scaled(saved[0]), *gradients, None, None, None, None, None, None, None


def _scale(x: Tensor, factor: Tensor, dtype: torch.dtype, *, has_kernel: bool) -> Tensor:
    """x · factor. A factor with dimensions is not rounded to 16 bits first.

    A kernel overwrites x, which cannot be differentiated again, and reads nothing for a factor of
    1. A CPU knows its factor.
    """
    if has_kernel and type(x) is Tensor:  # a compiler traces subclasses, without memory
        from heed.nn.kernels.triton.cross_entropy import scale

        return scale(x, factor).to(dtype)
    if on_cpu(x) and on_cpu(factor) and factor == 1.0:
        return x.to(dtype)
    out = torch.empty_like(x, dtype=dtype, memory_format=torch.contiguous_format)
    return torch.mul(x, factor.reshape([1] * x.dim()), out=out)


_linear_cross_entropy = DifferentiableOp(
    Kernel(
        "linear_cross_entropy",
        "(Tensor x, Tensor weight, Tensor? bias, Tensor targets, int ignore_index, "
        "float smoothing, float rdrop, int? max_logits, bool fp8, bool[] needs_grad) "
        "-> (Tensor, Tensor, Tensor, Tensor, Tensor)",
        _launch,
        _fake,
        _launch_eager,
    ),
    None,
    save=_save,
    differentiate=_differentiate,
)
