"""Marian's Transformer (Junczys-Dowmunt et al. 2018): the 2017 paper's, with a bias on its logits.

Sines stand in the first half of a position's vector, cosines in the second. The table of them is
computed; a folder may hold it, and then it must be that.
"""

from __future__ import annotations

import math
from collections.abc import Set
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from heed.config import ModelConfig
from heed.models.huggingface.architecture import ACTIVATIONS, Architecture, word_for
from heed.models.huggingface.folder import Facts
from heed.models.huggingface.name_map import Table, one_row, stacked, under
from heed.models.huggingface.reparameterize import (
    Draft,
    in_halves,
    with_bias,
    with_head_bias,
    with_scale,
)

BLOCK: Table = {
    "attention.qkv": stacked("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "attention.out": "self_attn.out_proj",
    "attention_norm": "self_attn_layer_norm",
    "feed_forward.up": "fc1",
    "feed_forward.down": "fc2",
    "feed_forward_norm": "final_layer_norm",
}
ACROSS: Table = {
    "cross.q": "encoder_attn.q_proj",
    "cross.kv": stacked("encoder_attn.k_proj", "encoder_attn.v_proj"),
    "cross.out": "encoder_attn.out_proj",
    "cross_norm": "encoder_attn_layer_norm",
}
STACKS: Table = {
    **under("encoder.layers.{}.", BLOCK, ours="encoder.blocks.{}."),
    **under("decoder.layers.{}.", {**BLOCK, **ACROSS}, ours="decoder.blocks.{}."),
}
SHARED: Table = {"embedding.table": "shared"}
APART: Table = {
    "embedding.table": "decoder.embed_tokens",
    "source_embedding.table": "encoder.embed_tokens",
}
HEAD: Table = {"head.bias": one_row("final_logits_bias")}


def _shape(told: Facts, names: Set[str]) -> dict[str, Any]:
    told.require("tie_word_embeddings", True)
    told.require("is_decoder", False)
    for key in ("attention_heads", "ffn_dim"):
        told.require(f"decoder_{key}", told.told.get(f"encoder_{key}"))
    width, scaled = told.count("d_model", 1024), told.yes("scale_embedding", False)
    return {
        "layers": told.count("encoder_layers", 12),
        "decoder_layers": told.count("decoder_layers", 12),
        "width": width,
        "heads": told.count("encoder_attention_heads", 16),
        "feed_forward": told.count("encoder_ffn_dim", 4096),
        "activation": told.word("activation_function", "gelu", ACTIVATIONS),
        "norm_place": "post",
        "position": "sinusoidal",
        "sinusoids": "halves",
        "max_positions": told.count("max_position_embeddings", 1024),
        "embedding_scale": math.sqrt(width) if scaled else 1.0,
        "head_bias": True,
        "dropout": told.number("dropout", 0.1),
        "attention_dropout": told.number("attention_dropout", 0.0),
        "feed_forward_dropout": told.number("activation_dropout", 0.0),
    }


def _describe(draft: Draft) -> dict[str, Any]:
    config, hidden = draft.config, draft.config.feed_forward or 4 * draft.config.width
    return {
        "is_encoder_decoder": True,
        "share_encoder_decoder_embeddings": "source_embedding.table.weight" not in draft.weights,
        "decoder_vocab_size": len(draft.weights["embedding.table.weight"]),
        "encoder_layers": config.layers,
        "decoder_layers": config.decoder_layers or config.layers,
        "d_model": config.width,
        "encoder_attention_heads": config.heads,
        "decoder_attention_heads": config.heads,
        "encoder_ffn_dim": hidden,
        "decoder_ffn_dim": hidden,
        "activation_function": word_for(config.activation),
        "max_position_embeddings": config.max_positions,
        "scale_embedding": config.embedding_scale != 1.0,
        "dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "activation_dropout": config.feed_forward_dropout,
    }


def _sinusoids(config: ModelConfig) -> Tensor:
    even = torch.arange(0, config.width, 2, dtype=torch.float64)
    places = torch.arange(config.max_positions, dtype=torch.float64)
    angles = places[:, None] * 10000 ** (-even / config.width)
    return torch.cat([angles.sin(), angles.cos()], dim=1)


def _scale(config: ModelConfig) -> float:
    """Marian multiplies token vectors by the root of the width, or not at all."""
    return 1.0 if config.embedding_scale == 1.0 else math.sqrt(config.width)


MARIAN = Architecture(
    "MarianMTModel",
    "marian",
    "translate",
    "model.",
    {**STACKS, **SHARED},
    HEAD,
    _shape,
    _describe,
    forms=(with_bias, with_head_bias, in_halves, with_scale(_scale)),
    copies={
        "encoder.embed_tokens.weight": "shared.weight",
        "decoder.embed_tokens.weight": "shared.weight",
        "lm_head.weight": "shared.weight",
    },
    computed={f"{side}.embed_positions.weight": _sinusoids for side in ("encoder", "decoder")},
)
ARCHITECTURES = (
    MARIAN,
    replace(
        MARIAN,
        body={**STACKS, **APART},
        copies={"lm_head.weight": "decoder.embed_tokens.weight"},
    ),
)
