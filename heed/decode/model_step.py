"""The model step: the logits of the next token, for all hypotheses of all inputs at once.

The hypotheses of an input are decoded as if they were tokens of one row. So they attend to the
source together, and its keys and values are stored once per input. In self-attention, all tokens of
an input's hypotheses stand in one row of keys, in the order of generation, and a table `visible`
says which hypothesis has which of them in its past. When beam search drops some hypotheses and
forks others, only that table changes: keys and values stay where they are.

Shapes: b inputs, k hypotheses per input, c key-value cells (prompt and l·k generated), m source
tokens, v vocabulary, g key and value heads, d head width, w model width.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from heed.decode.state import DecodeState, GrowAxis, StateTensors, gather_parents
from heed.models import LanguageModel, Translator
from heed.models.inference import position_limit
from heed.nn.attention import AttentionContext
from heed.nn.cache import Cache, FixedLayerCache
from heed.nn.kernels.decode_attention import ExplicitMask
from heed.nn.lstm import LSTMStack
from heed.nn.positions import Position
from heed.nn.stack import Stack
from heed.nn.tokens import Tokens

if TYPE_CHECKING:
    from heed.nn.kernels.quantized_linear import Int8Weights

GenerativeModel = Translator | LanguageModel


@dataclass(frozen=True)
class Prompt:
    """What a batch's models read before the first token is generated, padded on the right."""

    prompt_bp: Tensor
    prompt_real: Tensor | None = None
    source_bm: Tensor | None = None
    source_real: Tensor | None = None
    groups: Sequence[tuple[int, int]] = ()
    """Consecutive inputs with sources of similar length: how many, and their padded length."""

    def split_groups(self) -> Iterator[Prompt]:
        """One prompt per group, padded no further than needed, since padding takes time."""
        if self.source_bm is None or self.source_real is None or len(self.groups) < 2:
            yield self
            return
        first = 0
        for count, length in self.groups:
            rows, first = slice(first, first + count), first + count
            real = None if self.prompt_real is None else self.prompt_real[rows]
            source = self.source_bm[rows, :length], self.source_real[rows, :length]
            yield Prompt(self.prompt_bp[rows], real, *source)


class ModelStep(ABC):
    """One model's part of a step: its tensors in the decode state, and its next logits."""

    def __init__(self, model: GenerativeModel, number: int) -> None:
        self.model, self.name = model, f"{number}"
        self.stack = model.decoder if isinstance(model, Translator) else model.stack
        self.max_positions = position_limit([model])

    def prefill(
        self, prompt: Prompt, *, with_attention: bool
    ) -> tuple[Tensor, Tensor | None, Cache]:
        """Logits of the first token [b, v], its cross-attention [b, m] if requested, the cache."""
        cache, prompt_bp, model = Cache(), prompt.prompt_bp, self.model
        if isinstance(model, Translator):
            if prompt.source_bm is None:
                raise ValueError("A translator needs a source.")
            cache.memory_tokens = Tokens.of(prompt.source_bm, mask=prompt.source_real)
            cache.memory = self.encode(prompt.source_bm, cache.memory_tokens)
            tokens, memory = Tokens.of(prompt_bp), (cache.memory, cache.memory_tokens)
            out = model.decode(prompt_bp, tokens, *memory, cache=cache, weights=with_attention)
        else:
            out = model.states(prompt_bp, mask=prompt.prompt_real, cache=cache)
        attention = None
        if with_attention and out.cross_weights:
            attention = mean_attention(out.cross_weights)[:, -1]
        return model.head(_last_vectors(out.x_bnw, prompt.prompt_real)), attention, cache

    def encode(self, source_bm: Tensor, tokens: Tokens) -> Tensor:
        """The encoded source [b, m, w]."""
        return cast(Translator, self.model).encode(source_bm, tokens).x_bnw

    @abstractmethod
    def state_tensors(self, cache: Cache, beams: int, prompt_cells: int) -> StateTensors:
        """The tensors of this model in a decode state whose prompt takes `prompt_cells` cells."""

    @abstractmethod
    def next_logits(
        self, state: DecodeState, *, with_attention: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Logits after the last tokens [b, k, v], and cross-attention [b, k, m] if requested."""

    @abstractmethod
    def reorder(self, state: DecodeState, parents_bk: Tensor) -> None:
        """Let each hypothesis continue its parent, where the decode state does not do that."""


class TransformerStep(ModelStep):
    """A Transformer's step: keys and values in the decode state."""

    def state_tensors(self, cache: Cache, beams: int, prompt_cells: int) -> StateTensors:
        """Keys and values of the prompt, which grow, and of the source, which do not."""
        tensors: StateTensors = {}
        for layer, entry in cache.layers.items():
            if not entry.filled:  # all heads of this layer were pruned
                continue
            grow = GrowAxis(axis=2, cells=beams) if layer.endswith(".self") else None
            for part, x_bgmd in zip("kv", entry.read(), strict=True):
                if grow:
                    x_bgmd = F.pad(x_bgmd, (0, 0, 0, prompt_cells - x_bgmd.shape[2]))
                tensors[f"{self.name}.{layer}.{part}"] = x_bgmd, grow
        return tensors

    def next_logits(
        self, state: DecodeState, *, with_attention: bool
    ) -> tuple[Tensor, Tensor | None]:
        """One token per hypothesis through the decoder blocks."""
        stack = cast(Stack, self.stack)
        context = self._self_context(state, stack.position)
        cross = None
        if stack.crosses:
            cross = self._cross_context(state, stack.cross_position, context)
        x_bkw = stack.embed(self.model.embedding(state["ids"]), context.q_positions)
        out = stack.run_blocks(
            x_bkw, context, cross, cache=self._cache(state), weights=with_attention
        )
        attention = mean_attention(out.cross_weights) if out.cross_weights else None
        return self.model.head(out.x_bnw), attention

    def reorder(self, state: DecodeState, parents_bk: Tensor) -> None:
        """Nothing to do: the state's table of visible cells is enough."""

    def _cache(self, state: DecodeState) -> Cache:
        layers = {}
        for i in range(len(cast(Stack, self.stack).blocks)):
            for kind, cells in ("self", state.next_cells), ("cross", None):
                k, v = (state.tensors.get(f"{self.name}.{i}.{kind}.{part}") for part in "kv")
                if k is not None and v is not None:
                    layers[f"{i}.{kind}"] = FixedLayerCache(k, v, cells)
        return Cache(layers=dict(layers))

    def _current_positions(self, state: DecodeState) -> Tensor:
        """The position of the current tokens [b or 1, 1]."""
        here = state["offset"] + state.generated - 1
        if self.max_positions is None:
            return here
        return here.clamp(max=self.max_positions - 1)  # finished inputs and unused slots count on

    def _self_context(self, state: DecodeState, position: Position) -> AttentionContext:
        """All hypotheses of an input are at the same position, and each sees its own past."""
        visible_bkc = state["visible"]
        here = self._current_positions(state).expand(-1, visible_bkc.shape[1])
        ends_b = state.zero_if_done(state.all_cells)
        positions = here, state.cell_positions_bc
        return _attention_context(*positions, position, visible_bkc, ends_b, state.next_cells)

    def _cross_context(
        self, state: DecodeState, position: Position, context: AttentionContext
    ) -> AttentionContext:
        visible_b1m = state["source_real"][:, None]
        ends_b = state.zero_if_done(state["source_ends"])
        positions = context.q_positions, state["source_positions"]
        return _attention_context(*positions, position, visible_b1m, ends_b)


class LSTMStep(ModelStep):
    """The LSTM baseline's step: a recurrent state and the source's vectors per hypothesis."""

    def state_tensors(self, cache: Cache, beams: int, prompt_cells: int) -> StateTensors:
        """Recurrent states after the prompt, and the encoded source."""
        tensors: StateTensors = {}
        for layer, states in cache.states.items():
            for part, x in zip("hc", states, strict=True):
                tensors[f"{self.name}.{layer}.{part}"] = _expand_beams(x[0], beams), None
        if cache.memory is not None:
            tensors[f"{self.name}.memory"] = _expand_beams(cache.memory, beams), None
        return tensors

    def next_logits(
        self, state: DecodeState, *, with_attention: bool
    ) -> tuple[Tensor, Tensor | None]:
        """One step of the recurrence, with each hypothesis as a row."""
        ids_bk = state["ids"]
        cache = Cache(states={layer: self._recurrent(state, layer) for layer in self._layers()})
        ids_r1 = ids_bk.flatten()[:, None]
        here = state["offset"] + state.generated - 1
        positions = here.expand_as(ids_bk).reshape(-1, 1)
        tokens = Tokens(positions)
        attention = None
        if isinstance(self.model, Translator):
            memory = state[f"{self.name}.memory"].flatten(0, 1)
            real = _expand_beams(state["source_real"], ids_bk.shape[1]).flatten(0, 1)
            source = Tokens(state["source_positions"], real)
            out = self.model.decode(
                ids_r1, tokens, memory, source, cache=cache, weights=with_attention
            )
            if with_attention:
                attention = mean_attention(out.cross_weights)[:, 0].unflatten(0, ids_bk.shape)
        else:
            out = self.model.states(ids_r1, cache=cache)
        for layer, states in cache.states.items():
            for part, x in zip("hc", states, strict=True):
                state[f"{self.name}.{layer}.{part}"].copy_(x[0].unflatten(0, ids_bk.shape))
        return self.model.head(out.x_bnw[:, 0]).unflatten(0, ids_bk.shape), attention

    def reorder(self, state: DecodeState, parents_bk: Tensor) -> None:
        """Copy the recurrent states of the parents."""
        for layer in self._layers():
            for part in "hc":
                x_bkw = state[f"{self.name}.{layer}.{part}"]
                x_bkw.copy_(gather_parents(x_bkw, parents_bk))

    def _layers(self) -> list[str]:
        return [str(i) for i in range(len(cast(LSTMStack, self.stack).layers))]

    def _recurrent(self, state: DecodeState, layer: str) -> tuple[Tensor, Tensor]:
        h, c = (state[f"{self.name}.{layer}.{part}"].flatten(0, 1)[None] for part in "hc")
        return h, c


def build_model_step(
    model: GenerativeModel, number: int, int8: Int8Weights | None = None
) -> ModelStep:
    """The step of a model, by its family; in C where its blocks have a kernel for int8 weights."""
    if model.config.family == "lstm":
        return LSTMStep(model, number)
    if int8 is not None and int8.library is not None:
        from heed.decode.int8_step import Int8Step

        return Int8Step(model, number, int8, int8.library)
    return TransformerStep(model, number)


def ensemble_logits(logits: Sequence[Tensor]) -> Tensor:
    """One model's logits; for several models, the logarithm of their mean probabilities."""
    if len(logits) == 1:
        return logits[0].float()
    logprobs = torch.stack([x.float().log_softmax(dim=-1) for x in logits])
    return logprobs.logsumexp(dim=0) - math.log(len(logits))


def mean_attention(weights: Sequence[Tensor]) -> Tensor:
    """Cross-attention [b, n, m], the mean over all layers and heads; zeros where there are none."""
    weights = [x_bhnm for x_bhnm in weights if x_bhnm.shape[1]] or weights[:1]
    if not weights[0].shape[1]:  # all heads were pruned
        return weights[0].float().sum(dim=1)
    return torch.stack([x_bhnm.float().mean(dim=1) for x_bhnm in weights]).mean(dim=0)


def _attention_context(
    here: Tensor,
    there: Tensor,
    position: Position,
    visible: Tensor,
    ends_b: Tensor,
    cells: Tensor | None = None,
) -> AttentionContext:
    """Attention from positions `here` to positions `there`, where `visible` [b, k or 1, m]."""
    mask = ExplicitMask(
        here.shape[1],
        there.shape[1],
        visible.device,
        visible_bnm=visible,
        cells_n=cells,
        ends_b=ends_b,
    )
    return AttentionContext(here, there, mask).prepare(position)


def _last_vectors(x_bpw: Tensor, real_bp: Tensor | None) -> Tensor:
    """The vector of the last real token of each input."""
    if real_bp is None:
        return x_bpw[:, -1]
    last_b = real_bp.sum(dim=1) - 1
    return x_bpw[torch.arange(len(last_b), device=last_b.device), last_b]


def _expand_beams(x_b: Tensor, beams: int) -> Tensor:
    """Repeat each input's row for every hypothesis, without copying."""
    return x_b[:, None].expand(-1, beams, *x_b.shape[1:])
