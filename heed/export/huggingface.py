"""Folders of `transformers`: a run made of one, and one made of a run."""

from __future__ import annotations

import json
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from heed.config import Recipe
from heed.data.tokenizers.tokenizer import Tokenizer
from heed.errors import HeedError
from heed.export import onnx
from heed.files import write_atomic
from heed.models import (
    Backbone,
    Classifier,
    LanguageModel,
    Model,
    Translator,
    from_weights,
    huggingface,
)
from heed.models.weights import read_weights
from heed.runs.labels import Classes
from heed.runs.run import Run
from heed.train import checkpoint

BESIDE = "pretrained.json"
"""What stood beside the weights where they came from: a run keeps it for the way back."""
CONFIG, GENERATION = "config.json", "generation_config.json"
SEARCH = {
    "num_beams": ("beam", (int,)),
    "length_penalty": ("length_penalty", (int, float)),
    "early_stopping": ("early_stop", (bool,)),
}
"""What `generate` calls the keys of a search, ours, and the kinds of values that both take."""


def bring(folder: str, run: Path) -> str:
    """Make a run of a folder, or of a model on the hub; returns what it is.

    Everything is read before anything is written.
    """
    model, tokenizer = huggingface.load(folder)
    if isinstance(model, Backbone):
        name = model.source_files[CONFIG]["architectures"][0]
        raise HeedError(
            f"{name} has no head, so a run of it could neither write nor classify.",
            where=folder,
            todo="Begin a run from it: `[init] from` takes its weights below a new head.",
        )
    recipe = _recipe(model)
    made = Run.create(run, recipe)
    try:
        if tokenizer is not None:
            tokenizer.save(made.tokenizer_path)
        if isinstance(model, Classifier):
            _classes(model).save(made)
        write_atomic(run / BESIDE, json.dumps(model.source_files, indent=1, ensure_ascii=False) + "\n")
        made.write_environment({"data": {}, "from": folder})
        checkpoint.write_tensors(made.weights_path, model.state_dict())
    except BaseException:
        shutil.rmtree(run, ignore_errors=True)
        raise
    parameters = sum(parameter.numel() for parameter in model.parameters())
    text = "with its tokenizer" if tokenizer else "without a tokenizer, for the folder has none"
    return f"{run}: a model to {recipe.task}, {parameters:,} parameters, {text}."


def _classes(model: Classifier) -> Classes:
    """What a classifier tells apart, by its config.json."""
    told = model.source_files[CONFIG]
    return Classes(huggingface.class_names(told) or _unnamed(model), huggingface.is_pair_classifier(told))


def _unnamed(model: Classifier) -> tuple[str, ...]:
    """What transformers calls classes that have no names; it does not write that down."""
    *_, bias = model.head.parameters()
    return tuple(f"LABEL_{number}" for number in range(len(bias)))


def _recipe(model: Model) -> Recipe:
    """What a run would have been told to make this model."""
    config, told = model.config, model.source_files.get(GENERATION, {})
    task = "classify" if isinstance(model, Classifier) else "generate"
    tables: dict[str, Any] = {"task": "translate" if isinstance(model, Translator) else task}
    tables["model"] = {k: v for k, v in config.model_dump().items() if v is not None}
    tables["data"] = {"max_length": config.max_positions}
    if isinstance(model, LanguageModel) and not model.causal:
        tables["train"] = {"objective": "masked"}
    if isinstance(model, Translator):
        tables["decode"] = {
            ours: told[theirs]
            for theirs, (ours, kinds) in SEARCH.items()
            if type(told.get(theirs)) in kinds and told[theirs] >= 0
        }
    return Recipe.of(tables)


def export(run: Path, folder: Path) -> None:
    """Write a run so that `from_pretrained` reads it."""
    opened = Run.open(run)
    recipe, weights = opened.recipe(), read_weights(opened.require_weights())
    causal = recipe.train.objective == "next"
    model = from_weights(weights, recipe.task, recipe.model, causal=causal, where=str(run))
    if (run / BESIDE).exists():
        model.source_files = json.loads((run / BESIDE).read_text(encoding="utf-8"))
    tokenizer = Tokenizer.load(opened.tokenizer_path) if opened.tokenizer_path.exists() else None
    told, search = Classes.read(opened) or Classes(()), _search(model, recipe)
    try:
        huggingface.save(
            model, tokenizer, folder, classes=told.names, pairs=told.pairs, search=search
        )
    except HeedError as error:
        todo = error.todo or _elsewhere(model)
        raise HeedError(error.what, where=str(run), todo=todo) from error


def _search(model: Model, recipe: Recipe) -> dict[str, Any]:
    """What `generate` is told of the beam by which a translator trained here writes."""
    decode = recipe.decode
    if not isinstance(model, Translator) or GENERATION in model.source_files or decode.beam == 1:
        return {}
    return {theirs: getattr(decode, ours) for theirs, (ours, _) in SEARCH.items()}


def _elsewhere(model: Model) -> str | None:
    """Which of the other formats can hold a model that transformers cannot."""
    able = [] if onnx.complaints(model.config, causal=onnx.causal(model)) else ["onnx"]
    if isinstance(model, Translator) and find_spec("ctranslate2") is not None:
        from heed.models import ctranslate2_layout as layout

        able = able if layout.complaints(model.config) else ["ctranslate2", *able]
    return f"It goes out with {' or '.join(f'--to {name}' for name in able)}." if able else None
