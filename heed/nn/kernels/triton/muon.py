"""Muon's passes over memory: momentum and look-ahead, normalization, and the update of weights.

The matrices of one shape are separate tensors. A launch gets their addresses as arguments, up to
`MATRICES` of them, as a captured graph keeps arguments: there is no table of addresses that could
become outdated. The products in between read matrices as one stack. A skipped step (`found_inf`)
reads no gradient, and stores neither momenta nor weights.

Shapes: m rows, n columns of a stacked matrix, m ≤ n; a matrix with more rows than columns is
stacked transposed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from heed.nn.kernels.triton import kernel

MATRICES = 16
"""Most matrices of one launch."""
PARTS = 64
"""Programs per matrix that sum squares, each over its share of the tiles."""
TILE, WARPS = 64, 8
"""Rows and columns of a tile, so that a transposed one is written in full cache lines, too."""
CELLS = 4096
"""Numbers that a program normalizes."""
SMALLEST_NORM = 1e-12


@kernel
def _select(pointers: tl.tuple, matrix: int, MATRICES: tl.constexpr) -> tl.tensor:
    pointer = pointers[0]
    for i in tl.static_range(1, MATRICES):
        pointer = tl.where(matrix == i, pointers[i], pointer)
    return pointer


@kernel
def _rows_to_update(rows: int, found_inf: tl.tensor) -> tl.tensor:
    """All rows, or none in a skipped step."""
    return tl.where(tl.load(found_inf) == 0, rows, 0)


@kernel
def _update_momenta(
    grads: tl.tuple,
    momenta: tl.tuple,
    divisor: tl.tensor,
    found_inf: tl.tensor,
    stack: tl.tensor,
    squares: tl.tensor,
    mu: float,
    rate: float,
    rows: int,
    columns: int,
    TRANSPOSED: tl.constexpr,
    MATRICES: tl.constexpr,
    PARTS: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    part, matrix = tl.program_id(0), tl.program_id(1)
    grad, momentum = _select(grads, matrix, MATRICES), _select(momenta, matrix, MATRICES)
    ahead = stack + matrix.to(tl.int64) * rows * columns
    down, along = tl.arange(0, TILE)[:, None], tl.arange(0, TILE)[None, :]
    cell = down * columns + along
    place = along * rows + down if TRANSPOSED else cell
    height, across = _rows_to_update(rows, found_inf), tl.cdiv(columns, TILE)
    scale = tl.load(divisor)
    total = tl.zeros([TILE, TILE], tl.float32)
    for tile in range(part, tl.cdiv(rows, TILE) * across, PARTS):
        row, column = tile // across * TILE, tile % across * TILE
        start = row.to(tl.int64) * columns + column
        inside = (down < height - row) & (along < columns - column)
        g = tl.load(grad + start + cell, mask=inside, other=0.0) / scale
        m = mu * tl.load(momentum + start + cell, mask=inside, other=0.0) + rate * g
        tl.store(momentum + start + cell, m, mask=inside)
        u = (mu * m + rate * g).to(stack.dtype.element_ty)
        if TRANSPOSED:
            start = column.to(tl.int64) * rows + row
        inside = (down < rows - row) & (along < columns - column)
        tl.store(ahead + start + place, u, mask=inside)
        rounded = u.to(tl.float32)
        total += rounded * rounded
    tl.store(squares + matrix * PARTS + part, tl.sum(tl.sum(total, axis=1), axis=0))


@kernel
def _normalize(
    stack: tl.tensor,
    squares: tl.tensor,
    cells: int,
    SMALLEST: tl.constexpr,
    PARTS: tl.constexpr,
    CELLS: tl.constexpr,
) -> None:
    matrix = tl.program_id(1)
    square = tl.sum(tl.load(squares + matrix * PARTS + tl.arange(0, PARTS)), axis=0)
    norm = tl.maximum(tl.sqrt(square), SMALLEST)
    cell = tl.program_id(0) * CELLS + tl.arange(0, CELLS)
    at = stack + matrix.to(tl.int64) * cells + cell
    x = tl.load(at, mask=cell < cells, other=0.0).to(tl.float32)
    tl.store(at, (x / norm).to(stack.dtype.element_ty), mask=cell < cells)


@kernel
def _update_weights(
    weights: tl.tuple,
    stack: tl.tensor,
    lr: tl.tensor,
    found_inf: tl.tensor,
    decay: float,
    factor: float,
    rows: int,
    columns: int,
    TRANSPOSED: tl.constexpr,
    MATRICES: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    tile, matrix = tl.program_id(0), tl.program_id(1)
    weight = _select(weights, matrix, MATRICES)
    update = stack + matrix.to(tl.int64) * rows * columns
    height, across = _rows_to_update(rows, found_inf), tl.cdiv(columns, TILE)
    rate = tl.load(lr)
    row, column = tile // across * TILE, tile % across * TILE
    down, along = tl.arange(0, TILE)[:, None], tl.arange(0, TILE)[None, :]
    inside = (down < height - row) & (along < columns - column)
    cell = row.to(tl.int64) * columns + column + (down * columns + along)
    transposed = column.to(tl.int64) * rows + row + (along * rows + down)
    place = transposed if TRANSPOSED else cell
    x = tl.load(update + place, mask=inside, other=0.0).to(tl.float32)
    w = tl.load(weight + cell, mask=inside, other=0.0)
    tl.store(weight + cell, (1.0 - rate * decay) * w - rate * factor * x, mask=inside)


def empty_squares(stack: Tensor) -> Tensor:
    """Memory for the partial sums of squares of each matrix of a stack."""
    return stack.new_empty(len(stack), PARTS, dtype=torch.float32)


def update_momenta(
    grads: Sequence[Tensor],
    momenta: Sequence[Tensor],
    stack: Tensor,
    squares: Tensor,
    *,
    divisor: Tensor,
    found_inf: Tensor,
    mu: float,
) -> None:
    """m ← μ m + (1 - μ) g in place, with g = grad / divisor, for matrices of one shape.

    The look-ahead μ m + (1 - μ) g is written to their places in the stack [count, m, n], and its
    sums of squares to `squares`.
    """
    for part in _launches(len(grads)):
        _update_momenta[(PARTS, len(grads[part]))](
            _fill_up(grads[part]),
            _fill_up(momenta[part]),
            divisor,
            found_inf,
            stack[part],
            squares[part],
            mu,
            1.0 - mu,
            *grads[0].shape,
            TRANSPOSED=_is_tall(grads[0]),
            MATRICES=MATRICES,
            PARTS=PARTS,
            TILE=TILE,
            num_warps=WARPS,
        )


def normalize(stack: Tensor, squares: Tensor) -> None:
    """Divide each matrix of a stack by its norm, in place."""
    cells = stack[0].numel()
    _normalize[(triton.cdiv(cells, CELLS), len(stack))](
        stack, squares, cells, SMALLEST=SMALLEST_NORM, PARTS=PARTS, CELLS=CELLS, num_warps=WARPS
    )


def update_weights(
    weights: Sequence[Tensor],
    stack: Tensor,
    *,
    lr: Tensor,
    found_inf: Tensor,
    decay: float,
    factor: float,
) -> None:
    """θ ← (1 - lr · decay) θ - lr · factor · x, x from the stack, for weights of one shape."""
    rows, columns = weights[0].shape
    tiles = triton.cdiv(rows, TILE) * triton.cdiv(columns, TILE)
    for part in _launches(len(weights)):
        _update_weights[(tiles, len(weights[part]))](
            _fill_up(weights[part]),
            stack[part],
            lr,
            found_inf,
            decay,
            factor,
            rows,
            columns,
            TRANSPOSED=_is_tall(weights[0]),
            MATRICES=MATRICES,
            TILE=TILE,
            num_warps=WARPS,
        )


def _launches(count: int) -> Iterator[slice]:
    """The matrices of each launch."""
    return (slice(first, first + MATRICES) for first in range(0, count, MATRICES))


def _fill_up(matrices: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """As many tensors as a launch takes; no program reads those that fill up."""
    return (*matrices, *[matrices[0]] * (MATRICES - len(matrices)))


def _is_tall(matrix: Tensor) -> bool:
    return matrix.shape[0] > matrix.shape[1]
