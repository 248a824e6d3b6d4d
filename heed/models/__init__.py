"""Thin heads on the stack: one model a task, built by `build`."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from heed.config import POSITIONS, TASKS, ModelConfig
from heed.errors import ConfigError, nearest
from heed.models.backbone import Backbone
from heed.models.classifier import Classifier
from heed.models.language_model import LanguageModel
from heed.models.translator import Translator
from heed.models.weights import refuse_misfit
from heed.nn.embedding import initialise

Model = Translator | Classifier | LanguageModel

__all__ = [
    "Backbone",
    "Classifier",
    "LanguageModel",
    "Model",
    "Translator",
    "build",
    "from_weights",
]


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

    Every stack begins as one of two branches a layer, self-attention and feed-forward. The third of
    a translator's decoder, cross-attention, is not counted, nor is a depth of its own: its branches
    are no smaller for it.
    """
    model = _built(task, config, vocab, classes, source_vocab, causal)
    initialise(model, branches=2 * config.layers)
    return model


def from_weights(
    weights: Mapping[str, Tensor],
    task: str,
    config: ModelConfig,
    *,
    causal: bool = True,
    where: str | None = None,
) -> Model:
    """The model whose weights these are: how many tokens and classes it knows, they say.

    `where` is told to who has weights of another model.
    """

    def rows(name: str, least: int) -> int:
        return len(weights[name]) if name in weights else least

    source = rows("source_embedding.table.weight", 0) or None
    head = "head.weight" if config.classifier_hidden is None else "head.3.weight"
    classes = rows(head, 2) if task == "classify" else None
    model = _built(task, config, rows("embedding.table.weight", 1), classes, source, causal)
    refuse_misfit(model.state_dict(), weights, where=where)
    model.load_state_dict(dict(weights))
    return model


def _built(
    task: str,
    config: ModelConfig,
    vocab: int,
    classes: int | None,
    source_vocab: int | None,
    causal: bool,
) -> Model:
    complaints = [*_complaints(task, config, vocab, classes)]
    if complaints:
        raise ConfigError(complaints)
    if task == "translate":
        return Translator(config, vocab=vocab, source_vocab=source_vocab)
    if task == "classify":
        return Classifier(config, vocab=vocab, classes=classes or 0)
    return LanguageModel(config, vocab=vocab, causal=causal)


def _complaints(task: str, config: ModelConfig, vocab: int, classes: int | None) -> list[str]:
    complaints = []
    if task not in TASKS:
        complaints.append(f"There is no task {task!r}: {', '.join(TASKS)}.{nearest(task, TASKS)}")
    if vocab < 1:
        complaints.append(f"vocab cannot be {vocab}: a model needs at least one token.")
    if task == "classify" and (classes is None or classes < 2):
        complaints.append(f"classes cannot be {classes}: a classifier tells at least two apart.")
    if task == "translate" and config.token_types:
        complaints.append("token_types are for reading one text: a translator has none.")
    if task != "classify" and config.ngrams > 1:
        complaints.append(f"ngrams are what a classifier reads: task {task!r} has none.")
    if config.family == "transformer":
        complaints += filter(None, [POSITIONS[config.position].complaint(config)])
        complaints += filter(None, [config.find_leak(task)])
    return complaints
