"""GPT-2 (Radford et al. 2019): pre-norm, learned positions, matrices kept as [in, out]."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace
from typing import Any

from heed.models.huggingface.architecture import ACTIVATIONS, Architecture, word_for
from heed.models.huggingface.folder import Facts
from heed.models.huggingface.name_map import Table, turned
from heed.models.huggingface.reparameterize import (
    Draft,
    with_bias,
    with_plain_positions,
    with_scale,
)

BODY: Table = {
    "embedding.table": "wte",
    "stack.position.table": "wpe",
    "stack.blocks.{}.attention_norm": "h.{}.ln_1",
    "stack.blocks.{}.attention.qkv": turned("h.{}.attn.c_attn"),
    "stack.blocks.{}.attention.out": turned("h.{}.attn.c_proj"),
    "stack.blocks.{}.feed_forward_norm": "h.{}.ln_2",
    "stack.blocks.{}.feed_forward.up": turned("h.{}.mlp.c_fc"),
    "stack.blocks.{}.feed_forward.down": turned("h.{}.mlp.c_proj"),
    "stack.norm": "ln_f",
}
HEAD: Table = {"head.own": "lm_head"}


def _shape(told: Facts, names: Set[str]) -> dict[str, Any]:
    told.require("add_cross_attention", False)
    told.require("scale_attn_by_inverse_layer_idx", False)
    scaled, width = told.yes("scale_attn_weights", True), told.count("n_embd", 768)
    return {
        "layers": told.count("n_layer", 12),
        "width": width,
        "heads": told.count("n_head", 12),
        "feed_forward": told.count("n_inner", 4 * width),
        "activation": told.word("activation_function", "gelu_new", ACTIVATIONS),
        "norm_eps": told.number("layer_norm_epsilon", 1e-5),
        "scale": None if scaled else 1.0,
        "position": "learned",
        "max_positions": told.count("n_positions", 1024),
        "embedding_scale": 1.0,
        "tie_embeddings": told.yes("tie_word_embeddings", True),
        "dropout": told.number("resid_pdrop", 0.1),
        "attention_dropout": told.number("attn_pdrop", 0.1),
    }


def _describe(draft: Draft) -> dict[str, Any]:
    config = draft.config
    return {
        "n_layer": config.layers,
        "n_embd": config.width,
        "n_head": config.heads,
        "n_inner": config.feed_forward or 4 * config.width,
        "activation_function": word_for(config.activation),
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
    _shape,
    _describe,
    forms=(with_plain_positions, with_bias, with_scale(lambda config: 1.0)),
    causal=True,
    idle=r"h\.\d+\.attn\.(bias|masked_bias)",
)
ARCHITECTURES = (
    GPT2,
    replace(
        GPT2,
        name="GPT2LMHeadModel",
        task="generate",
        head=HEAD,
        copies={"lm_head.weight": "wte.weight"},
    ),
)
