"""What models share: embeddings, the stack of their family, the output map, what `trace` returns.

Shapes: b batch, n tokens, m keys, h heads, w model width.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heed.config import ModelConfig
from heed.nn.embedding import TokenEmbedding, build_norm, token_power
from heed.nn.kernels.linear import ACTIVATIONS
from heed.nn.lstm import LSTMStack
from heed.nn.stack import Stack
from heed.nn.tokens import StackOutput


class Base(nn.Module):
    """What every model is."""

    source_files: Mapping[str, Any] = {}
    """Of weights that came from another library: what files beside them said, by name."""


def build_stack(
    config: ModelConfig, *, layers: int | None = None, causal: bool, cross: bool = False
) -> Stack | LSTMStack:
    """An encoder, a decoder, or a decoder with a source, of the family the config names."""
    kind = LSTMStack if config.family == "lstm" else Stack
    return kind(config, layers=layers or config.layers, causal=causal, cross=cross)


def build_embedding(config: ModelConfig, vocab: int) -> TokenEmbedding:
    """Vectors for tokens, and for their types where there are any."""
    width = config.embedding_width or config.width
    return TokenEmbedding(
        vocab,
        width,
        power=token_power(config),
        scale=config.embedding_scale,
        types=config.token_types,
    )


class VocabularyHead(nn.Module):
    """Vectors to logits over a vocabulary, by a map of its own or the embedding's table.

    With `lm_head_transform`, another linear layer, the activation and a norm come first (Devlin et
    al. 2019).
    """

    def __init__(self, config: ModelConfig, vocab: int, embedding: TokenEmbedding) -> None:
        super().__init__()
        self.scale, self.activation = config.lm_head_scale, ACTIVATIONS[config.activation]
        self.map, self.norm = None, None
        if config.lm_head_transform:
            self.map = nn.Linear(config.width, config.width, bias=config.bias)
            self.norm = build_norm(config)
        self.bias = nn.Parameter(torch.zeros(vocab)) if config.lm_head_bias else None
        self.own = None if config.tie_embeddings else nn.Linear(config.width, vocab, bias=False)
        # A list hides the shared table from state_dict, where it already stands once.
        self._shared = [embedding.table]

    @property
    def weight(self) -> Tensor:
        """The map [vocab, w], wherever it is kept."""
        return (self._shared[0] if self.own is None else self.own).weight

    def ready(self, x_bnw: Tensor) -> Tensor:
        """The vectors that the last map reads."""
        if self.map is not None and self.norm is not None:
            x_bnw = self.norm(self.activation(self.map(x_bnw)))
        return x_bnw if self.scale is None else x_bnw * self.scale

    def forward(self, x_bnw: Tensor) -> Tensor:
        """Logits [b, n, vocab]."""
        return self.project(self.ready(x_bnw))

    def project(self, x_bnw: Tensor) -> Tensor:
        """The last map."""
        return F.linear(x_bnw, self.weight, self.bias)


@dataclass
class Trace:
    """One forward pass laid open: the logits and everything that was attended to on the way."""

    logits: Tensor
    encoder: list[Tensor] = field(default_factory=list)
    """Self-attention of the encoder, [b, h, n, n] a layer."""
    decoder: list[Tensor] = field(default_factory=list)
    """Self-attention of the decoder, [b, h, n, n] a layer."""
    cross: list[Tensor] = field(default_factory=list)
    """Attention of the decoder to the source, [b, h, n, m] a layer."""
    hidden: dict[str, list[Tensor]] = field(default_factory=dict)
    """Vectors [b, n, w] after each layer, by stack ("encoder", "decoder")."""

    @classmethod
    def of_one(cls, logits: Tensor, out: StackOutput, *, causal: bool) -> Trace:
        """That of a model of one stack: a decoder if it is causal, else an encoder."""
        if causal:
            return cls(logits, decoder=out.self_weights, hidden={"decoder": out.hidden})
        return cls(logits, encoder=out.self_weights, hidden={"encoder": out.hidden})
