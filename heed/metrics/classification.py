"""Classification metrics: accuracy, F1, confusion matrix, and their intervals.

Shapes: n texts, k classes, r bootstrap samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heed.arrays import Floats, Ints
from heed.stats.bootstrap import BLOCK, RESAMPLES, SEED, percentile_interval
from heed.stats.intervals import Interval, intervals_as_json, wilson_interval

MAX_CLASSES = 50
"""Number of classes up to which every cell of the confusion matrix gets an interval."""
PSEUDO_COUNT = 2.0
"""Correct, and wrong, predictions added to smooth a confusion matrix: half of z², rounded."""


@dataclass(frozen=True)
class Predictions:
    """A classifier's predictions for texts, and their true labels, as class indices."""

    labels: Ints
    predicted: Ints
    classes: int
    log_probs: Floats | None = None
    """[n, k] log-probabilities; None for a classifier without probabilities."""

    @classmethod
    def from_log_probs(cls, labels: Ints, log_probs: Floats) -> Predictions:
        """Predictions of the most probable classes."""
        return cls(labels, log_probs.argmax(axis=1), log_probs.shape[1], log_probs)

    def __len__(self) -> int:
        return len(self.labels)

    def subset(self, rows: Sequence[int]) -> Predictions:
        """The predictions for some of the texts."""
        index = np.asarray(rows, np.int64)
        log_probs = None if self.log_probs is None else self.log_probs[index]
        return Predictions(self.labels[index], self.predicted[index], self.classes, log_probs)

    @property
    def correct(self) -> NDArray[np.bool_]:
        """[n] whether each prediction is correct."""
        return self.labels == self.predicted


def confusion_matrix(predictions: Predictions) -> Ints:
    """[k, k] counts of (true class, predicted class)."""
    k = predictions.classes
    cells = predictions.labels * k + predictions.predicted
    return np.bincount(cells, minlength=k * k).reshape(k, k)


def precision_recall_f1(counts: Ints) -> tuple[Floats, Floats, Floats]:
    """Precision, recall and F1 of each class, [… k], from confusion matrices [… k, k].

    Precision is 0 for a class that was never predicted, recall is 0 for a class without texts.
    """
    correct = np.diagonal(counts, axis1=-2, axis2=-1).astype(np.float64)
    predicted, actual = counts.sum(axis=-2), counts.sum(axis=-1)
    precision, recall = _ratio(correct, predicted), _ratio(correct, actual)
    return precision, recall, _ratio(2 * correct, predicted + actual)


def macro_f1(counts: Ints) -> Floats:
    """The mean F1 over classes that occur as a label or as a prediction, [… k, k] to […]."""
    _, _, f1 = precision_recall_f1(counts)
    occurs = (counts.sum(axis=-2) + counts.sum(axis=-1)) > 0
    return _ratio((f1 * occurs).sum(axis=-1), occurs.sum(axis=-1))


def _ratio(a: Any, b: Any) -> Floats:
    """a / b, and 0 where b is 0."""
    return np.divide(a, b, out=np.zeros(np.shape(b), np.float64), where=np.asarray(b) > 0)


def classification_metrics(
    predictions: Predictions,
    names: Sequence[str],
    *,
    resamples: int = RESAMPLES,
    seed: int = SEED,
) -> dict[str, Any]:
    """Accuracy, macro F1, metrics of every class and the confusion matrix, with intervals.

    Shares have Wilson's interval. Macro F1 is no share: its interval is from resampling, and there
    is none with 0 `resamples`.
    """
    counts, correct = confusion_matrix(predictions), int(predictions.correct.sum())
    intervals = {"accuracy": wilson_interval(correct, len(predictions))}
    if resamples:
        intervals["macro_f1"] = macro_f1_interval(counts, resamples, seed)
    return {
        "accuracy": correct / len(predictions),
        "macro_f1": float(macro_f1(counts)),
        "classes": _class_metrics(counts, names),
        "confusion": {"classes": list(names), "counts": counts.tolist()} | _row_shares(counts),
        "interval": intervals_as_json(intervals),
    }


def _class_metrics(counts: Ints, names: Sequence[str]) -> dict[str, Any]:
    """Precision, recall and F1 of every class, with intervals.

    F1 = 2 J / (1 + J), where J is the share of correct predictions among the texts that have the
    class as label or as prediction. So the bounds of J, a share, give those of F1.
    """
    metrics = {}
    for i, (name, *values) in enumerate(zip(names, *precision_recall_f1(counts), strict=True)):
        correct, actual, predicted = counts[i, i], counts[i].sum(), counts[:, i].sum()
        jaccard = wilson_interval(correct, actual + predicted - correct)
        intervals = {
            "precision": wilson_interval(correct, predicted),
            "recall": wilson_interval(correct, actual),
            "f1": None
            if jaccard is None
            else Interval(*(2 * bound / (1 + bound) for bound in (jaccard.low, jaccard.high))),
        }
        metrics[name] = {
            "texts": int(actual),
            **dict(zip(("precision", "recall", "f1"), map(float, values), strict=True)),
            "interval": intervals_as_json(intervals),
        }
    return metrics


def _row_shares(counts: Ints) -> dict[str, Any]:
    """Bounds of each cell's share of its row; none where there are too many classes."""
    if len(counts) > MAX_CLASSES:
        return {}
    cells = [[wilson_interval(cell, row.sum()) for cell in row] for row in counts]
    return {
        "share_low": [[one and one.low for one in row] for row in cells],
        "share_high": [[one and one.high for one in row] for row in cells],
    }


def macro_f1_interval(counts: Ints, resamples: int, seed: int = SEED) -> Interval:
    """The percentile-bootstrap interval of macro F1, from a smoothed confusion matrix.

    Resampling the matrix alone would never show a kind of error that did not occur: perfect
    predictions would have an interval without width. As in Agresti and Coull's interval (1998), two
    correct and two wrong predictions are added first, spread over the classes by their texts.
    """
    k, n = len(counts), int(counts.sum())
    smoothed, classes = counts.astype(np.float64), np.arange(k)
    shares = (counts.sum(axis=0) + counts.sum(axis=1)) / (2 * n)
    smoothed[classes, classes] += PSEUDO_COUNT * shares
    if k > 1:
        smoothed[classes, (classes + 1) % k] += PSEUDO_COUNT * shares
    actual, predicted = np.nonzero(smoothed)
    probabilities = smoothed[actual, predicted] / smoothed.sum()
    random, samples = np.random.Generator(np.random.PCG64(seed)), []
    rows = max(1, BLOCK // max(k, len(probabilities)))
    for first in range(0, resamples, rows):
        draws = random.multinomial(n, probabilities, size=min(rows, resamples - first))
        samples.append(_macro_f1_of_cells(draws, actual, predicted, k))
    interval = percentile_interval(np.concatenate(samples))
    score = float(macro_f1(counts))
    return Interval(min(interval.low, score), max(interval.high, score))


def _macro_f1_of_cells(draws_rc: Ints, actual: Ints, predicted: Ints, k: int) -> Floats:
    """[r] macro F1 of confusion matrices given by counts [r, c] of the cells that are not empty."""
    correct, sizes = (np.zeros((k, len(draws_rc))) for _ in range(2))
    diagonal = actual == predicted
    np.add.at(correct, actual[diagonal], draws_rc.T[diagonal])
    np.add.at(sizes, actual, draws_rc.T)
    np.add.at(sizes, predicted, draws_rc.T)
    f1, occurs = _ratio(2 * correct, sizes), sizes > 0
    return _ratio((f1 * occurs).sum(axis=0), occurs.sum(axis=0))
