"""Thin heads on the stack: one model a task, built by `build`."""

from __future__ import annotations

from heed.config import TASKS, ModelConfig
from heed.errors import ConfigError, nearest
from heed.models.classifier import Classifier
from heed.models.language_model import LanguageModel
from heed.models.translator import Translator
from heed.nn.layers import initialise
from heed.nn.positions import ENCODINGS

Model = Translator | Classifier | LanguageModel

__all__ = ["Classifier", "LanguageModel", "Model", "Translator", "build"]


def build(
    task: str,
    config: ModelConfig,
    *,
    vocab: int,
    classes: int | None = None,
    source_vocab: int | None = None,
    causal: bool = True,
) -> Model:
    """A fresh model for `task`, its weights drawn from torch's generator.

    `source_vocab` is for translation with a vocabulary of its own on the source side; without it
    both sides share one. `causal=False` is for `generate` by masked language modelling.
    """
    complaints = [*_complaints(task, config, vocab, classes)]
    if complaints:
        raise ConfigError(complaints)
    model: Model
    if task == "translate":
        model = Translator(config, vocab=vocab, source_vocab=source_vocab)
    elif task == "classify":
        model = Classifier(config, vocab=vocab, classes=classes or 0)
    else:
        model = LanguageModel(config, vocab=vocab, causal=causal)
    initialise(model, branches=2 * config.layers)
    return model


def _complaints(task: str, config: ModelConfig, vocab: int, classes: int | None) -> list[str]:
    complaints = []
    if task not in TASKS:
        complaints.append(f"There is no task {task!r}: {', '.join(TASKS)}.{nearest(task, TASKS)}")
    if vocab < 1:
        complaints.append(f"vocab cannot be {vocab}: a model needs at least one token.")
    if task == "classify" and (classes is None or classes < 2):
        complaints.append(f"classes cannot be {classes}: a classifier tells at least two apart.")
    if config.family == "transformer":
        complaints += filter(None, [ENCODINGS[config.position].complaint(config)])
        complaints += filter(None, [config.leak(task)])
    return complaints
