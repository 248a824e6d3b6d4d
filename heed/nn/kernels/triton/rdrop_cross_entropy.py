"""Cross-entropy with R-Drop of pairs of rows of logits; the gradient overwrites them.

A program takes one pair: two passes over one token, with one target. `heed.nn.rdrop` has the
formulas. Every number of a gradient depends on both softmaxes and both KL divergences, so rows are
needed three times. A small vocabulary's rows stay in registers and are read once. Of a larger one,
they are read again tile by tile, mostly from the cache.

Shapes: r rows, v vocabulary.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from heed.nn.kernels.triton import kernel
from heed.nn.kernels.triton.cross_entropy import (
    LANES,
    LANES_A_WARP,
    PARTS,
    REGISTERS,
    is_prediction,
    load_own_logit,
    softmax_of_row,
    store_zeros,
)
from heed.nn.kernels.triton.tile import HIDDEN

MAX_WIDE, WIDE_REGISTERS = 4096, 64
"""The largest vocabulary whose rows stay in registers. With so few registers per thread, two of the
largest programs share one multiprocessor."""


@kernel
def _load_logits(
    at: tl.tensor, columns: tl.tensor, step: int, v: int, POLICY: tl.constexpr
) -> tl.tensor:
    """Logits of some columns in float32, HIDDEN beyond the vocabulary.

    Padding is read, too, because 16 bytes are moved at once only up to a multiple of that.
    """
    x = tl.load(at + columns, mask=columns < step, other=0.0, eviction_policy=POLICY)
    return tl.where(columns < v, x.to(tl.float32), HIDDEN)


@kernel
def _store_gradient(
    at: tl.tensor,
    columns: tl.tensor,
    step: int,
    v: int,
    target: tl.tensor,
    p: tl.tensor,
    q: tl.tensor,
    difference: tl.tensor,
    kl: tl.tensor,
    ALPHA: tl.constexpr,
    SMOOTHING: tl.constexpr,
) -> None:
    """Half of the cross-entropy's gradient of P's logits plus R-Drop's; padding becomes zeros.

    `difference` is log P - log Q, and `kl` is KL(P‖Q).
    """
    d = 0.5 * (p - SMOOTHING / v) + (ALPHA / 4) * (p * (difference - kl) + (p - q))
    d = tl.where(columns == target, d - 0.5 * (1 - SMOOTHING), d)
    d = tl.where(columns < v, d, 0.0)
    tl.store(at + columns, d.to(at.dtype.element_ty), mask=columns < step)


@kernel
def _store_loss(
    losses: tl.tensor,
    row: tl.tensor,
    own: tl.tensor,
    top: tl.tensor,
    log_total: tl.tensor,
    ahead: tl.tensor,
    rdrop: tl.tensor,
    v: int,
    SMOOTHING: tl.constexpr,
) -> None:
    """Half of a row's cross-entropy plus half of R-Drop's loss: a pair has two rows."""
    loss = (top - own) + log_total
    if SMOOTHING > 0:
        loss -= SMOOTHING * (ahead / v)
    tl.store(losses + row, 0.5 * (loss + rdrop))


@kernel
def _rdrop_in_registers(
    logits: tl.tensor,
    step: int,
    targets: tl.tensor,
    losses: tl.tensor,
    correct: tl.tensor,
    v: int,
    ALPHA: tl.constexpr,
    IGNORED: tl.constexpr,
    SMOOTHING: tl.constexpr,
    GRADIENT: tl.constexpr,
    WIDE: tl.constexpr,
) -> None:
    """One pair of rows of at most WIDE logits: losses, correct predictions, gradients."""
    row = 2 * tl.program_id(0).to(tl.int64)
    at_a, at_b = logits + row * step, logits + (row + 1) * step
    target = tl.load(targets + row)
    if target == IGNORED:
        for i in tl.static_range(2):
            tl.store(losses + row + i, 0.0)
            tl.store(correct + row + i, 0)
            if GRADIENT:
                store_zeros(at_a + i * step, step, v, 1, WIDE)
    else:
        columns = tl.arange(0, WIDE)
        own_a, own_b = load_own_logit(at_a, target, v), load_own_logit(at_b, target, v)
        a = _load_logits(at_a, columns, step, v, "evict_first")
        b = _load_logits(at_b, columns, step, v, "evict_first")
        top_a, top_b = tl.max(a, axis=0), tl.max(b, axis=0)
        # Of equal logits the first is the prediction, as in argmax.
        first_a = tl.min(tl.where(a == top_a, columns, WIDE), axis=0)
        first_b = tl.min(tl.where(b == top_b, columns, WIDE), axis=0)
        tl.store(correct + row, (first_a == target).to(tl.int32))
        tl.store(correct + row + 1, (first_b == target).to(tl.int32))
        p, q = tl.exp(a - top_a), tl.exp(b - top_b)
        total_a, total_b = tl.sum(p, axis=0), tl.sum(q, axis=0)
        log_a, log_b = tl.log(total_a), tl.log(total_b)
        p, q = p * (1 / total_a), q * (1 / total_b)
        difference = (a - top_a) - (b - top_b) - (log_a - log_b)
        kl_a, kl_b = tl.sum(p * difference, axis=0), -tl.sum(q * difference, axis=0)
        rdrop = (kl_a + kl_b) * (ALPHA / 4)
        ahead_a, ahead_b = 0.0, 0.0
        if SMOOTHING > 0:
            ahead_a = tl.sum(tl.where(columns < v, a - own_a, 0.0), axis=0)
            ahead_b = tl.sum(tl.where(columns < v, b - own_b, 0.0), axis=0)
        _store_loss(losses, row, own_a, top_a, log_a, ahead_a, rdrop, v, SMOOTHING)
        _store_loss(losses, row + 1, own_b, top_b, log_b, ahead_b, rdrop, v, SMOOTHING)
        if GRADIENT:
            _store_gradient(
                at_a, columns, step, v, target, p, q, difference, kl_a, ALPHA, SMOOTHING
            )
            _store_gradient(
                at_b, columns, step, v, target, q, p, -difference, kl_b, ALPHA, SMOOTHING
            )


@kernel
def _rdrop_in_tiles(
    logits: tl.tensor,
    step: int,
    targets: tl.tensor,
    losses: tl.tensor,
    correct: tl.tensor,
    v: int,
    ALPHA: tl.constexpr,
    IGNORED: tl.constexpr,
    SMOOTHING: tl.constexpr,
    GRADIENT: tl.constexpr,
    PARTS: tl.constexpr,
    LANES: tl.constexpr,
) -> None:
    """One pair of rows of any length: losses, correct predictions, gradients."""
    row = 2 * tl.program_id(0).to(tl.int64)
    at_a, at_b = logits + row * step, logits + (row + 1) * step
    target = tl.load(targets + row)
    if target == IGNORED:
        for i in tl.static_range(2):
            tl.store(losses + row + i, 0.0)
            tl.store(correct + row + i, 0)
            if GRADIENT:
                store_zeros(at_a + i * step, step, v, PARTS, LANES)
    else:
        own_a, own_b = load_own_logit(at_a, target, v), load_own_logit(at_b, target, v)
        top_a, log_a, ahead_a = softmax_of_row(at_a, own_a, v, SMOOTHING, PARTS, LANES)
        top_b, log_b, ahead_b = softmax_of_row(at_b, own_b, v, SMOOTHING, PARTS, LANES)
        tl.store(correct + row, is_prediction(at_a, own_a, top_a, target, PARTS, LANES))
        tl.store(correct + row + 1, is_prediction(at_b, own_b, top_b, target, PARTS, LANES))
        sums_a, sums_b = tl.zeros([LANES], tl.float32), tl.zeros([LANES], tl.float32)
        for start in range(0, v, LANES):
            columns = start + tl.arange(0, LANES)
            # In this order no digit of the differences is lost to large logits.
            log_p = (_load_logits(at_a, columns, step, v, "evict_last") - top_a) - log_a
            log_q = (_load_logits(at_b, columns, step, v, "evict_last") - top_b) - log_b
            sums_a += tl.exp(log_p) * (log_p - log_q)
            sums_b += tl.exp(log_q) * (log_q - log_p)
        kl_a, kl_b = tl.sum(sums_a, axis=0), tl.sum(sums_b, axis=0)
        rdrop = (kl_a + kl_b) * (ALPHA / 4)
        _store_loss(losses, row, own_a, top_a, log_a, ahead_a, rdrop, v, SMOOTHING)
        _store_loss(losses, row + 1, own_b, top_b, log_b, ahead_b, rdrop, v, SMOOTHING)
        if GRADIENT:
            for start in range(0, v, LANES):
                columns = start + tl.arange(0, LANES)
                log_p = (_load_logits(at_a, columns, step, v, "evict_first") - top_a) - log_a
                log_q = (_load_logits(at_b, columns, step, v, "evict_first") - top_b) - log_b
                p, q, difference = tl.exp(log_p), tl.exp(log_q), log_p - log_q
                _store_gradient(
                    at_a, columns, step, v, target, p, q, difference, kl_a, ALPHA, SMOOTHING
                )
                _store_gradient(
                    at_b, columns, step, v, target, q, p, -difference, kl_b, ALPHA, SMOOTHING
                )


def chunk_rdrop(
    alpha: float,
    logits_rv: Tensor,
    targets_r: Tensor,
    losses_r: Tensor,
    correct_r: Tensor,
    ignore_index: int,
    smoothing: float,
    gradient: bool,
) -> Tensor:
    """Write each row's loss (float32) and whether it is correct (int32); return the gradient.

    Rows 2i and 2i + 1 are a pair and have the same target. The loss of a row is half of its
    cross-entropy plus half of R-Drop's loss of its pair. The gradient, if needed, overwrites the
    logits, and zeros the padding between two rows.
    """
    rows, v = logits_rv.shape
    tensors = (logits_rv, logits_rv.stride(0), targets_r, losses_r, correct_r, v)
    settings = {"ALPHA": alpha, "IGNORED": ignore_index, "SMOOTHING": smoothing}
    wide = max(64, triton.next_power_of_2(v))
    if wide <= MAX_WIDE:
        _rdrop_in_registers[(rows // 2,)](
            *tensors,
            **settings,
            GRADIENT=gradient,
            WIDE=wide,
            num_warps=max(1, wide // LANES_A_WARP),
            maxnreg=WIDE_REGISTERS,
        )
    else:
        _rdrop_in_tiles[(rows // 2,)](
            *tensors,
            **settings,
            GRADIENT=gradient,
            PARTS=PARTS,
            LANES=LANES,
            num_warps=LANES // LANES_A_WARP,
            maxnreg=REGISTERS,
        )
    return logits_rv
