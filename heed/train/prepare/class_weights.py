"""What a classifier tells apart: which classes there are, what each counts for, and how many."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from heed.config import Recipe
from heed.data.batching.bucketed import BucketedBatches, take_rows
from heed.data.corpus import Corpus
from heed.errors import ConfigError, DataError, nearest
from heed.runs.labels import Classes


def classes_of(corpus: Corpus) -> Classes:
    """The classes that a training text names."""
    pairs = corpus.layout is not None and len(corpus.layout.texts) == 2
    return Classes(tuple(corpus.labels()), pairs)


def weights_of(
    recipe: Recipe, classes: Classes, train: BucketedBatches
) -> tuple[float, ...] | None:
    """What a text of each class counts for; None where all count alike.

    `balanced` is n / (k · n_c), n texts and n_c of class c: the mean over the texts is 1, so that
    the learning rate means the same.
    """
    if recipe.task != "classify":
        return None
    told, counts = recipe.train.class_weights, _counts(classes, train)
    _refuse_empty(recipe, classes, counts)
    if told is None:
        return None
    if told == "balanced":
        return tuple((counts.sum() / (len(counts) * counts)).tolist())
    _refuse_others(told, classes)
    return tuple(told.get(name, 1.0) for name in classes.names)


def refuse_unknown(recipe: Recipe, train: Corpus) -> None:
    """Weights for classes that the training text does not name. Without any, it is not read."""
    told = recipe.train.class_weights
    if isinstance(told, dict):
        _refuse_others(told, classes_of(train))


def _refuse_others(told: dict[str, float], classes: Classes) -> None:
    unknown = [name for name in told if name not in classes.names]
    if unknown:
        known = list(classes.names)
        raise ConfigError(
            [
                f"[train] class_weights names {unknown[0]!r}, and the classes are "
                f"{', '.join(known)}.{nearest(unknown[0], known)}"
            ]
        )


def _counts(classes: Classes, train: BucketedBatches) -> NDArray[np.int64]:
    """How many texts of each class there are to learn from."""
    labels, rows = train.store.labels, take_rows(train.rows, slice(0, len(train.rows)))
    own = np.empty(0, np.int64) if labels is None else labels[rows]
    return np.bincount(own, minlength=len(classes.names))


def _refuse_empty(recipe: Recipe, classes: Classes, counts: NDArray[np.int64]) -> None:
    """A class that nothing is left of cannot be learnt: all its texts were set aside for dev."""
    for name, count in zip(classes.names, counts.tolist(), strict=True):
        if not count:
            raise DataError(
                f"class {name!r} has no text left to learn from: all it has was set aside for dev.",
                where=", ".join(recipe.data.train) or None,
                todo="Add texts of that class, or name a dev file of your own (--dev FILE).",
            )
