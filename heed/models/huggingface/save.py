"""From a model of ours to a folder of `transformers`.

A model need not have come from there. It must have a shape that one of the classes can hold, in
some form that gives the same logits (`forms`); what stands in the way is told key by key.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from heed.config import POSITIONS, ModelConfig
from heed.data.tokenizers.special_tokens import OWN, Specials
from heed.data.tokenizers.tokenizer import Tokenizer
from heed.errors import HeedError
from heed.models import Classifier
from heed.models.huggingface.architecture import AnyModel, Architecture
from heed.models.huggingface.folder import CONFIG, GENERATION, WEIGHTS, Facts
from heed.models.huggingface.load import ARCHITECTURES, PAIRS, class_names
from heed.models.huggingface.reparameterize import Draft, meaning
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
    """Write what `from_pretrained` reads, and return the name of the class.

    `classes` are the names of a classifier's, which was trained on single texts or on `pairs`;
    `search` is what `generate` is to be told of a translator's beam.
    """
    folder = Path(folder)
    specials = _specials(model, tokenizer)
    kind, draft = fitting(model, specials)
    facts = _facts(model, kind, draft, specials, classes) | ({PAIRS: True} if pairs else {})
    weights = _weights(kind, draft)
    folder.mkdir(parents=True, exist_ok=True)
    write_weights(folder / WEIGHTS, weights, {"format": "pt"})
    _write(folder / CONFIG, facts)
    writes = kind.task == "translate" or (kind.task == "generate" and kind.causal)
    if writes:
        _write(folder / GENERATION, _generation(model, kind, specials) | dict(search or {}))
    if tokenizer is not None:
        around = kind.task if writes or kind.task == "classify" else None
        longest = POSITIONS[draft.config.position].limit(draft.config)
        write_tokenizer(tokenizer, folder, around=around, longest=longest)
    return kind.name


def fitting(model: AnyModel, specials: Specials) -> tuple[Architecture, Draft]:
    """The class that can hold a model, and the model in the form that it has there."""
    family = model.config.family
    if family != "transformer":
        raise HeedError(f"model.family = {family!r}: transformers has no class for it.")
    told = model.elsewhere.get(CONFIG, {}).get("architectures", [])
    kinds = [kind for kind in ARCHITECTURES if kind.holds(model)]
    reasons: list[list[str]] = []
    for kind in sorted(kinds, key=lambda kind: kind.name not in told):
        draft = Draft(kind.task, model.config, dict(model.state_dict()))
        for form in kind.forms:
            draft = form(draft)
        complaints = _misfits(kind, draft, specials)
        if not complaints:
            return kind, draft
        reasons.append(complaints)
    nearest = min(reasons, key=len)
    raise HeedError(f"no class of transformers can hold this model. {' '.join(nearest)}")


def _misfits(kind: Architecture, draft: Draft, specials: Specials) -> list[str]:
    """What this class would not be told, or would take for something else."""
    homeless = [name for name in draft.weights if kind.place(name) is None]
    names = {name for ours in draft.weights for name in _names(kind, ours)}
    told = kind.describe(draft)
    try:
        config = ModelConfig(**kind.shape(Facts(told), names))
    except HeedError as error:
        return [f"{kind.name}: {error.what}"]
    ours, theirs = meaning(kind.task, draft.config), meaning(kind.task, config)
    found = [
        f"model.{key} = {ours[key]!r}: {kind.name} has {theirs[key]!r}."
        for key in ours
        if key in theirs and ours[key] != theirs[key]
    ]
    if not found and homeless:
        found = [f"{kind.name} has no place for {homeless[0]}."]
    pad = told.get("pad_token_id", specials.pad)
    if pad != specials.pad:
        found.append(f"{kind.name} would have padding of id {pad}, and here it is {specials.pad}.")
    return found


def _weights(kind: Architecture, draft: Draft) -> dict[str, Tensor]:
    """By their names. Two of ours may be one of theirs, if they are the same."""
    found: dict[str, Tensor] = {}
    for ours, weight in draft.weights.items():
        place = kind.place(ours, full=True)
        for name, part in () if place is None else place.write(weight.detach().cpu()):
            if name in found and not torch.equal(found[name], part):
                raise HeedError(f"{kind.name} has one {name}, and here there are two unlike it.")
            found[name] = part
    return found


def _names(kind: Architecture, parameter: str) -> Sequence[str]:
    place = kind.place(parameter)
    return () if place is None else place.names


def _facts(
    model: AnyModel, kind: Architecture, draft: Draft, specials: Specials, classes: Sequence[str]
) -> dict[str, Any]:
    """What config.json is to say: what it said before, where that still holds."""
    source = draft.weights.get("source_embedding.table.weight")
    table = draft.weights["embedding.table.weight"] if source is None else source
    facts = kind.describe(draft) | {"vocab_size": len(table), "pad_token_id": specials.pad}
    before = {k: v for k, v in model.elsewhere.get(CONFIG, {}).items() if k != PAIRS}
    names = {name for ours in draft.weights for name in _names(kind, ours)}
    if before and _same(kind, before, facts, names):
        facts = before
    else:
        facts |= {"bos_token_id": specials.bos, "eos_token_id": specials.eos}
        if kind.task == "translate":
            facts |= {"decoder_start_token_id": specials.bos, "forced_eos_token_id": specials.eos}
    if isinstance(model, Classifier):
        last = "head.bias" if draft.config.classifier_hidden is None else "head.3.bias"
        facts |= _labels(len(draft.weights[last]), classes or class_names(before))
    return facts | {"architectures": [kind.name], "model_type": kind.family, "dtype": "float32"}


def _same(
    kind: Architecture, before: Mapping[str, Any], now: Mapping[str, Any], names: set[str]
) -> bool:
    """Whether two config.json mean the same."""
    sizes = ("vocab_size", "pad_token_id")
    if any(before.get(key) not in (None, now[key]) for key in sizes):
        return False
    return kind.shape(Facts(before), names) == kind.shape(Facts(now), names)


def _labels(count: int, classes: Sequence[str]) -> dict[str, Any]:
    named = classes if len(classes) == count else [f"LABEL_{i}" for i in range(count)]
    pairs = {str(i): name for i, name in enumerate(named)}
    return {"id2label": pairs, "label2id": {name: i for i, name in enumerate(named)}}


def _generation(model: AnyModel, kind: Architecture, specials: Specials) -> dict[str, Any]:
    """How `generate` begins and ends."""
    before = model.elsewhere.get(GENERATION)
    if before is not None:
        return dict(before)
    told: dict[str, Any] = {"bos_token_id": specials.bos, "eos_token_id": specials.eos}
    told |= {"pad_token_id": specials.pad}
    if kind.task == "translate":
        told |= {"decoder_start_token_id": specials.bos, "forced_eos_token_id": specials.eos}
        # Without a limit of its own `generate` stops after 21 tokens.
        return told | {
            "max_length": model.config.max_positions,
            "suppress_tokens": list(specials.unwritten),
        }
    return told


def _specials(model: AnyModel, tokenizer: Tokenizer | None) -> Specials:
    """By the tokenizer; without one, as the model's origin said; else ours."""
    if tokenizer is not None:
        return tokenizer.specials
    told = model.elsewhere.get(CONFIG)
    if told is None:
        return OWN
    pad, end = told.get("pad_token_id"), told.get("eos_token_id")
    begin = told.get("decoder_start_token_id", told.get("bos_token_id"))
    first = pad if pad is not None else end if isinstance(end, int) else 0
    known = [x if isinstance(x, int) else first for x in (begin, end)]
    return Specials(first, None, known[0], known[1], None)


def _write(path: Path, content: Mapping[str, Any]) -> None:
    text = json.dumps(content, indent=2, ensure_ascii=False, sort_keys=True)
    path.write_text(text + "\n", encoding="utf-8")
