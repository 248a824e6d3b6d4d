"""Load a trained run: its model, its tokenizer and its recipe, without the training code."""

from __future__ import annotations

import warnings
from pathlib import Path

from heed.config import Recipe
from heed.data.tokenizers.tokenizer import Tokenizer
from heed.device import choose_device
from heed.errors import HeedWarning
from heed.models import Model, from_weights
from heed.models.weights import read_weights
from heed.runs.run import Run


def load_run(folder: Path, *, device: str = "auto") -> tuple[Model, Tokenizer, Recipe]:
    """Load a run in evaluation mode; of an unfinished run, the best weights so far."""
    run, torch_device = Run.open(folder), choose_device(device)
    recipe, tokenizer = run.recipe(), Tokenizer.load(run.tokenizer_path)
    weights = read_weights(_best_weights(run, recipe))
    causal = recipe.train.objective == "causal"
    model = from_weights(weights, recipe.task, recipe.model, causal=causal, where=str(folder))
    return model.to(torch_device).eval(), tokenizer, recipe


def _best_weights(run: Run, recipe: Recipe) -> Path:
    """The chosen weights; before the end of training the best so far, with a warning."""
    has_adapters = recipe.init.lora is not None  # not merged into the weights before the end
    best = run.best_path
    if run.finished or has_adapters or best is None:
        return run.require_weights()
    message = f"{run.folder}: its training is not finished; these are its best weights so far."
    warnings.warn(message, HeedWarning, stacklevel=3)
    return best
