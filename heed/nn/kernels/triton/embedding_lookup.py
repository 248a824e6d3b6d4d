"""Rows of an embedding by token id, and the gradient of the table: a sum over each id's tokens.

Tokens are sorted by id, so that those of one id are a run. One kernel cuts the sorted tokens into
chunks of equal size, however often an id occurs, and sums the runs of every chunk. A run that
crosses into another chunk is left as partial sums, which a second kernel adds in a fixed order. It
also writes zeros for ids that do not occur.

Shapes: n tokens, v vocabulary, w width, c chunks.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from heed.nn.kernels.triton import kernel

ROWS, COLUMNS = 4, 256
"""Rows and columns that a program copies."""
CHUNK, CHUNK_COLUMNS = 16, 128
"""Sorted tokens of a chunk, and columns of which a program sums its runs."""
PARTS, PART_COLUMNS = 8, 1024
"""Partial sums read at once, and most columns."""
WARPS = 4
MAX_INT16 = torch.iinfo(torch.int16).max


@kernel
def _look_up(
    table: tl.tensor,
    ids: tl.tensor,
    out: tl.tensor,
    keys: tl.tensor,
    n: int,
    v: int,
    w: int,
    SCALE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """Rows of the table; and each token's id, or v for one outside the vocabulary."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    token = tl.load(ids + row, mask=row < n, other=-1).to(tl.int64)
    known = (token >= 0) & (token < v)
    key = tl.where(known, token, v).to(keys.dtype.element_ty)
    tl.store(keys + row, key, mask=(row < n) & (tl.program_id(1) == 0))
    # An id outside the vocabulary has no row to read: NaN, as the target of a cross-entropy.
    readable = known[:, None] & (column < w)[None, :]
    x = tl.load(table + token[:, None] * w + column[None, :], mask=readable, other=float("nan"))
    inside = (row < n)[:, None] & (column < w)[None, :]
    y = (x.to(tl.float32) * SCALE).to(out.dtype.element_ty)
    tl.store(out + row[:, None] * w + column[None, :], y, mask=inside)


@kernel
def _sum_chunk(
    d_out: tl.tensor,
    keys: tl.tensor,
    order: tl.tensor,
    d_table: tl.tensor,
    partial: tl.tensor,
    n: int,
    v: int,
    w: int,
    SCALE: tl.constexpr,
    CHUNK: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """The sums of a chunk's runs, at the run's first token; key v has no row."""
    chunk = tl.program_id(0)
    start = chunk * CHUNK
    place = start + tl.arange(0, CHUNK)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    key = tl.load(keys + place, mask=place < n, other=-1).to(tl.int32)
    before = tl.load(keys + place - 1, mask=(place > 0) & (place < n), other=-1).to(tl.int32)
    after = tl.load(keys + start + CHUNK, mask=start + CHUNK < n, other=-2).to(tl.int32)
    row = tl.load(order + place, mask=place < n, other=0)
    cell = row[:, None] * w + column[None, :]
    inside = (place < n)[:, None] & (column < w)[None, :]
    d = tl.load(d_out + cell, mask=inside, other=0.0).to(tl.float32)
    same = (key[:, None] == key[None, :]).to(tl.float32)
    sums = tl.dot(same, d, input_precision="ieee") * SCALE
    first = place == start
    leads = (place < n) & (key < v) & (first | (key != before))
    whole = (key != after) & ((~first) | (key != before))
    at = d_table + key.to(tl.int64)[:, None] * w + column[None, :]
    tl.store(at, sums, mask=inside & (leads & whole)[:, None])
    # At most two runs of a chunk are not whole: its first one, and its last one.
    part = 2 * chunk + tl.where(first, 0, 1)
    at = partial + part.to(tl.int64)[:, None] * w + column[None, :]
    tl.store(at, sums, mask=inside & (leads & (~whole))[:, None])


@kernel
def _add_chunks(
    partial: tl.tensor,
    ends: tl.tensor,
    d_table: tl.tensor,
    w: int,
    CHUNK: tl.constexpr,
    PARTS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """The gradient of one id's row, where it is not the sum of a run inside one chunk."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    there = column < w
    begin = tl.load(ends + token - 1, mask=token > 0, other=0)
    end = tl.load(ends + token)
    first, last = begin // CHUNK, (end - 1) // CHUNK
    if (begin == end) | (first < last):
        total = tl.zeros([PARTS, COLUMNS], tl.float32)
        if begin < end:
            for start in range(first, last + 1, PARTS):
                chunk = start + tl.arange(0, PARTS)
                part = 2 * chunk + ((chunk == first) & (begin % CHUNK != 0)).to(tl.int32)
                at = partial + part.to(tl.int64)[:, None] * w + column[None, :]
                total += tl.load(at, mask=(chunk <= last)[:, None] & there[None, :], other=0.0)
        tl.store(d_table + token * w + column, tl.sum(total, axis=0), mask=there)


def look_up(table_vw: Tensor, ids: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """table[id] · scale [*ids, w], in the table's dtype, and the key of each token [n].

    A key is the id, or v for an id outside the vocabulary. Sorting takes a pass for each byte of a
    key, so they are as short as can be.
    """
    (v, w), n = table_vw.shape, ids.numel()
    out = table_vw.new_empty(*ids.shape, w)
    keys_n = ids.new_empty(n, dtype=torch.int16 if v <= MAX_INT16 else torch.int32)
    if n:
        columns = min(COLUMNS, triton.next_power_of_2(w))
        _look_up[(triton.cdiv(n, ROWS), triton.cdiv(w, columns))](
            table_vw.contiguous(),
            ids.contiguous(),
            out,
            keys_n,
            n,
            v,
            w,
            SCALE=scale,
            ROWS=ROWS,
            COLUMNS=columns,
            num_warps=WARPS,
        )
    return out, keys_n


def sort_keys(keys_n: Tensor, v: int) -> tuple[Tensor, Tensor, Tensor]:
    """The keys in order, the token of each [n], and for each id how many keys are no larger [v]."""
    every_key = torch.arange(v, dtype=keys_n.dtype, device=keys_n.device)
    sorted_n, order_n = keys_n.sort(stable=True)
    ends_v = torch.searchsorted(sorted_n, every_key, right=True, out_int32=True)
    return sorted_n, order_n, ends_v


def table_gradient(
    d_out: Tensor, sorted_n: Tensor, order_n: Tensor, ends_v: Tensor, scale: float
) -> Tensor:
    """The gradient [v, w] of the table, in float32, from that of its rows [*ids, w].

    The rest is from `sort_keys`.
    """
    n, v, w = len(sorted_n), len(ends_v), d_out.shape[-1]
    if not n:
        return d_out.new_zeros(v, w, dtype=torch.float32)
    chunks = triton.cdiv(n, CHUNK)
    d_table = d_out.new_empty(v, w, dtype=torch.float32)
    partial = d_out.new_empty(2 * chunks, w, dtype=torch.float32)
    _sum_chunk[(chunks, triton.cdiv(w, CHUNK_COLUMNS))](
        d_out.contiguous(),
        sorted_n,
        order_n,
        d_table,
        partial,
        n,
        v,
        w,
        SCALE=scale,
        CHUNK=CHUNK,
        COLUMNS=CHUNK_COLUMNS,
        num_warps=WARPS,
    )
    columns = min(PART_COLUMNS, triton.next_power_of_2(w))
    _add_chunks[(v, triton.cdiv(w, columns))](
        partial,
        ends_v,
        d_table,
        w,
        CHUNK=CHUNK,
        PARTS=PARTS,
        COLUMNS=columns,
        num_warps=WARPS,
    )
    return d_table
