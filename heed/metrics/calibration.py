"""Calibration: whether a classifier's confidence equals its accuracy, and temperature scaling.

Three metrics of probabilities, all better when lower. The expected calibration error (Naeini et al.
2015) is the distance between confidence and accuracy, in bins of confidence. The Brier score is
Σ_c (p_c - [c is true])², the log loss -log p of the true class; both also depend on accuracy.

Temperature scaling (Guo et al. 2017) divides the logits by one number, fitted on held-out text. It
makes an overconfident classifier calibrated and changes no prediction.

Shapes: n texts, k classes, m bins, r bootstrap samples.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from heed.metrics.classification import Predictions
from heed.stats.bootstrap import (
    RESAMPLES,
    SEED,
    Floats,
    Ints,
    bootstrap,
    percentile_bounds,
    percentile_interval,
)

BINS = 15
"""Bins of equal width, as in Guo et al."""
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


def reliability_curve(
    predictions: Predictions, samples_rn: Ints | None = None, *, bins: int = BINS
) -> Floats:
    """[… m, 3] of every bin: number of texts, sum of confidences, number of correct predictions."""
    confidences, correct = confidence(predictions), predictions.correct.astype(np.float64)
    index = bin_index(confidences, bins)
    if samples_rn is None:
        samples_rn = np.arange(len(predictions))[None]
        return reliability_curve(predictions, samples_rn, bins=bins)[0]
    cells = (index[samples_rn] + bins * np.arange(len(samples_rn))[:, None]).ravel()
    sums = [
        np.bincount(
            cells, None if weights is None else weights[samples_rn].ravel(), bins * len(samples_rn)
        )
        for weights in (None, confidences, correct)
    ]
    return np.stack(sums, axis=-1).reshape(len(samples_rn), bins, 3).astype(np.float64)


def expected_calibration_error(curve: Floats) -> Floats:
    """The expected calibration error of a reliability curve: Σ_b |correct_b - confidence_b| / n."""
    return np.abs(curve[..., 2] - curve[..., 1]).sum(axis=-1) / curve[..., 0].sum(axis=-1)


def calibration_metrics(
    predictions: Predictions, *, resamples: int = RESAMPLES, seed: int = SEED, bins: int = BINS
) -> dict[str, Any]:
    """Log loss, Brier score, calibration error and reliability curve, with intervals."""
    log_loss, brier = log_loss_and_brier(predictions)
    curve = reliability_curve(predictions, bins=bins)
    result: dict[str, Any] = {
        "log_loss": float(log_loss.mean()),
        "brier": float(brier.mean()),
        "calibration_error": float(expected_calibration_error(curve)),
        "confidence": float(confidence(predictions).mean()),
    }
    sampled_curves: Floats | None = None
    if resamples:

        def statistics(samples_rn: Ints) -> Floats:
            means = [values[samples_rn].mean(axis=1)[:, None] for values in (log_loss, brier)]
            curves = reliability_curve(predictions, samples_rn, bins=bins)
            error = expected_calibration_error(curves)[:, None]
            return np.concatenate([*means, error, curves.reshape(len(samples_rn), -1)], axis=1)

        samples = bootstrap(
            statistics, len(predictions), resamples, seed, values_per_sample=3 * bins
        )
        keys = ("log_loss", "brier", "calibration_error")
        result["interval"] = {
            key: vars(percentile_interval(samples[:, i])) for i, key in enumerate(keys)
        }
        sampled_curves = samples[:, len(keys) :].reshape(resamples, bins, 3)
    result["reliability"] = _describe_bins(curve, sampled_curves)
    return result


def _describe_bins(curve: Floats, sampled_curves: Floats | None) -> list[dict[str, Any]]:
    """Every non-empty bin: its bounds, texts, mean confidence, accuracy and interval."""
    described = []
    for i, (texts, total_confidence, correct) in enumerate(curve):
        if not texts:
            continue
        one_bin: dict[str, Any] = {
            "from": i / len(curve),
            "to": (i + 1) / len(curve),
            "texts": int(texts),
            "confidence": float(total_confidence / texts),
            "accuracy": float(correct / texts),
        }
        if sampled_curves is not None:
            counts, hits = sampled_curves[:, i, 0], sampled_curves[:, i, 2]
            shares = np.divide(hits, counts, out=np.full(len(counts), np.nan), where=counts > 0)
            low, high = percentile_bounds(shares)
            one_bin["interval"] = {"low": float(low), "high": float(high)}
        described.append(one_bin)
    return described


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
