"""RoPE's turn in few passes over memory: by a kernel on a GPU, in a form that autograd and
torch.compile know; by torch's own steps, without a copy, elsewhere.

Shapes: b batch, n tokens, h heads, d head width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from heed.nn.kernels.distance_attention import empty_heads


def turn(parts: list[Tensor], positions_bn: Tensor, frequencies: Tensor) -> list[Tensor]:
    """One or two tensors [b, heads, n, d], pairs (i, i + d/2) turned by position · frequency."""
    if torch.compiler.is_compiling():
        turned: list[Tensor] = _turn(parts, positions_bn, frequencies, 1.0)
        return turned
    # An operation costs a tenth of a millisecond to call. Only a compiler needs one.
    run: Any = _Eagerly.apply
    return list(run(positions_bn, frequencies, *parts))


def _run(*told: Any) -> list[Tensor]:
    from heed.nn.kernels.triton.rotary import turned

    return turned(*told)


_turn = torch.library.custom_op(
    "heed::turn",
    _run,
    mutates_args=(),
    schema="(Tensor[] parts, Tensor positions, Tensor frequencies, float direction) -> Tensor[]",
)


@_turn.register_fake
def _turn_shapes(parts: list[Tensor], *rest: Any) -> list[Tensor]:
    return [empty_heads(x) for x in parts]


def _remember(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    _, positions, frequencies, ctx.direction = inputs
    ctx.save_for_backward(positions, frequencies)


def _differentiate(ctx: Any, grads: list[Tensor]) -> tuple[list[Tensor], None, None, None]:
    """The gradient of a turn is the turn back."""
    return _turn(grads, *ctx.saved_tensors, -ctx.direction), None, None, None


torch.library.register_autograd("heed::turn", _differentiate, setup_context=_remember)


class _Eagerly(torch.autograd.Function):
    """The same, called directly."""

    @staticmethod
    def forward(
        ctx: Any, positions: Tensor, frequencies: Tensor, *parts: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.save_for_backward(positions, frequencies)
        return tuple(_run(list(parts), positions, frequencies, 1.0))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, *_run(list(grads), *ctx.saved_tensors, -1.0)


def turn_halves(parts: list[Tensor], cos: Tensor, sin: Tensor) -> list[Tensor]:
    """Tensors [b, h, n, d] turned by angles of which cosines and sines [b or 1, 1, n, d/2] are
    given: the plain formula, written straight to where the result goes."""
    run: Any = _TurnHalves.apply
    return list(run(cos, sin, *parts))


class _TurnHalves(torch.autograd.Function):
    """Autograd by itself would go twice as often over the numbers, most of all on the way back."""

    @staticmethod
    def forward(ctx: Any, cos: Tensor, sin: Tensor, *parts: Tensor) -> tuple[Tensor, ...]:
        ctx.save_for_backward(cos, sin)
        return tuple(_halves_turned(x, cos, sin) for x in parts)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """The gradient of a turn is the turn back."""
        cos, sin = ctx.saved_tensors
        return None, None, *turn_halves(list(grads), cos, -sin)


def _halves_turned(x_bhnd: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """(x cos - y sin, y cos + x sin) of the halves x and y, in float32 at least."""
    wide_bhnd = x_bhnd.to(torch.promote_types(x_bhnd.dtype, cos.dtype))
    cos, sin = cos.to(wide_bhnd.dtype), sin.to(wide_bhnd.dtype)
    out_bhnd = torch.empty_like(wide_bhnd)
    (x, y), (x_out, y_out) = wide_bhnd.chunk(2, dim=-1), out_bhnd.chunk(2, dim=-1)
    torch.mul(x, cos, out=x_out).addcmul_(y, sin, value=-1)
    torch.mul(y, cos, out=y_out).addcmul_(x, sin)
    return out_bhnd.to(x_bhnd.dtype)
