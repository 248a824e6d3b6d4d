"""The translator: an encoder for the source and a decoder that predicts the target."""

from __future__ import annotations

from torch import Tensor

from heed.config import ModelConfig
from heed.models.base_model import BaseModel, build_embedding, build_stack
from heed.models.head import VocabularyHead
from heed.models.trace import Trace
from heed.nn.cache import Cache
from heed.nn.tokens import StackOutput, Tokens


class Translator(BaseModel):
    """The logits at target i predict target i + 1, from the source and targets 0 … i."""

    def __init__(self, config: ModelConfig, *, vocab: int, source_vocab: int | None = None) -> None:
        super().__init__()
        self.config = config
        self.embedding = build_embedding(config, vocab)
        separate = source_vocab is not None or not config.tie_embeddings
        self.source_embedding = build_embedding(config, source_vocab or vocab) if separate else None
        self.encoder = build_stack(config, causal=False, for_linear=True)
        self.decoder = build_stack(
            config,
            layers=config.decoder_layers,
            causal=True,
            cross=True,
            for_linear=config.lm_head_scale is None,
        )
        self.head = VocabularyHead(config, vocab, self.embedding)

    def forward(
        self,
        source: Tensor | None,
        target: Tensor,
        source_tokens: Tokens | None = None,
        target_tokens: Tokens | None = None,
        *,
        mask: Tensor | None = None,
        target_mask: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """Logits [b, n, vocab] for target [b, n], the decoder's input, already shifted.

        `mask` is True at the source's real tokens, `target_mask` at the target's. In their place,
        `source_tokens` and `target_tokens` also give positions and segments. A cache keeps the
        encoded source from its first call, and takes only new target tokens after it.
        """
        out = self.states(
            source,
            target,
            source_tokens,
            target_tokens,
            mask=mask,
            target_mask=target_mask,
            cache=cache,
        )
        return self.head(out.x_bnw)

    def states(
        self,
        source: Tensor | None,
        target: Tensor,
        source_tokens: Tokens | None = None,
        target_tokens: Tokens | None = None,
        *,
        mask: Tensor | None = None,
        target_mask: Tensor | None = None,
        cache: Cache | None = None,
    ) -> StackOutput:
        """The target's vectors before the head; arguments as for a call of the model."""
        memory, memory_tokens = self._memory(source, source_tokens, mask, cache)
        before = cache.tokens if cache is not None else None
        target_tokens = Tokens.resolve(target, target_tokens, target_mask, before)
        return self.decode(target, target_tokens, memory, memory_tokens, cache=cache)

    def trace(
        self,
        source: Tensor,
        target: Tensor,
        *,
        mask: Tensor | None = None,
        target_mask: Tensor | None = None,
    ) -> Trace:
        """The logits, with every attention weight and every layer's vectors."""
        source_tokens = Tokens.of(source, mask=mask)
        encoded = self.encode(source, source_tokens, weights=True)
        target_tokens = Tokens.of(target, mask=target_mask)
        out = self.decode(target, target_tokens, encoded.x_bnw, source_tokens, weights=True)
        return Trace(
            self.head(out.x_bnw),
            encoder=encoded.self_weights,
            decoder=out.self_weights,
            cross=out.cross_weights,
            hidden={"encoder": encoded.hidden, "decoder": out.hidden},
        )

    def encode(self, source: Tensor, tokens: Tokens, *, weights: bool = False) -> StackOutput:
        """The source's vectors."""
        return self.encoder(self.embed_source(source), tokens, weights=weights)

    def embed_source(self, source: Tensor) -> Tensor:
        """The vectors of a source's tokens, from the table of its vocabulary."""
        embedding = self.embedding if self.source_embedding is None else self.source_embedding
        return embedding(source)

    def decode(
        self,
        target: Tensor,
        tokens: Tokens,
        memory: Tensor,
        memory_tokens: Tokens,
        *,
        cache: Cache | None = None,
        weights: bool = False,
    ) -> StackOutput:
        """The target's vectors before the head, given the encoded source."""
        return self.decoder(
            self.embedding(target),
            tokens,
            memory=memory,
            memory_tokens=memory_tokens,
            cache=cache,
            weights=weights,
        )

    def _memory(
        self,
        source: Tensor | None,
        tokens: Tokens | None,
        mask: Tensor | None,
        cache: Cache | None,
    ) -> tuple[Tensor, Tokens]:
        """The encoded source and its tokens: the cache's where it has one, else encoded now."""
        if cache is not None and cache.memory is not None and cache.memory_tokens is not None:
            return cache.memory, cache.memory_tokens
        if source is None:
            raise ValueError("A translator needs a source until its cache holds one.")
        tokens = Tokens.resolve(source, tokens, mask)
        memory = self.encode(source, tokens).x_bnw
        if cache is not None:
            cache.memory, cache.memory_tokens = memory, tokens
        return memory, tokens
