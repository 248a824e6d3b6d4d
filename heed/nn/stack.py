"""One block, one stack. An encoder, a decoder and an encoder–decoder are this stack, configured.

Shapes: b batch, n tokens, m keys, h heads, w model width.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

from torch import Tensor, nn

from heed.config import ModelConfig
from heed.nn.attention import (
    AttentionContext,
    AttentionInputs,
    HeadlessAttention,
    MultiHeadAttention,
)
from heed.nn.cache import Cache, LayerCache
from heed.nn.feed_forward import FeedForward
from heed.nn.kernels import position_forms
from heed.nn.kernels.availability import read_maximum
from heed.nn.kernels.linear import Dropout
from heed.nn.kernels.residual_norm import ResidualStream
from heed.nn.masks import Mask
from heed.nn.merges import build_merge
from heed.nn.norm import build_norm
from heed.nn.positions import Position, build_position, position_limit_error
from heed.nn.tokens import StackOutput, Tokens


class Block(nn.Module):
    """Self-attention, cross-attention to a source, feed-forward: each a residual branch.

    Each sublayer reads the stream (pre-norm: its norm) and adds its output to it (post-norm: with
    the norm after the sum).
    """

    def __init__(self, config: ModelConfig, *, layer: int, causal: bool, cross: bool) -> None:
        super().__init__()
        kind = "decoder" if causal else "encoder"
        self.attention = _build_attention(config, config.kept_in_layer(kind, layer))
        self.attention_norm = build_norm(config)
        if cross:
            kept = config.kept_in_layer("cross", layer)
            self.cross = _build_attention(config, kept, source_width=config.width)
            self.cross_norm = build_norm(config)
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = build_norm(config)

    def forward(
        self,
        stream: ResidualStream,
        inputs: AttentionInputs,
        cross: AttentionInputs | None = None,
        *,
        weights: bool = False,
    ) -> tuple[ResidualStream, Tensor | None, Tensor | None]:
        """The stream after this block and, with `weights`, those of self- and cross-attention."""
        stream, x_bnw = stream.normalize(self.attention_norm)
        branch_bnw, self_weights = self.attention(x_bnw, *inputs, weights=weights)
        stream, cross_weights = stream.add(branch_bnw, self.attention_norm), None
        if cross is not None:
            stream, x_bnw = stream.normalize(self.cross_norm)
            branch_bnw, cross_weights = self.cross(x_bnw, *cross, weights=weights)
            stream = stream.add(branch_bnw, self.cross_norm)
        stream, x_bnw = stream.normalize(self.feed_forward_norm)
        stream = stream.add(self.feed_forward(x_bnw), self.feed_forward_norm)
        return stream, self_weights, cross_weights


def _build_attention(
    config: ModelConfig, kept_heads: Sequence[int] | None, source_width: int | None = None
) -> MultiHeadAttention | HeadlessAttention:
    """The attention of a layer; `kept_heads` are those that a pruned layer has, None means all."""
    heads, kv_heads = config.heads, config.kv_heads
    if kept_heads is not None:
        group = heads // (kv_heads or heads)
        heads, kv_heads = len(kept_heads), len({head // group for head in kept_heads})
    if not heads:
        return HeadlessAttention(config.width, bias=config.bias)
    return MultiHeadAttention(
        config.width,
        heads,
        kv_heads=kv_heads,
        head_width=config.resolved_head_width,
        source_width=source_width,
        bias=config.bias,
        qk_norm=config.qk_norm,
        scale=config.scale,
        dropout=config.attention_dropout,
        merge=build_merge(config),
        kept_heads=kept_heads,
    )


class Stack(nn.Module):
    """Blocks in a row: an encoder; with `causal` a decoder; with `cross` one with a source."""

    def __init__(
        self,
        config: ModelConfig,
        *,
        layers: int,
        causal: bool,
        cross: bool,
        for_linear: bool = False,
    ) -> None:
        """`for_linear`: linear layers alone read the output, so autocast may narrow it here."""
        super().__init__()
        self.causal, self.crosses, self.pre_norm = causal, cross, config.norm_place == "pre"
        self.for_linear = for_linear
        self.position = build_position(config, causal=causal)
        self.position_limit = type(self.position).limit(config)
        self.layer_positions = _layer_positions(self.position, config, layers, causal=causal)
        if cross and config.cross_position and _acts_in_attention(self.position):
            self.cross_position = build_position(config, causal=False)
            self.cross_layer_positions = _layer_positions(
                self.cross_position, config, layers, causal=False
            )
        else:
            self.cross_position = Position()
            self.cross_layer_positions = nn.ModuleList()
        self.embedding_norm = build_norm(config) if config.embedding_norm else nn.Identity()
        self.dropout = Dropout(config.dropout)
        self.blocks = nn.ModuleList(
            Block(config, layer=i, causal=causal, cross=cross) for i in range(layers)
        )
        self.norm = build_norm(config) if self.pre_norm else nn.Identity()

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
        """Vectors for `x_bnw`, whose tokens are `tokens`; `memory` is the encoded source."""
        keys = cache.extend(tokens) if cache is not None else tokens
        context, cross_context = self._context(x_bnw, tokens, keys), None
        if memory is not None and memory_tokens is not None:
            cross_context = self._cross_context(tokens, memory, memory_tokens)
        x_bnw = self.embed(x_bnw, tokens.positions_bn)
        return self.run_blocks(x_bnw, context, cross_context, cache=cache, weights=weights)

    def embed(self, x_bnw: Tensor, positions_bn: Tensor) -> Tensor:
        """What `run_blocks` reads: token vectors with positions, normalized if configured."""
        if self.position_limit is not None:
            largest = read_maximum(positions_bn, training=self.training)
            if largest is not None and largest >= self.position_limit:
                raise position_limit_error(largest, self.position_limit)
        return self.embedding_norm(position_forms.embed(self.position, x_bnw, positions_bn))

    def run_blocks(
        self,
        x_bnw: Tensor,
        context: AttentionContext,
        cross_context: AttentionContext | None = None,
        *,
        cache: Cache | None = None,
        weights: bool = False,
    ) -> StackOutput:
        """Embedded vectors through dropout and all blocks."""
        out = StackOutput(x_bnw)
        stream = ResidualStream.begin(
            x_bnw,
            self.dropout,
            pre_norm=self.pre_norm,
            blocks=self.blocks,
            sublayers=2 + self.crosses,
        )
        if cross_context is None and cache is None and not weights:
            whole = self._run_whole(stream, context)
            if whole is not None:
                out.x_bnw = whole.finish(self.norm, for_linear=self.for_linear)
                return out
        if weights:
            stream, x_bnw = stream.add_pending_branch()
            out.hidden.append(x_bnw)
        for block, *inputs in self._layers(context, cross_context, cache):
            stream, self_weights, cross_weights = block(stream, *inputs, weights=weights)
            if weights:
                stream, x_bnw = stream.add_pending_branch()
                out.hidden.append(x_bnw)
                out.self_weights.append(self_weights)
                if cross_weights is not None:
                    out.cross_weights.append(cross_weights)
        out.x_bnw = stream.finish(self.norm, for_linear=self.for_linear)
        return out

    def _run_whole(
        self, stream: ResidualStream, context: AttentionContext
    ) -> ResidualStream | None:
        """The stream after all blocks by one kernel; None where there is none for them."""
        if len(self.layer_positions) or not stream.may_run_blocks():
            return None
        from heed.nn import whole_blocks  # translating needs none of it

        if not all(type(block) is Block for block in self.blocks):
            return None
        return whole_blocks.run(stream, self.blocks, self.position, context)

    def layer_position(self, layer: int) -> Position:
        """The encoding of a layer's self-attention."""
        return _nth(self.layer_positions, self.position, layer)

    def _layers(
        self, context: AttentionContext, cross: AttentionContext | None, cache: Cache | None
    ) -> Iterator[tuple[nn.Module, AttentionInputs, AttentionInputs | None]]:
        """Each block with what its self-attention and its cross-attention read."""
        for i, block in enumerate(self.blocks):
            position = self.layer_position(i)
            inputs = AttentionInputs(context, position, _layer_cache(cache, f"{i}.self"))
            if cross is None:
                yield block, inputs, None
                continue
            position = _nth(self.cross_layer_positions, self.cross_position, i)
            yield block, inputs, AttentionInputs(cross, position, _layer_cache(cache, f"{i}.cross"))

    def _context(self, x_bnw: Tensor, tokens: Tokens, keys: Tokens) -> AttentionContext:
        mask = Mask(
            x_bnw.shape[1],
            keys.positions_bn.shape[1],
            x_bnw.device,
            causal=self.causal,
            real_bm=keys.real_bn,
            q_segments_bn=tokens.segments_bn if keys.segments_bn is not None else None,
            k_segments_bm=keys.segments_bn,
        )
        positions = tokens.positions_bn, keys.positions_bn
        return AttentionContext(*positions, mask, tokens.real_bn).prepare(self.position)

    def _cross_context(
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
        positions = tokens.positions_bn, memory_tokens.positions_bn
        context = AttentionContext(*positions, mask, tokens.real_bn, memory)
        return context.prepare(self.cross_position)


def _layer_positions(
    first: Position, config: ModelConfig, layers: int, *, causal: bool
) -> nn.ModuleList:
    """The encodings of layers 1, 2, …, where each layer has its own parameters."""
    others = range(1, layers) if first.per_layer else ()
    return nn.ModuleList(build_position(config, causal=causal) for _ in others)


def _acts_in_attention(position: Position) -> bool:
    """Whether an encoding acts inside attention, and so could in cross-attention."""
    kind, none = type(position), Position
    hooks = ((kind.rotate, none.rotate), (kind.bias, none.bias), (kind.values, none.values))
    return any(own is not inherited for own, inherited in hooks)


def _layer_cache(cache: Cache | None, name: str) -> LayerCache | None:
    return None if cache is None else cache.layer(name)


def _nth(others: nn.ModuleList, first: Position, layer: int) -> Position:
    return cast(Position, others[layer - 1]) if layer and len(others) else first
