"""Attention by the fastest kernel that can serve a call: `attention`, and the table `KERNELS`.

`attention` takes what `attend` (`nn/attention.py`) takes and returns the output alone; the weights
of a long sequence are never all in memory. `KERNELS` lists which kernel serves when, and why.

Shapes: b batch, n queries, m keys, h query heads, g key and value heads, d head width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor

from heed.nn.kernels import qkv_layout
from heed.nn.kernels.availability import (
    may_compute_in_c,
    on_cpu,
    on_gpu,
    on_gpu_device,
    trains_on_cpu,
)
from heed.nn.kernels.decode_attention import ExplicitMask, attend_decode, fits_decode, write_kv
from heed.nn.kernels.decode_attention_cpu import attend_decode_cpu, fits_decode_cpu
from heed.nn.kernels.distance_attention import DistanceBias, attend_by_distance
from heed.nn.kernels.flex_attention import ScoreMod, attend_flex
from heed.nn.kernels.heads import Heads, PendingRotation, SharedPosition
from heed.nn.kernels.position_bias import PositionBias
from heed.nn.kernels.position_forms import form_of
from heed.nn.kernels.sdpa import attend_sdpa, mask_and_bias, needs_no_tensor
from heed.nn.kernels.short_attention import attend_short
from heed.nn.masks import Mask
from heed.nn.positions import Position

LONG, LONG_BY_QUERY = 512, 128
"""From how many tokens on a dense bias costs more than one computed in the kernel: where all
queries share it, and where each has its own."""
LONG_CPU, LONG_CPU_BY_QUERY = 1024, 512
"""The same on a CPU, where the bias is made for a block of queries at a time."""
LONG_CPU_EVALUATION = 512
"""From how many tokens on the kernel in C pays without gradients, too."""
MAX_HEAD_WIDTH = 256
"""Wider heads don't fit into the long kernels' tiles; SDPA takes them. On a CPU, only those without
a bias: for heads of 512 SDPA takes up to an eighth less time than the kernel in C."""
SHORT, SHORT_BYTES = 128, 256
"""Up to how many queries or keys, and bytes a vector, one program can hold a whole head. Attention
is then bound by memory, and SDPA's kernels, made for long sequences, take several times as long."""
SHORT_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def attention(
    q_bhnd: Tensor,
    k_bgmd: Tensor,
    v_bgmd: Tensor,
    *,
    mask: Mask | Tensor | None = None,
    bias: PositionBias | Tensor | None = None,
    scale: float | None = None,
    dropout: float = 0.0,
    rotation: PendingRotation | None = None,
) -> Tensor:
    """softmax(q kᵀ · scale + bias) v, as `attend` computes it, by the first kernel that serves.

    `rotation` is applied to queries and keys first: by the kernel itself, where it can.
    """
    call = Call(Heads(q_bhnd, k_bgmd, v_bgmd, rotation), mask, bias, scale, dropout)
    for kernel in KERNELS:
        if kernel.serves(call):
            return kernel.run(call)
    raise AssertionError("SDPA serves every call.")


class Call(NamedTuple):
    """One call of attention."""

    heads: Heads
    mask: Mask | Tensor | None
    bias: PositionBias | Tensor | None
    scale: float | None
    dropout: float


class Kernel(NamedTuple):
    """One row of the table: when a kernel serves a call, and what it runs."""

    name: str
    serves: Callable[[Call], bool]
    run: Callable[[Call], Tensor]
    why: str


# ------------------------------------------------------------------------- when each one serves


def _is_short(call: Call) -> bool:
    """GPU, gradients, 2–128 queries, ≤ 128 keys, a `Mask` or none, no dropout; a bias if shared.

    All sequences of the batch must share it: their positions are the same, and it is no `Tensor`.
    """
    q, k, v, _ = call.heads
    known = q.dtype in SHORT_DTYPES and q.dtype == k.dtype == v.dtype
    small = _are_few(q.shape[2], k.shape[2]) and q.shape[3] * q.element_size() <= SHORT_BYTES
    if not (small and known and on_gpu(q) and call.dropout == 0.0):
        return False
    if isinstance(call.mask, Tensor | ExplicitMask):
        return False
    return _batch_bias(call) is not None or _is_unbiased(call.bias)


def _is_decode_step(call: Call) -> bool:
    """GPU, no gradients, few queries, an `ExplicitMask`, no dropout."""
    q, k, v, _ = call.heads
    listed = isinstance(call.mask, ExplicitMask) and call.dropout == 0.0
    return listed and on_gpu(q) and fits_decode(q, k, v)


def _has_only_score_mod(call: Call) -> bool:
    """GPU, long, a bias registered as `score_mod` alone, no dropout."""
    if not _is_long(call) or not isinstance(call.bias, PositionBias):
        return False
    return call.bias.by_distance() is None and call.bias.score_mod() is not None


def _is_by_distance(call: Call) -> bool:
    """GPU, long, a bias by distance or a mask that SDPA needs a tensor for, no dropout."""
    if not _is_long(call):
        return False
    bias = _distance_bias(call)
    return bias is not None and bias.fits()


def _is_cpu_decode_step(call: Call) -> bool:
    """CPU, float32, no gradients, few queries, no dropout."""
    q, k, _, _ = call.heads
    return call.dropout == 0.0 and fits_decode_cpu(q, k)


def _is_short_cpu(call: Call) -> bool:
    """CPU, gradients, ≤ 32 bits, short as on a GPU, a `Mask` or none, no dropout, a C compiler.

    A bias is served if all sequences of the batch share it.
    """
    q, k, v, _ = call.heads
    known = trains_on_cpu(q) and q.dtype in SHORT_DTYPES and q.dtype == k.dtype == v.dtype
    few = known and _are_few(q.shape[2], k.shape[2])
    if not few or call.dropout != 0.0 or isinstance(call.mask, Tensor | ExplicitMask):
        return False
    from heed.nn.kernels.short_attention_cpu import fits_short_cpu

    if not fits_short_cpu(q, k, v):
        return False
    return _batch_bias(call) is not None or _is_unbiased(call.bias)


def _is_long_cpu(call: Call) -> bool:
    """CPU, ≤ 32 bits, a `Mask` or none, no dropout, no bias but by distance, a C compiler.

    So it serves more than 128 tokens, and a bias that sequences don't share; without gradients, 512
    tokens or more. Heads without a bias are at most 256 wide.
    """
    q, k, v, _ = call.heads
    if not torch.is_grad_enabled() and min(q.shape[2], k.shape[2]) < LONG_CPU_EVALUATION:
        return False
    known = may_compute_in_c(q) and q.dtype in SHORT_DTYPES and q.dtype == k.dtype == v.dtype
    if not known or call.dropout != 0.0 or isinstance(call.mask, Tensor | ExplicitMask):
        return False
    if isinstance(call.bias, Tensor) or q.shape[2] < 2:
        return False
    from heed.nn.kernels.long_attention_cpu import fits_bias, fits_long_cpu

    if not fits_long_cpu(q, k, v):
        return False
    if call.bias is None or not _has_bias(call.bias.position):
        return q.shape[3] <= MAX_HEAD_WIDTH
    return fits_bias(call.bias.by_distance())


def _is_blocked_cpu(call: Call) -> bool:
    """CPU, long, a bias, a `Mask` or none; if it is causal, at least as many keys as queries."""
    q, k, _, _ = call.heads
    if isinstance(call.mask, Mask) and call.mask.causal and q.shape[2] > k.shape[2]:
        return False
    explicit = isinstance(call.mask, Tensor | ExplicitMask)
    if explicit or not isinstance(call.bias, PositionBias) or not _has_bias(call.bias.position):
        return False
    long = LONG_CPU_BY_QUERY if call.bias.position.bias_uses_query else LONG_CPU
    return on_cpu(q) and min(q.shape[2], k.shape[2]) >= long and not torch.compiler.is_compiling()


def _is_any(call: Call) -> bool:
    """Everything else: any device, mask, bias and dropout."""
    return True


# ---------------------------------------------------------------------------------- how each runs


def _run_short(call: Call) -> Tensor:
    q, k, v, rotation = call.heads
    mask = None if isinstance(call.mask, Tensor) else call.mask
    bias = _batch_bias(call)
    return attend_short(q, k, v, mask=mask, bias=bias, rotation=rotation, scale=call.scale)


def _run_decode_step(call: Call) -> Tensor:
    heads, mask = call.heads.rotated(), cast(ExplicitMask, call.mask)
    bias = call.bias.dense() if isinstance(call.bias, PositionBias) else call.bias
    return attend_decode(*heads, mask=mask, bias=bias, scale=call.scale)


def _run_flex(call: Call) -> Tensor:
    heads, mask = call.heads.rotated(), cast(Mask, call.mask)
    score_mod = cast(ScoreMod, cast(PositionBias, call.bias).score_mod())
    return attend_flex(*heads, mask=mask, score_mod=score_mod, scale=call.scale)


def _run_by_distance(call: Call) -> Tensor:
    heads, mask = call.heads.rotated(), cast(Mask, call.mask)
    bias = cast(DistanceBias, _distance_bias(call))
    plans = cast(PositionBias, call.bias).plans.get(mask, bias.max_distance)
    return attend_by_distance(*heads, mask, bias, plans, call.scale)


def _run_cpu_decode_step(call: Call) -> Tensor:
    q, k, v = call.heads.rotated()
    return attend_decode_cpu(q, k, v, mask_and_bias(call.mask, call.bias, q), call.scale)


def _run_short_cpu(call: Call) -> Tensor:
    from heed.nn.kernels.short_attention_cpu import attend_short_cpu

    mask = None if isinstance(call.mask, Tensor) else call.mask
    heads, bias = call.heads.rotated(), _batch_bias(call)
    return attend_short_cpu(*heads, mask=mask, bias=bias, scale=call.scale)


def _run_long_cpu(call: Call) -> Tensor:
    from heed.nn.kernels.long_attention_cpu import attend_long_cpu

    heads, mask = call.heads.rotated(), cast(Mask | None, call.mask)
    bias = call.bias.by_distance() if isinstance(call.bias, PositionBias) else None
    return attend_long_cpu(*heads, mask=mask, bias=bias, scale=call.scale)


def _run_blocked_cpu(call: Call) -> Tensor:
    from heed.nn.kernels.blocked_attention import attend_in_blocks

    heads, mask, bias = call.heads.rotated(), cast(Mask | None, call.mask), call.bias
    return attend_in_blocks(
        *heads,
        mask=mask,
        bias=cast(PositionBias, bias),
        scale=call.scale,
        dropout=call.dropout,
    )


def _run_sdpa(call: Call) -> Tensor:
    heads, (_, mask, bias, scale, dropout) = call.heads.rotated(), call
    return attend_sdpa(*heads, mask=mask, bias=bias, scale=scale, dropout=dropout)


KERNELS = (
    Kernel(
        "short_attention",
        _is_short,
        _run_short,
        "one program holds a whole head, and a bias is no dense tensor for every sequence; without "
        "gradients SDPA is fast enough, and nothing waits for a kernel to be compiled",
    ),
    Kernel(
        "decode_attention",
        _is_decode_step,
        _run_decode_step,
        "SDPA's kernels are made for many queries, and read cells that are not written yet",
    ),
    Kernel(
        "flex_attention",
        _has_only_score_mod,
        _run_flex,
        "memory linear in length for a bias that has no form by distance",
    ),
    Kernel(
        "distance_attention",
        _is_by_distance,
        _run_by_distance,
        "memory linear in length, and hidden tiles are skipped",
    ),
    Kernel(
        "decode_attention_cpu",
        _is_cpu_decode_step,
        _run_cpu_decode_step,
        "SDPA's CPU kernel takes heads one by one; two products over all heads are faster",
    ),
    Kernel(
        "short_attention_cpu",
        _is_short_cpu,
        _run_short_cpu,
        "SDPA's CPU kernel is made for long sequences; one thread holds a whole head in its cache",
    ),
    Kernel(
        "long_attention_cpu",
        _is_long_cpu,
        _run_long_cpu,
        "memory linear in length; of 256 to 4,096 tokens SDPA takes 1.3 to 1.6 times as long "
        "without a bias, and 1.7 to 3 times with one by distance, or blocks 4 to 9 times",
    ),
    Kernel(
        "blocked_attention",
        _is_blocked_cpu,
        _run_blocked_cpu,
        "memory linear in length on a CPU, for any bias and with dropout",
    ),
    Kernel(
        "sdpa",
        _is_any,
        _run_sdpa,
        "torch's own kernels: mask and bias as a dense tensor, dropout, no Triton needed",
    ),
)
"""Which kernel serves a call: the first whose condition (its docstring) holds."""


def _are_few(queries: int, keys: int) -> bool:
    """Whether the kernel for short sequences can serve so many, and training needs it."""
    return 1 < queries <= SHORT and keys <= SHORT and torch.is_grad_enabled()


def _batch_bias(call: Call) -> Tensor | None:
    """The bias that all sequences of the batch share, if there is one."""
    return call.bias.of_batch() if isinstance(call.bias, PositionBias) else None


def _has_bias(position: Position) -> bool:
    return type(position).bias is not Position.bias


def _is_unbiased(bias: PositionBias | Tensor | None) -> bool:
    if bias is None or isinstance(bias, Tensor):
        return bias is None
    return not bias.form.has_distance_form and bias.dense() is None


def _is_long(call: Call) -> bool:
    """Whether the kernels for long sequences can serve, and pay."""
    if not isinstance(call.mask, Mask) or not isinstance(call.bias, PositionBias):
        return False
    narrow = call.dropout == 0.0 and call.heads.q_bhnd.shape[-1] <= MAX_HEAD_WIDTH
    return narrow and _is_long_mask(call.mask, call.bias.position)


def _is_long_mask(mask: Mask, position: Position) -> bool:
    long = LONG_BY_QUERY if position.bias_uses_query else LONG
    explicit = isinstance(mask, ExplicitMask)  # no kernel for long sequences reads it
    return on_gpu_device(mask.device) and not explicit and min(mask.queries, mask.keys) >= long


def _distance_bias(call: Call) -> DistanceBias | None:
    """The bias by distance; an empty one where only the mask needs the kernel."""
    if not isinstance(call.mask, Mask) or not isinstance(call.bias, PositionBias):
        return None
    bias = call.bias.by_distance()
    if bias is None and not needs_no_tensor(call.mask) and call.bias.dense() is None:
        return DistanceBias(call.bias.q_positions, call.bias.k_positions)
    return bias


# ----------------------------------------------------------------- what layers do around attention


def prepare_shared(shared: SharedPosition, mask: Mask, position: Position) -> None:
    """Precompute tile plans and the shared bias once per pass.

    With these computed before the first layer, torch.compile sees identical layers.
    """
    form, bias = form_of(position), None
    if not position.bias_uses_query:
        bias = shared.bias(position)
    served = form.has_distance_form or (not _has_bias(position) and not needs_no_tensor(mask))
    if served and _is_long_mask(mask, position):
        shared.plans.get(mask, form.max_distance(position))
        if bias is not None:
            bias.by_distance()
    few = _are_few(mask.queries, mask.keys) and not isinstance(mask, ExplicitMask)
    if few and bias is not None and on_gpu_device(mask.device):
        bias.of_batch()


def split_heads(packed_bnw: Tensor, counts: Sequence[int], width: int) -> tuple[Tensor, ...]:
    """[b, n, all heads · d] to one view [b, heads, n, d] for each count of heads."""
    trains = torch.is_grad_enabled() and not torch.compiler.is_compiling()
    if trains and packed_bnw.requires_grad and (on_gpu(packed_bnw) or on_cpu(packed_bnw)):
        return qkv_layout.split_heads_autograd(packed_bnw, counts, width)
    return qkv_layout.split_heads(packed_bnw, counts, width)


def write_cells(new: Sequence[Tensor], buffers: Sequence[Tensor], cells_n: Tensor) -> None:
    """Write keys and values [b, g, n, d] into their cells of two tensors [b, g, m, d]."""
    if on_gpu(new[0]):
        write_kv(new, buffers, cells_n)
        return
    cells = cells_n.tolist()
    is_slice = cells == list(range(cells[0], cells[0] + len(cells)))
    for buffer, x_bgnd in zip(buffers, new, strict=True):
        if is_slice:  # several times as fast as by index
            buffer[:, :, cells[0] : cells[0] + len(cells)] = x_bgnd
        else:
            buffer.index_copy_(2, cells_n, x_bgnd)
