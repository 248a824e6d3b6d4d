"""Load a folder of `transformers` as a heed model."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from heed.config import ModelConfig
from heed.data.tokenizers.tokenizer import Tokenizer
from heed.data.tokenizers.trial import try_tokenizer
from heed.errors import ConfigError, HeedError, HeedWarning
from heed.models import Backbone, Classifier, LanguageModel, Translator
from heed.models.build import MAX_EXCESS, count_minimum_parameters
from heed.models.huggingface import bert, gpt2, marian, t5
from heed.models.huggingface.architecture import AnyModel, Architecture
from heed.models.huggingface.folder import (
    CONFIG,
    GENERATION,
    TOKENIZER,
    ConfigJson,
    architecture_name,
    find_folder,
    read_config,
    read_json,
    read_weights,
)

ARCHITECTURES = (
    *bert.ARCHITECTURES,
    *gpt2.ARCHITECTURES,
    *marian.ARCHITECTURES,
    *t5.ARCHITECTURES,
)
TABLE_TOLERANCE = 1e-5
"""Largest difference between a stored table and the computed one (float32 rounding)."""
NAMES_SHOWN = 3
"""Weight names listed in an error message."""
PAIRS_KEY = "heed_pairs"
"""heed's own key in config.json for a classifier of text pairs. transformers has no such key, and
preserves keys that it does not know."""

Weights = dict[str, Tensor]


def load(folder: str | Path) -> tuple[AnyModel, Tokenizer | None]:
    """Load a folder, or a model from the hub, with its tokenizer if there is one.

    The class named in config.json decides the model's head.
    """
    path = find_folder(folder)
    config_json = read_config(path)
    name = architecture_name(config_json, dict.fromkeys(one.name for one in ARCHITECTURES))
    architecture, theirs = _choose_variant(name, read_weights(path), config_json)
    try:
        config = ModelConfig(**architecture.read_config(config_json, theirs.keys()))
    except ConfigError as error:
        raise HeedError(error.what, where=config_json.where) from error
    _check_sizes(architecture, config, theirs, config_json)
    model = _build_model(architecture, config, theirs, config_json)
    _load_weights(model, architecture, theirs, config_json)
    source_files = {CONFIG: dict(config_json.values)}
    if (path / GENERATION).exists():
        source_files[GENERATION] = read_json(path / GENERATION)
    model.source_files = source_files
    return model.eval(), _tokenizer(path, model)


def _tokenizer(folder: Path, model: AnyModel) -> Tokenizer | None:
    """The folder's tokenizer; None if it has none."""
    path = folder / TOKENIZER
    if not path.exists():
        return None
    try_tokenizer(path)
    tokenizer, vocab = Tokenizer.load(path), model.embedding.table.num_embeddings
    if tokenizer.vocab_size > vocab:
        raise HeedError(
            f"the tokenizer has {tokenizer.vocab_size} tokens, but the model has {vocab}.",
            where=str(path),
        )
    return tokenizer


def _choose_variant(
    name: str, raw: Weights, config_json: ConfigJson
) -> tuple[Architecture, Weights]:
    """The variant of a class that these weights belong to, and the weights by normalized names."""
    variants = [one for one in ARCHITECTURES if one.name == name]
    weights = {variants[0].normalize_name(name): weight for name, weight in raw.items()}
    architecture = max(variants, key=lambda one: one.count_modules(weights.keys()))
    for copy, original in architecture.tied_weights.items():
        if copy not in weights:
            continue
        if original not in weights:
            weights[original] = weights[copy]
        if torch.equal(weights[copy], weights[original]):
            del weights[copy]
        elif architecture.locate("head.own.weight") is None:
            raise config_json.error(
                f"{copy} and {original} must be equal (tied weights), but differ."
            )
    return architecture, weights


def _check_sizes(
    architecture: Architecture, config: ModelConfig, theirs: Weights, config_json: ConfigJson
) -> None:
    """Check the sizes in config.json against the weights before anything is built."""
    vocab = _row_count(architecture, "embedding.table.weight", theirs, config_json)
    needed = count_minimum_parameters(architecture.task, config, vocab)
    stored = sum(weight.numel() for weight in theirs.values())
    if needed > MAX_EXCESS * stored:
        raise config_json.error(
            f"it describes a model of at least {needed:,} parameters, and there are {stored:,} "
            "in the weights."
        )


def _build_model(
    architecture: Architecture, config: ModelConfig, theirs: Weights, config_json: ConfigJson
) -> AnyModel:
    """An untrained model; vocabulary and class counts come from the weights' shapes."""
    vocab = _row_count(architecture, "embedding.table.weight", theirs, config_json)
    stated = config_json.get_int("decoder_vocab_size", config_json.get_int("vocab_size", vocab))
    if stated != vocab:
        raise config_json.error(f"vocab_size is {stated}, but the embeddings have {vocab} rows.")
    if architecture.task == "translate":
        source = "source_embedding.table.weight"
        separate = architecture.locate(source) not in (
            None,
            architecture.locate("embedding.table.weight"),
        )
        source_vocab = _row_count(architecture, source, theirs, config_json) if separate else None
        return Translator(config, vocab=vocab, source_vocab=source_vocab)
    if architecture.task == "classify":
        head = "head.weight" if config.classifier_hidden is None else "head.3.weight"
        classes, names = (
            _row_count(architecture, head, theirs, config_json),
            class_names(config_json.values),
        )
        if classes < 2:
            raise config_json.error(
                "a head with one output is a regression; heed supports classifiers only."
            )
        if len(names) not in (0, classes):
            raise config_json.error(
                f"id2label names {len(names)} classes, but the head has {classes}."
            )
        return Classifier(config, vocab=vocab, classes=classes)
    if architecture.task == "generate":
        return LanguageModel(config, vocab=vocab, causal=architecture.causal)
    return Backbone(config, vocab=vocab, causal=architecture.causal)


def _row_count(
    architecture: Architecture, parameter: str, theirs: Weights, config_json: ConfigJson
) -> int:
    location = architecture.locate(parameter)
    if location is None or location.names[0] not in theirs or not theirs[location.names[0]].ndim:
        missing = parameter if location is None else location.names[0]
        raise HeedError(
            f"{missing} is missing from the weights.", where=str(Path(config_json.where).parent)
        )
    return len(theirs[location.names[0]])


def _load_weights(
    model: AnyModel, architecture: Architecture, theirs: Weights, config_json: ConfigJson
) -> None:
    """Load all weights into a model; report missing, misshapen and unused ones."""
    ours: Weights = {}
    errors: list[str] = []
    used: set[str] = set()
    tied = architecture.tied_weights
    for parameter, weight in model.state_dict().items():
        location = architecture.locate(parameter)
        if location is None:
            raise ValueError(f"{architecture.name} has no name for {parameter}.")
        names = location.names
        stored = [
            theirs.get(tied.get(name, name) if name not in theirs else name) for name in names
        ]
        errors += _shape_errors(names, stored, location.shapes(weight.shape))
        used |= {*names}
        if not errors:
            ours[parameter] = location.to_heed(x.float() for x in stored if x is not None)
    if errors:
        more = f" (and {len(errors) - NAMES_SHOWN} more)" if len(errors) > NAMES_SHOWN else ""
        what = f"the weights do not match config.json: {'; '.join(errors[:NAMES_SHOWN])}{more}."
        raise HeedError(what, where=str(Path(config_json.where).parent))
    model.load_state_dict(ours)
    _check_unused(
        model.config, architecture, {n: x for n, x in theirs.items() if n not in used}, config_json
    )


def _shape_errors(
    names: tuple[str, ...], stored: list[Tensor | None], shapes: list[torch.Size]
) -> Iterator[str]:
    for name, weight, shape in zip(names, stored, shapes, strict=True):
        if weight is None:
            yield f"{name} is missing"
        elif weight.shape != shape:
            yield f"{name} has shape {list(weight.shape)}, not {list(shape)}"


def _check_unused(
    config: ModelConfig, architecture: Architecture, rest: Weights, config_json: ConfigJson
) -> None:
    """Check the stored weights that heed does not load; warn about unexpected ones."""
    for name, table in architecture.computed.items():
        if name in rest:
            expected, stored = table(config), rest.pop(name).double()
            same_shape = stored.shape == expected.shape
            if not same_shape or not torch.allclose(stored, expected, atol=TABLE_TOLERANCE):
                raise config_json.error(
                    f"{name} is not the table that {architecture.name} computes."
                )
    unexpected = sorted(name for name in rest if not re.fullmatch(architecture.unused, name))
    if unexpected:
        listed = ", ".join(unexpected[:NAMES_SHOWN]) + (
            ", …" if len(unexpected) > NAMES_SHOWN else ""
        )
        warnings.warn(
            f"{config_json.where}: {architecture.name} does not use {len(unexpected)} "
            f"of the weights: {listed}",
            HeedWarning,
            stacklevel=3,
        )


def class_names(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The class names of a config.json in order; empty if it has none."""
    names = config.get("id2label")
    if not isinstance(names, dict):
        return ()
    try:
        classes = tuple(str(names[key]) for key in sorted(names, key=int))
    except ValueError:
        return ()
    if repeated := [name for name, count in Counter(classes).items() if count > 1]:
        raise HeedError(
            f"id2label names several classes {repeated[0]!r}.",
            where=CONFIG,
            todo="Give each class another name.",
        )
    return classes


def is_pair_classifier(config: Mapping[str, Any]) -> bool:
    """Whether a config.json describes a classifier trained on text pairs."""
    return config.get(PAIRS_KEY) is True
