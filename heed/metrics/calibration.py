"""Calibration: whether a classifier's confidence equals its accuracy, and temperature scaling.

Three metrics of probabilities, all better when lower. The expected calibration error (Naeini et al.
2015) is the distance between confidence and accuracy, in bins of confidence. The Brier score is
Σ_c (p_c - [c is true])², the log loss -log p of the true class; both also depend on accuracy.

Temperature scaling (Guo et al. 2017) divides the logits by one number, fitted on held-out text. It
makes an overconfident classifier calibrated and changes no prediction.

Shapes: n texts, k classes, m bins.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from heed.arrays import Floats, Ints
from heed.metrics.classification import Predictions
from heed.stats.bootstrap import SEED
from heed.stats.intervals import (
    LEVEL,
    Interval,
    Z,
    intervals_as_json,
    mean_interval,
    wilson_interval,
)

BINS = 15
"""Bins of equal width, as in Guo et al."""
PERFECT_DRAWS = 2000
"""Samples of a perfectly calibrated classifier."""
MIN_TEMPERATURE, MAX_TEMPERATURE = 0.05, 20.0
BISECTIONS = 100


def log_loss_and_brier(predictions: Predictions) -> tuple[Floats, Floats]:
    """[n] the log loss and [n] the Brier score of each text."""
    log_probs, rows = _require_log_probs(predictions), np.arange(len(predictions))
    one_hot = np.zeros_like(log_probs)
    one_hot[rows, predictions.labels] = 1.0
    brier = ((np.exp(log_probs) - one_hot) ** 2).sum(axis=1)
    return -log_probs[rows, predictions.labels], brier


def confidence(predictions: Predictions) -> Floats:
    """[n] the probability of each prediction."""
    log_probs = _require_log_probs(predictions)
    return np.exp(log_probs[np.arange(len(predictions)), predictions.predicted])


def _require_log_probs(predictions: Predictions) -> Floats:
    if predictions.log_probs is None:
        raise ValueError("These predictions have no probabilities.")
    return predictions.log_probs


def bin_index(confidences: Floats, bins: int = BINS) -> Ints:
    """[n] the bin of each confidence: bin i holds those above i/m, up to (i+1)/m."""
    return np.clip(np.ceil(confidences * bins).astype(np.int64) - 1, 0, bins - 1)


def reliability_curve(predictions: Predictions, *, bins: int = BINS) -> Floats:
    """[m, 3] of every bin: number of texts, sum of confidences, number of correct predictions."""
    confidences, correct = confidence(predictions), predictions.correct.astype(np.float64)
    index = bin_index(confidences, bins)
    sums = [np.bincount(index, weights, bins) for weights in (None, confidences, correct)]
    return np.stack(sums, axis=-1).astype(np.float64)


def expected_calibration_error(curve: Floats) -> float:
    """The expected calibration error of a reliability curve: Σ_b |correct_b - confidence_b| / n."""
    return float(np.abs(curve[:, 2] - curve[:, 1]).sum() / curve[:, 0].sum())


@dataclass(frozen=True)
class CalibrationError:
    """The expected calibration error, and how much of it is due to chance.

    In a bin of few texts, accuracy differs from confidence by chance even if the classifier is
    perfectly calibrated. Distances cannot cancel, so the error of small samples is too large.
    """

    plain: float
    debiased: float
    """The error without the part that chance adds."""
    interval: Interval
    """The interval of the debiased error. It begins at 0 unless `plain` exceeds `perfect_high`."""
    perfect: float
    """The mean error of a perfectly calibrated classifier with these confidences."""
    perfect_high: float
    """What the error of a perfectly calibrated classifier exceeds in 2.5% of samples."""


def estimate_calibration_error(
    curve: Floats, *, draws: int = PERFECT_DRAWS, seed: int = SEED
) -> CalibrationError:
    """The calibration error of a reliability curve, debiased.

    A perfectly calibrated classifier is simulated: correct predictions of each bin are drawn with
    its mean confidence (consistency resampling, Bröcker and Smith 2007). Their mean distance is
    what chance adds to a bin whose true distance is 0. It adds less to a larger one, in the ratio
    of the mean of |N(μ, 1)| - |μ| to that of |N(0, 1)|, with the distance in standard errors as μ.
    """
    texts, confidences, correct = curve[curve[:, 0] > 0].T
    weights, mean_confidence = texts / texts.sum(), np.clip(confidences / texts, 0.0, 1.0)
    distances = np.abs(correct - confidences) / texts
    random = np.random.Generator(np.random.PCG64(seed))
    drawn = random.binomial(texts.astype(np.int64), mean_confidence, size=(draws, len(texts)))
    perfect_distances = np.abs(drawn - confidences) / texts
    perfect_errors = perfect_distances @ weights
    perfect_high = float(np.quantile(perfect_errors, (1 + LEVEL) / 2))
    chance = perfect_distances.mean(axis=0)
    variance = mean_confidence * (1 - mean_confidence) / texts
    scale = np.sqrt(np.maximum(variance, 1e-18))  # a confidence of 1 has no variance
    true_distances = np.sqrt(np.maximum(distances**2 - variance, 0.0))
    plain = float(weights @ distances)
    added = chance * _chance_share(true_distances / scale)
    debiased = max(0.0, float(weights @ (distances - added)))
    # Of a middling distance too much may have been subtracted: the upper bound subtracts less.
    upper = float(weights @ (distances - chance * _chance_share(distances / scale)))
    share = (correct + 2) / (texts + 4)  # Agresti and Coull's, which is not sure of a perfect bin
    half_width = Z * float(np.sqrt((weights**2 * share * (1 - share) / texts).sum()))
    low = 0.0 if plain <= perfect_high else max(0.0, debiased - half_width)
    interval = Interval(low, min(1.0, max(debiased, upper) + half_width))
    return CalibrationError(plain, debiased, interval, float(perfect_errors.mean()), perfect_high)


def _chance_share(distances: Floats) -> Floats:
    """(E|N(μ, 1)| - μ) / E|N(0, 1)| for true distances μ ≥ 0: 1 at 0, and 0 far from it."""
    at_zero = math.sqrt(2 / math.pi)
    tail = np.array([0.5 * math.erfc(one / math.sqrt(2)) for one in distances])
    return np.exp(-(distances**2) / 2) - 2 * distances * tail / at_zero


def calibration_metrics(predictions: Predictions, *, bins: int = BINS) -> dict[str, Any]:
    """Log loss, Brier score, calibration error and reliability curve, with intervals."""
    log_loss, brier = log_loss_and_brier(predictions)
    curve = reliability_curve(predictions, bins=bins)
    error = estimate_calibration_error(curve)
    intervals = {
        "log_loss": mean_interval(log_loss),
        "brier": mean_interval(brier),
        "calibration_error_debiased": error.interval,
    }
    return {
        "log_loss": float(log_loss.mean()),
        "brier": float(brier.mean()),
        "calibration_error": error.plain,
        "calibration_error_debiased": error.debiased,
        "calibration_error_if_perfect": {"mean": error.perfect, "high": error.perfect_high},
        "confidence": float(confidence(predictions).mean()),
        "interval": intervals_as_json(intervals),
        "reliability": _describe_bins(curve),
    }


def _describe_bins(curve: Floats) -> list[dict[str, Any]]:
    """Every non-empty bin: its bounds, texts, mean confidence, accuracy and interval."""
    return [
        {
            "from": i / len(curve),
            "to": (i + 1) / len(curve),
            "texts": int(texts),
            "confidence": float(total_confidence / texts),
            "accuracy": float(correct / texts),
            "interval": vars(wilson_interval(correct, texts)),
        }
        for i, (texts, total_confidence, correct) in enumerate(curve)
        if texts
    ]


# ------------------------------------------------------------------------------------- temperature


def apply_temperature(logits: Floats, temperature: float) -> Floats:
    """Log-probabilities after temperature scaling: log softmax(logits / T)."""
    scaled = logits / temperature
    scaled = scaled - scaled.max(axis=1, keepdims=True)
    return scaled - np.log(np.exp(scaled).sum(axis=1, keepdims=True))


def fit_temperature(labels: Ints, log_probs: Floats) -> float:
    """The temperature from 0.05 to 20 that minimizes the log loss of the labels.

    The loss is convex in 1/T, so its slope Σ (E_p[log p] - log p_true), with p at that temperature,
    has one zero, found by bisection in log T. Where every prediction is correct, the minimum is at
    the lowest temperature.
    """
    true_log_probs = log_probs[np.arange(len(labels)), labels]
    low, high = np.log(MIN_TEMPERATURE), np.log(MAX_TEMPERATURE)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        p = np.exp(apply_temperature(log_probs, float(np.exp(middle))))
        slope = (p * _clip_infinite(log_probs)).sum() - _clip_infinite(true_log_probs).sum()
        low, high = (low, middle) if slope < 0 else (middle, high)
    return float(np.exp((low + high) / 2))


def _clip_infinite(log_probs: Floats) -> Floats:
    """Log-probabilities of at least -1e9, because 0 · -∞ is NaN."""
    return np.maximum(log_probs, -1e9)
