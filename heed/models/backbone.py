"""A stack without a head: vectors for tokens, to be used for whatever one likes."""

from __future__ import annotations

from torch import Tensor

from heed.config import ModelConfig
from heed.models.base_model import BaseModel, build_embedding, build_stack
from heed.models.classifier import Pooling
from heed.models.trace import Trace
from heed.nn.cache import Cache
from heed.nn.tokens import StackOutput, Tokens


class Backbone(BaseModel):
    """Vectors [b, n, w] for ids [b, n]: what a classifier or a language model has below its head.

    Its weights have the names they have there. With `causal`, a token knows those before it alone.
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
        *,
        mask: Tensor | None = None,
        types: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """A vector for each token."""
        return self.states(ids, mask=mask, types=types, cache=cache).x_bnw

    def summary(
        self, ids: Tensor, *, mask: Tensor | None = None, types: Tensor | None = None
    ) -> Tensor:
        """One vector [b, w] for each text, by the pooler."""
        if self.pool is None:
            raise ValueError("This model has no pooler.")
        return self.pool(self(ids, mask=mask, types=types), mask)

    def trace(
        self, ids: Tensor, *, mask: Tensor | None = None, types: Tensor | None = None
    ) -> Trace:
        """The same vectors in the place of logits, with every attention weight on the way."""
        out = self.states(ids, mask=mask, types=types, weights=True)
        return Trace.of_one(out.x_bnw, out, causal=self.causal)

    def states(
        self,
        ids: Tensor,
        *,
        mask: Tensor | None = None,
        types: Tensor | None = None,
        cache: Cache | None = None,
        weights: bool = False,
    ) -> StackOutput:
        """The vectors and, where asked for, all that led to them."""
        if cache is not None and not self.causal:
            raise ValueError("What reads a whole text at once takes no cache.")
        tokens = Tokens.of(ids, mask=mask, before=cache.tokens if cache is not None else None)
        return self.stack(self.embedding(ids, types), tokens, cache=cache, weights=weights)
