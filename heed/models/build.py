"""Building a model for a task: with fresh weights (`build`) or given ones (`from_weights`)."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from heed.config import POSITIONS, TASKS, ModelConfig
from heed.config.model import ATTENTION_KINDS
from heed.errors import ConfigError, RunError, nearest
from heed.models.classifier import Classifier
from heed.models.language_model import LanguageModel
from heed.models.translator import Translator
from heed.models.weights import require_matching_weights
from heed.nn.initialization import initialize

Model = Translator | Classifier | LanguageModel
MAX_EXCESS = 4
"""A model that is described as larger than its stored weights by this factor is not even built; of
a smaller difference, the error can name the weight."""


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

    `source_vocab` is the size of a separate source vocabulary in translation; without it both sides
    share one. `causal=False` is for `generate` by masked language modeling.

    Every stack is initialized as one with two branches per layer, self-attention and feed-forward.
    A translator's cross-attention and a different number of decoder layers are not counted: they do
    not make the branches smaller.
    """
    model = _build(task, config, vocab, classes, source_vocab, causal)
    initialize(model, branches=2 * config.layers)
    return model


def from_weights(
    weights: Mapping[str, Tensor],
    task: str,
    config: ModelConfig,
    *,
    causal: bool = True,
    where: str | None = None,
) -> Model:
    """Build a model and load these weights; vocabulary and class counts come from their shapes.

    `where` is named in the error on a mismatch.
    """

    def rows(name: str, default: int) -> int:
        return len(weights[name]) if name in weights else default

    source = rows("source_embedding.table.weight", 0) or None
    head = "head.weight" if config.classifier_hidden is None else "head.3.weight"
    classes = rows(head, 2) if task == "classify" else None
    stored = sum(weight.numel() for weight in weights.values())
    needed = count_minimum_parameters(task, config, rows("embedding.table.weight", 1))
    if needed > MAX_EXCESS * stored:
        raise RunError(
            f"recipe.toml describes a model of at least {needed:,} parameters, and there are "
            f"{stored:,} in the weights.",
            where=where,
            todo="Put recipe.toml back as training wrote it, or train a new run.",
        )
    model = _build(task, config, rows("embedding.table.weight", 1), classes, source, causal)
    require_matching_weights(model.state_dict(), weights, where=where)
    model.load_state_dict(dict(weights))
    return model


def count_minimum_parameters(task: str | None, config: ModelConfig, vocab: int) -> int:
    """A lower bound on the parameters of a model, from its sizes alone: nothing is built."""
    tables = vocab * (config.embedding_width or config.width)
    if config.ngrams > 1:
        tables += config.ngram_buckets * config.width
    layers = config.layers
    if task == "translate":
        layers += config.decoder_layers or config.layers
    if config.family == "lstm":
        return tables + layers * 4 * config.width**2
    if config.position == "learned":
        tables += config.max_positions * config.width
    heads = 0 if config.kept_heads else config.heads  # a layer may have none
    attention = 2 * config.width * heads * config.resolved_head_width
    feed_forward = 2 * config.width * (config.feed_forward or 4 * config.width)
    return tables + layers * (attention + feed_forward)


def _build(
    task: str,
    config: ModelConfig,
    vocab: int,
    classes: int | None,
    source_vocab: int | None,
    causal: bool,
) -> Model:
    complaints = [*_complaints(task, config, vocab, classes)]
    kinds = {"translate": ATTENTION_KINDS, "classify": ("encoder",)}.get(
        task, ("decoder" if causal else "encoder",)
    )
    complaints += [
        f"kept_heads has heads of {kind!r} attention: this model has {' and '.join(kinds)} only."
        for kind in config.kept_heads
        if kind not in kinds
    ]
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
        complaints.append(f"classes cannot be {classes}: a classifier has at least two classes.")
    if task == "translate" and config.token_types:
        complaints.append(
            "token_types are for models that read one sequence: a translator has none."
        )
    if task != "classify" and config.ngrams > 1:
        complaints.append(f"ngrams are features of a classifier: task {task!r} has none.")
    if config.family == "transformer":
        complaints += filter(None, [POSITIONS[config.position].complaint(config)])
        complaints += filter(None, [config.find_leak(task)])
    return complaints


def describe_model(model: Model, task: str, config: ModelConfig) -> str:
    """The model in one line: its shape, its position encoding and merge, its parameters."""
    layers = f"{config.layers} {'layer' if config.layers == 1 else 'layers'}"
    if task == "translate":
        layers = f"{config.layers} + {config.decoder_layers or config.layers} layers"
    parts = [layers, f"width {config.width}"]
    if config.family == "transformer":
        parts += [f"{config.heads} heads", f"position {config.position}", f"merge {config.merge}"]
    parameters = sum(p.numel() for p in model.parameters())
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    counted = f"{parameters:,} parameters"
    if trained < parameters:
        counted += f", {trained:,} of them trained"
    return f"{config.family}, {', '.join(parts)}; {counted}"
