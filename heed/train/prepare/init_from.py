"""Initialization from a pretrained model (`[init] from`), freezing and LoRA adapters.

The shape of the model and the tokenizer are the pretrained model's. So are all weights of the body,
which is the embeddings and the stack, and those of the head if the task is the same.

Hugging Face readers are imported where they are used: training from scratch needs none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from heed.config import InitConfig, ModelConfig, Recipe, Section, TokenizerConfig
from heed.data.tokenizers.tokenizer import Tokenizer
from heed.errors import ConfigError, RunError
from heed.models import LanguageModel, Model, Translator
from heed.models.layer_index import LayerIndex, layer_indices
from heed.nn import lora
from heed.runs.labels import Classes
from heed.runs.load import load_tokenizer, read_final_weights
from heed.runs.run import Run
from heed.terminal import Say

TABLE = "embedding.table.weight"


@dataclass(frozen=True)
class PretrainedModel:
    """A model to initialize from."""

    name: str
    task: str | None
    """None for a model without a head."""
    config: ModelConfig
    tokenizer: Tokenizer
    weights: dict[str, Tensor]
    tokenizer_config: TokenizerConfig
    """How its tokenizer was trained; the default where that is not known."""
    classes: tuple[str, ...] = ()
    """A classifier's class names, if it has any."""

    @property
    def has_cross_attention(self) -> bool:
        """Whether its weights include cross-attention, which only a translator has."""
        return any(map(_is_cross_attention, self.weights))


def load_pretrained(name: str) -> PretrainedModel:
    """Load a finished run, a folder of `transformers`, or a model of the Hugging Face hub."""
    if not Run(Path(name)).recipe_path.exists():
        return _load_huggingface(name)
    run = Run.open(Path(name))
    recipe, weights = run.recipe(), read_final_weights(run)
    tokenizer, classes = load_tokenizer(run), Classes.read(run)
    return PretrainedModel(
        name,
        recipe.task,
        recipe.model,
        tokenizer,
        weights,
        recipe.tokenizer,
        () if classes is None else classes.names,
    )


def _load_huggingface(name: str) -> PretrainedModel:
    from heed.models import huggingface
    from heed.models.huggingface.architecture import MODEL_CLASSES
    from heed.models.huggingface.folder import CONFIG

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
    classes = huggingface.class_names(model.source_files[CONFIG])
    if all(name.startswith("LABEL_") for name in classes):  # placeholders
        classes = ()
    weights = model.state_dict()
    return PretrainedModel(name, task, model.config, tokenizer, weights, TokenizerConfig(), classes)


def resolve_init(recipe: Recipe) -> tuple[Recipe, PretrainedModel]:
    """Load the model of `init.from`; fill in the keys that it decides, refuse contradictions."""
    if recipe.init.from_model is None:
        raise ValueError("The recipe has no init.from.")
    from heed.models.huggingface.reparameterize import CLASSIFIER_KEYS, effective_config

    pretrained = load_pretrained(recipe.init.from_model)
    shape = effective_config(recipe.task, pretrained.config)
    # A classifier's head may differ: it is then new.
    fixed = {key: value for key, value in shape.items() if key not in CLASSIFIER_KEYS}
    complaints = [*_find_contradictions("model", recipe.model, fixed, pretrained.name)]
    tokenizer = pretrained.tokenizer_config.model_dump(exclude={"dropout", "text"})
    complaints += _find_contradictions("tokenizer", recipe.tokenizer, tokenizer, pretrained.name)
    if pretrained.config.kept_heads and pretrained.task != recipe.task:
        complaints.append(
            f"[init] from: {pretrained.name} is pruned, and its heads are those of task "
            f"{pretrained.task!r}: start from the run it was pruned from."
        )
    if recipe.tokenizer.text:
        complaints.append(
            f"[tokenizer] text has no effect: the tokenizer comes from {pretrained.name}."
        )
    if complaints:
        raise ConfigError(complaints)
    config = pretrained.config.model_dump() | _ngram_defaults(recipe) | _set_keys(recipe.model)
    resolved = replace(
        recipe,
        model=ModelConfig(**config),
        tokenizer=TokenizerConfig(**tokenizer, dropout=recipe.tokenizer.dropout),
    )
    return resolved, pretrained


def _ngram_defaults(recipe: Recipe) -> dict[str, Any]:
    """Defaults in place of the pretrained model's n-gram keys, if this model has no n-grams."""
    from heed.models.huggingface.reparameterize import NGRAM_KEYS

    has_none = recipe.task != "classify" or _set_keys(recipe.model).get("ngrams") == 1
    return ModelConfig().model_dump(include=NGRAM_KEYS) if has_none else {}


def _set_keys(section: Section) -> dict[str, Any]:
    """The keys that a recipe sets, with their values."""
    return {key: getattr(section, key) for key in sorted(section.model_fields_set)}


def _find_contradictions(
    name: str, section: Section, fixed: dict[str, Any], pretrained: str
) -> Iterator[str]:
    for key, value in _set_keys(section).items():
        if key in fixed and fixed[key] != value:
            there = f", where it is {fixed[key]!r}" if name == "model" else ""
            yield (
                f"[{name}] {key} cannot be {value!r}: it comes from {pretrained}{there}. "
                "Leave it out."
            )


# --------------------------------------------------------------------------------- the weights


@torch.no_grad()
def copy_weights(
    model: Model, task: str, pretrained: PretrainedModel, say: Say, classes: Sequence[str] = ()
) -> tuple[str, ...]:
    """Copy every weight of the body, and the head's if the task (and `classes`) are the same.

    Prints and returns which parts of the model are new.
    """
    weights, layers = model.state_dict(), layer_indices(model)
    same_classes = tuple(classes) == (pretrained.classes or tuple(classes))
    same_head = task == pretrained.task and same_classes
    vocab_sizes = len(pretrained.weights[TABLE]), len(weights[TABLE])
    copied: dict[str, Tensor] = {}
    for name, weight in weights.items():
        names = _pretrained_names(name, model)
        source = pretrained.weights.get(next((n for n in names if n in pretrained.weights), name))
        if source is not None and (len(source), len(weight)) == vocab_sizes:
            source = source[: len(weight)]  # without rows beyond the tokenizer's ids
        is_body = _part(name) != "ngrams" and (name not in layers or layers[name].is_body)
        fits = source is not None and source.shape == weight.shape
        if source is not None and fits and (_part(name) != "head" or same_head):
            copied[name] = source
        elif is_body and not _is_cross_attention(name):
            raise ConfigError([_describe_mismatch(name, weight, source, pretrained, task)])
    model.load_state_dict(weights | copied)
    new = tuple(sorted({_part(name) for name in weights.keys() - copied.keys()}))
    suffix = f"; new: {', '.join(new)}" if new else ""
    taken = f"{len(copied)} of {len(weights)} weights taken"
    say(f"Initialized from {pretrained.name}: {taken}{suffix}.")
    return new


def _pretrained_names(name: str, model: Model) -> list[str]:
    """The names of this weight in models of other tasks, the likeliest first.

    A single stack is initialized from a translator's decoder if it generates, else from its
    encoder. Both stacks of a translator are initialized from a single one (Rothe et al. 2020).
    """
    generates = isinstance(model, LanguageModel) and model.causal
    others = {
        "stack": ["stack", "decoder" if generates else "encoder"],
        "encoder": ["encoder", "stack"],
        "decoder": ["decoder", "stack"],
        "source_embedding": ["source_embedding", "embedding"],
    }
    if not generates and not isinstance(model, Translator):
        others["embedding"] = ["source_embedding", "embedding"]
    part, _, rest = name.partition(".")
    return [f"{other}.{rest}" for other in others.get(part, [part])]


def _is_cross_attention(name: str) -> bool:
    return ".cross" in name


def _part(name: str) -> str:
    """The part of the model that a weight belongs to."""
    return "cross-attention" if _is_cross_attention(name) else name.partition(".")[0]


def _describe_mismatch(
    name: str, weight: Tensor, source: Tensor | None, pretrained: PretrainedModel, task: str
) -> str:
    """Why a model cannot be initialized from this one."""
    has = "has none" if source is None else f"has {list(source.shape)}"
    return (
        f"[init] {pretrained.name} (task {pretrained.task!r}) cannot initialize a model for "
        f"{task!r}: this one needs {name} {list(weight.shape)}, that one {has}."
    )


def freeze_and_adapt(model: Model, init: InitConfig, new: Sequence[str], say: Say) -> None:
    """Freeze what `init` says and add LoRA adapters; print how many parameters are trained.

    Parts that are `new`, as `copy_weights` names them, are trained whole.
    """
    layers = layer_indices(model)
    fresh = {name: p for name, p in model.named_parameters() if _part(name) in new}
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in fresh or not _is_frozen(layers[name], init.freeze))
    if init.lora is not None:
        lora.adapt(
            model,
            rank=init.lora,
            alpha=init.lora_alpha,
            targets=init.lora_targets,
            exclude={*fresh.values()},
        )
    sizes = [(p.numel(), p.requires_grad) for p in model.parameters()]
    trained, total = sum(n for n, learns in sizes if learns), sum(n for n, _ in sizes)
    say(f"Training {trained:,} of {total:,} parameters.")


def _is_frozen(index: LayerIndex, freeze: str | int | None) -> bool:
    """Whether a weight is frozen; with adapters, the whole body is."""
    if freeze == "embeddings":
        return index.layer == 0
    return index.is_body and (not isinstance(freeze, int) or index.layer <= freeze)
