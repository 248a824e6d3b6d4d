"""Save a heed model as a folder of `transformers`.

The model may have been trained in heed. One of the classes must be able to hold it, after a
reparameterization with the same logits if needed; otherwise the error lists the recipe keys that
prevent it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from heed.config import POSITIONS, ModelConfig
from heed.data.tokenizers.special_tokens import DEFAULT_SPECIALS, SpecialTokens
from heed.data.tokenizers.tokenizer import Tokenizer
from heed.errors import HeedError
from heed.models import Classifier
from heed.models.huggingface.architecture import AnyModel, Architecture
from heed.models.huggingface.folder import CONFIG, GENERATION, WEIGHTS, ConfigJson
from heed.models.huggingface.from_pretrained import ARCHITECTURES, PAIRS_KEY, class_names
from heed.models.huggingface.reparameterize import Draft, effective_config
from heed.models.huggingface.tokenizer_files import write_tokenizer
from heed.models.weights import write_weights


def save(
    model: AnyModel,
    tokenizer: Tokenizer | None,
    folder: str | Path,
    *,
    classes: Sequence[str] = (),
    pairs: bool = False,
    search: Mapping[str, Any] | None = None,
) -> str:
    """Write a folder that `from_pretrained` reads; returns the name of its class.

    `classes` are a classifier's class names; `pairs` is true if it was trained on text pairs.
    `search` holds beam search settings for generation_config.json.
    """
    folder = Path(folder)
    specials = _special_tokens(model, tokenizer)
    architecture, draft = choose_architecture(model, specials)
    config_json = _config_json(model, architecture, draft, specials, classes) | (
        {PAIRS_KEY: True} if pairs else {}
    )
    weights = _rename_weights(architecture, draft)
    folder.mkdir(parents=True, exist_ok=True)
    write_weights(folder / WEIGHTS, weights, {"format": "pt"})
    _write_json(folder / CONFIG, config_json)
    generates = architecture.task == "translate" or (
        architecture.task == "generate" and architecture.causal
    )
    if generates:
        _write_json(
            folder / GENERATION,
            _generation_config(model, architecture, specials) | dict(search or {}),
        )
    if tokenizer is not None:
        template = architecture.task if generates or architecture.task == "classify" else None
        max_length = POSITIONS[draft.config.position].limit(draft.config)
        write_tokenizer(tokenizer, folder, template=template, max_length=max_length)
    return architecture.name


def choose_architecture(model: AnyModel, specials: SpecialTokens) -> tuple[Architecture, Draft]:
    """The class that can hold a model, and the model as reparameterized for it."""
    family = model.config.family
    if family != "transformer":
        raise HeedError(f"model.family = {family!r}: transformers has no class for it.")
    if model.config.kept_heads:
        raise HeedError(
            "model.kept_heads: transformers needs the same number of heads in every layer; "
            "this run is pruned."
        )
    original = model.source_files.get(CONFIG, {}).get("architectures", [])
    candidates = [one for one in ARCHITECTURES if one.has_type_of(model)]
    reasons: list[list[str]] = []
    for architecture in sorted(candidates, key=lambda one: one.name not in original):
        draft = Draft(architecture.task, model.config, dict(model.state_dict()))
        for reparameterize in architecture.reparameterizations:
            draft = reparameterize(draft)
        mismatches = _mismatches(architecture, draft, specials)
        if not mismatches:
            return architecture, draft
        reasons.append(mismatches)
    fewest = min(reasons, key=len)
    raise HeedError(f"no class of transformers can hold this model. {' '.join(fewest)}")


def _mismatches(architecture: Architecture, draft: Draft, specials: SpecialTokens) -> list[str]:
    """What this class cannot represent, as sentences; empty if it can hold the model."""
    unmapped = [name for name in draft.weights if architecture.locate(name) is None]
    names = {name for ours in draft.weights for name in _stored_names(architecture, ours)}
    written = architecture.write_config(draft)
    try:
        config = ModelConfig(**architecture.read_config(ConfigJson(written), names))
    except HeedError as error:
        return [f"{architecture.name}: {error.what}"]
    ours, theirs = (
        effective_config(architecture.task, draft.config),
        effective_config(architecture.task, config),
    )
    mismatches = [
        f"model.{key} = {ours[key]!r}: {architecture.name} has {theirs[key]!r}."
        for key in ours
        if key in theirs and ours[key] != theirs[key]
    ]
    if not mismatches and unmapped:
        mismatches = [f"{architecture.name} has no weight for {unmapped[0]}."]
    pad = written.get("pad_token_id", specials.pad)
    if pad != specials.pad:
        mismatches.append(
            f"{architecture.name} needs padding id {pad}, but the tokenizer has {specials.pad}."
        )
    return mismatches


def _rename_weights(architecture: Architecture, draft: Draft) -> dict[str, Tensor]:
    """The weights by their names in `transformers`. Two equal weights may share one name there."""
    renamed: dict[str, Tensor] = {}
    for ours, weight in draft.weights.items():
        location = architecture.locate(ours, prefixed=True)
        for name, part in () if location is None else location.from_heed(weight.detach().cpu()):
            if name in renamed and not torch.equal(renamed[name], part):
                what = f"{architecture.name} has one {name}, but two different weights map to it."
                raise HeedError(what)
            renamed[name] = part
    return renamed


def _stored_names(architecture: Architecture, parameter: str) -> Sequence[str]:
    location = architecture.locate(parameter)
    return () if location is None else location.names


def _config_json(
    model: AnyModel,
    architecture: Architecture,
    draft: Draft,
    specials: SpecialTokens,
    classes: Sequence[str],
) -> dict[str, Any]:
    """The content of config.json: the original one if it still describes the model."""
    source = draft.weights.get("source_embedding.table.weight")
    table = draft.weights["embedding.table.weight"] if source is None else source
    config_json = architecture.write_config(draft) | {
        "vocab_size": len(table),
        "pad_token_id": specials.pad,
    }
    before = {k: v for k, v in model.source_files.get(CONFIG, {}).items() if k != PAIRS_KEY}
    names = {name for ours in draft.weights for name in _stored_names(architecture, ours)}
    if before and _is_equivalent(architecture, before, config_json, names):
        config_json = before
    else:
        config_json |= {"bos_token_id": specials.bos, "eos_token_id": specials.eos}
        if architecture.task == "translate":
            config_json |= {
                "decoder_start_token_id": specials.bos,
                "forced_eos_token_id": specials.eos,
            }
    if isinstance(model, Classifier):
        last = "head.bias" if draft.config.classifier_hidden is None else "head.3.bias"
        config_json |= _label_keys(len(draft.weights[last]), classes or class_names(before))
    return config_json | {
        "architectures": [architecture.name],
        "model_type": architecture.model_type,
        "dtype": "float32",
    }


def _is_equivalent(
    architecture: Architecture, before: Mapping[str, Any], now: Mapping[str, Any], names: set[str]
) -> bool:
    """Whether two config.json describe the same model."""
    sizes = ("vocab_size", "pad_token_id")
    if any(before.get(key) not in (None, now[key]) for key in sizes):
        return False
    return architecture.read_config(ConfigJson(before), names) == architecture.read_config(
        ConfigJson(now), names
    )


def _label_keys(count: int, classes: Sequence[str]) -> dict[str, Any]:
    named = classes if len(classes) == count else [f"LABEL_{i}" for i in range(count)]
    pairs = {str(i): name for i, name in enumerate(named)}
    return {"id2label": pairs, "label2id": {name: i for i, name in enumerate(named)}}


def _generation_config(
    model: AnyModel, architecture: Architecture, specials: SpecialTokens
) -> dict[str, Any]:
    """The content of generation_config.json: the token ids that begin and end a generation."""
    before = model.source_files.get(GENERATION)
    if before is not None:
        return dict(before)
    config: dict[str, Any] = {"bos_token_id": specials.bos, "eos_token_id": specials.eos}
    config |= {"pad_token_id": specials.pad}
    if architecture.task == "translate":
        config |= {"decoder_start_token_id": specials.bos, "forced_eos_token_id": specials.eos}
        # Without max_length, `generate` of transformers stops after 21 tokens.
        return config | {
            "max_length": model.config.max_positions,
            "suppress_tokens": list(specials.suppressed_ids),
        }
    return config


def _special_tokens(model: AnyModel, tokenizer: Tokenizer | None) -> SpecialTokens:
    """Special tokens: the tokenizer's, else those of the original config.json, else heed's."""
    if tokenizer is not None:
        return tokenizer.specials
    config = model.source_files.get(CONFIG)
    if config is None:
        return DEFAULT_SPECIALS
    pad, end = config.get("pad_token_id"), config.get("eos_token_id")
    begin = config.get("decoder_start_token_id", config.get("bos_token_id"))
    first = pad if pad is not None else end if isinstance(end, int) else 0
    bos, eos = (x if isinstance(x, int) else first for x in (begin, end))
    return SpecialTokens(first, None, bos, eos, None)


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    text = json.dumps(content, indent=2, ensure_ascii=False, sort_keys=True)
    path.write_text(text + "\n", encoding="utf-8")
