"""Whole blocks of self-attention and feed-forward by one kernel, where a device has one.

Training on a CPU has it in C (`block_cpu`). Elsewhere, and where anything comes between the layers,
a block is its parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from torch import Tensor, nn
from torch.nn.modules import module as modules

from heed.nn.kernels.heads import SharedPosition
from heed.nn.kernels.residual_norm import ResidualStream
from heed.nn.masks import Mask
from heed.nn.positions import Position


class BlockLayers(NamedTuple):
    """The layers of a pre-norm block, and what its attention and its activation are."""

    norm: nn.Module
    qkv: nn.Linear
    out: nn.Linear
    last_norm: nn.Module
    up: nn.Linear
    down: nn.Linear
    heads: int
    kv_heads: int
    head_width: int
    scale: float
    kind: str
    """The activation, or that of the gate."""
    gated: bool

    def parameters(self) -> list[Tensor | None]:
        """Weight and bias of each layer, in the order of use."""
        found: list[Tensor | None] = []
        for layer in self[:6]:
            found += _find(layer, "weight"), _find(layer, "bias")
        return found

    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shapes that the parameters must have."""
        w, d = self.qkv.in_features, self.head_width
        inner, c, f = self.heads * d, (self.heads + 2 * self.kv_heads) * d, self.down.in_features
        g = f * (1 + self.gated)
        return (w,), (w,), (c, w), (c,), (w, inner), (w,), (w,), (w,), (g, w), (g,), (w, f), (w,)


def _find(layer: nn.Module, name: str) -> Tensor | None:
    """A layer's parameter, or the buffer or plain tensor that took its place."""
    for place in (layer._parameters, layer.__dict__, layer._buffers):
        if name in place:
            return place[name]
    return None


def run_blocks(
    stream: ResidualStream,
    layers: Sequence[BlockLayers],
    mask: Mask | None,
    position: Position,
    shared: SharedPosition,
) -> ResidualStream | None:
    """The stream after blocks, without attention weights; None where no kernel computes them.

    `ResidualStream.may_run_blocks` is asked first.
    """
    table = None
    if type(position).rotate is not Position.rotate:
        rotation = shared.self_rotation(position)
        if rotation is None:
            return None
        table, _ = rotation.tables()
    from heed.nn.kernels import block_cpu

    (x_bnw, branch_bnw, dropout, *_), after = stream, None
    if x_bnw is not None:
        dropped = dropout.p if dropout.training else 0.0
        after = block_cpu.run_blocks(x_bnw, branch_bnw, layers, mask, table, dropped)
    return None if after is None else stream._replace(x_bnw=after[0], branch_bnw=after[1])


def are_changed(layers: Iterable[nn.Module | None]) -> bool:
    """Whether calls of these layers do more than their forward functions: hooks, a compiler."""
    if modules._has_any_global_hook():
        return True
    return any(
        layer._forward_pre_hooks
        or layer._forward_hooks
        or layer._backward_pre_hooks
        or layer._backward_hooks
        or layer._compiled_call_impl is not None
        or "forward" in layer.__dict__
        for layer in layers
        if layer is not None
    )
