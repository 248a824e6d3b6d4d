"""One block, one stack. An encoder, a decoder and an encoder–decoder are this stack, set up.

Shapes: b batch, n tokens, m keys, h heads, w model width.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from heed.config import ModelConfig
from heed.nn.attention import AttentionContext, MultiHeadAttention
from heed.nn.cache import Cache
from heed.nn.embedding import FeedForward, build_norm
from heed.nn.kernels import dispatch
from heed.nn.kernels.linear import Dropout
from heed.nn.kernels.residual_norm import draw_seeds, join
from heed.nn.masks import Mask
from heed.nn.merges import build_merge
from heed.nn.positions import Position, PositionBias, build_position
from heed.nn.tokens import StackOutput, Tokens


class Block(nn.Module):
    """Self-attention, cross-attention to a source, feed-forward: each a residual branch.

    Pre-norm, a block leaves its last branch beside the stream: adding it and normalising the sum
    are one step where they can be, and that norm is the next block's.
    """

    joins = 3
    """How many branches join the stream in a block, at most."""

    def __init__(self, config: ModelConfig, *, cross: bool) -> None:
        super().__init__()
        self.pre = config.norm_place == "pre"
        self.attention = _attention(config)
        self.attention_norm = build_norm(config)
        if cross:
            self.cross = _attention(config, source_width=config.width)
            self.cross_norm = build_norm(config)
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = build_norm(config)
        self.dropout = Dropout(config.dropout)

    def forward(
        self,
        x_bnw: Tensor,
        branch_bnw: Tensor | None,
        sight: AttentionContext,
        position: Position,
        *,
        cross: tuple[AttentionContext, Position] | None = None,
        cache: Cache | None = None,
        name: str = "",
        weights: bool = False,
        seeds: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
        """The new vectors, a branch yet to be added to them, and weights where asked for.

        `branch_bnw` is what the block before left; the weights are of self- and cross-attention.
        """
        first, second, third = seeds if seeds is not None else (None, None, None)
        y_bnw = x_bnw
        if self.pre:
            x_bnw, y_bnw = self._join(x_bnw, branch_bnw, self.attention_norm, first)
        kept = cache.layer(f"{name}.self") if cache is not None else None
        branch, seen = self.attention(y_bnw, sight, position, cache=kept, weights=weights)
        after = self.feed_forward_norm if cross is None else self.cross_norm
        x_bnw, y_bnw = self._join(x_bnw, branch, after if self.pre else self.attention_norm, second)
        cross_seen = None
        if cross is not None:
            kept = cache.layer(f"{name}.cross") if cache is not None else None
            branch, cross_seen = self.cross(y_bnw, *cross, cache=kept, weights=weights)
            after = self.feed_forward_norm if self.pre else self.cross_norm
            x_bnw, y_bnw = self._join(x_bnw, branch, after, third)
        branch = self.feed_forward(y_bnw)
        if not self.pre:
            x_bnw, _ = self._join(x_bnw, branch, self.feed_forward_norm, first)
            branch = None
        elif weights or torch.compiler.is_compiling():
            # Who looks inside wants whole vectors. And nothing is left to the first block: to a
            # compiler, which would have to compile that one for itself, all are to look alike.
            x_bnw, branch = x_bnw + self.dropout(branch), None
        return x_bnw, branch, seen, cross_seen

    def _join(
        self, x_bnw: Tensor, branch_bnw: Tensor | None, norm: nn.Module, seed: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The stream with a branch added, and what the next branch reads: post-norm, the same."""
        told = x_bnw, branch_bnw, norm, self.dropout
        x_bnw, y_bnw = join(*told, seed=seed, for_map=self.pre)
        return (x_bnw if self.pre else y_bnw), y_bnw


def _attention(config: ModelConfig, source_width: int | None = None) -> MultiHeadAttention:
    return MultiHeadAttention(
        config.width,
        config.heads,
        kv_heads=config.kv_heads,
        head_width=config.head_width,
        source_width=source_width,
        bias=config.bias,
        qk_norm=config.qk_norm,
        scale=config.scale,
        dropout=config.attention_dropout,
        merge=build_merge(config),
    )


class Stack(nn.Module):
    """Blocks in a row: an encoder; with `causal` a decoder; with `cross` one with a source."""

    def __init__(self, config: ModelConfig, *, layers: int, causal: bool, cross: bool) -> None:
        super().__init__()
        self.causal, self.crosses = causal, cross
        self.position = build_position(config, causal=causal)
        self.layer_positions = _layer_positions(self.position, config, layers, causal=causal)
        if cross and config.cross_position and _acts_inside(self.position):
            self.cross_position = build_position(config, causal=False)
            self.cross_layer_positions = _layer_positions(
                self.cross_position, config, layers, causal=False
            )
        else:
            self.cross_position = Position()
            self.cross_layer_positions = nn.ModuleList()
        self.embedding_norm = build_norm(config) if config.embedding_norm else nn.Identity()
        self.dropout = Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config, cross=cross) for _ in range(layers))
        self.norm = build_norm(config) if config.norm_place == "pre" else nn.Identity()

    def forward(
        self,
        x_bnw: Tensor,
        tokens: Tokens,
        *,
        memory: Tensor | None = None,
        memory_tokens: Tokens | None = None,
        cache: Cache | None = None,
        weights: bool = False,
    ) -> StackOutput:
        """Vectors for `x_bnw`. `tokens` tells of x; `memory` is the encoded source."""
        keys = cache.extend(tokens) if cache is not None else tokens
        sight = self._sight(x_bnw, tokens, keys)
        looks_across = None
        if memory is not None and memory_tokens is not None:
            looks_across = self._cross_sight(tokens, memory, memory_tokens)
        x_bnw = self.dropout(self.enter(x_bnw, tokens.positions_bn))
        return self.through(x_bnw, sight, looks_across, cache=cache, weights=weights)

    def enter(self, x_bnw: Tensor, positions_bn: Tensor) -> Tensor:
        """What the first block reads: token vectors with their order, normalised if asked for."""
        return self.embedding_norm(self.position.embed(x_bnw, positions_bn))

    def through(
        self,
        x_bnw: Tensor,
        sight: AttentionContext,
        looks_across: AttentionContext | None = None,
        *,
        cache: Cache | None = None,
        weights: bool = False,
    ) -> StackOutput:
        """Embedded vectors, through all blocks."""
        out = StackOutput(x_bnw, hidden=[x_bnw] if weights else [])
        seeds = draw_seeds(x_bnw, self.dropout, len(self.blocks) + 1, Block.joins)
        branch = None
        for i, block in enumerate(self.blocks):
            cross = None
            if looks_across is not None:
                cross = looks_across, _nth(self.cross_layer_positions, self.cross_position, i)
            position = _nth(self.layer_positions, self.position, i)
            x_bnw, branch, seen, cross_seen = block(
                x_bnw,
                branch,
                sight,
                position,
                cross=cross,
                cache=cache,
                name=str(i),
                weights=weights,
                seeds=None if seeds is None else seeds[i],
            )
            if weights:
                out.hidden.append(x_bnw)
                out.self_weights.append(seen)
                if cross_seen is not None:
                    out.cross_weights.append(cross_seen)
        last = None if seeds is None else seeds[-1, 0]
        _, out.x_bnw = join(x_bnw, branch, self.norm, self.dropout, seed=last)
        return out

    def _sight(self, x_bnw: Tensor, tokens: Tokens, keys: Tokens) -> AttentionContext:
        mask = Mask(
            x_bnw.shape[1],
            keys.positions_bn.shape[1],
            x_bnw.device,
            causal=self.causal,
            real_bm=keys.real_bn,
            q_segments_bn=tokens.segments_bn if keys.segments_bn is not None else None,
            k_segments_bm=keys.segments_bn,
        )
        bias = _shared_bias(self.position, tokens.positions_bn, keys.positions_bn)
        dispatch.prepare(mask, tokens.positions_bn, keys.positions_bn, self.position, bias)
        return AttentionContext(tokens.positions_bn, keys.positions_bn, mask, tokens.real_bn, bias)

    def _cross_sight(
        self, tokens: Tokens, memory: Tensor, memory_tokens: Tokens
    ) -> AttentionContext:
        mask = Mask(
            tokens.positions_bn.shape[1],
            memory.shape[1],
            memory.device,
            real_bm=memory_tokens.real_bn,
            q_segments_bn=tokens.segments_bn,
            k_segments_bm=memory_tokens.segments_bn,
        )
        q_positions, k_positions = tokens.positions_bn, memory_tokens.positions_bn
        bias = _shared_bias(self.cross_position, q_positions, k_positions)
        dispatch.prepare(mask, q_positions, k_positions, self.cross_position, bias)
        return AttentionContext(q_positions, k_positions, mask, tokens.real_bn, bias, memory)


def _layer_positions(
    first: Position, config: ModelConfig, layers: int, *, causal: bool
) -> nn.ModuleList:
    """The encodings of layers 1, 2, …, where each layer has parameters of its own."""
    own = range(1, layers) if first.per_layer else ()
    return nn.ModuleList(build_position(config, causal=causal) for _ in own)


def _acts_inside(position: Position) -> bool:
    """Whether an encoding does anything inside attention, and so could across to a source."""
    kind = type(position)
    return kind.rotate is not Position.rotate or kind.bias is not Position.bias


def _nth(own: nn.ModuleList, first: Position, layer: int) -> Position:
    return cast(Position, own[layer - 1]) if layer and len(own) else first


def _shared_bias(
    position: Position, q_positions: Tensor, k_positions: Tensor
) -> PositionBias | None:
    if position.bias_uses_query:
        return None
    return PositionBias(position, q_positions, k_positions)
