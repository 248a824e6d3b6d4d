"""What the three models share: the stack of their family, the output map, and what `trace` returns.

Shapes: b batch, n tokens, m keys, h heads, w model width.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch.nn.functional as F
from torch import Tensor, nn

from heed.config import ModelConfig
from heed.nn.layers import TokenEmbedding
from heed.nn.lstm import LSTMStack
from heed.nn.stack import Stack


def build_stack(
    config: ModelConfig, *, layers: int | None = None, causal: bool, cross: bool = False
) -> Stack | LSTMStack:
    """An encoder, a decoder, or a decoder with a source, of the family the config names."""
    kind = LSTMStack if config.family == "lstm" else Stack
    return kind(config, layers=layers or config.layers, causal=causal, cross=cross)


class VocabularyHead(nn.Module):
    """Vectors to logits over a vocabulary, by a map of its own or the embedding's table."""

    def __init__(self, config: ModelConfig, vocab: int, embedding: TokenEmbedding) -> None:
        super().__init__()
        self.own = None if config.tie_embeddings else nn.Linear(config.width, vocab, bias=False)
        # A list hides the shared table from state_dict, where it already stands once.
        self._shared = [embedding.table]

    @property
    def weight(self) -> Tensor:
        """The map [vocab, w], wherever it is kept."""
        return (self._shared[0] if self.own is None else self.own).weight

    def forward(self, x_bnw: Tensor) -> Tensor:
        """Logits [b, n, vocab]."""
        return F.linear(x_bnw, self.weight)


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


def embedding_width(config: ModelConfig) -> int:
    """How wide token vectors are."""
    return config.embedding_width or config.width
