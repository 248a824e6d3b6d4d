"""A decoder that predicts the next token, or an encoder that predicts hidden ones."""

from __future__ import annotations

from torch import Tensor

from heed.config import ModelConfig
from heed.models.base_model import BaseModel, build_embedding, build_stack
from heed.models.head import VocabularyHead
from heed.models.trace import Trace
from heed.nn.cache import Cache
from heed.nn.tokens import StackOutput, Tokens


class LanguageModel(BaseModel):
    """Token i's logits say what follows it, from tokens 0 … i alone.

    With `causal` false they say what stands at i, from all tokens: a masked language model.
    """

    def __init__(self, config: ModelConfig, *, vocab: int, causal: bool = True) -> None:
        super().__init__()
        self.config, self.causal = config, causal
        self.embedding = build_embedding(config, vocab)
        self.stack = build_stack(config, causal=causal)
        self.head = VocabularyHead(config, vocab, self.embedding)

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
        """Logits [b, n, vocab] for ids [b, n]; with a cache, ids are those after its own."""
        out = self.states(
            ids, mask=mask, positions=positions, segments=segments, types=types, cache=cache
        )
        return self.head(out.x_bnw)

    def trace(
        self,
        ids: Tensor,
        *,
        mask: Tensor | None = None,
        positions: Tensor | None = None,
        segments: Tensor | None = None,
        types: Tensor | None = None,
    ) -> Trace:
        """The same logits, with every attention weight and every layer's vectors."""
        out = self.states(
            ids, mask=mask, positions=positions, segments=segments, types=types, weights=True
        )
        return Trace.of_one(self.head(out.x_bnw), out, causal=self.causal)

    def states(
        self,
        ids: Tensor,
        *,
        mask: Tensor | None = None,
        positions: Tensor | None = None,
        segments: Tensor | None = None,
        types: Tensor | None = None,
        cache: Cache | None = None,
        weights: bool = False,
    ) -> StackOutput:
        """The vectors before the head."""
        if cache is not None and not self.causal:
            raise ValueError("A masked language model reads a whole text at once: no cache.")
        before = cache.tokens if cache is not None else None
        tokens = Tokens.of(ids, mask=mask, positions=positions, segments=segments, before=before)
        return self.stack(self.embedding(ids, types), tokens, cache=cache, weights=weights)
