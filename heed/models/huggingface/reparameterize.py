"""The same function in another form, for classes that have but one.

A class of another library wants a bias on every map, or token vectors multiplied by nothing, where
a model of ours may have none, or multiplies. Zeros for a bias say the same, and a factor can move
from one weight to another. What a form returns gives the same logits: exactly, but where a factor
moves that is no power of two.

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
from heed.nn.embedding import position_scale, token_scale

BIASED = re.compile(r"(?!.*\.[qk]_norm\.).*\.(qkv|q|kv|out|up|down|map|\w*norm)\.weight")
"""What has a bias where `bias` is true."""
READS = re.compile(r".*(qkv|\.q|kv|up|head\.own|table)\.weight")
"""Matrices whose columns are the width."""
WRITES = re.compile(r"(?!.*\.[qk]_norm\.).*(out|down|norm)\.(weight|bias)")
"""What has the width as its rows, vectors among them."""


@dataclass(frozen=True)
class Draft:
    """A model to be written down: its task (None without a head), its shape, its weights."""

    task: str | None
    config: ModelConfig
    weights: dict[str, Tensor]

    def changed(self, weights: dict[str, Tensor], **keys: Any) -> Draft:
        """With other weights, and these keys of the shape."""
        config = ModelConfig(**(self.config.model_dump() | keys))
        return Draft(self.task, config, weights)


Form = Callable[[Draft], Draft]


def with_bias(draft: Draft) -> Draft:
    """Every map and norm has a bias, of zeros where it had none."""
    zeros = {
        name.removesuffix("weight") + "bias": weight.new_zeros(len(weight))
        for name, weight in draft.weights.items()
        if BIASED.fullmatch(name)
    }
    return draft.changed(zeros | draft.weights, bias=True)


def with_head_bias(draft: Draft) -> Draft:
    """So has the map to the vocabulary."""
    zeros = torch.zeros_like(draft.weights["embedding.table.weight"][:, 0])
    return draft.changed({"head.bias": zeros} | draft.weights, head_bias=True)


def with_types(draft: Draft) -> Draft:
    """Tokens are of one type at least, which adds nothing where they had none."""
    zeros = torch.zeros_like(draft.weights["embedding.table.weight"][:1])
    types = max(1, draft.config.token_types)
    return draft.changed({"embedding.types.weight": zeros} | draft.weights, token_types=types)


def with_scale(scale: Callable[[ModelConfig], float]) -> Form:
    """Token vectors are multiplied by this; the table takes the difference.

    Where the table is the output map as well, the last norm before it gives the difference back.
    """

    def change(draft: Draft) -> Draft:
        config, weights = draft.config, dict(draft.weights)
        now, wanted = token_scale(config), scale(config)
        for name in ("embedding.table.weight", "source_embedding.table.weight"):
            if name in weights and now != wanted:
                weights[name] = weights[name] * (now / wanted)
        for name in _last_norm(draft) if now != wanted and config.tie_embeddings else ():
            weights[name] = weights[name] * (wanted / now)
        return draft.changed(weights, embedding_scale=wanted)

    return change


def with_plain_positions(draft: Draft) -> Draft:
    """The tables of positions are multiplied by nothing: they take the factor."""
    scale = position_scale(draft.config)
    weights = {
        name: weight * scale if name.endswith("position.table.weight") else weight
        for name, weight in draft.weights.items()
    }
    return draft.changed(weights, position_scale=1.0)


def in_halves(draft: Draft) -> Draft:
    """Sinusoids have all sines first: the numbers of every vector change places alike."""
    config = draft.config
    if config.position != "sinusoidal" or config.sinusoids == "halves":
        return draft
    order = torch.cat([torch.arange(0, config.width, 2), torch.arange(1, config.width, 2)])
    weights = {}
    for name, weight in draft.weights.items():
        if READS.fullmatch(name):
            weight = weight[:, order]
        elif WRITES.fullmatch(name):
            weight = weight[order]
        weights[name] = weight
    return draft.changed(weights, sinusoids="halves")


def _last_norm(draft: Draft) -> list[str]:
    """The weights of the norm whose vectors the map to the vocabulary reads."""
    config = draft.config
    if draft.task not in ("generate", "translate"):
        return []
    stack, layers = "stack", config.layers
    if draft.task == "translate":
        stack, layers = "decoder", config.decoder_layers or config.layers
    last = f"{stack}.blocks.{layers - 1}.feed_forward_norm"
    module = f"{stack}.norm" if config.norm_place == "pre" else last
    if config.head_map:
        module = "head.norm"
    names = [f"{module}.{part}" for part in ("weight", "bias")]
    return [name for name in names if name in draft.weights]


# ------------------------------------------------------------------------ what a shape comes to

APART = {"dropout", "attention_dropout", "feed_forward_dropout", "merge_when", "leaky"}
APART |= {"ngram_dropout"}
"""Keys that no trained model's answer hangs on, by themselves."""
OF_POSITION = {
    "max_positions": "learned",
    "position_offset": "learned",
    "sinusoids": "sinusoidal",
    "rope_base": "rope",
    "shaw_clip": "shaw",
    "shaw_values": "shaw",
    "t5_buckets": "t5",
    "t5_distance": "t5",
}
OF_GRAMS = {"ngrams", "ngram_buckets", "ngram_dropout", "ngram_contrast", "word_ngrams"}
OF_CLASSES = {"pooling", "pooler", "classifier_hidden", "classifier_activation"} | OF_GRAMS
OF_TOKENS = {"head_map", "head_bias", "head_scale", "tie_embeddings"}
ACROSS = {"decoder_layers", "cross_position"}


def meaning(task: str | None, config: ModelConfig) -> dict[str, Any]:
    """The keys that a model's answers hang on, with what an unset one stands for."""
    found = {key: value for key, value in config.model_dump().items() if key not in APART}
    width = config.head_width or config.width // config.heads
    found |= {
        "decoder_layers": config.decoder_layers or config.layers,
        "kv_heads": config.kv_heads or config.heads,
        "head_width": width,
        "feed_forward": config.feed_forward or 4 * config.width,
        "scale": width**-0.5 if config.scale is None else config.scale,
        "embedding_scale": token_scale(config),
        "position_scale": position_scale(config),
        "embedding_width": config.embedding_width or config.width,
        "head_scale": config.head_scale or 1.0,
    }
    if config.merge_when == "training":
        found["merge"] = "concat"
    idle = {key for key, kind in OF_POSITION.items() if config.position != kind}
    idle |= OF_CLASSES if task in ("generate", "translate") else set()
    idle |= OF_TOKENS if task in ("classify", None) else set()
    if task is None:  # a pooler, or nothing
        idle |= OF_CLASSES - ({"pooler", "pooling"} if config.pooler else {"pooler"})
    idle |= ACROSS if task != "translate" else set()
    idle |= {"cross_position"} if config.position in ("learned", "sinusoidal", "none") else set()
    idle |= {"over"} if found["merge"] != "reweight" else set()
    idle |= {"classifier_activation"} if config.classifier_hidden is None else set()
    idle |= OF_GRAMS - {"ngrams"} if config.ngrams == 1 else set()
    return {key: value for key, value in found.items() if key not in idle}
