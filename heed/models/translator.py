"""An encoder that reads a source and a decoder that writes a target, one token after another."""

from __future__ import annotations

from torch import Tensor

from heed.config import ModelConfig
from heed.models.base_model import BaseModel, build_embedding, build_stack
from heed.models.head import VocabularyHead
from heed.models.trace import Trace
from heed.nn.cache import Cache
from heed.nn.tokens import StackOutput, Tokens


class Translator(BaseModel):
    """Row i's logits say what follows target i, from the source and targets 0 … i."""

    def __init__(self, config: ModelConfig, *, vocab: int, source_vocab: int | None = None) -> None:
        super().__init__()
        self.config = config
        self.embedding = build_embedding(config, vocab)
        apart = source_vocab is not None or not config.tie_embeddings
        self.source_embedding = build_embedding(config, source_vocab or vocab) if apart else None
        self.encoder = build_stack(config, causal=False)
        self.decoder = build_stack(config, layers=config.decoder_layers, causal=True, cross=True)
        self.head = VocabularyHead(config, vocab, self.embedding)

    def forward(
        self,
        source: Tensor | None,
        target: Tensor,
        *,
        mask: Tensor | None = None,
        positions: Tensor | None = None,
        segments: Tensor | None = None,
        target_mask: Tensor | None = None,
        target_positions: Tensor | None = None,
        target_segments: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """Logits [b, n, vocab] for target [b, n], the decoder's input, already shifted.

        `mask`, `positions` and `segments` tell of the source, the others of the target. A cache
        keeps the encoded source from its first call, and takes only new target tokens after it.
        """
        out = self.states(
            source,
            target,
            mask=mask,
            positions=positions,
            segments=segments,
            target_mask=target_mask,
            target_positions=target_positions,
            target_segments=target_segments,
            cache=cache,
        )
        return self.head(out.x_bnw)

    def states(
        self,
        source: Tensor | None,
        target: Tensor,
        *,
        mask: Tensor | None = None,
        positions: Tensor | None = None,
        segments: Tensor | None = None,
        target_mask: Tensor | None = None,
        target_positions: Tensor | None = None,
        target_segments: Tensor | None = None,
        cache: Cache | None = None,
    ) -> StackOutput:
        """The target's vectors before the head, by the same arguments."""
        source_tokens, memory = self._memory(source, mask, positions, segments, cache)
        target_tokens = Tokens.of(
            target,
            mask=target_mask,
            positions=target_positions,
            segments=target_segments,
            before=cache.tokens if cache is not None else None,
        )
        return self.decode(target, target_tokens, memory, source_tokens, cache=cache)

    def trace(
        self,
        source: Tensor,
        target: Tensor,
        *,
        mask: Tensor | None = None,
        target_mask: Tensor | None = None,
    ) -> Trace:
        """The same logits, with every attention weight and every layer's vectors."""
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
        embedding = self.embedding if self.source_embedding is None else self.source_embedding
        return self.encoder(embedding(source), tokens, weights=weights)

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
        """The target's vectors, before the head."""
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
        mask: Tensor | None,
        positions: Tensor | None,
        segments: Tensor | None,
        cache: Cache | None,
    ) -> tuple[Tokens, Tensor]:
        """The encoded source: the cache's where it has one, else made, and kept there."""
        if cache is not None and cache.memory is not None and cache.memory_tokens is not None:
            return cache.memory_tokens, cache.memory
        if source is None:
            raise ValueError("A translator needs a source until its cache holds one.")
        tokens = Tokens.of(source, mask=mask, positions=positions, segments=segments)
        memory = self.encode(source, tokens).x_bnw
        if cache is not None:
            cache.memory, cache.memory_tokens = memory, tokens
        return tokens, memory
