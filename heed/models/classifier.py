"""The classifier: an encoder whose vectors are pooled into one and classified."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from heed.config import ModelConfig
from heed.models.base_model import BaseModel, build_embedding, build_stack
from heed.models.trace import Trace
from heed.nn.cache import Cache
from heed.nn.ngrams import NgramFeatures
from heed.nn.tokens import StackOutput, Tokens

HIDDEN_ACTIVATIONS = {"relu": nn.ReLU, "tanh": nn.Tanh}
"""The activations of a classifier head with a hidden layer."""


class Pooling(nn.Module):
    """One vector per sequence from its real tokens: mean, first, maximum or learned attention.

    With a `pooler`, a linear layer and a tanh follow (Devlin et al. 2019).
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.kind, width = config.pooling, config.width
        self.score = nn.Linear(width, 1, bias=False) if self.kind == "attention" else None
        self.linear = nn.Linear(width, width, bias=config.bias) if config.pooler else None

    def forward(self, x_bnw: Tensor, mask: Tensor | None) -> Tensor:
        """[b, n, w] to [b, w]."""
        pooled_bw = self._pool(x_bnw, mask)
        return pooled_bw if self.linear is None else torch.tanh(self.linear(pooled_bw))

    def _pool(self, x_bnw: Tensor, mask: Tensor | None) -> Tensor:
        """One vector per sequence; one without real tokens gives zeros."""
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
        self.ngrams = NgramFeatures(config, vocab) if config.ngrams > 1 else None
        self.dropout = nn.Dropout(config.dropout)
        if config.classifier_hidden is None:
            self.head: nn.Module = nn.Linear(config.width, classes)
        else:
            hidden = nn.Linear(config.width, config.classifier_hidden)
            out = nn.Linear(config.classifier_hidden, classes)
            activation = HIDDEN_ACTIVATIONS[config.classifier_activation]()
            self.head = nn.Sequential(hidden, activation, nn.Dropout(config.dropout), out)

    def forward(
        self,
        ids: Tensor,
        tokens: Tokens | None = None,
        *,
        mask: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """Logits [b, classes] for ids [b, n]; `mask` or `tokens` as for a language model."""
        if cache is not None:
            raise ValueError("A classifier reads a whole sequence at once: it takes no cache.")
        tokens = Tokens.resolve(ids, tokens, mask)
        return self.classify(ids, self.states(ids, tokens).x_bnw, tokens.real_bn)

    def trace(
        self, ids: Tensor, tokens: Tokens | None = None, *, mask: Tensor | None = None
    ) -> Trace:
        """The logits, with every attention weight and every layer's vectors."""
        tokens = Tokens.resolve(ids, tokens, mask)
        out = self.states(ids, tokens, weights=True)
        return Trace.of_one(self.classify(ids, out.x_bnw, tokens.real_bn), out, causal=False)

    def states(
        self,
        ids: Tensor,
        tokens: Tokens | None = None,
        *,
        mask: Tensor | None = None,
        weights: bool = False,
    ) -> StackOutput:
        """The vectors before pooling."""
        tokens = Tokens.resolve(ids, tokens, mask)
        return self.stack(self.embedding(ids, tokens.types_bn), tokens, weights=weights)

    @torch.no_grad()
    def scale_logits(self, factor: float) -> None:
        """Multiply all logits by a factor, through the weight and bias of the output layer."""
        output = self.head[-1] if isinstance(self.head, nn.Sequential) else self.head
        for parameter in output.parameters():
            parameter.mul_(factor)

    def classify(self, ids: Tensor, x_bnw: Tensor, mask: Tensor | None) -> Tensor:
        """Logits [b, classes] of the vectors before pooling."""
        pooled_bw = self.pool(x_bnw, mask)
        if self.ngrams is not None:
            pooled_bw = pooled_bw + self.ngrams(ids, mask)
        return self.head(self.dropout(pooled_bw))
