"""Import a folder of Hugging Face transformers as a run, and export a run as such a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from heed import checksums
from heed.config import Recipe
from heed.errors import HeedError
from heed.export.calibrated_logits import apply_calibration
from heed.files import publish, temporary_folder
from heed.models import (
    Backbone,
    Classifier,
    LanguageModel,
    Model,
    Translator,
    from_weights,
    huggingface,
)
from heed.runs.labels import Classes
from heed.runs.load import load_tokenizer, read_final_weights
from heed.runs.run import RESTORE, Run
from heed.train import checkpoint

SOURCE_FILES = "pretrained.json"
"""The original config.json and generation_config.json, kept in the run for a later export."""
CONFIG, GENERATION = "config.json", "generation_config.json"
BEAM_SEARCH_KEYS = {
    "num_beams": ("beam", (int,)),
    "length_penalty": ("length_penalty", (int, float)),
    "early_stopping": ("early_stop", (bool,)),
}
"""Keys of generation_config.json, heed's keys in [decode], and the value types both accept."""


def import_model(folder: str, run: Path) -> str:
    """Create a run from a folder, or from a model on the hub; returns a one-line description.

    Everything is read before anything is written, and the run appears as a whole.
    """
    Run(run).refuse_if_taken()
    model, tokenizer = huggingface.load(folder)
    if isinstance(model, Backbone):
        name = model.source_files[CONFIG]["architectures"][0]
        raise HeedError(
            f"{name} has no head, so it can neither generate nor classify.",
            where=folder,
            todo="Train from it: `[init] from` loads its weights below a new head.",
        )
    recipe = _recipe(model, folder)
    final = run.resolve() if run.is_symlink() else run
    with temporary_folder(final) as draft:
        new_run = Run(draft)
        new_run.write_recipe(recipe)
        if tokenizer is not None:
            tokenizer.save(new_run.tokenizer_path)
        if isinstance(model, Classifier):
            _classes(model).save(new_run)
        checksums.write_json(draft / SOURCE_FILES, model.source_files)
        new_run.write_environment({"data": {}, "from": folder})
        checkpoint.write_tensors(new_run.weights_path, model.state_dict())
        publish(draft, final)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    text = "with its tokenizer" if tokenizer else "without a tokenizer (the folder has none)"
    return f"{run}: a model to {recipe.task}, {parameters:,} parameters, {text}."


def _classes(model: Classifier) -> Classes:
    """A classifier's class names, read from its config.json."""
    config = model.source_files[CONFIG]
    names = huggingface.class_names(config) or _default_class_names(model)
    return Classes(names, huggingface.is_pair_classifier(config))


def _default_class_names(model: Classifier) -> tuple[str, ...]:
    """The names transformers gives unnamed classes; it does not store them in config.json."""
    *_, bias = model.head.parameters()
    return tuple(f"LABEL_{number}" for number in range(len(bias)))


def _recipe(model: Model, folder: str) -> Recipe:
    """The recipe of a run with this model; errors name the folder that it comes from."""
    config, generation = model.config, model.source_files.get(GENERATION, {})
    task = "classify" if isinstance(model, Classifier) else "generate"
    tables: dict[str, Any] = {"task": "translate" if isinstance(model, Translator) else task}
    tables["model"] = {k: v for k, v in config.model_dump().items() if v is not None}
    tables["data"] = {"max_length": config.max_positions}
    if isinstance(model, LanguageModel) and not model.causal:
        tables["train"] = {"objective": "masked"}
    if isinstance(model, Translator):
        tables["decode"] = {
            ours: generation[theirs]
            for theirs, (ours, types) in BEAM_SEARCH_KEYS.items()
            if type(generation.get(theirs)) in types and generation[theirs] >= 0
        }
    return Recipe.of(tables, where=folder)


def export(run: Path, folder: Path) -> None:
    """Write a run as a folder that `from_pretrained` reads."""
    source = Run.open(run)
    recipe, weights = source.recipe(), read_final_weights(source)
    causal = recipe.train.objective == "causal"
    model = from_weights(weights, recipe.task, recipe.model, causal=causal, where=str(run))
    if (run / SOURCE_FILES).exists():
        model.source_files = checksums.read_json(run / SOURCE_FILES, todo=RESTORE)
    tokenizer = load_tokenizer(source) if source.has_tokenizer() else None
    classes, search = Classes.read(source) or Classes(()), _beam_search(model, recipe)
    apply_calibration(source, model, folder)
    huggingface.save(
        model, tokenizer, folder, classes=classes.names, pairs=classes.pairs, search=search
    )


def _beam_search(model: Model, recipe: Recipe) -> dict[str, Any]:
    """Beam search settings of a translator trained in heed, as keys of generation_config.json."""
    decode = recipe.decode
    if not isinstance(model, Translator) or GENERATION in model.source_files or decode.beam == 1:
        return {}
    return {theirs: getattr(decode, ours) for theirs, (ours, _) in BEAM_SEARCH_KEYS.items()}
