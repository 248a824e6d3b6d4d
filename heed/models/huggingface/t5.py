"""T5 (Raffel et al. 2020): pre-norm, RMS norms, no biases, a bias by distance on scores that are
not scaled.

The first T5 multiplies vectors by 1/√w before the map to the vocabulary, which is the token table.
Version 1.1 multiplies by nothing, may have a map of its own, and has a gate in its feed-forward.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace
from typing import Any

from heed.models.huggingface.architecture import ACTIVATIONS, Architecture, word_for
from heed.models.huggingface.folder import Facts
from heed.models.huggingface.name_map import Table, stacked, under
from heed.models.huggingface.reparameterize import Draft, with_plain_positions, with_scale

ATTENTION: Table = {
    "attention_norm": "layer.0.layer_norm",
    "attention.qkv": stacked(*(f"layer.0.SelfAttention.{part}" for part in "qkv")),
    "attention.out": "layer.0.SelfAttention.o",
}
ACROSS: Table = {
    "cross_norm": "layer.1.layer_norm",
    "cross.q": "layer.1.EncDecAttention.q",
    "cross.kv": stacked("layer.1.EncDecAttention.k", "layer.1.EncDecAttention.v"),
    "cross.out": "layer.1.EncDecAttention.o",
}
FEED: Table = {"feed_forward_norm": "layer_norm", "feed_forward.down": "DenseReluDense.wo"}
PLAIN: Table = {**FEED, "feed_forward.up": "DenseReluDense.wi"}
GATED: Table = {
    **FEED,
    "feed_forward.up": stacked("DenseReluDense.wi_0", "DenseReluDense.wi_1"),
}
GATES = {"gated-gelu": "geglu", "gated-silu": "swiglu"}


def _names(feed: Table) -> Table:
    encoder = {**ATTENTION, **under("layer.1.", feed)}
    decoder = {**ATTENTION, **ACROSS, **under("layer.2.", feed)}
    table: dict[str, Any] = {"embedding.table": "shared", "source_embedding.table": "shared"}
    for side, block in ("encoder", encoder), ("decoder", decoder):
        distances = "block.0.layer.0.SelfAttention.relative_attention_bias"
        table[f"{side}.position.table"] = f"{side}.{distances}"
        table |= under(f"{side}.block.{{}}.", block, ours=f"{side}.blocks.{{}}.")
        table[f"{side}.norm"] = f"{side}.final_layer_norm"
    return table


def _shape(told: Facts, names: Set[str]) -> dict[str, Any]:
    told.require("is_decoder", False)
    width, layers = told.count("d_model", 512), told.count("num_layers", 6)
    tied = told.yes("tie_word_embeddings", True)
    scaled = told.yes("scale_decoder_outputs", tied)
    return {
        "layers": layers,
        "decoder_layers": told.count("num_decoder_layers", layers),
        "width": width,
        "heads": told.count("num_heads", 8),
        "head_width": told.count("d_kv", 64),
        "feed_forward": told.count("d_ff", 2048),
        "activation": told.word("feed_forward_proj", "relu", ACTIVATIONS),
        "norm": "rms",
        "norm_eps": told.number("layer_norm_epsilon", 1e-6),
        "bias": False,
        "scale": 1.0,
        "position": "t5",
        "t5_buckets": told.count("relative_attention_num_buckets", 32),
        "t5_distance": told.count("relative_attention_max_distance", 128),
        "position_scale": 1.0,
        "embedding_scale": 1.0,
        "tie_embeddings": "lm_head.weight" not in names,
        "head_scale": width**-0.5 if scaled else None,
        "dropout": told.number("dropout_rate", 0.1),
        "attention_dropout": told.number("dropout_rate", 0.1),
        "feed_forward_dropout": told.number("dropout_rate", 0.1),
    }


def _gated_shape(told: Facts, names: Set[str]) -> dict[str, Any]:
    gate = told.word("feed_forward_proj", "gated-gelu", GATES)
    plain = Facts({**told.told, "feed_forward_proj": "relu"}, told.where)
    return _shape(plain, names) | {"activation": gate}


def _describe(draft: Draft) -> dict[str, Any]:
    config = draft.config
    return {
        "is_encoder_decoder": True,
        "num_layers": config.layers,
        "num_decoder_layers": config.decoder_layers or config.layers,
        "d_model": config.width,
        "num_heads": config.heads,
        "d_kv": config.head_width or config.width // config.heads,
        "d_ff": config.feed_forward or 4 * config.width,
        "feed_forward_proj": word_for(config.activation),
        "layer_norm_epsilon": config.norm_eps,
        "relative_attention_num_buckets": config.t5_buckets,
        "relative_attention_max_distance": config.t5_distance,
        # Who reads this takes it to say whether the factor before the output map is there.
        "tie_word_embeddings": config.head_scale is not None,
        "dropout_rate": config.dropout,
    }


def _gated_describe(draft: Draft) -> dict[str, Any]:
    return _describe(draft) | {"feed_forward_proj": word_for(draft.config.activation, GATES)}


T5 = Architecture(
    "T5ForConditionalGeneration",
    "t5",
    "translate",
    "",
    _names(PLAIN),
    {"head.own": "lm_head"},
    _shape,
    _describe,
    forms=(with_plain_positions, with_scale(lambda config: 1.0)),
    copies={
        "encoder.embed_tokens.weight": "shared.weight",
        "decoder.embed_tokens.weight": "shared.weight",
        "lm_head.weight": "shared.weight",
    },
)
ARCHITECTURES = (
    T5,
    replace(T5, body=_names(GATED), shape=_gated_shape, describe=_gated_describe),
)
