"""T5 (Raffel et al. 2020): pre-norm, RMSNorm, relative position bias on unscaled scores.

Its linear layers have no biases. The original T5 ties the output projection to the embeddings and
multiplies its input by 1/√w. Version 1.1 does not scale, may have an untied output projection, and
has a gated feed-forward.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace
from typing import Any

from heed.models.huggingface.architecture import ACTIVATIONS, Architecture, activation_name
from heed.models.huggingface.folder import ConfigJson
from heed.models.huggingface.name_map import NameMap, concatenated, with_prefix
from heed.models.huggingface.reparameterize import Draft, fold_position_scale, rescale_embeddings

ATTENTION: NameMap = {
    "attention_norm": "layer.0.layer_norm",
    "attention.qkv": concatenated(*(f"layer.0.SelfAttention.{part}" for part in "qkv")),
    "attention.out": "layer.0.SelfAttention.o",
}
CROSS_ATTENTION: NameMap = {
    "cross_norm": "layer.1.layer_norm",
    "cross.q": "layer.1.EncDecAttention.q",
    "cross.kv": concatenated("layer.1.EncDecAttention.k", "layer.1.EncDecAttention.v"),
    "cross.out": "layer.1.EncDecAttention.o",
}
FEED_FORWARD: NameMap = {
    "feed_forward_norm": "layer_norm",
    "feed_forward.down": "DenseReluDense.wo",
}
PLAIN: NameMap = {**FEED_FORWARD, "feed_forward.up": "DenseReluDense.wi"}
GATED: NameMap = {
    **FEED_FORWARD,
    "feed_forward.up": concatenated("DenseReluDense.wi_0", "DenseReluDense.wi_1"),
}
GATES = {"gated-gelu": "geglu", "gated-silu": "swiglu"}


def _name_map(feed: NameMap) -> NameMap:
    encoder = {**ATTENTION, **with_prefix("layer.1.", feed)}
    decoder = {**ATTENTION, **CROSS_ATTENTION, **with_prefix("layer.2.", feed)}
    table: dict[str, Any] = {"embedding.table": "shared", "source_embedding.table": "shared"}
    for side, block in ("encoder", encoder), ("decoder", decoder):
        distances = "block.0.layer.0.SelfAttention.relative_attention_bias"
        table[f"{side}.position.table"] = f"{side}.{distances}"
        table |= with_prefix(f"{side}.block.{{}}.", block, ours=f"{side}.blocks.{{}}.")
        table[f"{side}.norm"] = f"{side}.final_layer_norm"
    return table


def _read_config(config_json: ConfigJson, names: Set[str]) -> dict[str, Any]:
    config_json.require("is_decoder", False)
    width, layers = config_json.get_int("d_model", 512), config_json.get_int("num_layers", 6)
    tied = config_json.get_bool("tie_word_embeddings", True)
    scaled = config_json.get_bool("scale_decoder_outputs", tied)
    return {
        "layers": layers,
        "decoder_layers": config_json.get_int("num_decoder_layers", layers),
        "width": width,
        "heads": config_json.get_int("num_heads", 8),
        "head_width": config_json.get_int("d_kv", 64),
        "feed_forward": config_json.get_int("d_ff", 2048),
        "activation": config_json.get_choice("feed_forward_proj", "relu", ACTIVATIONS),
        "norm": "rms",
        "norm_eps": config_json.get_float("layer_norm_epsilon", 1e-6),
        "bias": False,
        "scale": 1.0,
        "position": "t5",
        "t5_buckets": config_json.get_int("relative_attention_num_buckets", 32),
        "t5_distance": config_json.get_int("relative_attention_max_distance", 128),
        "position_scale": 1.0,
        "embedding_scale": 1.0,
        "tie_embeddings": "lm_head.weight" not in names,
        "lm_head_scale": width**-0.5 if scaled else None,
        "dropout": config_json.get_float("dropout_rate", 0.1),
        "attention_dropout": config_json.get_float("dropout_rate", 0.1),
        "feed_forward_dropout": config_json.get_float("dropout_rate", 0.1),
    }


def _read_gated_config(config_json: ConfigJson, names: Set[str]) -> dict[str, Any]:
    gate = config_json.get_choice("feed_forward_proj", "gated-gelu", GATES)
    plain = ConfigJson({**config_json.values, "feed_forward_proj": "relu"}, config_json.where)
    return _read_config(plain, names) | {"activation": gate}


def _write_config(draft: Draft) -> dict[str, Any]:
    config = draft.config
    return {
        "is_encoder_decoder": True,
        "num_layers": config.layers,
        "num_decoder_layers": config.decoder_layers or config.layers,
        "d_model": config.width,
        "num_heads": config.heads,
        "d_kv": config.resolved_head_width,
        "d_ff": config.feed_forward or 4 * config.width,
        "feed_forward_proj": activation_name(config.activation),
        "layer_norm_epsilon": config.norm_eps,
        "relative_attention_num_buckets": config.t5_buckets,
        "relative_attention_max_distance": config.t5_distance,
        # transformers scales the input of the output projection if and only if this is true.
        "tie_word_embeddings": config.lm_head_scale is not None,
        "dropout_rate": config.dropout,
    }


def _write_gated_config(draft: Draft) -> dict[str, Any]:
    return _write_config(draft) | {
        "feed_forward_proj": activation_name(draft.config.activation, GATES)
    }


T5 = Architecture(
    "T5ForConditionalGeneration",
    "t5",
    "translate",
    "",
    _name_map(PLAIN),
    {"head.own": "lm_head"},
    _read_config,
    _write_config,
    reparameterizations=(fold_position_scale, rescale_embeddings(lambda config: 1.0)),
    tied_weights={
        "encoder.embed_tokens.weight": "shared.weight",
        "decoder.embed_tokens.weight": "shared.weight",
        "lm_head.weight": "shared.weight",
    },
)
ARCHITECTURES = (
    T5,
    replace(
        T5, body=_name_map(GATED), read_config=_read_gated_config, write_config=_write_gated_config
    ),
)
