"""The stack in plain torch, as a course writes it: a whole forward pass on a model's own weights.

`heed.nn.stack` leaves to kernels what they do in fewer steps: rotations, biases, the adding of
branches. Here each step is computed where it is written. This is the reference for the stack: tests
check that both return the same vectors and the same attention weights.

`run_stack` is an encoder, a causal language model or, with an encoded source, a decoder:

    source = run_stack(model.encoder, model.embedding, source_ids)
    target = run_stack(model.decoder, model.embedding, target_ids, memory_bmw=source.x_bnw)
    logits = model.head(target.x_bnw)

It serves every position encoding, norm, activation and number of key and value heads, and every
merge as at inference. It leaves out dropout, the cache, pruned heads, quantized weights, the LSTM.

Shapes: b batch, n queries, m keys, h query heads, g key and value heads, d head width, w model
width.
"""

from __future__ import annotations

from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heed.nn.attention import MultiHeadAttention, attend
from heed.nn.embedding import TokenEmbedding
from heed.nn.feed_forward import FeedForward
from heed.nn.kernels.linear import ACTIVATIONS, GATES
from heed.nn.positions import Position
from heed.nn.stack import Block, Stack
from heed.nn.tokens import StackOutput, Tokens

BlockOutput = tuple[Tensor, Tensor, Tensor | None]
"""The vectors after a block, and the weights of its self-attention and its cross-attention."""


class Context(NamedTuple):
    """What the attention of one layer reads beside the vectors of its queries."""

    position: Position
    q_tokens: Tokens
    k_tokens: Tokens
    mask: Tensor
    """True where a query may see a key [b or 1, 1, n, m]."""
    memory_bmw: Tensor | None = None
    """In cross-attention, the vectors that keys and values are made of."""


def run_stack(
    stack: Stack,
    embedding: TokenEmbedding,
    ids_bn: Tensor,
    tokens: Tokens | None = None,
    *,
    memory_bmw: Tensor | None = None,
    memory_tokens: Tokens | None = None,
) -> StackOutput:
    """Vectors [b, n, w] for ids, with the attention weights and hidden vectors of every layer.

    Without `tokens`, all tokens are real and their positions count from 0; those of `memory_bmw`,
    the encoded source of a decoder, likewise.
    """
    tokens = tokens or Tokens.of(ids_bn)
    mask, across = visible(tokens, tokens, causal=stack.causal), None
    x_bnw = embed(embedding, ids_bn, tokens)
    x_bnw = stack.embedding_norm(stack.position.embed(x_bnw, tokens.positions_bn))
    out = StackOutput(x_bnw, hidden=[x_bnw])
    if memory_bmw is not None:
        source = memory_tokens or Tokens.of(memory_bmw[..., 0])
        cross_mask = visible(tokens, source, causal=False)
    run_block = run_pre_norm if stack.pre_norm else run_post_norm
    for layer, block in enumerate(stack.blocks):
        position = of_layer(layer, stack.position, stack.layer_positions)
        inside = Context(position, tokens, tokens, mask)
        if memory_bmw is not None:
            position = of_layer(layer, stack.cross_position, stack.cross_layer_positions)
            across = Context(position, tokens, source, cross_mask, memory_bmw)
        x_bnw, self_weights, cross_weights = run_block(cast(Block, block), x_bnw, inside, across)
        out.hidden.append(x_bnw)
        out.self_weights.append(self_weights)
        out.cross_weights += [] if cross_weights is None else [cross_weights]
    out.x_bnw = stack.norm(x_bnw)
    return out


def run_pre_norm(
    block: Block, x_bnw: Tensor, inside: Context, across: Context | None
) -> BlockOutput:
    """x + sublayer(norm(x)): self-attention, cross-attention to a source, feed-forward."""
    y_bnw, self_weights = attention(block.attention, block.attention_norm(x_bnw), inside)
    x_bnw, cross_weights = x_bnw + y_bnw, None
    if across is not None:
        y_bnw, cross_weights = attention(block.cross, block.cross_norm(x_bnw), across)
        x_bnw = x_bnw + y_bnw
    x_bnw = x_bnw + feed_forward(block.feed_forward, block.feed_forward_norm(x_bnw))
    return x_bnw, self_weights, cross_weights


def run_post_norm(
    block: Block, x_bnw: Tensor, inside: Context, across: Context | None
) -> BlockOutput:
    """norm(x + sublayer(x)), as in Vaswani et al. 2017."""
    y_bnw, self_weights = attention(block.attention, x_bnw, inside)
    x_bnw, cross_weights = block.attention_norm(x_bnw + y_bnw), None
    if across is not None:
        y_bnw, cross_weights = attention(block.cross, x_bnw, across)
        x_bnw = block.cross_norm(x_bnw + y_bnw)
    x_bnw = block.feed_forward_norm(x_bnw + feed_forward(block.feed_forward, x_bnw))
    return x_bnw, self_weights, cross_weights


def attention(layer: nn.Module, x_bnw: Tensor, context: Context) -> tuple[Tensor, Tensor]:
    """Project to heads, apply the position encoding, attend, merge the heads, project back."""
    if not isinstance(layer, MultiHeadAttention) or layer.kept_heads is not None:
        raise ValueError("heed.nn.plain has no pruned layers.")
    position, q_tokens, k_tokens, *_ = context
    at = q_tokens.positions_bn, k_tokens.positions_bn
    q_width, k_width = layer.heads * layer.head_width, layer.kv_heads * layer.head_width
    if context.memory_bmw is None:
        projected = linear(layer.qkv, x_bnw).split([q_width, k_width, k_width], dim=-1)
    else:
        projected = linear(layer.q, x_bnw), *linear(layer.kv, context.memory_bmw).chunk(2, dim=-1)
    q_bhnd, k_bgmd, v_bgmd = (
        x.unflatten(-1, (-1, layer.head_width)).transpose(1, 2) for x in projected
    )
    q_bhnd, k_bgmd = position.rotate(layer.q_norm(q_bhnd), layer.k_norm(k_bgmd), *at)
    bias = position.bias(q_bhnd * layer.scale, *at)
    out_bhnd, weights_bhnm = attend(
        q_bhnd, k_bgmd, v_bgmd, mask=context.mask, bias=bias, scale=layer.scale
    )
    extra_bhnd = position.values(weights_bhnm, *at)
    if extra_bhnd is not None:
        out_bhnd = out_bhnd + extra_bhnd
    return linear(layer.out, layer.merge(out_bhnd, q_tokens.real_bn)), weights_bhnm


def feed_forward(layer: FeedForward, x_bnw: Tensor) -> Tensor:
    """down(activation(up(x))); gated (Shazeer 2020), down(activation(gate) · value)."""
    activation, hidden = ACTIVATIONS[layer.activation], linear(layer.up, x_bnw)
    if layer.activation in GATES:
        gate, value = hidden.chunk(2, dim=-1)
        return linear(layer.down, activation(gate) * value)
    return linear(layer.down, activation(hidden))


def linear(layer: nn.Linear, x: Tensor) -> Tensor:
    """W x + b."""
    return F.linear(x, layer.weight, layer.bias)


def embed(embedding: TokenEmbedding, ids_bn: Tensor, tokens: Tokens) -> Tensor:
    """table[id] · scale, plus the vector of the token's type where there are types."""
    x_bnw = embedding.table.weight[ids_bn] * embedding.scale
    if embedding.types is None:
        return x_bnw
    types_bn = torch.zeros_like(ids_bn) if tokens.types_bn is None else tokens.types_bn
    return x_bnw + embedding.types.weight[types_bn]


def visible(q_tokens: Tokens, k_tokens: Tokens, *, causal: bool) -> Tensor:
    """True where a query may see a key: real, of its own segment and, if causal, not after it."""
    n, m = q_tokens.positions_bn.shape[1], k_tokens.positions_bn.shape[1]
    mask_bnm = torch.ones(1, n, m, dtype=torch.bool, device=q_tokens.positions_bn.device)
    if causal:
        mask_bnm = mask_bnm.tril()
    if k_tokens.real_bn is not None:
        mask_bnm = mask_bnm & k_tokens.real_bn[:, None, :]
    if q_tokens.segments_bn is not None and k_tokens.segments_bn is not None:
        same_bnm = q_tokens.segments_bn[:, :, None] == k_tokens.segments_bn[:, None, :]
        mask_bnm = mask_bnm & same_bnm
    return mask_bnm[:, None]


def of_layer(layer: int, first: Position, others: nn.ModuleList) -> Position:
    """A layer's encoding: its own where layers have their own parameters, else the first's."""
    return cast(Position, others[layer - 1]) if layer and len(others) else first
