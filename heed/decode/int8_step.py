"""A Transformer with int8 weights in C: all blocks of a step, or of the encoder, in one call.

The kernels serve stacks of usual parts: heads side by side (`concat`), LayerNorm or RMSNorm, a
position that embeds, rotates by frequencies or adds a bias that no query changes. Other stacks,
steps that need attention weights, and models whose heads are edited take the steps of
`TransformerStep`, with the same decode state.

Shapes: b inputs, k hypotheses per input, c key-value cells, m source tokens, t source tokens of all
inputs, d head width, h heads, w model width.
"""

from __future__ import annotations

import threading
from ctypes import CDLL, byref
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from heed.decode.model_step import GenerativeModel, TransformerStep
from heed.decode.state import DecodeState
from heed.models import Translator
from heed.nn.attention import AttentionContext, MultiHeadAttention
from heed.nn.kernels.int8_blocks import (
    ACTIVATIONS,
    AttentionStruct,
    BiasStruct,
    BlockStruct,
    LayerStateStruct,
    NormStruct,
    SourcesStruct,
    StackStruct,
    StepStruct,
)
from heed.nn.kernels.linear import GATES
from heed.nn.kernels.position_forms import form_of
from heed.nn.kernels.quantized_linear import Int8Weights
from heed.nn.merges import Merge
from heed.nn.positions import Position
from heed.nn.stack import Block, Stack
from heed.nn.tokens import Tokens


class Int8Step(TransformerStep):
    """A step whose blocks run in C, where the kernels serve them."""

    def __init__(
        self, model: GenerativeModel, number: int, weights: Int8Weights, library: CDLL
    ) -> None:
        super().__init__(model, number)
        self.library, self._memory = library, threading.local()
        self.decoder = pack_stack(cast(Stack, self.stack), weights)
        is_translator = isinstance(model, Translator)
        self.encoder = pack_stack(cast(Stack, model.encoder), weights) if is_translator else None

    def encode(self, source_bm: Tensor, tokens: Tokens) -> Tensor:
        """The encoded source [b, m, w], with zeros for padding."""
        library, encoder = self.library, self.encoder
        if encoder is None or encoder.has_head_edits():
            return super().encode(source_bm, tokens)
        real_bm = tokens.real_bn
        if real_bm is None:
            real_bm = torch.ones_like(source_bm, dtype=torch.bool)
        counts_b = real_bm.sum(dim=1)
        embedded_1tw = cast(Translator, self.model).embed_source(source_bm[real_bm][None])
        positions_t = tokens.positions_bn.expand_as(source_bm)[real_bm]
        x_tw = encoder.stack.embed(embedded_1tw, positions_t[None])[0].float().contiguous()
        starts = torch.cat([counts_b.new_zeros(1), counts_b.cumsum(0)])
        sources = SourcesStruct(
            x=_address(x_tw),
            starts=_address(starts, torch.long),
            inputs=len(source_bm),
            longest=source_bm.shape[1],
        )
        positions_1m = torch.arange(source_bm.shape[1])[None]
        tables = encoder.rotation(positions_1m.T)
        if tables:
            sources.cosines, sources.sines = map(_address, tables)
        biases = encoder.biases(AttentionContext(positions_1m, positions_1m))
        sources.biases = (BiasStruct * encoder.struct.layers)(*map(_bias_struct, biases))
        size = library.encode_scratch(byref(encoder.struct), byref(sources))
        sources.scratch = self._scratch(size)
        library.encode(byref(encoder.struct), byref(sources))
        memory_bmw = x_tw.new_zeros(*source_bm.shape, x_tw.shape[1])
        memory_bmw[real_bm] = x_tw
        return memory_bmw

    def next_logits(
        self, state: DecodeState, *, with_attention: bool
    ) -> tuple[Tensor, Tensor | None]:
        """One token per hypothesis through the decoder blocks."""
        library, decoder = self.library, self.decoder
        if decoder is None or with_attention or decoder.has_head_edits():
            return super().next_logits(state, with_attention=with_attention)
        here_b1, visible_bkc = self._current_positions(state), state["visible"]
        x_bkw = decoder.stack.embed(self.model.embedding(state["ids"]), here_b1)
        x_bkw = x_bkw.float().contiguous()
        step = StepStruct(
            x=_address(x_bkw),
            visible=_address(visible_bkc, torch.bool),
            done=_address(state["done"], torch.bool),
            next_cells=_address(state.next_cells, torch.long),
            inputs=visible_bkc.shape[0],
            beams=visible_bkc.shape[1],
            cells=visible_bkc.shape[2],
        )
        tables = decoder.rotation(here_b1)
        if tables:
            step.cosines, step.sines = map(_address, tables)
            step.rotation_b = _strides(tables[0])[0]
        biases: list[Tensor] = []
        if decoder.has_bias:
            biases = decoder.biases(self._self_context(state, decoder.stack.position))
        self._point_to_layers(step, state, biases)
        size = library.decode_scratch(byref(decoder.struct), byref(step))
        step.scratch = self._scratch(size)
        library.decode(byref(decoder.struct), byref(step))
        return self.model.head(x_bkw), None

    def _point_to_layers(self, step: StepStruct, state: DecodeState, biases: list[Tensor]) -> None:
        """Set the addresses of each layer's keys, values and bias."""
        stack = cast(Stack, self.stack)
        layers = (LayerStateStruct * len(stack.blocks))()
        for i, layer in enumerate(layers):
            layer.keys, layer.values = self._addresses(state, f"{i}.self")
            if stack.crosses:
                layer.source_keys, layer.source_values = self._addresses(state, f"{i}.cross")
            if biases:
                layer.bias = _bias_struct(biases[i])
        step.layers = layers
        if stack.crosses:
            step.source_ends = _address(state["source_ends"], torch.long)
            step.source_cells = state["source_real"].shape[1]

    def _scratch(self, size: int) -> int:
        """The address of this thread's scratch memory. New memory has no pages yet, which cost."""
        memory: Tensor | None = getattr(self._memory, "bytes", None)
        if memory is None or len(memory) < size:
            memory = self._memory.bytes = torch.empty(size, dtype=torch.uint8)
        return memory.data_ptr()

    def _addresses(self, state: DecodeState, layer: str) -> tuple[int, int]:
        k, v = (_address(state[f"{self.name}.{layer}.{part}"]) for part in "kv")
        return k, v


@dataclass
class PackedStack:
    """A stack's blocks for the kernels."""

    stack: Stack
    struct: StackStruct
    weights: Int8Weights
    """What the struct points to."""
    attentions: list[MultiHeadAttention]
    frequencies: Tensor | None
    """Of a rotation: the angle per position of each pair [d/2]."""
    has_bias: bool

    def has_head_edits(self) -> bool:
        """Whether some attention is edited now, which the kernels know nothing of."""
        return any(attention.head_edit is not None for attention in self.attentions)

    def rotation(self, positions_n1: Tensor) -> list[Tensor]:
        """Cosines and sines [n, d/2] of these positions; none where nothing is rotated."""
        if self.frequencies is None:
            return []
        angles = positions_n1.float() * self.frequencies
        return [angles.cos(), angles.sin()]

    def biases(self, context: AttentionContext) -> list[Tensor]:
        """The position's bias [b or 1, h or 1, n, m] for each layer; none where it has no bias."""
        biases: list[Tensor] = []
        for i, block in enumerate(self.stack.blocks if self.has_bias else ()):
            kept = cast(MultiHeadAttention, block.attention).kept_heads
            bias = context.shared.bias(self.stack.layer_position(i), kept_heads=kept).dense()
            biases += [] if bias is None else [bias.float().contiguous()]
        return biases


def pack_stack(stack: Stack, weights: Int8Weights) -> PackedStack | None:
    """A stack for the kernels; None where they do not serve it."""
    position, blocks = stack.position, cast(list[Block], list(stack.blocks))
    frequencies = form_of(position).frequencies(position)
    crosses = [block.cross for block in blocks if stack.crosses]
    attentions = [x for x in (*(b.attention for b in blocks), *crosses) if _is_plain(x)]
    if len(attentions) < len(blocks) + len(crosses) or not _is_plain_position(position):
        return None
    heads = cast(list[MultiHeadAttention], attentions)
    width, rotates = heads[0].head_width, type(position).rotate is not Position.rotate
    rotates_all = frequencies is not None and 2 * len(frequencies) == width
    if type(stack.cross_position) is not Position or (rotates and not rotates_all):
        return None
    linears = [x for b in blocks for x in (b.feed_forward.up, b.feed_forward.down)]
    linears += [x for head in heads for x in (_into(head), head.out)]
    norms = [x for b in blocks for x in (b.attention_norm, b.feed_forward_norm)]
    norms += [*(b.cross_norm for b in blocks if stack.crosses), *([stack.norm] * stack.pre_norm)]
    activation = blocks[0].feed_forward.activation
    kind = GATES.get(activation, activation)
    has_weights = all(layer in weights.packed for layer in linears)
    if not has_weights or not all(map(_is_plain_norm, norms)) or kind not in ACTIVATIONS:
        return None
    struct = StackStruct(
        blocks=(BlockStruct * len(blocks))(*(_block_struct(b, weights) for b in blocks)),
        norm=_norm_struct(stack.norm),
        layers=len(blocks),
        width=heads[0].out.out_features,
        head_width=width,
        widest=max(max(x.in_features, x.out_features) for x in linears),
        activation=ACTIVATIONS.index(kind),
        is_gated=activation in GATES,
        is_pre_norm=stack.pre_norm,
        has_cross=stack.crosses,
    )
    has_bias = type(position).bias is not Position.bias
    return PackedStack(stack, struct, weights, heads, frequencies if rotates else None, has_bias)


def _is_plain_position(position: Position) -> bool:
    """Whether an encoding embeds, rotates or adds a bias that depends on positions alone."""
    return not (position.needs_weights or position.bias_uses_query)


def _is_plain(attention: nn.Module) -> bool:
    """Whether an attention has heads that are not normalized, and sets them side by side."""
    if not isinstance(attention, MultiHeadAttention):
        return False
    merge = attention.merge
    changes = type(merge).change is not Merge.change and not merge.training_only
    is_concat = type(merge).forward is Merge.forward and not changes
    return is_concat and isinstance(attention.q_norm, nn.Identity)


def _is_plain_norm(norm: nn.Module) -> bool:
    known = isinstance(norm, nn.LayerNorm | nn.RMSNorm) and norm.eps is not None
    return known and norm.weight is not None and norm.weight.dtype == torch.float32


def _into(attention: MultiHeadAttention) -> nn.Linear:
    """The linear layer that an attention's own vectors go through first."""
    return attention.q if attention.crosses else attention.qkv


def _norm_struct(norm: nn.Module) -> NormStruct:
    if not isinstance(norm, nn.LayerNorm | nn.RMSNorm):
        return NormStruct()
    bias = getattr(norm, "bias", None)
    return NormStruct(
        weight=norm.weight.data_ptr(),
        bias=None if bias is None else bias.data_ptr(),
        eps=norm.eps,
        is_centered=isinstance(norm, nn.LayerNorm),
    )


def _attention_struct(
    attention: nn.Module, norm: nn.Module, weights: Int8Weights
) -> AttentionStruct:
    attention = cast(MultiHeadAttention, attention)
    return AttentionStruct(
        into=weights.packed[_into(attention)].struct,
        out=weights.packed[attention.out].struct,
        norm=_norm_struct(norm),
        heads=attention.heads,
        kv_heads=attention.kv_heads,
        scale=attention.scale,
    )


def _block_struct(block: Block, weights: Int8Weights) -> BlockStruct:
    struct = BlockStruct(
        self=_attention_struct(block.attention, block.attention_norm, weights),
        up=weights.packed[block.feed_forward.up].struct,
        down=weights.packed[block.feed_forward.down].struct,
        feed_forward_norm=_norm_struct(block.feed_forward_norm),
    )
    if hasattr(block, "cross"):
        struct.cross = _attention_struct(block.cross, block.cross_norm, weights)
    return struct


def _address(x: Tensor, dtype: torch.dtype = torch.float32) -> int:
    """Where a tensor begins. The kernels do not see how it is laid out: it is checked here."""
    if x.dtype != dtype or not x.is_contiguous() or x.device.type != "cpu":
        raise ValueError(f"a tensor is {x.dtype} with strides {x.stride()}, on {x.device}.")
    return x.data_ptr()


def _bias_struct(bias_bhnm: Tensor) -> BiasStruct:
    return BiasStruct(_address(bias_bhnm), *_strides(bias_bhnm)[:3])


def _strides(x: Tensor) -> list[int]:
    """The strides of a contiguous tensor, 0 along axes where one entry serves all."""
    return [s if n > 1 else 0 for n, s in zip(x.shape, x.stride(), strict=True)]
