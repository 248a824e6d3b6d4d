"""What models say of the next token, of many hypotheses at once.

The hypotheses of a text are read as if they were tokens of one row. So they attend to the source
side by side, and its keys and values are there once a text. In self-attention, all that the
hypotheses of a text wrote stands in one row of keys, in the order of writing, and a table `seen`
says which hypothesis has which of them in its past. When a beam drops some and forks others, that
table is all that moves: keys and values stay where they are.

Shapes: b texts, k hypotheses a text, c cells (prompt and l·k written), m source tokens, v pieces,
g key and value heads, d head width, w model width.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from heed.decode.state import DecodeState, GrowAxis, StateTensors, picked
from heed.models import LanguageModel, Translator
from heed.models.inference import position_limit
from heed.nn.attention import AttentionContext
from heed.nn.cache import Cache, FixedLayer
from heed.nn.kernels.decode_attention import ExplicitMask
from heed.nn.lstm import LSTMStack
from heed.nn.positions import Position, PositionBias
from heed.nn.stack import Stack
from heed.nn.tokens import Tokens

GenerativeModel = Translator | LanguageModel


@dataclass(frozen=True)
class Prompt:
    """What is read before anything is written, padded on the right."""

    prompt_bp: Tensor
    prompt_real: Tensor | None = None
    source_bm: Tensor | None = None
    source_real: Tensor | None = None
    groups: Sequence[tuple[int, int]] = ()
    """Texts that follow one another and have sources of like length: how many, and how long."""

    def parts(self) -> Iterator[Prompt]:
        """The groups, each no longer than it must be: padding takes as long as words do."""
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
    """One model's part: what it keeps on a board, and what it says next."""

    def __init__(self, model: GenerativeModel, number: int) -> None:
        self.model, self.name = model, f"{number}"
        self.stack = model.decoder if isinstance(model, Translator) else model.stack
        self.ends = position_limit([model])

    def begin(self, reading: Prompt, *, looking: bool) -> tuple[Tensor, Tensor | None, Cache]:
        """Logits [b, v] of what comes first, where that was found [b, m], and what to keep."""
        cache, prompt_bp, model = Cache(), reading.prompt_bp, self.model
        if isinstance(model, Translator):
            if reading.source_bm is None:
                raise ValueError("A translator reads a source.")
            cache.memory_tokens = Tokens.of(reading.source_bm, mask=reading.source_real)
            cache.memory = model.encode(reading.source_bm, cache.memory_tokens).x_bnw
            told, read = Tokens.of(prompt_bp), (cache.memory, cache.memory_tokens)
            out = model.decode(prompt_bp, told, *read, cache=cache, weights=looking)
        else:
            out = model.states(prompt_bp, mask=reading.prompt_real, cache=cache)
        looked = mean_look(out.cross_weights)[:, -1] if looking and out.cross_weights else None
        return model.head(_last(out.x_bnw, reading.prompt_real)), looked, cache

    @abstractmethod
    def keep(self, cache: Cache, lanes: int, prompt: int) -> StateTensors:
        """The tensors this model puts on a board, where a prompt takes so many cells."""

    @abstractmethod
    def read(self, board: DecodeState, *, looking: bool) -> tuple[Tensor, Tensor | None]:
        """Logits [b, k, v] after the last tokens; if `looking`, where each looked [b, k, m]."""

    @abstractmethod
    def follow(self, board: DecodeState, parents_bk: Tensor) -> None:
        """Each hypothesis goes on from that one, as far as the board does not see to it."""


class AttentionWriter(ModelStep):
    """A Transformer: keys and values."""

    def keep(self, cache: Cache, lanes: int, prompt: int) -> StateTensors:
        """Keys and values of the prompt, with room for more; of the source, as they are."""
        kept: StateTensors = {}
        for layer, held in cache.layers.items():
            grows = GrowAxis(axis=2, cells=lanes) if layer.endswith(".self") else None
            for part, x_bgmd in zip("kv", held.read(), strict=True):
                if grows:
                    x_bgmd = F.pad(x_bgmd, (0, 0, 0, prompt - x_bgmd.shape[2]))
                kept[f"{self.name}.{layer}.{part}"] = x_bgmd, grows
        return kept

    def read(self, board: DecodeState, *, looking: bool) -> tuple[Tensor, Tensor | None]:
        """One step through the blocks."""
        stack = cast(Stack, self.stack)
        sight = self._sight(board, stack.position)
        across = self._cross_sight(board, stack.cross_position, sight) if stack.crosses else None
        x_bkw = stack.enter(self.model.embedding(board["ids"]), sight.q_positions)
        out = stack.through(x_bkw, sight, across, cache=self._cache(board), weights=looking)
        looked = mean_look(out.cross_weights) if out.cross_weights else None
        return self.model.head(out.x_bnw), looked

    def follow(self, board: DecodeState, parents_bk: Tensor) -> None:
        """The board's table of who has what in its past is enough."""

    def _cache(self, board: DecodeState) -> Cache:
        layers = {}
        for i in range(len(cast(Stack, self.stack).blocks)):
            for kind, cells in ("self", board.cells), ("cross", None):
                k, v = (board.tensors.get(f"{self.name}.{i}.{kind}.{part}") for part in "kv")
                if k is not None and v is not None:
                    layers[f"{i}.{kind}"] = FixedLayer(k, v, cells)
        return Cache(layers=dict(layers))

    def _sight(self, board: DecodeState, position: Position) -> AttentionContext:
        """Each hypothesis stands at the same place, and sees its own past."""
        seen_bkc, here = board["seen"], board["offset"] + board.at - 1
        if self.ends is not None:  # who is finished, or not there, goes on counting
            here = here.clamp(max=self.ends - 1)
        here = here.expand(-1, seen_bkc.shape[1])
        needed = board.of_unfinished(board.all_cells)
        return _told(here, board.places_bc, position, seen_bkc, needed, board.cells)

    def _cross_sight(
        self, board: DecodeState, position: Position, sight: AttentionContext
    ) -> AttentionContext:
        seen_b1m, needed = board["source_real"][:, None], board.of_unfinished(board["source_ends"])
        return _told(sight.q_positions, board["source_places"], position, seen_b1m, needed)


class RecurrentWriter(ModelStep):
    """The LSTM baseline: a state a hypothesis, and the source's vectors beside each."""

    def keep(self, cache: Cache, lanes: int, prompt: int) -> StateTensors:
        """States after the prompt, and the source."""
        kept: StateTensors = {}
        for layer, states in cache.states.items():
            for part, state in zip("hc", states, strict=True):
                kept[f"{self.name}.{layer}.{part}"] = _spread(state[0], lanes), None
        if cache.memory is not None:
            kept[f"{self.name}.memory"] = _spread(cache.memory, lanes), None
        return kept

    def read(self, board: DecodeState, *, looking: bool) -> tuple[Tensor, Tensor | None]:
        """One step of the recurrence, each hypothesis a row of its own."""
        ids_bk = board["ids"]
        cache = Cache(states={layer: self._state(board, layer) for layer in self._layers()})
        ids_r1 = ids_bk.flatten()[:, None]
        tokens = Tokens(torch.zeros_like(ids_r1[:1]))
        looked = None
        if isinstance(self.model, Translator):
            memory = board[f"{self.name}.memory"].flatten(0, 1)
            real = _spread(board["source_real"], ids_bk.shape[1]).flatten(0, 1)
            told = Tokens(tokens.positions_bn, real)
            out = self.model.decode(ids_r1, tokens, memory, told, cache=cache, weights=looking)
            if looking:
                looked = mean_look(out.cross_weights)[:, 0].unflatten(0, ids_bk.shape)
        else:
            out = self.model.states(ids_r1, cache=cache)
        for layer, states in cache.states.items():
            for part, state in zip("hc", states, strict=True):
                board[f"{self.name}.{layer}.{part}"].copy_(state[0].unflatten(0, ids_bk.shape))
        return self.model.head(out.x_bnw[:, 0]).unflatten(0, ids_bk.shape), looked

    def follow(self, board: DecodeState, parents_bk: Tensor) -> None:
        """States go along."""
        for layer in self._layers():
            for part in "hc":
                state_bkw = board[f"{self.name}.{layer}.{part}"]
                state_bkw.copy_(picked(state_bkw, parents_bk))

    def _layers(self) -> list[str]:
        return [str(i) for i in range(len(cast(LSTMStack, self.stack).layers))]

    def _state(self, board: DecodeState, layer: str) -> tuple[Tensor, Tensor]:
        h, c = (board[f"{self.name}.{layer}.{part}"].flatten(0, 1)[None] for part in "hc")
        return h, c


def writer(model: GenerativeModel, number: int) -> ModelStep:
    """The kind of writer a model needs."""
    kind = RecurrentWriter if model.config.family == "lstm" else AttentionWriter
    return kind(model, number)


def together(logits: Sequence[Tensor]) -> Tensor:
    """One model's logits; of several, the logarithm of the mean of their probabilities."""
    if len(logits) == 1:
        return logits[0].float()
    shares = torch.stack([x.float().log_softmax(dim=-1) for x in logits])
    return shares.logsumexp(dim=0) - math.log(len(logits))


def mean_look(weights: Sequence[Tensor]) -> Tensor:
    """Where a decoder looked in the source [b, n, m]: the mean over all layers and heads."""
    return torch.stack([x_bhnm.float().mean(dim=1) for x_bhnm in weights]).mean(dim=0)


def _told(
    here: Tensor,
    there: Tensor,
    position: Position,
    seen: Tensor,
    needed_b: Tensor,
    cells: Tensor | None = None,
) -> AttentionContext:
    """Who stands where, and who may see whom: [b, k or 1, m]."""
    mask = ExplicitMask(
        here.shape[1],
        there.shape[1],
        seen.device,
        visible_bnm=seen,
        cells_n=cells,
        ends_b=needed_b,
    )
    shared = None if position.bias_uses_query else PositionBias(position, here, there)
    return AttentionContext(here, there, mask, bias=shared)


def _last(x_bpw: Tensor, real_bp: Tensor | None) -> Tensor:
    """The vectors of each text's last token."""
    if real_bp is None:
        return x_bpw[:, -1]
    last_b = real_bp.sum(dim=1) - 1
    return x_bpw[torch.arange(len(last_b), device=last_b.device), last_b]


def _spread(x_b: Tensor, lanes: int) -> Tensor:
    """The same for every hypothesis of a text."""
    return x_b[:, None].expand(-1, lanes, *x_b.shape[1:])
