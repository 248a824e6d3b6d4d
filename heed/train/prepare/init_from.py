"""Where a run begins that does not begin with random weights: `[init] from`.

The shape of the model and the tokenizer come from there. So do all weights of the body, which are
the embeddings and the stack; what stands on top of it too, where the task is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from heed.config import InitConfig, ModelConfig, Recipe, Section, TokenizerConfig
from heed.data.tokenizers.tokenizer import Tokenizer
from heed.errors import ConfigError, RunError
from heed.models import LanguageModel, Model, Translator, huggingface
from heed.models.huggingface.architecture import MODEL_CLASSES, AnyModel
from heed.models.huggingface.folder import CONFIG
from heed.models.huggingface.reparameterize import CLASSIFIER_KEYS, NGRAM_KEYS, effective_config
from heed.models.layer_index import LayerIndex, layer_indices
from heed.models.weights import read_weights
from heed.nn import lora
from heed.runs.labels import Classes
from heed.runs.run import Run

Say = Callable[[str], None]
TABLE = "embedding.table.weight"
FREE = CLASSIFIER_KEYS
"""Keys of a model that may be others than the origin's: its head is then new."""


@dataclass(frozen=True)
class Origin:
    """A model to begin from."""

    name: str
    task: str | None
    """None for a model without a head."""
    model: ModelConfig
    tokenizer: Tokenizer
    weights: dict[str, Tensor]
    pieces: TokenizerConfig
    """How its tokenizer was made; where others made it, nothing is said."""
    classes: tuple[str, ...] = ()
    """What a classifier tells apart, where it says so."""

    @property
    def has_cross_attention(self) -> bool:
        """Whether its weights include cross-attention, which only a translator has."""
        return any(map(_is_across, self.weights))


def open_origin(name: str) -> Origin:
    """What `[init] from` names: a finished run, a folder of `transformers`, a name on its hub."""
    run = Run(Path(name))
    if not run.recipe_path.exists():
        return _elsewhere(name)
    recipe, weights = run.recipe(), read_weights(run.require_weights())
    tokenizer, told = Tokenizer.load(run.tokenizer_path), Classes.read(run)
    return Origin(
        name,
        recipe.task,
        recipe.model,
        tokenizer,
        weights,
        recipe.tokenizer,
        () if told is None else told.names,
    )


def _elsewhere(name: str) -> Origin:
    """A model that was not trained here."""
    if Path(name).is_dir() and not (Path(name) / CONFIG).exists():
        raise RunError(
            "this is neither a run nor a folder of transformers: there is no recipe.toml and no "
            f"{CONFIG}.",
            where=name,
            todo="Name what `heed train`, or `save_pretrained` of transformers, made.",
        )
    model, tokenizer = huggingface.load(name)
    if tokenizer is None:
        raise RunError(
            "there is no tokenizer.json here.",
            where=name,
            todo="Put it beside the weights: `save_pretrained` of a fast tokenizer writes it.",
        )
    task = next((task for task, kind in MODEL_CLASSES.items() if isinstance(model, kind)), None)
    weights, pieces = model.state_dict(), TokenizerConfig()
    return Origin(name, task, model.config, tokenizer, weights, pieces, _classes(model))


def _classes(model: AnyModel) -> tuple[str, ...]:
    """What a classifier from elsewhere tells apart; `LABEL_0` says nothing."""
    names = huggingface.class_names(model.source_files[CONFIG])
    return () if all(name.startswith("LABEL_") for name in names) else names


def settled(recipe: Recipe) -> tuple[Recipe, Origin | None]:
    """The recipe with what its origin decides, and that origin; keys that differ are refused."""
    if recipe.init.from_model is None:
        return recipe, None
    origin = open_origin(recipe.init.from_model)
    shape = effective_config(recipe.task, origin.model)
    bound = {key: value for key, value in shape.items() if key not in FREE}
    wrong = [*_contradictions("model", recipe.model, bound, origin.name)]
    pieces = origin.pieces.model_dump(exclude={"dropout", "text"})
    wrong += _contradictions("tokenizer", recipe.tokenizer, pieces, origin.name)
    if recipe.tokenizer.text:
        wrong.append(f"[tokenizer] text is of no use: the tokenizer comes from {origin.name}.")
    if wrong:
        raise ConfigError(wrong)
    model = ModelConfig(**(origin.model.model_dump() | _dropped(recipe) | _told(recipe.model)))
    tokenizer = TokenizerConfig(**pieces, dropout=recipe.tokenizer.dropout)
    return replace(recipe, model=model, tokenizer=tokenizer), origin


def _dropped(recipe: Recipe) -> dict[str, Any]:
    """Keys of an origin that are as if it had never set them: of runs of tokens, where none are."""
    none = recipe.task != "classify" or _told(recipe.model).get("ngrams") == 1
    return ModelConfig().model_dump(include=NGRAM_KEYS) if none else {}


def _told(section: Section) -> dict[str, Any]:
    """The keys that a recipe sets, with their values."""
    return {key: getattr(section, key) for key in sorted(section.model_fields_set)}


def _contradictions(
    name: str, section: Section, there: dict[str, Any], origin: str
) -> Iterator[str]:
    for key, value in _told(section).items():
        if key in there and there[key] != value:
            had = f", where it is {there[key]!r}" if name == "model" else ""
            yield f"[{name}] {key} cannot be {value!r}: it comes from {origin}{had}. Leave it out."


# --------------------------------------------------------------------------------- the weights


@torch.no_grad()
def begin(
    model: Model, task: str, origin: Origin, say: Say, classes: Sequence[str] = ()
) -> tuple[str, ...]:
    """Take every weight of the body, and what is on top where it is for the same.

    A classifier's head is for the same if it tells the same `classes` apart. Says and returns
    which parts are new.
    """
    own, places = model.state_dict(), layer_indices(model)
    same = task == origin.task and tuple(classes) == (origin.classes or tuple(classes))
    vocabularies = len(origin.weights[TABLE]), len(own[TABLE])
    taken: dict[str, Tensor] = {}
    for name, weight in own.items():
        there = next((n for n in _names_there(name, model) if n in origin.weights), name)
        found = origin.weights.get(there)
        if found is not None and (len(found), len(weight)) == vocabularies:
            found = found[: len(weight)]  # rows that no id of the tokenizer stands for
        body = _part(name) != "grams" and (name not in places or places[name].is_body)
        fits = found is not None and found.shape == weight.shape
        if found is not None and fits and (_part(name) != "head" or same):
            taken[name] = found
        elif body and not _is_across(name):
            raise ConfigError([_misfit(name, weight, found, origin, task)])
    model.load_state_dict(own | taken)
    new = tuple(sorted({_part(name) for name in own.keys() - taken.keys()}))
    told = f"; new: {', '.join(new)}" if new else ""
    say(f"Beginning from {origin.name}: {len(taken)} of {len(own)} weights{told}.")
    return new


def _names_there(name: str, model: Model) -> list[str]:
    """What models for other tasks call this weight, the likeliest first.

    A model of one stack begins from a translator's decoder if it writes, else from its encoder;
    both of a translator's stacks begin from a model of one (Rothe et al. 2020).
    """
    writes = isinstance(model, LanguageModel) and model.causal
    others = {
        "stack": ["stack", "decoder" if writes else "encoder"],
        "encoder": ["encoder", "stack"],
        "decoder": ["decoder", "stack"],
        "source_embedding": ["source_embedding", "embedding"],
    }
    if not writes and not isinstance(model, Translator):
        others["embedding"] = ["source_embedding", "embedding"]
    part, _, rest = name.partition(".")
    return [f"{other}.{rest}" for other in others.get(part, [part])]


def _is_across(name: str) -> bool:
    """Whether a weight belongs to cross-attention, which only a translator has."""
    return ".cross" in name


def _part(name: str) -> str:
    return "cross-attention" if _is_across(name) else name.partition(".")[0]


def _misfit(name: str, weight: Tensor, found: Tensor | None, origin: Origin, task: str) -> str:
    """Why the body of an origin cannot be this model's."""
    needs = f"{name} {list(weight.shape)}"
    has = "has none" if found is None else f"has {list(found.shape)}"
    return (
        f"[init] {origin.name} (task {origin.task!r}) cannot begin a model for {task!r}: "
        f"this one needs {needs}, that one {has}."
    )


def choose_learners(model: Model, init: InitConfig, new: Sequence[str], say: Say) -> None:
    """Freeze what is to stay, put adapters where they are to learn; say how much is learnt.

    Parts that are `new`, as `begin` names them, learn whole: nothing was learnt of them before.
    """
    if init.freeze is None and init.lora is None:
        return
    places = layer_indices(model)
    fresh = {name: p for name, p in model.named_parameters() if _part(name) in new}
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in fresh or not _stays(places[name], init.freeze))
    if init.lora is not None:
        but = {*fresh.values()}
        lora.adapt(model, rank=init.lora, alpha=init.lora_alpha, on=init.lora_targets, but=but)
    sizes = [(p.numel(), p.requires_grad) for p in model.parameters()]
    learnt, every = sum(n for n, learns in sizes if learns), sum(n for n, _ in sizes)
    say(f"Learning {learnt:,} of {every:,} parameters.")


def _stays(place: LayerIndex, freeze: str | int | None) -> bool:
    """Whether a weight stays as it was: with adapters, the whole body does."""
    if freeze == "embeddings":
        return place.layer == 0
    return place.is_body and (not isinstance(freeze, int) or place.layer <= freeze)
