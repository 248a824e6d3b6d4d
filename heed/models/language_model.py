"""The language model: a decoder that predicts the next token, or an encoder that fills in masks."""

from __future__ import annotations

from torch import Tensor

from heed.config import ModelConfig
from heed.models.base_model import BaseModel, build_embedding, build_stack
from heed.models.head import VocabularyHead
from heed.models.trace import Trace
from heed.nn.cache import Cache
from heed.nn.tokens import StackOutput, Tokens


class LanguageModel(BaseModel):
    """Token i's logits predict token i + 1, from tokens 0 … i alone.

    With `causal` false they predict token i itself, from all tokens: a masked language model.
    """

    def __init__(self, config: ModelConfig, *, vocab: int, causal: bool = True) -> None:
        super().__init__()
        self.config, self.causal = config, causal
        self.embedding = build_embedding(config, vocab)
        self.stack = build_stack(config, causal=causal, for_linear=config.lm_head_scale is None)
        self.head = VocabularyHead(config, vocab, self.embedding)

    def forward(
        self,
        ids: Tensor,
        tokens: Tokens | None = None,
        *,
        mask: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """Logits [b, n, vocab] for ids [b, n]; with a cache, ids are those after the cached ones.

        `mask` is True at real tokens. In its place, `tokens` also gives positions, segments and
        types.
        """
        return self.head(self.states(ids, tokens, mask=mask, cache=cache).x_bnw)

    def trace(
        self, ids: Tensor, tokens: Tokens | None = None, *, mask: Tensor | None = None
    ) -> Trace:
        """The logits, with every attention weight and every layer's vectors."""
        out = self.states(ids, tokens, mask=mask, weights=True)
        return Trace.of_one(self.head(out.x_bnw), out, causal=self.causal)

    def states(
        self,
        ids: Tensor,
        tokens: Tokens | None = None,
        *,
        mask: Tensor | None = None,
        cache: Cache | None = None,
        weights: bool = False,
    ) -> StackOutput:
        """The vectors before the head."""
        if cache is not None and not self.causal:
            raise ValueError("A masked language model reads a whole sequence at once: no cache.")
        tokens = Tokens.resolve(ids, tokens, mask, cache.tokens if cache is not None else None)
        x_bnw = self.embedding(ids, tokens.types_bn)
        return self.stack(x_bnw, tokens, cache=cache, weights=weights)
