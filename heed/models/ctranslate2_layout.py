"""A translator's weights, as CTranslate2 lays them out.

Its Transformer is heed's but for a few things, which are said here in its own terms. What is added
to token vectors becomes a table by position. A bias that reads no query becomes a table by
distance: to CTranslate2 that is T5's, and with a bucket for each distance it can hold any. Heads
that were shifted are columns of the next map in another order. What it cannot say at all,
`complaints` lists.

Shapes: h heads, d head width, w model width, n positions or distances.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from ctranslate2 import specs
from ctranslate2.specs.model_spec import OPTIONAL
from torch import Tensor, nn

from heed.config import POSITIONS, ModelConfig
from heed.models.translator import Translator
from heed.nn.attention import MultiHeadAttention
from heed.nn.embedding import FeedForward
from heed.nn.kernels.linear import GATES
from heed.nn.merges import Shift
from heed.nn.positions import Position, Rope, Shaw
from heed.nn.stack import Block, Stack

MIN_POSITIONS = 4096
"""Rows, at least, of a table for what heed computes for any position."""
NEVER = -1e4
"""A logit that leaves no probability, and that 16 bits can hold."""
ACTIVATIONS = {
    "relu": specs.Activation.RELU,
    "gelu": specs.Activation.GELU,
    "gelu_tanh": specs.Activation.GELUTanh,
    "silu": specs.Activation.SWISH,
}


@dataclass(frozen=True)
class Marks:
    """Ids of tokens that are no text, and of those that are never to be written."""

    unknown: int
    begin: int
    end: int
    unwritten: tuple[int, ...] = ()


def complaints(config: ModelConfig) -> list[str]:
    """What of such a model CTranslate2 cannot hold, key by key."""
    if config.family != "transformer":
        return [f"model.family = {config.family!r}: CTranslate2 holds Transformers alone."]
    found = []
    kind = POSITIONS[config.position]
    adds, turns, biases = (_has(kind, hook) for hook in ("embed", "rotate", "bias"))
    by_query = kind.bias_uses_query or _has(kind, "values")
    strange = (turns and not issubclass(kind, Rope)) or (by_query and not issubclass(kind, Shaw))
    if strange or adds + turns + biases > 1:
        found.append(f"model.position = {config.position!r}: CTranslate2 has nothing like it.")
    if config.cross_position and (turns or biases):
        found.append("model.cross_position: CTranslate2 looks at a source without positions.")
    if config.qk_norm:
        found.append("model.qk_norm: CTranslate2 norms all heads of a cross-attention as one.")
    if config.head_map:
        found.append("model.head_map: CTranslate2 has one map from vectors to the vocabulary.")
    if config.merge_when == "always" and config.merge not in ("concat", "shift"):
        found.append(f"model.merge = {config.merge!r}: CTranslate2 puts heads side by side.")
    return found


def positions(model: Translator, least: int = 0) -> int | None:
    """How many positions a saved model has; None where there is no end to them.

    Where heed knows no end and CTranslate2 needs one, it is `least` or more.
    """
    position = cast(Stack, model.encoder).position
    limit, kind = position.limit(model.config), type(position)
    endless_bias = _has(kind, "bias") and position.reach is None
    if limit is None and (_has(kind, "embed") or endless_bias):
        return max(least, MIN_POSITIONS)
    return limit


@torch.no_grad()
def save(
    model: Translator,
    names: Sequence[str],
    folder: Path,
    *,
    marks: Marks,
    least: int = 0,
    quantization: str | None = None,
) -> None:
    """Write a model of which there is nothing to complain, and its tokens' names, into a folder.

    `least` is as in `positions`; `quantization` is a word of CTranslate2's, "int8" say.
    """
    with model.embedding.table.weight.device:  # where tables are made that heed only computes
        spec = _spec(model, positions(model, least), marks.unwritten)
    spec.config.unk_token, spec.config.eos_token = names[marks.unknown], names[marks.end]
    spec.config.bos_token = spec.config.decoder_start_token = names[marks.begin]
    spec.config.add_source_eos = True
    spec.config.layer_norm_epsilon = model.config.norm_eps
    (rows,) = spec.get_source_vocabulary_size()
    spec.register_source_vocabulary(list(names[:rows]))
    spec.register_target_vocabulary(list(names[: spec.get_target_vocabulary_size()]))
    spec.validate()
    spec.optimize(quantization=quantization)
    spec.save(str(folder))


def _spec(model: Translator, rows: int | None, unwritten: Sequence[int]) -> Any:
    """The whole model."""
    source = model.embedding if model.source_embedding is None else model.source_embedding
    encoder = _stack(specs.TransformerEncoderSpec, model.encoder, model.config, rows)
    decoder = _stack(specs.TransformerDecoderSpec, model.decoder, model.config, rows)
    encoder.embeddings[0].weight = _plain(source.table.weight)
    decoder.embeddings.weight = _plain(model.embedding.table.weight)
    encoder.scale_embeddings, decoder.scale_embeddings = source.scale, model.embedding.scale
    _linear(decoder.projection, model.head.weight, _silenced(model, unwritten))
    if model.head.scale is not None:
        decoder.scale_outputs = float(model.head.scale)
    return specs.TransformerSpec(encoder, decoder)


def _stack(kind: Any, stack: Any, config: ModelConfig, rows: int | None) -> Any:
    """An encoder or a decoder."""
    position = cast(Position, stack.position)
    told = {"rotary_dim": 0, "rotary_interleave": False, "rotary_base": config.rope_base}
    adds, by_query = _has(type(position), "embed"), isinstance(position, Shaw)
    spec = kind(
        len(stack.blocks),
        config.heads,
        pre_norm=config.norm_place == "pre",
        activation=ACTIVATIONS[GATES.get(config.activation, config.activation)],
        ffn_glu=config.activation in GATES,
        rms_norm=config.norm == "rms",
        layernorm_embedding=config.embedding_norm,
        num_heads_kv=config.kv_heads,
        head_dim=config.head_width,
        relative_position=by_query,
        # A stack without any position has a bias of zeros: else it would be given sinusoids.
        relative_attention_bias=not (adds or by_query or isinstance(position, Rope)),
        **(told if isinstance(position, Rope) else {}),
    )
    if adds:
        spec.position_encodings.encodings = _by_position(
            position, rows or MIN_POSITIONS, config.width
        )
    if config.embedding_norm:
        _norm(spec.layernorm_embedding, stack.embedding_norm)
    if config.norm_place == "pre":
        _norm(spec.layer_norm, stack.norm)
    every = [position, *stack.layer_positions]
    if not position.per_layer:
        every *= len(spec.layer)
    for layer, block, own in zip(spec.layer, stack.blocks, every, strict=True):
        _block(layer, block)
        _position(layer.self_attention, own, stack, rows)
    return spec


def _block(spec: Any, block: Block) -> None:
    _attention(spec.self_attention, block.attention, block.attention_norm)
    if hasattr(block, "cross"):
        _attention(spec.attention, block.cross, block.cross_norm)
    _feed_forward(spec.ffn, block.feed_forward)
    _norm(spec.ffn.layer_norm, block.feed_forward_norm)


def _attention(spec: Any, attention: MultiHeadAttention, norm: nn.Module) -> None:
    first = [attention.q, attention.kv] if attention.crosses else [attention.qkv]
    for part, linear in zip(spec.linear, [*first, attention.out], strict=True):
        _linear(part, linear.weight, linear.bias)
    if isinstance(attention.merge, Shift) and not attention.merge.training_only:
        out_whd = attention.out.weight.unflatten(1, (attention.heads, -1))
        spec.linear[-1].weight = _plain(out_whd.roll(-1, dims=1).flatten(1))
    spec.queries_scale = float(attention.scale)
    _norm(spec.layer_norm, norm)


def _feed_forward(spec: Any, feed_forward: FeedForward) -> None:
    up, down = feed_forward.up, feed_forward.down
    gated = feed_forward.activation in GATES
    into = [spec.linear_0, spec.linear_0_noact] if gated else [spec.linear_0]
    weights, n = up.weight.chunk(len(into)), len(into)
    biases = [None] * n if up.bias is None else up.bias.chunk(n)
    for part, weight, bias in zip(into, weights, biases, strict=True):
        _linear(part, weight, bias)
    _linear(spec.linear_1, down.weight, down.bias)


def _linear(spec: Any, weight: Tensor, bias: Tensor | None) -> None:
    spec.weight = _plain(weight)
    if bias is not None:
        spec.bias = _plain(bias)


def _silenced(model: Translator, unwritten: Sequence[int]) -> Tensor | None:
    """The bias of the last map, by which some tokens never come."""
    bias_v = model.head.bias
    if not unwritten:
        return bias_v
    silenced_v = torch.zeros(len(model.head.weight)) if bias_v is None else bias_v.detach().clone()
    silenced_v[list(unwritten)] = NEVER
    return silenced_v


def _norm(spec: Any, norm: Any) -> None:
    spec.gamma = _plain(norm.weight)
    if isinstance(norm, nn.LayerNorm):  # without a bias it would be taken for an RMSNorm
        spec.beta = _plain(torch.zeros_like(norm.weight) if norm.bias is None else norm.bias)


def _position(spec: Any, position: Position, stack: Stack, rows: int | None) -> None:
    """The part of an encoding that acts inside self-attention."""
    if isinstance(position, Shaw):
        values = position.value_vectors
        spec.relative_position_keys = _plain(position.keys.weight)
        spec.relative_position_values = OPTIONAL if values is None else _plain(values.weight)
    elif hasattr(spec, "relative_attention_bias"):
        heads = cast(Block, stack.blocks[0]).attention.heads
        table = _by_distance(position, heads, rows, both_ways=not stack.causal)
        spec.relative_attention_bias = _plain(table)
        spec.relative_attention_max_distance = np.int32(len(table))


def _by_position(position: Position, rows: int, width: int) -> Tensor:
    """[n, w]: what an encoding adds to a token by where it stands."""
    table_1nw = position.embed(torch.zeros(1, rows, width), torch.arange(rows)[None])
    return _plain(table_1nw[0])


def _by_distance(position: Position, heads: int, rows: int | None, *, both_ways: bool) -> Tensor:
    """T5's table with a bucket for each distance below n, and n more buckets for all beyond.

    First come the keys at or before a query, then, where they are seen, those after it.
    """
    n = position.reach + 1 if position.reach is not None else rows or 1
    here, there = torch.tensor([[n - 1]]), torch.arange(2 * n - 1)[None]
    bias_1h1n = position.bias(None, here, there)
    if bias_1h1n is None:
        bias_1h1n = torch.zeros(1, heads, 1, 2 * n - 1)
    before_nh = bias_1h1n[0, :, 0, :n].flip(-1).mT
    after_nh = bias_1h1n[0, :, 0, n - 1 :].mT
    sides = [before_nh, after_nh] if both_ways else [before_nh]
    return torch.cat([torch.cat([side, side[-1:].expand(n, -1)]) for side in sides])


def _plain(x: Tensor) -> Tensor:
    return x.detach().float().cpu().contiguous()


def _has(kind: type[Position], hook: str) -> bool:
    """Whether an encoding says otherwise than `none` does."""
    return getattr(kind, hook) is not getattr(Position, hook)
