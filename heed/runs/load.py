"""Load a trained run: its model, its tokenizer and its recipe, without the training code."""

from __future__ import annotations

import warnings
from pathlib import Path

from torch import Tensor

from heed.checksums import DamagedError
from heed.config import Recipe
from heed.data.tokenizers.tokenizer import Tokenizer
from heed.device import choose_device
from heed.errors import HeedWarning, RunError
from heed.models import Model, from_weights
from heed.models.weights import read_weights, verify_weights
from heed.runs.run import RESTORE, Run
from heed.runs.weight_files import BEST, BEST_WEIGHTS, TENSORS, list_weights


def load_run(
    folder: Path, *, device: str = "auto", weights: str = BEST_WEIGHTS
) -> tuple[Model, Tokenizer, Recipe]:
    """Load a run in evaluation mode.

    `weights` are "best" (those that training chose; of an unfinished run, the best so far), "last",
    or the step of weights that the run still has.
    """
    run, torch_device = Run.open(folder), choose_device(device)
    recipe, tokenizer = run.recipe(), load_tokenizer(run)
    tensors = _read_weights(run, recipe, weights)
    causal = recipe.train.objective == "causal"
    model = from_weights(tensors, recipe.task, recipe.model, causal=causal, where=str(folder))
    return model.to(torch_device).eval(), tokenizer, recipe


def _read_weights(run: Run, recipe: Recipe, weights: str) -> dict[str, Tensor]:
    if weights == BEST_WEIGHTS:
        return read_best_weights(run, recipe)
    path = run.weight_files.by_step()[run.weights_step(weights)]
    if recipe.init.lora is not None:
        raise RunError(
            "checkpoints of a run with LoRA hold its adapters apart from the weights.",
            where=str(path),
            todo="Use its best weights, into which the adapters are merged.",
        )
    tensors = read_weights(path, todo="Choose other weights of the run with --weights.")
    if path.name != TENSORS:
        return tensors
    # A checkpoint to resume from: the weights that were evaluated are the moving average, if any.
    return {
        name.removeprefix(prefix): tensor
        for prefix in ("model.", "ema.")
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }


def load_tokenizer(run: Run) -> Tokenizer:
    """Load the tokenizer of a run; an error if it is not as training wrote it."""
    if (damaged := run.find_damaged_tokenizer()) is not None:
        what = "this file is missing, damaged or changed: its checksum is not the recorded one."
        raise DamagedError(what, where=str(damaged), todo=RESTORE)
    return Tokenizer.load(run.tokenizer_path)


def read_final_weights(run: Run) -> dict[str, Tensor]:
    """The weights of a finished run."""
    return read_weights(run.require_weights(), todo=_restore_weights(run))


def verify_final_weights(run: Run) -> None:
    """Raise an error if the weights of a finished run are damaged."""
    verify_weights(run.require_weights(), todo=_restore_weights(run))


def _restore_weights(run: Run) -> str:
    """The advice for damaged weights of a finished run."""
    todo = "Copy it again from where it is whole"
    if run.weight_files.best_path is None:
        return f"{todo}."
    return f"{todo}; or delete it, and `heed resume {run.folder}` writes it again."


def read_best_weights(run: Run, recipe: Recipe) -> dict[str, Tensor]:
    """The chosen weights; before the end of training the best so far, with a warning."""
    has_adapters = recipe.init.lora is not None  # not merged into the weights before the end
    if run.finished or has_adapters or run.weight_files.best_path is None:
        return read_final_weights(run)
    path = _newest_intact_weights(run)
    if run.has_lost_weights:
        _warn(
            f"{run.weights_path}: the weights of this finished run are missing; these are the best "
            f"of its checkpoints. `heed resume {run.folder}` writes them again."
        )
    else:
        _warn(f"{run.folder}: its training is not finished; these are its best weights so far.")
    return read_weights(path)


def _newest_intact_weights(run: Run) -> Path:
    """The best weights so far that are intact; a warning for each that is not."""
    paths = list_weights(run.checkpoints, BEST)[::-1]
    counted = run.weight_files.best_name_of_checkpoint()
    if counted is not None and paths[0].name < counted:
        _warn(f"{run.checkpoints / counted}: the best weights are missing; older ones are used.")
    for path in paths:
        try:
            verify_weights(path, todo="Older ones are used.")
        except RunError as error:
            _warn(str(error))
        else:
            return path
    raise RunError(
        "none of its best weights is intact.",
        where=str(run.checkpoints),
        todo=f"Continue the training with: heed resume {run.folder}",
    )


def _warn(message: str) -> None:
    warnings.warn(message, HeedWarning, stacklevel=4)
