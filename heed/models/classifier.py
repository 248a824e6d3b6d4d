"""An encoder whose vectors are pooled into one and told apart."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from heed.config import ModelConfig
from heed.models.base_model import BaseModel, build_embedding, build_stack
from heed.models.trace import Trace
from heed.nn.cache import Cache
from heed.nn.ngrams import NgramFeatures
from heed.nn.tokens import StackOutput, Tokens

BETWEEN = {"relu": nn.ReLU, "tanh": nn.Tanh}
"""What may stand in a classifier's head."""


class Pooling(nn.Module):
    """One vector a sentence from its real tokens: their mean, first, maximum, or a learned mix.

    With a `pooler`, a map and a tanh come after that (Devlin et al. 2019).
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.kind, width = config.pooling, config.width
        self.score = nn.Linear(width, 1, bias=False) if self.kind == "attention" else None
        self.map = nn.Linear(width, width, bias=config.bias) if config.pooler else None

    def forward(self, x_bnw: Tensor, mask: Tensor | None) -> Tensor:
        """[b, n, w] to [b, w]."""
        pooled_bw = self._pooled(x_bnw, mask)
        return pooled_bw if self.map is None else torch.tanh(self.map(pooled_bw))

    def _pooled(self, x_bnw: Tensor, mask: Tensor | None) -> Tensor:
        """One vector a sentence; a sentence with no real token gives zeros."""
        if mask is None:
            mask = torch.ones(x_bnw.shape[:2], dtype=torch.bool, device=x_bnw.device)
        real = mask[..., None]
        if self.kind == "max":
            lowest = torch.finfo(x_bnw.dtype).min
            highest = x_bnw.masked_fill(~real, lowest).amax(dim=1)
            return highest.masked_fill(~mask.any(dim=1, keepdim=True), 0.0)
        if self.kind == "first":
            shares = (mask.cumsum(dim=1) == 1) & mask
            return (x_bnw * shares[..., None]).sum(dim=1)
        if self.score is not None:
            scores = self.score(x_bnw)  # in 16 bits under autocast, whatever x is
            scores = scores.masked_fill(~real, torch.finfo(scores.dtype).min)
            return (x_bnw * (scores.softmax(dim=1) * real)).sum(dim=1)
        return (x_bnw * real).sum(dim=1) / real.sum(dim=1).clamp(min=1)


class Classifier(BaseModel):
    """Logits over classes for each row of ids."""

    def __init__(self, config: ModelConfig, *, vocab: int, classes: int) -> None:
        super().__init__()
        self.config = config
        self.embedding = build_embedding(config, vocab)
        self.stack = build_stack(config, causal=False)
        self.pool = Pooling(config)
        self.grams = NgramFeatures(config, vocab) if config.ngrams > 1 else None
        self.dropout = nn.Dropout(config.dropout)
        if config.classifier_hidden is None:
            self.head: nn.Module = nn.Linear(config.width, classes)
        else:
            hidden = nn.Linear(config.width, config.classifier_hidden)
            out = nn.Linear(config.classifier_hidden, classes)
            between = BETWEEN[config.classifier_activation]()
            self.head = nn.Sequential(hidden, between, nn.Dropout(config.dropout), out)

    def forward(
        self,
        ids: Tensor,
        *,
        mask: Tensor | None = None,
        positions: Tensor | None = None,
        segments: Tensor | None = None,
        types: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """Logits [b, classes] for ids [b, n]."""
        if cache is not None:
            raise ValueError("A classifier reads a whole text at once: it takes no cache.")
        out = self.states(ids, mask=mask, positions=positions, segments=segments, types=types)
        return self._classify(ids, out.x_bnw, mask)

    def trace(
        self, ids: Tensor, *, mask: Tensor | None = None, types: Tensor | None = None
    ) -> Trace:
        """The same logits, with every attention weight and every layer's vectors."""
        out = self.states(ids, mask=mask, types=types, weights=True)
        return Trace.of_one(self._classify(ids, out.x_bnw, mask), out, causal=False)

    def states(
        self,
        ids: Tensor,
        *,
        mask: Tensor | None = None,
        positions: Tensor | None = None,
        segments: Tensor | None = None,
        types: Tensor | None = None,
        weights: bool = False,
    ) -> StackOutput:
        """The vectors before pooling."""
        tokens = Tokens.of(ids, mask=mask, positions=positions, segments=segments)
        return self.stack(self.embedding(ids, types), tokens, weights=weights)

    def _classify(self, ids: Tensor, x_bnw: Tensor, mask: Tensor | None) -> Tensor:
        pooled_bw = self.pool(x_bnw, mask)
        if self.grams is not None:
            pooled_bw = pooled_bw + self.grams(ids, mask)
        return self.head(self.dropout(pooled_bw))
