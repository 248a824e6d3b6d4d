"""From a folder of `transformers` to a model of ours."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from heed.config import ModelConfig
from heed.data.tokenizers.tokenizer import Tokenizer
from heed.errors import ConfigError, HeedError, HeedWarning
from heed.models import Backbone, Classifier, LanguageModel, Translator
from heed.models.huggingface import bert, gpt2, marian, t5
from heed.models.huggingface.architecture import AnyModel, Architecture
from heed.models.huggingface.folder import (
    CONFIG,
    GENERATION,
    TOKENIZER,
    Facts,
    class_name,
    find,
    read_facts,
    read_json,
    read_weights,
)

ARCHITECTURES = (
    *bert.ARCHITECTURES,
    *gpt2.ARCHITECTURES,
    *marian.ARCHITECTURES,
    *t5.ARCHITECTURES,
)
SAME = 1e-5
"""How far a table that is computed may be from what we compute."""
SHOWN = 3
"""How many names an error tells."""
PAIRS = "heed_pairs"
"""What config.json of a classifier of pairs has that was trained here: transformers, which keeps
keys that it does not know, has none that says so."""

Weights = dict[str, Tensor]


def load(folder: str | Path) -> tuple[AnyModel, Tokenizer | None]:
    """The model in a folder, or of that name on the hub, and its tokenizer where it has one.

    The class that config.json names picks the head.
    """
    path = find(folder)
    facts = read_facts(path)
    name = class_name(facts, dict.fromkeys(one.name for one in ARCHITECTURES))
    kind, theirs = _variant(name, read_weights(path), facts)
    try:
        config = ModelConfig(**kind.shape(facts, theirs.keys()))
    except ConfigError as error:
        raise HeedError(error.what, where=facts.where) from error
    model = _empty(kind, config, theirs, facts)
    _fill(model, kind, theirs, facts)
    beside = {CONFIG: dict(facts.told)}
    if (path / GENERATION).exists():
        beside[GENERATION] = read_json(path / GENERATION)
    model.elsewhere = beside
    return model.eval(), _tokenizer(path, model)


def _tokenizer(folder: Path, model: AnyModel) -> Tokenizer | None:
    """The folder's tokenizer; None where it has none."""
    path = folder / TOKENIZER
    if not path.exists():
        return None
    tokenizer, known = Tokenizer.load(path), model.embedding.table.num_embeddings
    if tokenizer.vocab_size > known:
        raise HeedError(
            f"the tokenizer has {tokenizer.vocab_size} pieces, and the model knows {known}.",
            where=str(path),
        )
    return tokenizer


def _variant(name: str, raw: Weights, facts: Facts) -> tuple[Architecture, Weights]:
    """Of the forms a class is saved in, the one these weights are in, and they by plain names."""
    forms = [one for one in ARCHITECTURES if one.name == name]
    plain = {forms[0].plain(name): weight for name, weight in raw.items()}
    kind = max(forms, key=lambda one: one.finds(plain.keys()))
    for copy, original in kind.copies.items():
        if copy not in plain:
            continue
        if original not in plain:
            plain[original] = plain[copy]
        if torch.equal(plain[copy], plain[original]):
            del plain[copy]
        elif kind.place("head.own.weight") is None:
            raise facts.wrong(f"{copy} and {original} are to be the same weights, and differ.")
    return kind, plain


def _empty(kind: Architecture, config: ModelConfig, theirs: Weights, facts: Facts) -> AnyModel:
    """A model of this kind, for as many tokens and classes as the weights have."""
    vocab = _rows(kind, "embedding.table.weight", theirs, facts)
    told = facts.count("decoder_vocab_size", facts.count("vocab_size", vocab))
    if told != vocab:
        raise facts.wrong(f"there are to be {told} tokens, and the weights have {vocab}.")
    if kind.task == "translate":
        source = "source_embedding.table.weight"
        apart = kind.place(source) not in (None, kind.place("embedding.table.weight"))
        source_vocab = _rows(kind, source, theirs, facts) if apart else None
        return Translator(config, vocab=vocab, source_vocab=source_vocab)
    if kind.task == "classify":
        head = "head.weight" if config.classifier_hidden is None else "head.3.weight"
        classes, names = _rows(kind, head, theirs, facts), class_names(facts.told)
        if classes < 2:
            raise facts.wrong("one class is a regression, and a classifier tells classes apart.")
        if len(names) not in (0, classes):
            raise facts.wrong(f"id2label names {len(names)} classes, and the weights {classes}.")
        return Classifier(config, vocab=vocab, classes=classes)
    if kind.task == "generate":
        return LanguageModel(config, vocab=vocab, causal=kind.causal)
    return Backbone(config, vocab=vocab, causal=kind.causal)


def _rows(kind: Architecture, parameter: str, theirs: Weights, facts: Facts) -> int:
    place = kind.place(parameter)
    if place is None or place.names[0] not in theirs:
        lacking = parameter if place is None else place.names[0]
        raise HeedError(f"the weights lack {lacking}.", where=str(Path(facts.where).parent))
    return len(theirs[place.names[0]])


def _fill(model: AnyModel, kind: Architecture, theirs: Weights, facts: Facts) -> None:
    """Give every weight of a model its numbers; say what is missing, wrong, or left over."""
    ours: Weights = {}
    wrong: list[str] = []
    used: set[str] = set()
    for parameter, weight in model.state_dict().items():
        place = kind.place(parameter)
        if place is None:
            raise ValueError(f"{kind.name} has no name for {parameter}.")
        found = [theirs.get(kind.copies.get(n, n) if n not in theirs else n) for n in place.names]
        wrong += _misfits(place.names, found, place.theirs(weight.shape))
        used |= {*place.names}
        if not wrong:
            ours[parameter] = place.read(x.float() for x in found if x is not None)
    if wrong:
        more = f" (and {len(wrong) - SHOWN} more)" if len(wrong) > SHOWN else ""
        what = f"the weights do not fit config.json: {'; '.join(wrong[:SHOWN])}{more}."
        raise HeedError(what, where=str(Path(facts.where).parent))
    model.load_state_dict(ours)
    _check_rest(model.config, kind, {n: x for n, x in theirs.items() if n not in used}, facts)


def _misfits(
    names: tuple[str, ...], found: list[Tensor | None], sizes: list[torch.Size]
) -> Iterator[str]:
    for name, weight, size in zip(names, found, sizes, strict=True):
        if weight is None:
            yield f"{name} is missing"
        elif weight.shape != size:
            yield f"{name} is {list(weight.shape)}, not {list(size)}"


def _check_rest(config: ModelConfig, kind: Architecture, rest: Weights, facts: Facts) -> None:
    """What no weight of ours took: a table that is computed, or what is of no use here."""
    for name, table in kind.computed.items():
        if name in rest:
            expected, found = table(config), rest.pop(name).double()
            if found.shape != expected.shape or not torch.allclose(found, expected, atol=SAME):
                raise facts.wrong(f"{name} is not the table that this class computes.")
    strange = sorted(name for name in rest if not re.fullmatch(kind.idle, name))
    if strange:
        named = ", ".join(strange[:SHOWN]) + (", …" if len(strange) > SHOWN else "")
        warnings.warn(
            f"{facts.where}: {kind.name} has no use for {len(strange)} weights: {named}",
            HeedWarning,
            stacklevel=3,
        )


def class_names(told: Mapping[str, Any]) -> tuple[str, ...]:
    """What a config.json calls its classes, in their order; nothing where it does not say."""
    found = told.get("id2label")
    if not isinstance(found, dict):
        return ()
    try:
        return tuple(str(found[key]) for key in sorted(found, key=int))
    except ValueError:
        return ()


def of_pairs(told: Mapping[str, Any]) -> bool:
    """Whether a config.json says that its classifier was trained on pairs of texts."""
    return told.get(PAIRS) is True
