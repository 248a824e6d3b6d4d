"""Running out of memory while training: an error that says what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from heed.config import Recipe
from heed.data.batching.bucketed import DEFAULT_BATCH_TOKENS
from heed.device import is_out_of_memory
from heed.errors import HeedError
from heed.runs.run import Run


class TrainingMemoryError(HeedError):
    """A batch, the model or the text does not fit into memory."""


@contextmanager
def oom_guard(recipe: Recipe, run: Run, *, preparing: bool = False) -> Iterator[None]:
    """Turn running out of memory into an error that says what to do.

    `preparing` is before the first batch, when it is the model or the text that does not fit.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        if preparing:
            raise TrainingMemoryError(
                "memory ran out while the text and the model were prepared.",
                todo="Use a smaller model (model.layers, model.width, tokenizer.vocab_size), "
                "or less text.",
            ) from error
        name, size = _batch_setting(recipe)
        raise TrainingMemoryError(
            f"memory ran out with train.{name} = {size}.", todo=_advise_less_memory(recipe, run)
        ) from error


def _batch_setting(recipe: Recipe) -> tuple[str, int]:
    """The recipe key that sets the size of a batch, and its value."""
    settings = recipe.train
    if settings.batch_size is not None:
        return "batch_size", settings.batch_size
    return "batch_tokens", settings.batch_tokens or DEFAULT_BATCH_TOKENS


def _advise_less_memory(recipe: Recipe, run: Run) -> str:
    """What to do where a batch does not fit: a run with a checkpoint can go on in smaller parts."""
    if run.checkpoints.exists() and not recipe.train.split_on_oom:
        command = f"heed resume {run.folder} --set train.split_on_oom=true"
        return f"Continue it in smaller parts with: {command}"
    name, size = _batch_setting(recipe)
    if size == 1:
        return "Use a smaller model, or shorter texts (data.max_length)."
    return (
        f"Use --set train.{name}={size // 2} --set train.accumulate={2 * recipe.train.accumulate}, "
        "which takes nearly the same steps in half the memory."
    )
