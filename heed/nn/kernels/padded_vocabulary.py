"""A vocabulary with padding, for the output layer's products on a GPU.

Where a vocabulary is no multiple of 8, rows of zeros after the weight make it one. A weight that
trains has room for them behind its own rows.

Shapes: v vocabulary, p vocabulary with padding, w width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from heed.nn.kernels.availability import on_gpu

ALIGNMENT = 64
"""On a GPU rows of logits begin at multiples of this: matrix products are slow otherwise."""
MULTIPLE = 8
"""A vocabulary that is no multiple of this is padded where kernels write the gradient: products are
several times as slow where 16 bytes cannot be read at once."""
_padded_weights = WeakTensorKeyDictionary()
"""Weights that are the first rows of a tensor whose other rows are zeros, and these tensors."""


def align(v: int) -> int:
    """The next multiple of ALIGNMENT."""
    return -(-v // ALIGNMENT) * ALIGNMENT


def reserve_padding(weight_vw: Tensor) -> None:
    """Give a weight that trains on a GPU room for its padding, in place.

    Without room every step in the weight's own dtype copies it.
    """
    v = len(weight_vw)
    if not (on_gpu(weight_vw) and type(weight_vw) is nn.Parameter and v % MULTIPLE):
        return
    padded_pw = pad_rows(weight_vw.detach(), align(v), weight_vw.dtype)
    weight_vw.data = padded_pw[:v]
    _padded_weights[weight_vw] = padded_pw


def pad_weight(weight_vw: Tensor, rows: int, dtype: torch.dtype) -> Tensor:
    """The weight in this dtype with padding; not copied if there is room for it."""
    padded_pw = _padded_weights.get(weight_vw)
    if padded_pw is None or (len(padded_pw), padded_pw.dtype) != (rows, dtype):
        return pad_rows(weight_vw, rows, dtype)
    has_moved = padded_pw.data_ptr() != weight_vw.data_ptr()
    return pad_rows(weight_vw, rows, dtype) if has_moved else padded_pw


def pad_rows(x: Tensor, rows: int, dtype: torch.dtype) -> Tensor:
    """x in this dtype, followed by zeros up to so many rows; not copied if it is so already."""
    if len(x) == rows:
        return x.to(dtype)
    padded = x.new_empty(rows, *x.shape[1:], dtype=dtype)
    padded[: len(x)].copy_(x)
    padded[len(x) :].zero_()
    return padded
