"""The classes of a classifier's training text, and their weights in the loss."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from heed.config import Recipe
from heed.data.batching.bucketed import BucketedBatches, take_rows
from heed.data.corpus import Corpus
from heed.errors import ConfigError, DataError, nearest
from heed.runs.labels import Classes


def read_classes(corpus: Corpus) -> Classes:
    """The classes that occur in a corpus."""
    pairs = corpus.layout is not None and len(corpus.layout.texts) == 2
    return Classes(tuple(corpus.labels()), pairs)


def compute_class_weights(
    recipe: Recipe, classes: Classes, train: BucketedBatches
) -> tuple[float, ...] | None:
    """The loss weight of each class; None if all weigh the same.

    `balanced` is n / (k · n_c) for n examples, k classes and n_c examples of class c. The mean over
    examples is 1, so that the learning rate keeps its meaning.
    """
    weights, counts = recipe.train.class_weights, _count_classes(classes, train)
    _refuse_empty_class(recipe, classes, counts)
    if weights is None:
        return None
    if weights == "balanced":
        return tuple((counts.sum() / (len(counts) * counts)).tolist())
    refuse_unknown_class(weights, classes)
    return tuple(weights.get(name, 1.0) for name in classes.names)


def refuse_unknown_class(weights: dict[str, float], classes: Classes) -> None:
    """Refuse weights for classes that do not occur in train."""
    unknown = [name for name in weights if name not in classes.names]
    if unknown:
        known = list(classes.names)
        raise ConfigError(
            [
                f"[train] class_weights names {unknown[0]!r}, and the classes are "
                f"{', '.join(known)}.{nearest(unknown[0], known)}"
            ]
        )


def _count_classes(classes: Classes, train: BucketedBatches) -> NDArray[np.int64]:
    """The number of training examples of each class."""
    labels, rows = train.store.labels, take_rows(train.rows, slice(0, len(train.rows)))
    values = np.empty(0, np.int64) if labels is None else labels[rows]
    return np.bincount(values, minlength=len(classes.names))


def _refuse_empty_class(recipe: Recipe, classes: Classes, counts: NDArray[np.int64]) -> None:
    """Refuse a class of which no training example is left: all were set aside for dev."""
    for name, count in zip(classes.names, counts.tolist(), strict=True):
        if not count:
            raise DataError(
                f"class {name!r} has no training example: all were set aside for dev.",
                where=", ".join(recipe.data.train) or None,
                todo="Add examples of that class, or name a dev file of your own (--dev FILE).",
            )
