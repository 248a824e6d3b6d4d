"""BERT (Devlin et al. 2019) and RoBERTa (Liu et al. 2019): two post-norm encoders.

Both have learned positions, a norm on the embeddings and an embedding for each of two sentences.
RoBERTa's position table begins with unused rows, as many as the id of its padding token plus one.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace
from typing import Any

from heed.models.huggingface.architecture import (
    ACTIVATIONS,
    Architecture,
    ConfigReader,
    activation_name,
)
from heed.models.huggingface.folder import ConfigJson
from heed.models.huggingface.name_map import NameMap, concatenated
from heed.models.huggingface.reparameterize import (
    Draft,
    add_head_bias,
    add_token_types,
    add_zero_biases,
    fold_position_scale,
    rescale_embeddings,
)

BODY: NameMap = {
    "embedding.table": "embeddings.word_embeddings",
    "embedding.types": "embeddings.token_type_embeddings",
    "stack.position.table": "embeddings.position_embeddings",
    "stack.embedding_norm": "embeddings.LayerNorm",
    "stack.blocks.{}.attention.qkv": concatenated(
        "encoder.layer.{}.attention.self.query",
        "encoder.layer.{}.attention.self.key",
        "encoder.layer.{}.attention.self.value",
    ),
    "stack.blocks.{}.attention.out": "encoder.layer.{}.attention.output.dense",
    "stack.blocks.{}.attention_norm": "encoder.layer.{}.attention.output.LayerNorm",
    "stack.blocks.{}.feed_forward.up": "encoder.layer.{}.intermediate.dense",
    "stack.blocks.{}.feed_forward.down": "encoder.layer.{}.output.dense",
    "stack.blocks.{}.feed_forward_norm": "encoder.layer.{}.output.LayerNorm",
    "pool.linear": "pooler.dense",
}
BERT_LM_HEAD: NameMap = {
    "head.transform_linear": "cls.predictions.transform.dense",
    "head.norm": "cls.predictions.transform.LayerNorm",
    "head.bias": "cls.predictions.bias",
}
ROBERTA_LM_HEAD: NameMap = {
    "head.transform_linear": "lm_head.dense",
    "head.norm": "lm_head.layer_norm",
    "head.bias": "lm_head.bias",
}
BERT_CLASSIFIER_HEAD: NameMap = {"head": "classifier"}
ROBERTA_CLASSIFIER_HEAD: NameMap = {"head.0": "classifier.dense", "head.3": "classifier.out_proj"}

BUFFERS = r"embeddings\.(position_ids|token_type_ids)"
"""Buffers that older versions of `transformers` saved."""
REPARAMETERIZATIONS = (
    fold_position_scale,
    add_zero_biases,
    add_token_types,
    rescale_embeddings(lambda config: 1.0),
)
LM_HEAD_KEYS = {"lm_head_transform": True, "lm_head_bias": True}
POOLER_KEYS = {"pooling": "first", "pooler": True}


# -------------------------------------------------------------------------- reading config.json


def _read_bert(config_json: ConfigJson, names: Set[str]) -> dict[str, Any]:
    config_json.require("is_decoder", False)
    config_json.require("add_cross_attention", False)
    config_json.require("position_embedding_type", "absolute")
    config_json.require("tie_word_embeddings", True)
    return {
        "layers": config_json.get_int("num_hidden_layers", 12),
        "width": config_json.get_int("hidden_size", 768),
        "heads": config_json.get_int("num_attention_heads", 12),
        "feed_forward": config_json.get_int("intermediate_size", 3072),
        "activation": config_json.get_choice("hidden_act", "gelu", ACTIVATIONS),
        "norm_place": "post",
        "norm_eps": config_json.get_float("layer_norm_eps", 1e-12),
        "position": "learned",
        "max_positions": config_json.get_int("max_position_embeddings", 512),
        "embedding_scale": 1.0,
        "embedding_norm": True,
        "token_types": config_json.get_int("type_vocab_size", 2),
        "dropout": config_json.get_float("hidden_dropout_prob", 0.1),
        "attention_dropout": config_json.get_float("attention_probs_dropout_prob", 0.1),
    }


def _read_roberta(config_json: ConfigJson, names: Set[str]) -> dict[str, Any]:
    offset, keys = config_json.get_int("pad_token_id", 1) + 1, _read_bert(config_json, names)
    return keys | {"position_offset": offset, "max_positions": keys["max_positions"] - offset}


# -------------------------------------------------------------------------- writing config.json


def _write_config(draft: Draft) -> dict[str, Any]:
    config = draft.config
    return {
        "num_hidden_layers": config.layers,
        "hidden_size": config.width,
        "num_attention_heads": config.heads,
        "intermediate_size": config.feed_forward or 4 * config.width,
        "hidden_act": activation_name(config.activation),
        "layer_norm_eps": config.norm_eps,
        "max_position_embeddings": config.max_positions + config.position_offset,
        "type_vocab_size": config.token_types,
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.attention_dropout,
    }


def _write_roberta(draft: Draft) -> dict[str, Any]:
    return _write_config(draft) | {"pad_token_id": draft.config.position_offset - 1}


def _with_keys(read_config: ConfigReader, keys: dict[str, Any]) -> ConfigReader:
    """A reader that sets further keys of the `ModelConfig`."""
    return lambda config_json, names: read_config(config_json, names) | keys


def _with_optional_pooler(read_config: ConfigReader) -> ConfigReader:
    """A reader for classes without a head, whose weights alone show whether there is a pooler."""

    def read(config_json: ConfigJson, names: Set[str]) -> dict[str, Any]:
        pooler = POOLER_KEYS if "pooler.dense.weight" in names else {}
        return read_config(config_json, names) | pooler

    return read


def _read_roberta_lm(config_json: ConfigJson, names: Set[str]) -> dict[str, Any]:
    config_json.require("hidden_act", "gelu")  # RoBERTa's head always uses gelu
    return _read_roberta(config_json, names) | LM_HEAD_KEYS


def _read_roberta_classifier(config_json: ConfigJson, names: Set[str]) -> dict[str, Any]:
    keys = _read_roberta(config_json, names)
    hidden = {"classifier_hidden": keys["width"], "classifier_activation": "tanh"}
    return keys | hidden | {"pooling": "first"}


# ----------------------------------------------------------------------------------- the classes

BERT = Architecture(
    "BertModel",
    "bert",
    None,
    "bert.",
    BODY,
    {},
    _with_optional_pooler(_read_bert),
    _write_config,
    reparameterizations=REPARAMETERIZATIONS,
    unused=BUFFERS,
)
ROBERTA = replace(
    BERT,
    name="RobertaModel",
    model_type="roberta",
    prefix="roberta.",
    read_config=_with_optional_pooler(_read_roberta),
    write_config=_write_roberta,
)
ARCHITECTURES = (
    BERT,
    replace(
        BERT,
        name="BertForMaskedLM",
        task="generate",
        head=BERT_LM_HEAD,
        read_config=_with_keys(_read_bert, LM_HEAD_KEYS),
        reparameterizations=(*REPARAMETERIZATIONS, add_head_bias),
        tied_weights={
            "cls.predictions.decoder.weight": "embeddings.word_embeddings.weight",
            "cls.predictions.decoder.bias": "cls.predictions.bias",
        },
        unused=rf"{BUFFERS}|pooler\..*|cls\.seq_relationship\..*",
    ),
    replace(
        BERT,
        name="BertForSequenceClassification",
        task="classify",
        head=BERT_CLASSIFIER_HEAD,
        read_config=_with_keys(_read_bert, POOLER_KEYS),
    ),
    ROBERTA,
    replace(
        ROBERTA,
        name="RobertaForMaskedLM",
        task="generate",
        head=ROBERTA_LM_HEAD,
        read_config=_read_roberta_lm,
        reparameterizations=(*REPARAMETERIZATIONS, add_head_bias),
        tied_weights={
            "lm_head.decoder.weight": "embeddings.word_embeddings.weight",
            "lm_head.decoder.bias": "lm_head.bias",
        },
        unused=rf"{BUFFERS}|pooler\..*",
    ),
    replace(
        ROBERTA,
        name="RobertaForSequenceClassification",
        task="classify",
        head=ROBERTA_CLASSIFIER_HEAD,
        read_config=_read_roberta_classifier,
        unused=rf"{BUFFERS}|pooler\..*",
    ),
)
