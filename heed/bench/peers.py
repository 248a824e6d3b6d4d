"""Peers in `transformers`: models of the same shape with the usual training step, to compare with.

A translator is compared with MarianMTModel, a causal language model with GPT2LMHeadModel. The
peer's step is complete: forward with labels, backward, clipping, fused AdamW, in heed's precision.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from heed.config import ModelConfig
from heed.data.batching.batch import Batch
from heed.data.tokenizers.special_tokens import BOS, EOS, PAD
from heed.errors import ConfigError, HeedError
from heed.models import LanguageModel, Model, Translator

CLIP = 1.0
Update = Callable[[list[Batch]], None]
Loss = Callable[[Batch], Tensor]


def peer_of(model: Model, *, length: int) -> nn.Module:
    """The peer of a model for sequences of up to `length` tokens, on the same device."""
    require_transformers()
    _refuse_what_has_none(model)
    config, table = model.config, model.embedding.table
    vocab = table.num_embeddings
    peer = _marian(config, vocab, length) if isinstance(model, Translator) else None
    return (peer or _gpt2(config, vocab, length)).to(table.weight.device).train()


def require_transformers() -> None:
    """Raise an error if transformers is not installed."""
    if find_spec("transformers") is None:
        raise HeedError(
            "transformers is not installed, so there is no peer to compare with.",
            todo="Install it with: pip install 'heed[hf]'",
        )


def _refuse_what_has_none(model: Model) -> None:
    causal = isinstance(model, Translator) or (isinstance(model, LanguageModel) and model.causal)
    if not causal or model.config.family != "transformer":
        raise ConfigError(
            ["--against transformers is for Transformers that translate or continue a text."]
        )


def _marian(config: ModelConfig, vocab: int, length: int) -> nn.Module:
    from transformers import MarianConfig, MarianMTModel

    hidden = config.feed_forward or 4 * config.width
    shape = MarianConfig(
        vocab_size=vocab,
        d_model=config.width,
        encoder_layers=config.layers,
        decoder_layers=config.decoder_layers or config.layers,
        encoder_attention_heads=config.heads,
        decoder_attention_heads=config.heads,
        encoder_ffn_dim=hidden,
        decoder_ffn_dim=hidden,
        dropout=config.dropout,
        max_position_embeddings=length,
        pad_token_id=PAD,
        eos_token_id=EOS,
        bos_token_id=BOS,
        decoder_start_token_id=BOS,
        forced_eos_token_id=EOS,
    )
    return MarianMTModel(shape)


def _gpt2(config: ModelConfig, vocab: int, length: int) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    shape = GPT2Config(
        vocab_size=vocab,
        n_embd=config.width,
        n_layer=config.layers,
        n_head=config.heads,
        n_inner=config.feed_forward or 4 * config.width,
        n_positions=length,
        resid_pdrop=config.dropout,
        embd_pdrop=config.dropout,
        attn_pdrop=config.attention_dropout,
        bos_token_id=BOS,
        eos_token_id=EOS,
        use_cache=False,
    )
    kind: Any = GPT2LMHeadModel  # its constructor has no types
    return kind(shape)


def arguments(batch: Batch) -> dict[str, Tensor | None]:
    """A batch as keyword arguments of the peer's forward."""
    if batch.source is not None:
        return {
            "input_ids": batch.source,
            "attention_mask": batch.source_mask,
            "decoder_input_ids": batch.ids,
            "labels": batch.targets,
        }
    # GPT-2 shifts its labels itself, so they are moved one position to the right.
    labels = torch.cat([batch.ids[:, :1], batch.targets[:, :-1]], dim=1)
    # Padding is on the right, invisible to a causal model: no mask allows the fastest kernel.
    return {"input_ids": batch.ids, "labels": labels}


def plain_step(
    model: nn.Module,
    loss: Loss,
    *,
    bf16: bool,
    optimizer_class: type[torch.optim.Adam] = torch.optim.AdamW,
) -> Update:
    """The training step of a plain loop: loss, backward, clipping, optimizer step."""
    optimizer = optimizer_class(model.parameters(), lr=1e-4, fused=True)

    def update(batches: list[Batch]) -> None:
        optimizer.zero_grad(set_to_none=True)
        for batch in batches:
            with torch.autocast(batch.ids.device.type, torch.bfloat16, enabled=bf16):
                mean = loss(batch) / len(batches)
            mean.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()

    return update


def peer_step(peer: Any, *, bf16: bool) -> Update:
    """The peer's full training step."""
    return plain_step(peer, lambda batch: peer(**arguments(batch)).loss, bf16=bf16)
