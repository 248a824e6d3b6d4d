"""Rows of an embedding by token id, scaled, as a GPU trains: one pass over memory each way.

Torch's gradient of a table takes several times as long as reading the gradients of its rows does,
and the scale is a pass of its own. Shapes: v vocabulary, w width.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.autograd import Function

from heed.nn.kernels.custom_op import once_differentiable


def look_up(table_vw: Tensor, ids: Tensor, scale: float) -> Tensor:
    """table[id] · scale, of shape [*ids, w]."""
    run: Any = _LookUp.apply
    return run(table_vw, ids, scale)


class _LookUp(Function):
    """The kernels as one differentiable function."""

    @staticmethod
    def forward(ctx: Any, table_vw: Tensor, ids: Tensor, scale: float) -> Tensor:
        from heed.nn.kernels.triton import embedding_lookup

        out, keys_n = embedding_lookup.look_up(table_vw, ids, scale)
        ctx.save_for_backward(keys_n)
        ctx.rows, ctx.dtype, ctx.scale = len(table_vw), table_vw.dtype, scale
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor, None, None]:
        from heed.nn.kernels.triton.embedding_lookup import table_gradient

        (keys_n,) = ctx.saved_tensors
        return table_gradient(d_out, keys_n, ctx.rows, ctx.scale).to(ctx.dtype), None, None
