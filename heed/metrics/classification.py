"""Classification metrics: accuracy, F1, confusion matrix, and their bootstrap intervals.

Shapes: n texts, k classes, r bootstrap samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heed.stats.bootstrap import (
    RESAMPLES,
    SEED,
    Floats,
    Interval,
    Ints,
    bootstrap,
    percentile_bounds,
    percentile_interval,
)
from heed.stats.paired_tests import mcnemar_p

MAX_CLASSES = 50
"""Number of classes up to which every cell of the confusion matrix gets an interval."""


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


# ---------------------------------------------------------------------------------- one classifier


def confusion_matrix(predictions: Predictions, samples_rn: Ints | None = None) -> Ints:
    """[k, k] counts of (true class, predicted class); [r, k, k] for bootstrap samples."""
    k = predictions.classes
    cells = predictions.labels * k + predictions.predicted
    if samples_rn is None:
        return np.bincount(cells, minlength=k * k).reshape(k, k)
    counts = np.empty((len(samples_rn), k, k), np.int64)
    for i, rows in enumerate(samples_rn):
        counts[i] = np.bincount(cells[rows], minlength=k * k).reshape(k, k)
    return counts


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
    """Accuracy, macro F1, metrics of every class and the confusion matrix, with intervals."""
    counts = confusion_matrix(predictions)
    precision, recall, f1 = precision_recall_f1(counts)
    result: dict[str, Any] = {
        "accuracy": float(predictions.correct.mean()),
        "macro_f1": float(macro_f1(counts)),
        "classes": {
            name: {
                "texts": int(counts[i].sum()),
                "precision": float(precision[i]),
                "recall": float(recall[i]),
                "f1": float(f1[i]),
            }
            for i, name in enumerate(names)
        },
        "confusion": {"classes": list(names), "counts": counts.tolist()},
    }
    if resamples:
        _add_intervals(result, predictions, names, resamples, seed)
    return result


def _add_intervals(
    result: dict[str, Any],
    predictions: Predictions,
    names: Sequence[str],
    resamples: int,
    seed: int,
) -> None:
    """Add the bootstrap interval of every metric to the result."""
    k = predictions.classes

    def statistics(samples_rn: Ints) -> Floats:
        counts = confusion_matrix(predictions, samples_rn)
        accuracy = np.trace(counts, axis1=-2, axis2=-1) / len(predictions)
        columns = [accuracy[:, None], macro_f1(counts)[:, None], *precision_recall_f1(counts)]
        if k <= MAX_CLASSES:
            totals = counts.sum(axis=-1, keepdims=True)
            shares = np.divide(counts, totals, out=np.full(counts.shape, np.nan), where=totals > 0)
            columns.append(shares.reshape(len(samples_rn), -1))
        return np.concatenate(columns, axis=1)

    samples = bootstrap(statistics, len(predictions), resamples, seed, values_per_sample=k * k)
    low, high = percentile_bounds(samples)
    intervals = [{"low": a, "high": b} for a, b in zip(low.tolist(), high.tolist(), strict=True)]
    result["interval"] = {"accuracy": intervals[0], "macro_f1": intervals[1]}
    for block, key in enumerate(("precision", "recall", "f1")):
        for i, name in enumerate(names):
            class_intervals = result["classes"][name].setdefault("interval", {})
            class_intervals[key] = intervals[2 + block * k + i]
    if k <= MAX_CLASSES:
        for key, bounds in (("share_low", low), ("share_high", high)):
            cells = bounds[2 + 3 * k :].reshape(k, k)
            result["confusion"][key] = [[_nan_to_none(cell) for cell in row] for row in cells]


def _nan_to_none(value: float) -> float | None:
    """None for NaN, which JSON lacks: a class without texts has no shares."""
    return None if np.isnan(value) else float(value)


# --------------------------------------------------------------------------------- two classifiers


@dataclass(frozen=True)
class PairedAccuracy:
    """The accuracies of two classifiers on the same texts, compared."""

    difference: float
    """Our accuracy minus theirs."""
    interval: Interval | None
    only_ours: int
    """Texts that only our classifier predicts correctly."""
    only_theirs: int
    """Texts that only the other classifier predicts correctly."""
    p: float
    """P-value of the exact McNemar test."""


def compare_accuracy(
    ours: Predictions, theirs: Predictions, *, resamples: int = RESAMPLES, seed: int = SEED
) -> PairedAccuracy:
    """Test whether two classifiers differ in accuracy on the same texts."""
    if len(ours) != len(theirs) or not np.array_equal(ours.labels, theirs.labels):
        raise ValueError("A paired test needs the predictions of two systems for the same texts.")
    gain = ours.correct.astype(np.float64) - theirs.correct

    def mean_gain(samples_rn: Ints) -> Floats:
        return gain[samples_rn].mean(axis=1)

    interval = None
    if resamples:
        interval = percentile_interval(bootstrap(mean_gain, len(gain), resamples, seed))
    wins, losses = int((gain > 0).sum()), int((gain < 0).sum())
    return PairedAccuracy(float(gain.mean()), interval, wins, losses, mcnemar_p(wins, losses))
