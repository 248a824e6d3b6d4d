"""Reparameterizations: the same function with other weights, to fit a class of `transformers`.

Such a class may need a bias on every linear layer, or unscaled embeddings, where a heed model has
no bias, or scales. A bias of zeros changes nothing, and a factor can move from one weight to
another. The logits stay the same: bit for bit, unless a factor that is no power of two moves.

Shapes: v vocabulary, w width.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from heed.config import ModelConfig
from heed.nn.initialization import position_scale, token_scale

HAS_BIAS = re.compile(r"(?!.*\.[qk]_norm\.).*\.(qkv|q|kv|out|up|down|\w*linear|\w*norm)\.weight")
"""Weights that have a bias beside them if `model.bias` is true."""
WIDTH_COLUMNS = re.compile(r".*(qkv|\.q|kv|up|head\.own|table)\.weight")
"""Matrices [_, w]: their columns are the model width."""
WIDTH_ROWS = re.compile(r"(?!.*\.[qk]_norm\.).*(out|down|norm)\.(weight|bias)")
"""Matrices and vectors [w, …]: their rows are the model width."""


@dataclass(frozen=True)
class Draft:
    """A model being prepared for export: task (None without a head), config and weights."""

    task: str | None
    config: ModelConfig
    weights: dict[str, Tensor]

    def with_changes(self, weights: dict[str, Tensor], **keys: Any) -> Draft:
        """A draft with other weights, and with these keys of the config changed."""
        config = ModelConfig(**(self.config.model_dump() | keys))
        return Draft(self.task, config, weights)


Reparameterization = Callable[[Draft], Draft]


def add_zero_biases(draft: Draft) -> Draft:
    """Give every linear layer and norm a bias, of zeros where it had none."""
    zeros = {
        name.removesuffix("weight") + "bias": weight.new_zeros(len(weight))
        for name, weight in draft.weights.items()
        if HAS_BIAS.fullmatch(name)
    }
    return draft.with_changes(zeros | draft.weights, bias=True)


def add_head_bias(draft: Draft) -> Draft:
    """Give the output projection a bias, of zeros where it had none."""
    zeros = torch.zeros_like(draft.weights["embedding.table.weight"][:, 0])
    return draft.with_changes({"head.bias": zeros} | draft.weights, lm_head_bias=True)


def add_token_types(draft: Draft) -> Draft:
    """Give the model at least one token type, with an embedding of zeros where it had none."""
    zeros = torch.zeros_like(draft.weights["embedding.table.weight"][:1])
    types = max(1, draft.config.token_types)
    return draft.with_changes({"embedding.types.weight": zeros} | draft.weights, token_types=types)


def rescale_embeddings(scale: Callable[[ModelConfig], float]) -> Reparameterization:
    """Set the factor on token embeddings; the embedding table is rescaled to compensate.

    With tied embeddings the last norm is rescaled too, since the table is the output projection.
    """

    def change(draft: Draft) -> Draft:
        config, weights = draft.config, dict(draft.weights)
        old, new = token_scale(config), scale(config)
        for name in ("embedding.table.weight", "source_embedding.table.weight"):
            if name in weights and old != new:
                weights[name] = weights[name] * (old / new)
        for name in _last_norm(draft) if old != new and config.tie_embeddings else ():
            weights[name] = weights[name] * (new / old)
        return draft.with_changes(weights, embedding_scale=new)

    return change


def fold_position_scale(draft: Draft) -> Draft:
    """Multiply the position tables by their factor, and set the factor to 1."""
    scale = position_scale(draft.config)
    weights = {
        name: weight * scale if name.endswith("position.table.weight") else weight
        for name, weight in draft.weights.items()
    }
    return draft.with_changes(weights, position_scale=1.0)


def reorder_sinusoids(draft: Draft) -> Draft:
    """Permute the model width so that sinusoids have all sines first, then all cosines."""
    config = draft.config
    if config.position != "sinusoidal" or config.sinusoids == "halves":
        return draft
    order = torch.cat([torch.arange(0, config.width, 2), torch.arange(1, config.width, 2)])
    weights = {}
    for name, weight in draft.weights.items():
        if WIDTH_COLUMNS.fullmatch(name):
            weight = weight[:, order]
        elif WIDTH_ROWS.fullmatch(name):
            weight = weight[order]
        weights[name] = weight
    return draft.with_changes(weights, sinusoids="halves")


def _last_norm(draft: Draft) -> list[str]:
    """The weight and bias of the last norm before the output projection."""
    config = draft.config
    if draft.task not in ("generate", "translate"):
        return []
    stack, layers = "stack", config.layers
    if draft.task == "translate":
        stack, layers = "decoder", config.decoder_layers or config.layers
    last = f"{stack}.blocks.{layers - 1}.feed_forward_norm"
    module = f"{stack}.norm" if config.norm_place == "pre" else last
    if config.lm_head_transform:
        module = "head.norm"
    names = [f"{module}.{part}" for part in ("weight", "bias")]
    return [name for name in names if name in draft.weights]


# ------------------------------------------------------------------------------ effective config

NO_EFFECT = {"dropout", "attention_dropout", "feed_forward_dropout", "merge_when", "leaky"}
NO_EFFECT |= {"ngram_dropout"}
"""Keys that do not change the output of a trained model by themselves."""
POSITION_KEYS = {
    "max_positions": "learned",
    "position_offset": "learned",
    "sinusoids": "sinusoidal",
    "rope_base": "rope",
    "shaw_clip": "shaw",
    "shaw_values": "shaw",
    "t5_buckets": "t5",
    "t5_distance": "t5",
}
"""Keys that only one position encoding uses."""
NGRAM_KEYS = {"ngrams", "ngram_buckets", "ngram_dropout", "ngram_log_count_ratio", "word_ngrams"}
CLASSIFIER_KEYS = {"pooling", "pooler", "classifier_hidden", "classifier_activation"} | NGRAM_KEYS
LM_HEAD_KEYS = {"lm_head_transform", "lm_head_bias", "lm_head_scale", "tie_embeddings"}
CROSS_ATTENTION_KEYS = {"decoder_layers", "cross_position"}


def effective_config(task: str | None, config: ModelConfig) -> dict[str, Any]:
    """The keys that a model's output depends on, with the values that unset keys stand for."""
    keys = {key: value for key, value in config.model_dump().items() if key not in NO_EFFECT}
    width = config.resolved_head_width
    keys |= {
        "decoder_layers": config.decoder_layers or config.layers,
        "kv_heads": config.kv_heads or config.heads,
        "head_width": width,
        "feed_forward": config.feed_forward or 4 * config.width,
        "scale": width**-0.5 if config.scale is None else config.scale,
        "embedding_scale": token_scale(config),
        "position_scale": position_scale(config),
        "embedding_width": config.embedding_width or config.width,
        "lm_head_scale": config.lm_head_scale or 1.0,
    }
    if config.merge_when == "training":
        keys["merge"] = "concat"
    unused_keys = {key for key, encoding in POSITION_KEYS.items() if config.position != encoding}
    unused_keys |= CLASSIFIER_KEYS if task in ("generate", "translate") else set()
    unused_keys |= LM_HEAD_KEYS if task in ("classify", None) else set()
    if task is None:
        unused_keys |= CLASSIFIER_KEYS - ({"pooler", "pooling"} if config.pooler else {"pooler"})
    unused_keys |= CROSS_ATTENTION_KEYS if task != "translate" else set()
    unused_keys |= (
        {"cross_position"} if config.position in ("learned", "sinusoidal", "none") else set()
    )
    unused_keys |= {"reweight_over"} if keys["merge"] != "reweight" else set()
    unused_keys |= {"classifier_activation"} if config.classifier_hidden is None else set()
    unused_keys |= NGRAM_KEYS - {"ngrams"} if config.ngrams == 1 else set()
    return {key: value for key, value in keys.items() if key not in unused_keys}
