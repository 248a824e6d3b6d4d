"""Rows of an embedding by token id, scaled, as a GPU trains: one pass over memory each way.

Torch's gradient of a table takes several times as long as reading the gradients of its rows does,
and the scale is a pass of its own. Shapes: v vocabulary, w width.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.autograd import Function

from heed.nn.kernels.custom_op import once_differentiable
from heed.nn.kernels.parameter_gradients import ParameterStream, parameter_stream


def look_up(table_vw: Tensor, ids: Tensor, scale: float) -> Tensor:
    """table[id] · scale, of shape [*ids, w]."""
    run: Any = _LookUp.apply
    return run(table_vw, ids, scale, parameter_stream(table_vw))


class _LookUp(Function):
    """The kernels as one differentiable function."""

    @staticmethod
    def forward(
        ctx: Any, table_vw: Tensor, ids: Tensor, scale: float, stream: ParameterStream | None
    ) -> Tensor:
        from heed.nn.kernels.triton import embedding_lookup

        out, keys_n = embedding_lookup.look_up(table_vw, ids, scale)

        def sort() -> tuple[Tensor, ...]:
            return embedding_lookup.sort_keys(keys_n, len(table_vw))

        # What depends on the ids alone is done before the backward pass waits for it.
        ctx.save_for_backward(*(sort() if stream is None else stream.run(sort, (keys_n,))))
        ctx.dtype, ctx.scale, ctx.stream = table_vw.dtype, scale, stream
        ctx.table_vw = None if stream is None else table_vw
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, None, None, None]:
        from heed.nn.kernels.triton.embedding_lookup import table_gradient

        sorted_n, order_n, ends_v = plan = ctx.saved_tensors
        scale, dtype = ctx.scale, ctx.dtype

        def gradient() -> tuple[Tensor]:
            return (table_gradient(d_out, sorted_n, order_n, ends_v, scale).to(dtype),)

        if ctx.stream is None:
            return *gradient(), None, None, None
        ctx.stream.add_gradients((ctx.table_vw,), gradient, (d_out, *plan))
        return None, None, None, None
