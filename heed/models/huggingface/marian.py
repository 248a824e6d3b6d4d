"""Marian (Junczys-Dowmunt et al. 2018): the Transformer of 2017 with a bias on its logits.

Sines fill the first half of a position vector, cosines the second. The table is computed, not
learned. A folder that stores it must store exactly these values.
"""

from __future__ import annotations

import math
from collections.abc import Set
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from heed.config import ModelConfig
from heed.models.huggingface.architecture import ACTIVATIONS, Architecture, activation_name
from heed.models.huggingface.folder import ConfigJson
from heed.models.huggingface.name_map import NameMap, concatenated, one_row, with_prefix
from heed.models.huggingface.reparameterize import (
    Draft,
    add_head_bias,
    add_zero_biases,
    reorder_sinusoids,
    rescale_embeddings,
)

BLOCK: NameMap = {
    "attention.qkv": concatenated("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "attention.out": "self_attn.out_proj",
    "attention_norm": "self_attn_layer_norm",
    "feed_forward.up": "fc1",
    "feed_forward.down": "fc2",
    "feed_forward_norm": "final_layer_norm",
}
CROSS_ATTENTION: NameMap = {
    "cross.q": "encoder_attn.q_proj",
    "cross.kv": concatenated("encoder_attn.k_proj", "encoder_attn.v_proj"),
    "cross.out": "encoder_attn.out_proj",
    "cross_norm": "encoder_attn_layer_norm",
}
STACKS: NameMap = {
    **with_prefix("encoder.layers.{}.", BLOCK, ours="encoder.blocks.{}."),
    **with_prefix("decoder.layers.{}.", {**BLOCK, **CROSS_ATTENTION}, ours="decoder.blocks.{}."),
}
SHARED_EMBEDDINGS: NameMap = {"embedding.table": "shared"}
SEPARATE_EMBEDDINGS: NameMap = {
    "embedding.table": "decoder.embed_tokens",
    "source_embedding.table": "encoder.embed_tokens",
}
HEAD: NameMap = {"head.bias": one_row("final_logits_bias")}


def _read_config(config_json: ConfigJson, names: Set[str]) -> dict[str, Any]:
    config_json.require("tie_word_embeddings", True)
    config_json.require("is_decoder", False)
    for key in ("attention_heads", "ffn_dim"):
        config_json.require(f"decoder_{key}", config_json.values.get(f"encoder_{key}"))
    width, scaled = (
        config_json.get_int("d_model", 1024),
        config_json.get_bool("scale_embedding", False),
    )
    return {
        "layers": config_json.get_int("encoder_layers", 12),
        "decoder_layers": config_json.get_int("decoder_layers", 12),
        "width": width,
        "heads": config_json.get_int("encoder_attention_heads", 16),
        "feed_forward": config_json.get_int("encoder_ffn_dim", 4096),
        "activation": config_json.get_choice("activation_function", "gelu", ACTIVATIONS),
        "norm_place": "post",
        "position": "sinusoidal",
        "sinusoids": "halves",
        "max_positions": config_json.get_int("max_position_embeddings", 1024),
        "embedding_scale": math.sqrt(width) if scaled else 1.0,
        "lm_head_bias": True,
        "dropout": config_json.get_float("dropout", 0.1),
        "attention_dropout": config_json.get_float("attention_dropout", 0.0),
        "feed_forward_dropout": config_json.get_float("activation_dropout", 0.0),
    }


def _write_config(draft: Draft) -> dict[str, Any]:
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
        "activation_function": activation_name(config.activation),
        "max_position_embeddings": config.max_positions,
        "scale_embedding": config.embedding_scale != 1.0,
        "dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "activation_dropout": config.feed_forward_dropout,
    }


def _sinusoids(config: ModelConfig) -> Tensor:
    even_indices = torch.arange(0, config.width, 2, dtype=torch.float64)
    positions = torch.arange(config.max_positions, dtype=torch.float64)
    angles = positions[:, None] * 10000 ** (-even_indices / config.width)
    return torch.cat([angles.sin(), angles.cos()], dim=1)


def _embedding_scale(config: ModelConfig) -> float:
    """Marian multiplies token embeddings by the square root of the width, or not at all."""
    return 1.0 if config.embedding_scale == 1.0 else math.sqrt(config.width)


MARIAN = Architecture(
    "MarianMTModel",
    "marian",
    "translate",
    "model.",
    {**STACKS, **SHARED_EMBEDDINGS},
    HEAD,
    _read_config,
    _write_config,
    reparameterizations=(
        add_zero_biases,
        add_head_bias,
        reorder_sinusoids,
        rescale_embeddings(_embedding_scale),
    ),
    tied_weights={
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
        body={**STACKS, **SEPARATE_EMBEDDINGS},
        tied_weights={"lm_head.weight": "decoder.embed_tokens.weight"},
    ),
)
