"""A translator's weights in CTranslate2's layout.

CTranslate2's Transformer differs from heed's in a few points, which are converted here. An absolute
position encoding becomes a table by position. A bias that does not depend on the query becomes a
table by distance: CTranslate2's T5 bias with one bucket per distance can hold any such bias. The
`shift` merge permutes the columns of the output projection, the `shuffle` merge averages them over
heads. `ctranslate2_support` lists what CTranslate2 cannot express.

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

from heed.config import ModelConfig
from heed.models.ctranslate2_support import overrides_hook
from heed.models.translator import Translator
from heed.nn.attention import MultiHeadAttention
from heed.nn.feed_forward import FeedForward
from heed.nn.kernels.linear import GATES
from heed.nn.kernels.position_forms import form_of
from heed.nn.merges import Shift, Shuffle
from heed.nn.positions import Position, Rope, Shaw
from heed.nn.stack import Block, Stack

MIN_POSITIONS = 4096
"""Minimum rows of a position table where heed computes any position."""
SUPPRESSED_LOGIT = -1e4
"""A logit with probability zero after softmax that float16 can represent."""
ACTIVATIONS = {
    "relu": specs.Activation.RELU,
    "gelu": specs.Activation.GELU,
    "gelu_tanh": specs.Activation.GELUTanh,
    "silu": specs.Activation.SWISH,
}


@dataclass(frozen=True)
class SpecialIds:
    """Ids of the special tokens, and of the tokens that must never be generated."""

    unknown: int
    begin: int
    end: int
    suppressed_ids: tuple[int, ...] = ()


def positions(model: Translator, least: int = 0) -> int | None:
    """The number of positions of an exported model; None if it is unlimited.

    Where heed has no limit but CTranslate2 needs a table, the limit is at least `least`.
    """
    position = cast(Stack, model.encoder).position
    limit, kind = position.limit(model.config), type(position)
    endless_bias = overrides_hook(kind, "bias") and form_of(position).max_distance(position) is None
    if limit is None and (overrides_hook(kind, "embed") or endless_bias):
        return max(least, MIN_POSITIONS)
    return limit


@torch.no_grad()
def save(
    model: Translator,
    names: Sequence[str],
    folder: Path,
    *,
    special_ids: SpecialIds,
    least: int = 0,
    quantization: str | None = None,
) -> None:
    """Write a supported model and its vocabulary (`names`, the tokens by id) into a folder.

    `least` is as in `positions`; `quantization` is a weight type of CTranslate2, such as "int8".
    """
    with (
        model.embedding.table.weight.device
    ):  # tables that heed computes on the fly are created on this device
        spec = _spec(model, positions(model, least), special_ids.suppressed_ids)
    spec.config.unk_token, spec.config.eos_token = (
        names[special_ids.unknown],
        names[special_ids.end],
    )
    spec.config.bos_token = spec.config.decoder_start_token = names[special_ids.begin]
    spec.config.add_source_eos = True
    spec.config.layer_norm_epsilon = model.config.norm_eps
    (rows,) = spec.get_source_vocabulary_size()
    spec.register_source_vocabulary(list(names[:rows]))
    spec.register_target_vocabulary(list(names[: spec.get_target_vocabulary_size()]))
    spec.validate()
    spec.optimize(quantization=quantization)
    spec.save(str(folder))


def _spec(model: Translator, rows: int | None, suppressed_ids: Sequence[int]) -> Any:
    """The specification of the whole model."""
    source = model.embedding if model.source_embedding is None else model.source_embedding
    encoder = _stack(specs.TransformerEncoderSpec, model.encoder, model.config, rows)
    decoder = _stack(specs.TransformerDecoderSpec, model.decoder, model.config, rows)
    encoder.embeddings[0].weight = _cpu_float32(source.table.weight)
    decoder.embeddings.weight = _cpu_float32(model.embedding.table.weight)
    encoder.scale_embeddings, decoder.scale_embeddings = source.scale, model.embedding.scale
    _linear(decoder.projection, model.head.weight, _suppressed_bias(model, suppressed_ids))
    if model.head.scale is not None:
        decoder.scale_outputs = float(model.head.scale)
    return specs.TransformerSpec(encoder, decoder)


def _stack(kind: Any, stack: Any, config: ModelConfig, rows: int | None) -> Any:
    """The specification of an encoder or a decoder."""
    position = cast(Position, stack.position)
    rotary = {"rotary_dim": 0, "rotary_interleave": False, "rotary_base": config.rope_base}
    adds, by_query = overrides_hook(type(position), "embed"), isinstance(position, Shaw)
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
        # A stack without positions gets a bias of zeros: by default CTranslate2 adds sinusoids.
        relative_attention_bias=not (adds or by_query or isinstance(position, Rope)),
        **(rotary if isinstance(position, Rope) else {}),
    )
    if adds:
        spec.position_encodings.encodings = _by_position(
            position, rows or MIN_POSITIONS, config.width
        )
    if config.embedding_norm:
        _norm(spec.layernorm_embedding, stack.embedding_norm)
    if config.norm_place == "pre":
        _norm(spec.layer_norm, stack.norm)
    layer_positions = [position, *stack.layer_positions]
    if not position.per_layer:
        layer_positions *= len(spec.layer)
    for layer, block, its_position in zip(spec.layer, stack.blocks, layer_positions, strict=True):
        _block(layer, block)
        _position(layer.self_attention, its_position, stack, rows)
    return spec


def _block(spec: Any, block: Block) -> None:
    # A pruned model, in which attention may have no heads, is refused before.
    attention = cast(MultiHeadAttention, block.attention)
    _attention(spec.self_attention, attention, block.attention_norm)
    if hasattr(block, "cross"):
        _attention(spec.attention, cast(MultiHeadAttention, block.cross), block.cross_norm)
    _feed_forward(spec.ffn, block.feed_forward)
    _norm(spec.ffn.layer_norm, block.feed_forward_norm)


def _attention(spec: Any, attention: MultiHeadAttention, norm: nn.Module) -> None:
    first = [attention.q, attention.kv] if attention.crosses else [attention.qkv]
    for part, linear in zip(spec.linear, [*first, attention.out], strict=True):
        _linear(part, linear.weight, linear.bias)
    merge = attention.merge
    if isinstance(merge, (Shift, Shuffle)) and not merge.training_only:
        out_whd = attention.out.weight.unflatten(1, (attention.heads, -1))
        if isinstance(merge, Shift):
            out_whd = out_whd.roll(-1, dims=1)
        else:  # each place of the output layer reads the mean of the heads
            out_whd = out_whd.mean(dim=1, keepdim=True).expand_as(out_whd)
        spec.linear[-1].weight = _cpu_float32(out_whd.flatten(1))
    spec.queries_scale = float(attention.scale)
    _norm(spec.layer_norm, norm)


def _feed_forward(spec: Any, feed_forward: FeedForward) -> None:
    up, down = feed_forward.up, feed_forward.down
    gated = feed_forward.activation in GATES
    inputs = [spec.linear_0, spec.linear_0_noact] if gated else [spec.linear_0]
    weights, n = up.weight.chunk(len(inputs)), len(inputs)
    biases = [None] * n if up.bias is None else up.bias.chunk(n)
    for part, weight, bias in zip(inputs, weights, biases, strict=True):
        _linear(part, weight, bias)
    _linear(spec.linear_1, down.weight, down.bias)


def _linear(spec: Any, weight: Tensor, bias: Tensor | None) -> None:
    spec.weight = _cpu_float32(weight)
    if bias is not None:
        spec.bias = _cpu_float32(bias)


def _suppressed_bias(model: Translator, suppressed_ids: Sequence[int]) -> Tensor | None:
    """The bias of the output projection, with the logits of never-generated tokens suppressed."""
    bias_v = model.head.bias
    if not suppressed_ids:
        return bias_v
    suppressed_v = (
        torch.zeros(len(model.head.weight)) if bias_v is None else bias_v.detach().clone()
    )
    suppressed_v[list(suppressed_ids)] = SUPPRESSED_LOGIT
    return suppressed_v


def _norm(spec: Any, norm: Any) -> None:
    spec.gamma = _cpu_float32(norm.weight)
    if isinstance(norm, nn.LayerNorm):  # CTranslate2 takes a norm without a bias for an RMSNorm
        spec.beta = _cpu_float32(torch.zeros_like(norm.weight) if norm.bias is None else norm.bias)


def _position(spec: Any, position: Position, stack: Stack, rows: int | None) -> None:
    """Copy the part of a position encoding that acts inside self-attention."""
    if isinstance(position, Shaw):
        values = position.value_vectors
        spec.relative_position_keys = _cpu_float32(position.keys.weight)
        spec.relative_position_values = OPTIONAL if values is None else _cpu_float32(values.weight)
    elif hasattr(spec, "relative_attention_bias"):
        heads = cast(MultiHeadAttention, cast(Block, stack.blocks[0]).attention).heads
        table = _by_distance(position, heads, rows, bidirectional=not stack.causal)
        spec.relative_attention_bias = _cpu_float32(table)
        spec.relative_attention_max_distance = np.int32(len(table))


def _by_position(position: Position, rows: int, width: int) -> Tensor:
    """The table [n, w] that an absolute position encoding adds to the embeddings."""
    table_1nw = position.embed(torch.zeros(1, rows, width), torch.arange(rows)[None])
    return _cpu_float32(table_1nw[0])


def _by_distance(
    position: Position, heads: int, rows: int | None, *, bidirectional: bool
) -> Tensor:
    """A T5 bias table with one bucket per distance below n, and n buckets for all beyond.

    Keys at or before the query come first, then those after it unless attention is causal.
    """
    max_distance = form_of(position).max_distance(position)
    n = max_distance + 1 if max_distance is not None else rows or 1
    here, there = torch.tensor([[n - 1]]), torch.arange(2 * n - 1)[None]
    bias_1h1n = position.bias(None, here, there)
    if bias_1h1n is None:
        bias_1h1n = torch.zeros(1, heads, 1, 2 * n - 1)
    before_nh = bias_1h1n[0, :, 0, :n].flip(-1).mT
    after_nh = bias_1h1n[0, :, 0, n - 1 :].mT
    sides = [before_nh, after_nh] if bidirectional else [before_nh]
    return torch.cat([torch.cat([side, side[-1:].expand(n, -1)]) for side in sides])


def _cpu_float32(x: Tensor) -> Tensor:
    return x.detach().float().cpu().contiguous()
