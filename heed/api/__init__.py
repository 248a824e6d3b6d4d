"""heed from Python: Translator, LanguageModel, Classifier and `load`.

Only `train` and `evaluate` import the training code, and only when they are called. Both take
files, or lists of texts (`heed.data.in_memory`). A class is imported when it is first used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch

from heed import models
from heed.config import Recipe
from heed.data.tokenizers.tokenizer import Tokenizer
from heed.device import choose_device
from heed.errors import ConfigError, RunError
from heed.models.build import describe_model
from heed.plugins import PluginFiles, load_plugins
from heed.runs.load import load_run
from heed.runs.run import Run
from heed.runs.weight_files import BEST_WEIGHTS

if TYPE_CHECKING:
    from heed.api.classify import Classifier
    from heed.api.generate import LanguageModel
    from heed.api.translate import Translator
    from heed.data.in_memory import Data
    from heed.evaluate.evaluation_result import EvaluationResult
    from heed.nn.kernels.quantized_linear import Int8Weights
    from heed.probe.attention_maps import AttentionMaps

__all__ = ["Classifier", "LanguageModel", "TrainedModel", "Translator", "load"]
MODULES = {"Classifier": "classify", "LanguageModel": "generate", "Translator": "translate"}
"""The module of each class."""
T = TypeVar("T")
M = TypeVar("M", models.Translator, models.LanguageModel, models.Classifier)
PRECISIONS = {"float32": torch.float32, "bf16": torch.bfloat16, "int8": torch.float32}
"""The dtype of a model's weights. With int8, decoding uses int8 copies of float32 weights."""
MODEL_CLASSES: dict[str, type[torch.nn.Module]] = {
    "translate": models.Translator,
    "generate": models.LanguageModel,
    "classify": models.Classifier,
}
"""The model class of each task."""
INT8 = "int8"
PIPELINES = 4
"""Pipelines kept, each for other decoding settings: on a GPU each holds its captured graphs."""


def __getattr__(name: str) -> Any:
    """Import a class on first use: a command for one task loads no other's."""
    if name not in MODULES:
        raise AttributeError(f"module 'heed.api' has no attribute {name!r}")
    return getattr(import_module(f"heed.api.{MODULES[name]}"), name)


def load(
    folder: str | Path,
    *,
    device: str = "auto",
    precision: str = "float32",
    weights: str = BEST_WEIGHTS,
    plugin: PluginFiles = None,
) -> Translator | LanguageModel | Classifier:
    """Load the model of a run, as the class of its task.

    `precision` is float32, bf16 or, on a CPU and not for a classifier, int8. `weights` are "best",
    "last" or a step. `plugin` names the Python file of a run that was trained with one.
    """
    from heed.api.classify import Classifier
    from heed.api.generate import LanguageModel
    from heed.api.translate import Translator

    load_plugins(plugin)
    task = Run.open(Path(folder)).recipe().task
    if task == "translate":
        return Translator.load(folder, device=device, precision=precision, weights=weights)
    if task == "generate":
        return LanguageModel.load(folder, device=device, precision=precision, weights=weights)
    return Classifier.load(folder, device=device, precision=precision, weights=weights)


def load_model(
    folder: str | Path, kind: type[M], device: str, precision: str, weights: str
) -> tuple[M, Tokenizer, Recipe]:
    """Load a run's model, tokenizer and recipe; an error if the run has another task."""
    choices = [one for one in PRECISIONS if one != INT8 or kind is not models.Classifier]
    if precision not in choices:
        raise ConfigError([f"precision cannot be {precision!r}: use {' or '.join(choices)}."])
    if precision == INT8:
        from heed.nn.kernels.quantized_linear import check_int8

        check_int8(choose_device(device))
    model, tokenizer, recipe = load_run(Path(folder), device=device, weights=weights)
    if not isinstance(model, kind):
        task = next(task for task, one in MODEL_CLASSES.items() if one is kind)
        raise RunError(f"this run was trained to {recipe.task}, not to {task}.", where=str(folder))
    return model.to(PRECISIONS[precision]), tokenizer, recipe


def int8_weights(precision: str, decoding: Sequence[torch.nn.Module]) -> Int8Weights | None:
    """The int8 weights of the models that decode; None in any other precision."""
    if precision != INT8:
        return None
    from heed.nn.kernels.quantized_linear import Int8Weights

    return Int8Weights(decoding)


@dataclass(frozen=True)
class Origin:
    """Where a loaded model comes from: its run folder, and which of its weights."""

    folder: Path | None = None
    weights: str = BEST_WEIGHTS

    @property
    def run(self) -> str:
        """The name of the run; empty where there is none."""
        return "" if self.folder is None else self.folder.name

    def label(self, maps: AttentionMaps) -> AttentionMaps:
        """The maps with their origin."""
        return replace(maps, run=self.run, weights=self.weights)


class TrainedModel:
    """What every trained model has: its run, the history of its training, its evaluation."""

    model: models.Model
    recipe: Recipe
    _origin = Origin()

    @property
    def run(self) -> Run:
        """The run folder that the model was loaded from."""
        if self._origin.folder is None:
            raise RunError("this model was not loaded from a run.", todo="Use `heed.load`.")
        return Run.open(self._origin.folder)

    @property
    def history(self) -> list[dict[str, Any]]:
        """Every measurement while training as a flat row: `pandas.DataFrame(model.history)`."""
        return self.run.history

    def __repr__(self) -> str:
        folder, weights = self._origin.folder, self._origin.weights
        place = "no run" if folder is None else f"{folder}, {weights} weights"
        return f"{type(self).__name__}({place}: {self._describe()})"

    def _describe(self) -> str:
        return describe_model(self.model, self.recipe.task, self.recipe.model)

    def _evaluate(
        self,
        test: Data | None,
        name: str | None,
        metric: str | Sequence[str] | None,
        **options: Any,
    ) -> EvaluationResult:
        """Evaluate the run as `heed evaluate` does, with these of its options."""
        from heed.evaluate.evaluation_result import evaluate_data
        from heed.evaluate.job import Options

        return evaluate_data(
            self.run.folder,
            test,
            Options(**options, weights=self._origin.weights),
            name=name,
            metric=metric,
            device=str(next(self.model.parameters()).device),
        )


class LruCache(Generic[T]):
    """The `PIPELINES` most recently used values by key; one more evicts the least recent.

    `functools.lru_cache` on a method would keep its object alive; this lives inside the object.
    """

    def __init__(self) -> None:
        self.values: dict[str, T] = {}
        """Least recently used first."""

    def get(self, key: str, build: Callable[[], T]) -> T:
        """The value of a key, built now if it is not cached."""
        value = self.values.pop(key) if key in self.values else build()
        self.values[key] = value
        if len(self.values) > PIPELINES:
            del self.values[next(iter(self.values))]
        return value
