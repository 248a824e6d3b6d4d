"""The vocabulary head. Shapes: b batch, n tokens, w model width."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heed.config import ModelConfig
from heed.nn.embedding import TokenEmbedding
from heed.nn.kernels.linear import ACTIVATIONS
from heed.nn.norm import build_norm


class VocabularyHead(nn.Module):
    """Vectors to logits over a vocabulary, by the embedding's table or a separate matrix.

    With `lm_head_transform`, a linear layer, the activation and a norm come first (Devlin et al.
    2019).
    """

    def __init__(self, config: ModelConfig, vocab: int, embedding: TokenEmbedding) -> None:
        super().__init__()
        self.scale, self.activation = config.lm_head_scale, ACTIVATIONS[config.activation]
        self.transform_linear, self.norm = None, None
        if config.lm_head_transform:
            self.transform_linear = nn.Linear(config.width, config.width, bias=config.bias)
            self.norm = build_norm(config)
        self.bias = nn.Parameter(torch.zeros(vocab)) if config.lm_head_bias else None
        self.own = None if config.tie_embeddings else nn.Linear(config.width, vocab, bias=False)
        # A list hides the tied table from state_dict, which already has it.
        self._tied = [embedding.table]

    @property
    def weight(self) -> Tensor:
        """The output projection [vocab, w], tied or its own."""
        return (self._tied[0] if self.own is None else self.own).weight

    def transform(self, x_bnw: Tensor) -> Tensor:
        """The vectors that the output projection reads."""
        if self.transform_linear is not None and self.norm is not None:
            x_bnw = self.norm(self.activation(self.transform_linear(x_bnw)))
        return x_bnw if self.scale is None else x_bnw * self.scale

    def forward(self, x_bnw: Tensor) -> Tensor:
        """Logits [b, n, vocab]."""
        return self.project(self.transform(x_bnw))

    def project(self, x_bnw: Tensor) -> Tensor:
        """The output projection."""
        return F.linear(x_bnw, self.weight, self.bias)
