"""GPT-2 (Radford et al. 2019): pre-norm, learned positions, matrices stored as [in, out]."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace
from typing import Any

from heed.models.huggingface.architecture import ACTIVATIONS, Architecture, activation_name
from heed.models.huggingface.folder import ConfigJson
from heed.models.huggingface.name_map import NameMap, transposed
from heed.models.huggingface.reparameterize import (
    Draft,
    add_zero_biases,
    fold_position_scale,
    rescale_embeddings,
)

BODY: NameMap = {
    "embedding.table": "wte",
    "stack.position.table": "wpe",
    "stack.blocks.{}.attention_norm": "h.{}.ln_1",
    "stack.blocks.{}.attention.qkv": transposed("h.{}.attn.c_attn"),
    "stack.blocks.{}.attention.out": transposed("h.{}.attn.c_proj"),
    "stack.blocks.{}.feed_forward_norm": "h.{}.ln_2",
    "stack.blocks.{}.feed_forward.up": transposed("h.{}.mlp.c_fc"),
    "stack.blocks.{}.feed_forward.down": transposed("h.{}.mlp.c_proj"),
    "stack.norm": "ln_f",
}
HEAD: NameMap = {"head.own": "lm_head"}


def _read_config(config_json: ConfigJson, names: Set[str]) -> dict[str, Any]:
    config_json.require("add_cross_attention", False)
    config_json.require("scale_attn_by_inverse_layer_idx", False)
    scaled, width = (
        config_json.get_bool("scale_attn_weights", True),
        config_json.get_int("n_embd", 768),
    )
    return {
        "layers": config_json.get_int("n_layer", 12),
        "width": width,
        "heads": config_json.get_int("n_head", 12),
        "feed_forward": config_json.get_int("n_inner", 4 * width),
        "activation": config_json.get_choice("activation_function", "gelu_new", ACTIVATIONS),
        "norm_eps": config_json.get_float("layer_norm_epsilon", 1e-5),
        "scale": None if scaled else 1.0,
        "position": "learned",
        "max_positions": config_json.get_int("n_positions", 1024),
        "embedding_scale": 1.0,
        "tie_embeddings": config_json.get_bool("tie_word_embeddings", True),
        "dropout": config_json.get_float("resid_pdrop", 0.1),
        "attention_dropout": config_json.get_float("attn_pdrop", 0.1),
    }


def _write_config(draft: Draft) -> dict[str, Any]:
    config = draft.config
    return {
        "n_layer": config.layers,
        "n_embd": config.width,
        "n_head": config.heads,
        "n_inner": config.feed_forward or 4 * config.width,
        "activation_function": activation_name(config.activation),
        "layer_norm_epsilon": config.norm_eps,
        "scale_attn_weights": config.scale != 1.0,
        "n_positions": config.max_positions,
        "tie_word_embeddings": config.tie_embeddings,
        "resid_pdrop": config.dropout,
        "embd_pdrop": config.dropout,
        "attn_pdrop": config.attention_dropout,
    }


GPT2 = Architecture(
    "GPT2Model",
    "gpt2",
    None,
    "transformer.",
    BODY,
    {},
    _read_config,
    _write_config,
    reparameterizations=(
        fold_position_scale,
        add_zero_biases,
        rescale_embeddings(lambda config: 1.0),
    ),
    causal=True,
    unused=r"h\.\d+\.attn\.(bias|masked_bias)",
)
ARCHITECTURES = (
    GPT2,
    replace(
        GPT2,
        name="GPT2LMHeadModel",
        task="generate",
        head=HEAD,
        tied_weights={"lm_head.weight": "wte.weight"},
    ),
)
