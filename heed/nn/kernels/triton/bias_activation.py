"""Bias and activation in one pass over memory; the backward pass also sums the bias's gradient.

With a gate, a row holds all gates first, then the values they multiply: silu(gate) · up. Each
program writes partial sums of the bias's gradient, which are then added in a fixed order.

Shapes: r rows, f feed-forward width, k 2 with a gate and else 1.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from heed.nn.kernels.triton import kernel
from heed.nn.kernels.triton.column_sum import RESIDENT

ROWS, COLUMNS, BACKWARD_COLUMNS, WARPS = 32, 128, 64, 4
"""Rows and columns of one tile, and warps: 64 bytes of bfloat16 per thread. The backward pass also
holds sums, so its tiles are narrower."""


@kernel
def _normal_tail(x: tl.tensor) -> tl.tuple:
    """The normal density φ(x), and the factor by which Φ(-|x|) differs from it.

    That is Zelen and Severo's formula 26.2.17, whose error of 8e-8 is below what 16 bits resolve.
    Throughput is bound by instructions: the square of a reciprocal root takes fewer than a
    division, and the density's factor 1/√(2π) is part of the exponent.
    """
    density = tl.exp2(-0.7213475204444817 * (x * x) - 1.3257480647361592)
    root = tl.rsqrt(1.0 + 0.2316419 * tl.abs(x))
    t = root * root
    rest = 1.330274429 * t - 1.821255978
    rest = ((rest * t + 1.781477937) * t - 0.356563782) * t + 0.319381530
    return density, rest * t


@kernel
def _value(x: tl.tensor, KIND: tl.constexpr) -> tl.tensor:
    if KIND == "relu":
        y = tl.maximum(x, 0.0)
    elif KIND == "gelu":
        y = 0.5 * x * (1 + tl.erf(x * 0.7071067811865476))
    elif KIND == "gelu_16":  # x Φ(x) = max(x, 0) - |x| Φ(-|x|)
        density, ratio = _normal_tail(x)
        y = tl.maximum(x, 0.0) - tl.abs(x) * (density * ratio)
    elif KIND == "gelu_tanh":  # (1 + tanh(u)) / 2 is the sigmoid of 2u, u = √(2/π) (x + 0.044715x³)
        y = x * tl.sigmoid(1.5957691216057308 * x * (1 + 0.044715 * x * x))
    else:
        y = x * tl.sigmoid(x)
    return y


@kernel
def _slope(x: tl.tensor, KIND: tl.constexpr) -> tl.tensor:
    """The derivative of `_value`."""
    if KIND == "relu":
        d = tl.where(x > 0, 1.0, 0.0)
    elif KIND == "gelu":  # Φ(x) + x φ(x) of the normal distribution
        density = 0.3989422804014327 * tl.exp(-0.5 * x * x)
        d = 0.5 * (1 + tl.erf(x * 0.7071067811865476)) + x * density
    elif KIND == "gelu_16":  # Φ(x) + x φ(x), by what it is at -|x|
        density, ratio = _normal_tail(x)
        below = density * (ratio - tl.abs(x))
        d = tl.where(x >= 0, 1.0 - below, below)
    elif KIND == "gelu_tanh":
        share = tl.sigmoid(1.5957691216057308 * x * (1 + 0.044715 * x * x))
        inner = 1.5957691216057308 * (1 + 3 * 0.044715 * x * x)
        d = share * (1 + x * (1 - share) * inner)
    else:
        share = tl.sigmoid(x)
        d = share * (1 + x * (1 - share))
    return d


@kernel
def _read(
    h: tl.tensor,
    bias: tl.tensor,
    cell: tl.tensor,
    inside: tl.tensor,
    column: tl.tensor,
    there: tl.tensor,
    BIAS: tl.constexpr,
) -> tl.tensor:
    x = tl.load(h + cell, mask=inside, other=0.0).to(tl.float32)
    if BIAS:
        x += tl.load(bias + column, mask=there, other=0.0).to(tl.float32)[None, :]
    return x


@kernel
def _activate(
    h: tl.tensor,
    bias: tl.tensor,
    out: tl.tensor,
    r: int,
    f: int,
    KIND: tl.constexpr,
    GATED: tl.constexpr,
    BIAS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    row, there = tl.program_id(0) * ROWS + tl.arange(0, ROWS), column < f
    inside = (row < r)[:, None] & there[None, :]
    cell = row.to(tl.int64)[:, None] * f + column[None, :]
    if GATED:
        first = row.to(tl.int64)[:, None] * (2 * f) + column[None, :]
        y = _value(_read(h, bias, first, inside, column, there, BIAS), KIND)
        y *= _read(h, bias, first + f, inside, column + f, there, BIAS)
    else:
        y = _value(_read(h, bias, cell, inside, column, there, BIAS), KIND)
    tl.store(out + cell, y.to(out.dtype.element_ty), mask=inside)


@kernel
def _differentiate(
    h: tl.tensor,
    bias: tl.tensor,
    d_out: tl.tensor,
    dh: tl.tensor,
    sums: tl.tensor,
    r: int,
    f: int,
    KIND: tl.constexpr,
    GATED: tl.constexpr,
    BIAS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    part, column = tl.program_id(0), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    there = column < f
    total, total_up = tl.zeros([ROWS, COLUMNS], tl.float32), tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(part * ROWS, r, tl.num_programs(0) * ROWS):
        row = start + tl.arange(0, ROWS)
        inside = (row < r)[:, None] & there[None, :]
        cell = row.to(tl.int64)[:, None] * f + column[None, :]
        d = tl.load(d_out + cell, mask=inside, other=0.0).to(tl.float32)
        if GATED:
            cell = row.to(tl.int64)[:, None] * (2 * f) + column[None, :]
        x = _read(h, bias, cell, inside, column, there, BIAS)
        if GATED:
            d_up = d * _value(x, KIND)
            tl.store(dh + cell + f, d_up.to(dh.dtype.element_ty), mask=inside)
            total_up += d_up
            d *= _read(h, bias, cell + f, inside, column + f, there, BIAS)
        d *= _slope(x, KIND)
        tl.store(dh + cell, d.to(dh.dtype.element_ty), mask=inside)
        total += d
    if BIAS:
        at = sums + part * (2 * f if GATED else f) + column
        tl.store(at, tl.sum(total, axis=0), mask=there)
        if GATED:
            tl.store(at + f, tl.sum(total_up, axis=0), mask=there)


def activate(h: Tensor, bias: Tensor | None, kind: str, gated: bool) -> Tensor:
    """activation(h + bias) [r, f] of h [r, k · f], in its dtype."""
    rows, f = h.shape[0], h.shape[1] // (1 + gated)
    out = h.new_empty(rows, f)
    if rows:
        _activate[(triton.cdiv(rows, ROWS), triton.cdiv(f, COLUMNS))](
            h, h if bias is None else bias, out, rows, f, **_constants(h, kind, gated, bias)
        )
    return out


def differentiate(
    h: Tensor, bias: Tensor | None, kind: str, gated: bool, d_out: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Gradients of h and, as partial sums [p, k · f] in float32, of the bias."""
    rows, f = d_out.shape
    dh, groups = torch.empty_like(h), triton.cdiv(f, BACKWARD_COLUMNS)
    parts = min(triton.cdiv(rows, ROWS), triton.cdiv(RESIDENT, groups))
    sums = h.new_empty(parts, h.shape[1], dtype=torch.float32)
    if rows:
        tensors = (h, h if bias is None else bias, d_out, dh, sums)
        constants = _constants(h, kind, gated, bias) | {"COLUMNS": BACKWARD_COLUMNS}
        _differentiate[(parts, groups)](*tensors, rows, f, **constants)
    return dh, None if bias is None else sums


def _constants(h: Tensor, kind: str, gated: bool, bias: Tensor | None) -> dict[str, object]:
    kind = "gelu_16" if kind == "gelu" and h.element_size() == 2 else kind
    tile = {"ROWS": ROWS, "COLUMNS": COLUMNS, "num_warps": WARPS}
    return {"KIND": kind, "GATED": gated, "BIAS": bias is not None, **tile}
