"""BERT (Devlin et al. 2019) and RoBERTa (Liu et al. 2019), which differ in where they count from.

Post-norm, learned positions, a norm on what enters, a vector for each of two sentences. RoBERTa's
table of positions begins with rows that padding was once to have: as many as the id of its padding
token, and one more.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace
from typing import Any

from heed.models.huggingface.architecture import ACTIVATIONS, Architecture, Shape, word_for
from heed.models.huggingface.folder import Facts
from heed.models.huggingface.name_map import Table, stacked
from heed.models.huggingface.reparameterize import (
    Draft,
    with_bias,
    with_head_bias,
    with_plain_positions,
    with_scale,
    with_types,
)

BODY: Table = {
    "embedding.table": "embeddings.word_embeddings",
    "embedding.types": "embeddings.token_type_embeddings",
    "stack.position.table": "embeddings.position_embeddings",
    "stack.embedding_norm": "embeddings.LayerNorm",
    "stack.blocks.{}.attention.qkv": stacked(
        "encoder.layer.{}.attention.self.query",
        "encoder.layer.{}.attention.self.key",
        "encoder.layer.{}.attention.self.value",
    ),
    "stack.blocks.{}.attention.out": "encoder.layer.{}.attention.output.dense",
    "stack.blocks.{}.attention_norm": "encoder.layer.{}.attention.output.LayerNorm",
    "stack.blocks.{}.feed_forward.up": "encoder.layer.{}.intermediate.dense",
    "stack.blocks.{}.feed_forward.down": "encoder.layer.{}.output.dense",
    "stack.blocks.{}.feed_forward_norm": "encoder.layer.{}.output.LayerNorm",
    "pool.map": "pooler.dense",
}
BERT_GUESSES: Table = {
    "head.map": "cls.predictions.transform.dense",
    "head.norm": "cls.predictions.transform.LayerNorm",
    "head.bias": "cls.predictions.bias",
}
ROBERTA_GUESSES: Table = {
    "head.map": "lm_head.dense",
    "head.norm": "lm_head.layer_norm",
    "head.bias": "lm_head.bias",
}
BERT_CLASSES: Table = {"head": "classifier"}
ROBERTA_CLASSES: Table = {"head.0": "classifier.dense", "head.3": "classifier.out_proj"}

BUFFERS = r"embeddings\.(position_ids|token_type_ids)"
"""What older folders hold beside."""
FORMS = (with_plain_positions, with_bias, with_types, with_scale(lambda config: 1.0))
GUESSING = {"head_map": True, "head_bias": True}
POOLING = {"pooling": "first", "pooler": True}


# ------------------------------------------------------------------- config.json, there and back


def _bert(told: Facts, names: Set[str]) -> dict[str, Any]:
    told.require("is_decoder", False)
    told.require("add_cross_attention", False)
    told.require("position_embedding_type", "absolute")
    told.require("tie_word_embeddings", True)
    return {
        "layers": told.count("num_hidden_layers", 12),
        "width": told.count("hidden_size", 768),
        "heads": told.count("num_attention_heads", 12),
        "feed_forward": told.count("intermediate_size", 3072),
        "activation": told.word("hidden_act", "gelu", ACTIVATIONS),
        "norm_place": "post",
        "norm_eps": told.number("layer_norm_eps", 1e-12),
        "position": "learned",
        "max_positions": told.count("max_position_embeddings", 512),
        "embedding_scale": 1.0,
        "embedding_norm": True,
        "token_types": told.count("type_vocab_size", 2),
        "dropout": told.number("hidden_dropout_prob", 0.1),
        "attention_dropout": told.number("attention_probs_dropout_prob", 0.1),
    }


def _roberta(told: Facts, names: Set[str]) -> dict[str, Any]:
    offset, shape = told.count("pad_token_id", 1) + 1, _bert(told, names)
    return shape | {
        "position_offset": offset,
        "max_positions": shape["max_positions"] - offset,
    }


def _describe(draft: Draft) -> dict[str, Any]:
    config = draft.config
    return {
        "num_hidden_layers": config.layers,
        "hidden_size": config.width,
        "num_attention_heads": config.heads,
        "intermediate_size": config.feed_forward or 4 * config.width,
        "hidden_act": word_for(config.activation),
        "layer_norm_eps": config.norm_eps,
        "max_position_embeddings": config.max_positions + config.position_offset,
        "type_vocab_size": config.token_types,
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.attention_dropout,
    }


def _describe_roberta(draft: Draft) -> dict[str, Any]:
    return _describe(draft) | {"pad_token_id": draft.config.position_offset - 1}


def _also(shape: Shape, keys: dict[str, Any]) -> Shape:
    return lambda told, names: shape(told, names) | keys


def _perhaps_pooled(shape: Shape) -> Shape:
    """Without a head there is a pooler or there is none: only the weights say so."""
    pooler = "pooler.dense.weight"
    return lambda told, names: shape(told, names) | (POOLING if pooler in names else {})


def _roberta_guesses(told: Facts, names: Set[str]) -> dict[str, Any]:
    told.require("hidden_act", "gelu")  # its head has this one, whatever the rest has
    return _roberta(told, names) | GUESSING


def _roberta_classes(told: Facts, names: Set[str]) -> dict[str, Any]:
    shape = _roberta(told, names)
    hidden = {"classifier_hidden": shape["width"], "classifier_activation": "tanh"}
    return shape | hidden | {"pooling": "first"}


# ----------------------------------------------------------------------------------- the classes

BERT = Architecture(
    "BertModel",
    "bert",
    None,
    "bert.",
    BODY,
    {},
    _perhaps_pooled(_bert),
    _describe,
    forms=FORMS,
    idle=BUFFERS,
)
ROBERTA = replace(
    BERT,
    name="RobertaModel",
    family="roberta",
    prefix="roberta.",
    shape=_perhaps_pooled(_roberta),
    describe=_describe_roberta,
)
ARCHITECTURES = (
    BERT,
    replace(
        BERT,
        name="BertForMaskedLM",
        task="generate",
        head=BERT_GUESSES,
        shape=_also(_bert, GUESSING),
        forms=(*FORMS, with_head_bias),
        copies={
            "cls.predictions.decoder.weight": "embeddings.word_embeddings.weight",
            "cls.predictions.decoder.bias": "cls.predictions.bias",
        },
        idle=rf"{BUFFERS}|pooler\..*|cls\.seq_relationship\..*",
    ),
    replace(
        BERT,
        name="BertForSequenceClassification",
        task="classify",
        head=BERT_CLASSES,
        shape=_also(_bert, POOLING),
    ),
    ROBERTA,
    replace(
        ROBERTA,
        name="RobertaForMaskedLM",
        task="generate",
        head=ROBERTA_GUESSES,
        shape=_roberta_guesses,
        forms=(*FORMS, with_head_bias),
        copies={
            "lm_head.decoder.weight": "embeddings.word_embeddings.weight",
            "lm_head.decoder.bias": "lm_head.bias",
        },
        idle=rf"{BUFFERS}|pooler\..*",
    ),
    replace(
        ROBERTA,
        name="RobertaForSequenceClassification",
        task="classify",
        head=ROBERTA_CLASSES,
        shape=_roberta_classes,
        idle=rf"{BUFFERS}|pooler\..*",
    ),
)
