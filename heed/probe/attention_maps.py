"""Attention maps of a text: the exact weights of every layer and head, by token or by word.

Rows are queries and columns are keys: row i of a map says what token i attends to. A row of
cross-attention has the name of the token that is written from it. Layers and heads are counted
from 0 here, and from 1 in whatever a person reads.

Shapes: b texts, l layers, h heads, n queries, m keys; N query words, M key words.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heed.data.tokenizers.tokenizer import Tokenizer
from heed.decode.alignment import hard_links
from heed.errors import HeedError, NumberError, RunError
from heed.metrics.alignment_error import Links, alignment_error_rate
from heed.models import LanguageModel, Model, Translator
from heed.models.inference import nan_error
from heed.probe.map_figure import MEAN
from heed.probe.text_trace import (
    InputTokens,
    TokenLabels,
    source_input,
    target_input,
    trace_batch,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Floats = NDArray[np.float32]
KINDS = ("cross", "decoder", "encoder")
"""The kinds of attention, the one that is shown by default first."""
BATCH_SIZE = 64
"""Texts in a forward pass."""
FORMAT = 1
"""The version of the JSON form."""


@dataclass(frozen=True, repr=False)
class AttentionMap:
    """One kind of attention over one text: the weights of every layer and head."""

    kind: str
    """"encoder" or "decoder" (self-attention), or "cross" (of a decoder to its source)."""
    queries: TokenLabels
    keys: TokenLabels
    weights: list[Floats]
    """[h, n, m] per layer; layers of a pruned model have different numbers of heads."""
    visible: NDArray[np.bool_]
    """[n, m]: False where the mask hides a key from a query."""
    gold: list[tuple[int, int]] | None = None
    """The cells (query, key) of a gold alignment, where it is known."""
    layer_numbers: tuple[int, ...] | None = None
    """The layers that these are, counted from 0; unset, all."""
    head: int | str | None = None
    """The one head that these are, counted from 0, or "mean" of all; unset, all."""

    @property
    def query_tokens(self) -> list[str]:
        """The queries, in readable form."""
        return self.queries.tokens

    @property
    def key_tokens(self) -> list[str]:
        """The keys, in readable form."""
        return self.keys.tokens

    @property
    def query_words(self) -> list[int | None]:
        """The word of each query; None for special tokens."""
        return self.queries.words

    @property
    def key_words(self) -> list[int | None]:
        """The word of each key; None for special tokens."""
        return self.keys.words

    @property
    def layers(self) -> tuple[int, ...]:
        """The numbers of the layers, counted from 0."""
        return tuple(range(len(self.weights))) if self.layer_numbers is None else self.layer_numbers

    @property
    def cells(self) -> int:
        """The number of weights."""
        return sum(layer.size for layer in self.weights)

    def mean_over_heads(self, layer: int) -> Floats:
        """[n, m]: a layer's attention, averaged over its heads."""
        return np.asarray(self.weights[layer].mean(axis=0))

    def by_word(self) -> AttentionMap:
        """The map between words: summed over a key word's tokens, averaged over a query word's.

        A special token stays a unit of its own, so that the rows of a map still sum to one.
        """
        rows, columns = _first_tokens(self.queries), _first_tokens(self.keys)
        sizes = np.diff(rows, append=len(self.queries)).astype(np.float32)[:, None]
        sums = (np.add.reduceat(layer, columns, axis=2) for layer in self.weights)
        gold = None
        if self.gold is not None:
            query_units, key_units = self.queries.units(), self.keys.units()
            gold = sorted({(int(query_units[n]), int(key_units[m])) for n, m in self.gold})
        return replace(
            self,
            queries=self.queries.by_word(),
            keys=self.keys.by_word(),
            weights=[
                (np.add.reduceat(layer, rows, axis=1) / sizes).astype(np.float32) for layer in sums
            ],
            visible=np.logical_or.reduceat(
                np.logical_or.reduceat(self.visible, columns, axis=1), rows, axis=0
            ),
            gold=gold,
        )

    def links(self, layer: int) -> set[tuple[int, int]]:
        """(key word, query word): for each query word the key word with the largest mean weight.

        Of cross-attention that is (source word, target word), as in an alignment.
        """
        words = self.select_layer(layer).by_word()
        (rows, queries), (columns, keys) = (
            zip(*((i, word) for i, word in enumerate(axis.words) if word is not None), strict=True)
            if any(word is not None for word in axis.words)
            else ((), ())
            for axis in (words.queries, words.keys)
        )
        weights = words.mean_over_heads(0)[list(rows)][:, list(columns)].astype(np.float64)
        return {(keys[key], queries[query]) for key, query in hard_links(weights)}

    def with_gold(self, links: Links) -> AttentionMap:
        """The map with a gold alignment of words, given as (key word, query word)."""
        linked = set(links)
        cells = [
            (n, m)
            for n, query in enumerate(self.query_words)
            for m, key in enumerate(self.key_words)
            if query is not None and key is not None and (key, query) in linked
        ]
        return replace(self, gold=cells)

    def select_layer(self, layer: int) -> AttentionMap:
        """The map of one layer, counted from 0."""
        if not 0 <= layer < len(self.weights):
            count = len(self.weights)
            raise NumberError("layer", layer, f"{self.kind} attention has {count} layers", count)
        return replace(self, weights=[self.weights[layer]], layer_numbers=(self.layers[layer],))

    def select_head(self, head: int | str) -> AttentionMap:
        """The map of one head of every layer, counted from 0; "mean" is the mean of its heads."""
        if head == MEAN:
            means = [self.mean_over_heads(layer)[None] for layer in range(len(self.weights))]
            return replace(self, weights=means, head=head)
        fewest = min(map(len, self.weights), default=0)
        if not isinstance(head, int) or not 0 <= head < fewest:
            has = f"{self.kind} attention has {fewest} a layer"
            raise NumberError("head", head, has, fewest, others=", or mean")
        weights = [layer[head : head + 1] for layer in self.weights]
        return replace(self, weights=weights, head=head)

    def to_dict(self, *, binary: bool = False) -> dict[str, Any]:
        """The map for JSON; with `binary` the weights are one base64 string of float32."""
        weights: Any = [layer.tolist() for layer in self.weights]
        if binary:
            content = b"".join(layer.astype("<f4").tobytes() for layer in self.weights)
            weights = base64.b64encode(content).decode()
        visible = ["".join("01"[int(cell)] for cell in row) for row in self.visible]
        return self.describe_axes() | {"weights": weights, "visible": visible}

    def describe_axes(self) -> dict[str, Any]:
        """The map for JSON without its cells: tokens, words, layers, heads and gold links."""
        return {
            "kind": self.kind,
            "query_tokens": _tokens_to_dict(self.queries),
            "key_tokens": _tokens_to_dict(self.keys),
            "query_start": self.queries.start,
            "key_start": self.keys.start,
            "query_words": self.queries.word_texts,
            "key_words": self.keys.word_texts,
            "layers": [layer + 1 for layer in self.layers],
            "heads": [len(layer) for layer in self.weights],
            "head": self.head + 1 if isinstance(self.head, int) else self.head,
            "links": None if self.gold is None else [list(cell) for cell in self.gold],
        }

    def __repr__(self) -> str:
        return f"AttentionMap({self.describe()})"

    def describe(self) -> str:
        """The kind and the sizes, in a few words."""
        heads = sorted({len(layer) for layer in self.weights})
        counts = "–".join(str(count) for count in {heads[0]: 0, heads[-1]: 0})
        layers = f"{len(self.weights)} layer{'s' * (len(self.weights) > 1)}"
        sizes = f"{len(self.queries)} × {len(self.keys)} tokens"
        return f"{self.kind}: {layers} × {counts} head{'s' * (heads[-1] > 1)}, {sizes}"


@dataclass(frozen=True, repr=False)
class AttentionMaps:
    """All attention of a model over one text, with what it read and which weights it has."""

    text: str
    task: str
    encoder: AttentionMap | None = None
    decoder: AttentionMap | None = None
    cross: AttentionMap | None = None
    target: str | None = None
    """The translation that was read, the model's own or a given one."""
    run: str = ""
    """The name of the run; empty for a model that was not loaded from one."""
    weights: str = "best"
    """Which weights of the run: "best", "last" or a step."""

    @property
    def maps(self) -> list[AttentionMap]:
        """The maps that there are, the one that is shown by default first."""
        return [one for kind in KINDS if (one := getattr(self, kind)) is not None]

    def get(self, kind: str | None = None) -> AttentionMap:
        """The map of a kind; without one cross-attention, else self-attention."""
        kinds = [one.kind for one in self.maps]
        if kind is None:
            return self.maps[0]
        if kind not in kinds:
            raise HeedError(
                f"this model has no {kind} attention.", todo=f"It has {' and '.join(kinds)}."
            )
        return self.maps[kinds.index(kind)]

    def by_word(self) -> AttentionMaps:
        """The maps between words."""
        return self._replace_maps([one.by_word() for one in self.maps])

    def select(
        self, kind: str | None = None, layer: int | None = None, head: int | str | None = None
    ) -> AttentionMaps:
        """The maps of one kind, layer and head (counted from 0, or "mean"); unset, all."""
        maps = self.maps if kind is None else [self.get(kind)]
        if layer is not None:
            maps = [one.select_layer(layer) for one in maps if kind or layer < len(one.weights)]
            if not maps:
                self.get().select_layer(layer)  # an error that names the layers
        if head is not None:
            maps = [one.select_head(head) for one in maps]
        return self._replace_maps(maps)

    def _replace_maps(self, maps: Sequence[AttentionMap]) -> AttentionMaps:
        by_kind = {one.kind: one for one in maps}
        encoder, decoder, cross = (by_kind.get(kind) for kind in ("encoder", "decoder", "cross"))
        return replace(self, encoder=encoder, decoder=decoder, cross=cross)

    def to_dict(self, *, binary: bool = False) -> dict[str, Any]:
        """The maps for JSON; with `binary` weights are base64 strings of float32."""
        return {
            "format": FORMAT,
            "run": self.run,
            "task": self.task,
            "weights": self.weights,
            "text": self.text,
            "target": self.target,
            "maps": [one.to_dict(binary=binary) for one in self.maps],
        }

    def figure(
        self, kind: str | None = None, layer: int | None = None, head: int | str | None = None
    ) -> Figure:
        """One head large, or without a head an overview of all; layers and heads from 0.

        `head` may be "mean", for the mean of a layer's heads.
        """
        from heed.probe.map_figure import draw_maps

        return draw_maps(self, kind, layer, head)

    def save(
        self,
        path: str | Path,
        kind: str | None = None,
        layer: int | None = None,
        head: int | str | None = None,
    ) -> Path:
        """Write a figure (.png, .svg, .pdf), a page (.html) or the numbers (.json).

        Layers and heads are counted from 0. A figure shows one kind; the others have all.
        """
        from heed.probe.map_output import save_maps

        return save_maps(self, Path(path), kind, layer, head)

    def show(
        self, kind: str | None = None, layer: int | None = None, head: int | str | None = None
    ) -> None:
        """Show the figure in a notebook, elsewhere the strongest links as text."""
        from heed.probe.map_output import show_maps

        show_maps(self, kind, layer, head)

    def __repr__(self) -> str:
        parts = "; ".join(one.describe() for one in self.maps)
        return f"AttentionMaps({self.text!r}, {parts})"

    def _repr_html_(self) -> str:
        from heed.probe.map_output import notebook_html

        return notebook_html(self)


def _tokens_to_dict(labels: TokenLabels) -> list[dict[str, Any]]:
    return [
        {"text": token, "special": word is None, "word": word}
        for token, word in zip(labels.tokens, labels.words, strict=True)
    ]


def _first_tokens(labels: TokenLabels) -> NDArray[np.int64]:
    """The index of the first token of each unit, which is a word or a special token."""
    return np.flatnonzero(np.diff(labels.units(), prepend=-1))


# ---------------------------------------------------------------------------------- from a model


def map_inputs(model: Model, text: InputTokens, source: InputTokens | None = None) -> AttentionMaps:
    """The attention of a model over one text, and its source if it is a translation."""
    return map_batch(model, [text], [] if source is None else [source])[0]


def map_pairs(
    model: Translator, tokenizer: Tokenizer, pairs: Sequence[tuple[str, str]], *, max_source: int
) -> list[AttentionMaps]:
    """The attention of a translator over (source, target) pairs, in batches."""
    maps: list[AttentionMaps] = []
    for first in range(0, len(pairs), BATCH_SIZE):
        batch = pairs[first : first + BATCH_SIZE]
        sources = [source_input(tokenizer, text, max_source=max_source) for text, _ in batch]
        targets = [target_input(model, tokenizer, text) for _, text in batch]
        maps += map_batch(model, targets, sources, pad=tokenizer.specials.pad)
    return maps


def map_batch(
    model: Model,
    inputs: Sequence[InputTokens],
    sources: Sequence[InputTokens] = (),
    *,
    pad: int = 0,
) -> list[AttentionMaps]:
    """The attention of a model over texts in one padded batch; a translator needs the sources."""
    trace = trace_batch(model, inputs, sources, pad=pad)
    if not any(layer.shape[1] for layer in trace.encoder + trace.decoder + trace.cross):
        raise no_attention_error(model)
    layers = {kind: getattr(trace, kind) for kind in KINDS}
    if not all(has_no_nan(layer) for kind in KINDS for layer in layers[kind]):
        raise nan_error([model], "it has no attention maps")
    maps = []
    for i, read in enumerate(inputs):
        source = sources[i] if isinstance(model, Translator) else None
        rows, columns = len(read.labels), len((source or read).labels)
        sizes = {"encoder": (columns, columns), "decoder": (rows, rows), "cross": (rows, columns)}
        weights = {
            kind: [layer[i, :, :n, :m].float().cpu().numpy().copy() for layer in layers[kind]]
            for kind, (n, m) in sizes.items()
        }
        maps.append(label_maps(model, weights, read, source))
    return maps


def no_attention_error(model: Model) -> RunError:
    """The error for a model without attention."""
    if getattr(model.config, "family", None) == "lstm":
        return RunError(
            "this LSTM has no attention: only a translating one attends, to its source.",
            todo="Train with model.family = 'transformer' to see attention.",
        )
    return RunError("this model has no attention: all of its heads were pruned.")


def has_no_nan(weights_bhnm: Tensor) -> bool:
    """Whether no weight is NaN: their sum, which cannot overflow, is then a number."""
    return bool(weights_bhnm.sum(dtype=torch.float32).isfinite())


def label_maps(
    model: Model,
    weights: Mapping[str, list[Floats]],
    read: InputTokens,
    source: InputTokens | None = None,
) -> AttentionMaps:
    """Maps of these weights, by kind [h, n, m] per layer, with the tokens of their axes."""
    axes = {"encoder": (read.labels, read.labels), "decoder": (read.labels, read.labels)}
    if source is not None:
        axes["encoder"] = source.labels, source.labels
        axes["cross"] = read.following or read.labels, source.labels
    encoder, decoder, cross = (
        _map(kind, weights[kind], *axes[kind]) if kind in axes and kind in weights else None
        for kind in ("encoder", "decoder", "cross")
    )
    if isinstance(model, Translator) and source is not None:
        return AttentionMaps(source.text, "translate", encoder, decoder, cross, read.text)
    task = "generate" if isinstance(model, LanguageModel) else "classify"
    return AttentionMaps(read.text, task, encoder, decoder)


def _map(
    kind: str, layers: list[Floats], queries: TokenLabels, keys: TokenLabels
) -> AttentionMap | None:
    """The map of one kind; None where no layer has a head."""
    if not any(len(layer) for layer in layers):  # none, or all heads were pruned
        return None
    n, m = len(queries), len(keys)
    visible = np.tri(n, m, dtype=bool) if kind == "decoder" else np.ones((n, m), bool)
    return AttentionMap(kind, queries, keys, layers, visible)


def best_layer(maps: Sequence[AttentionMap], gold: Sequence[Links]) -> int:
    """The layer whose attention is closest to gold alignments; choose it on dev."""
    layers = [i for i, layer in enumerate(maps[0].weights) if len(layer)]
    return min(layers, key=lambda i: alignment_error_rate([m.links(i) for m in maps], gold))
