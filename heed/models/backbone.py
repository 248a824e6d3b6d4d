"""A stack without a head: vectors for tokens, for any use."""

from __future__ import annotations

from torch import Tensor

from heed.config import ModelConfig
from heed.models.base_model import BaseModel, build_embedding, build_stack
from heed.models.classifier import Pooling
from heed.models.trace import Trace
from heed.nn.cache import Cache
from heed.nn.tokens import StackOutput, Tokens


class Backbone(BaseModel):
    """Vectors [b, n, w] for ids [b, n]: a classifier or a language model without its head.

    Its weights have the same names as there. With `causal`, a token depends on earlier ones alone.
    """

    def __init__(self, config: ModelConfig, *, vocab: int, causal: bool = False) -> None:
        super().__init__()
        self.config, self.causal = config, causal
        self.embedding = build_embedding(config, vocab)
        self.stack = build_stack(config, causal=causal)
        self.pool = Pooling(config) if config.pooler else None

    def forward(
        self,
        ids: Tensor,
        tokens: Tokens | None = None,
        *,
        mask: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """A vector for each token; `mask` or `tokens` as for a language model."""
        return self.states(ids, tokens, mask=mask, cache=cache).x_bnw

    def summary(
        self, ids: Tensor, tokens: Tokens | None = None, *, mask: Tensor | None = None
    ) -> Tensor:
        """One vector [b, w] for each sequence, by the pooler."""
        if self.pool is None:
            raise ValueError("This model has no pooler.")
        tokens = Tokens.resolve(ids, tokens, mask)
        return self.pool(self(ids, tokens), tokens.real_bn)

    def trace(
        self, ids: Tensor, tokens: Tokens | None = None, *, mask: Tensor | None = None
    ) -> Trace:
        """The vectors in the place of logits, with every attention weight on the way."""
        out = self.states(ids, tokens, mask=mask, weights=True)
        return Trace.of_one(out.x_bnw, out, causal=self.causal)

    def states(
        self,
        ids: Tensor,
        tokens: Tokens | None = None,
        *,
        mask: Tensor | None = None,
        cache: Cache | None = None,
        weights: bool = False,
    ) -> StackOutput:
        """The stack's output for these ids."""
        if cache is not None and not self.causal:
            raise ValueError("A bidirectional model reads a whole sequence at once: no cache.")
        tokens = Tokens.resolve(ids, tokens, mask, cache.tokens if cache is not None else None)
        x_bnw = self.embedding(ids, tokens.types_bn)
        return self.stack(x_bnw, tokens, cache=cache, weights=weights)
