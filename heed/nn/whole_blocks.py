"""Which blocks a kernel may compute as one, and their layers as the kernel reads them.

That is so where nothing comes between the layers but what the kernel knows: no hook, no edited or
pruned head, no merge but concatenation, no bias of positions. Everything else is computed part by
part, as `heed.nn.stack` has it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

from heed.nn.attention import AttentionContext, MultiHeadAttention
from heed.nn.feed_forward import FeedForward
from heed.nn.kernels.block import BlockLayers, are_changed, run_blocks
from heed.nn.kernels.linear import GATES, Linear, OutputLinear
from heed.nn.kernels.residual_norm import ResidualStream
from heed.nn.merges import Merge
from heed.nn.positions import Position


def run(
    stream: ResidualStream,
    blocks: Iterable[nn.Module],
    position: Position,
    context: AttentionContext,
) -> ResidualStream | None:
    """The stream after self-attention and feed-forward of all blocks; None without a kernel.

    `stream.may_run_blocks` is asked first.
    """
    found: list[BlockLayers] = []
    for block in blocks:
        layers = find_layers(block, position)
        if layers is None:
            return None
        found.append(layers)
    return run_blocks(stream, found, context.mask, position, context.shared) if found else None


def find_layers(block: Any, position: Position) -> BlockLayers | None:
    """The layers of a block, if nothing but the block's sums comes between them."""
    attention, forward = block.attention, block.feed_forward
    if type(attention) is not MultiHeadAttention or type(forward) is not FeedForward:
        return None
    if not _is_plain(attention, position):
        return None
    qkv, out, up, down = attention.qkv, attention.out, forward.up, forward.down
    if (type(qkv), type(out), type(down)) != (Linear, OutputLinear, OutputLinear):
        return None
    if type(up) is not nn.Linear or (forward.dropout.training and forward.dropout.p):
        return None
    if are_changed((block, attention, *attention._modules.values())):
        return None
    if are_changed((forward, *forward._modules.values())):
        return None
    return BlockLayers(
        norm=block.attention_norm,
        qkv=qkv,
        out=out,
        last_norm=block.feed_forward_norm,
        up=up,
        down=down,
        heads=attention.heads,
        kv_heads=attention.kv_heads,
        head_width=attention.head_width,
        scale=attention.scale,
        kind=GATES.get(forward.activation, forward.activation),
        gated=forward.activation in GATES,
    )


def _is_plain(attention: MultiHeadAttention, position: Position) -> bool:
    """Whether it is softmax(q kᵀ · scale) v of one linear layer, with heads side by side."""
    kind, none = type(position), Position
    if kind.bias is not none.bias or kind.values is not none.values:
        return False
    if attention.crosses or attention.head_edit is not None:
        return False
    if attention.dropout and attention.training:
        return False
    has_norm = not (type(attention.q_norm) is type(attention.k_norm) is nn.Identity)
    return not has_norm and _concatenates(attention.merge)


def _concatenates(merge: Merge) -> bool:
    """Whether it now puts heads side by side as they are."""
    if type(merge).forward is not Merge.forward:
        return False
    is_off = merge.training_only and not merge.training
    return is_off or type(merge).change is Merge.change
