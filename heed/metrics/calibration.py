"""Whether probabilities mean what they say: how often is an answer of confidence 0.8 right?

Three figures of a classifier's probabilities, all better when lower. The expected calibration error
(Naeini et al. 2015) is how far confidence and accuracy are apart, in bins of like confidence. The
Brier score is Σ_c (p_c - [c is true])², the logarithmic loss -log p of the true class; both also
tell whether the answers are right.

One number can make an overconfident classifier honest: dividing the logits by a temperature
(Guo et al. 2017), fitted on text that it did not learn from. It changes no answer.

Shapes: n texts, k classes, m bins, r draws.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from heed.metrics.classification import Answers
from heed.stats.bootstrap import RESAMPLES, SEED, Real, Whole, bounds, interval, resampled

BINS = 15
"""Of equal width, as Guo et al. have them."""
COOLEST, HOTTEST, ROUNDS = 0.05, 20.0, 100


def losses(answers: Answers) -> tuple[Real, Real]:
    """[n] the logarithmic loss and [n] the Brier score of each text."""
    log_p, texts = _known(answers), np.arange(len(answers))
    true = np.zeros_like(log_p)
    true[texts, answers.truth] = 1.0
    return -log_p[texts, answers.truth], ((np.exp(log_p) - true) ** 2).sum(axis=1)


def confidence(answers: Answers) -> Real:
    """[n] the probability of each answer that was given."""
    return np.exp(_known(answers)[np.arange(len(answers)), answers.said])


def _known(answers: Answers) -> Real:
    if answers.log_p is None:
        raise ValueError("These answers have no probabilities.")
    return answers.log_p


def bins_of(sure: Real, bins: int = BINS) -> Whole:
    """[n] which bin each confidence is in: the i-th holds those above i/m, up to (i+1)/m."""
    return np.clip(np.ceil(sure * bins).astype(np.int64) - 1, 0, bins - 1)


def curve(answers: Answers, drawn: Whole | None = None, *, bins: int = BINS) -> Real:
    """[… m, 3] of every bin: texts, sum of confidences, answers that are right."""
    sure, right = confidence(answers), answers.right.astype(np.float64)
    place = bins_of(sure, bins)
    if drawn is None:
        drawn = np.arange(len(answers))[None]
        return curve(answers, drawn, bins=bins)[0]
    cells = (place[drawn] + bins * np.arange(len(drawn))[:, None]).ravel()
    sums = [
        np.bincount(cells, None if of is None else of[drawn].ravel(), bins * len(drawn))
        for of in (None, sure, right)
    ]
    return np.stack(sums, axis=-1).reshape(len(drawn), bins, 3).astype(np.float64)


def expected_error(points: Real) -> Real:
    """The expected calibration error from a curve: Σ_b |right_b - confidence_b| / n."""
    return np.abs(points[..., 2] - points[..., 1]).sum(axis=-1) / points[..., 0].sum(axis=-1)


def describe(
    answers: Answers, *, resamples: int = RESAMPLES, seed: int = SEED, bins: int = BINS
) -> dict[str, Any]:
    """Logarithmic loss, Brier score, calibration error and the curve, each with its interval."""
    log_loss, brier = losses(answers)
    points = curve(answers, bins=bins)
    facts: dict[str, Any] = {
        "log_loss": float(log_loss.mean()),
        "brier": float(brier.mean()),
        "calibration_error": float(expected_error(points)),
        "confidence": float(confidence(answers).mean()),
    }
    drawn_points: Real | None = None
    if resamples:

        def figures(drawn: Whole) -> Real:
            means = [one[drawn].mean(axis=1)[:, None] for one in (log_loss, brier)]
            again = curve(answers, drawn, bins=bins)
            error = expected_error(again)[:, None]
            return np.concatenate([*means, error, again.reshape(len(drawn), -1)], axis=1)

        held = 3 * bins
        found = resampled(figures, len(answers), resamples, seed, held=held)
        keys = ("log_loss", "brier", "calibration_error")
        facts["interval"] = {key: vars(interval(found[:, i])) for i, key in enumerate(keys)}
        drawn_points = found[:, len(keys) :].reshape(resamples, bins, 3)
    facts["reliability"] = _bins(points, drawn_points)
    return facts


def _bins(points: Real, drawn: Real | None) -> list[dict[str, Any]]:
    """The bins that hold any text: from where to where, confidence, accuracy, its interval."""
    told = []
    for i, (texts, sure, right) in enumerate(points):
        if not texts:
            continue
        bin_facts: dict[str, Any] = {
            "from": i / len(points),
            "to": (i + 1) / len(points),
            "texts": int(texts),
            "confidence": float(sure / texts),
            "accuracy": float(right / texts),
        }
        if drawn is not None:
            count, hits = drawn[:, i, 0], drawn[:, i, 2]
            share = np.divide(hits, count, out=np.full(len(count), np.nan), where=count > 0)
            low, high = bounds(share)
            bin_facts["interval"] = {"low": float(low), "high": float(high)}
        told.append(bin_facts)
    return told


# ------------------------------------------------------------------------------------ temperature


def cooled(log_p: Real, temperature: float) -> Real:
    """Log-probabilities of logits divided by a temperature: log softmax(log p / T)."""
    scaled = log_p / temperature
    scaled = scaled - scaled.max(axis=1, keepdims=True)
    return scaled - np.log(np.exp(scaled).sum(axis=1, keepdims=True))


def fit_temperature(truth: Whole, log_p: Real) -> float:
    """The temperature under which the true classes are likeliest, from 0.05 to 20.

    The loss is convex in 1/T, so it falls to one side and rises to the other of the best: its
    slope Σ (E_p[log p] - log p_true), p at that temperature, is zero there. Found by halving, in
    log T. Where every answer is right, that is the coolest there is.
    """
    own = log_p[np.arange(len(truth)), truth]
    low, high = np.log(COOLEST), np.log(HOTTEST)
    for _ in range(ROUNDS):
        middle = (low + high) / 2
        p = np.exp(cooled(log_p, float(np.exp(middle))))
        slope = (p * _finite(log_p)).sum() - _finite(own).sum()
        low, high = (low, middle) if slope < 0 else (middle, high)
    return float(np.exp((low + high) / 2))


def _finite(log_p: Real) -> Real:
    """What is impossible counts as next to impossible: 0 · -∞ is no number."""
    return np.maximum(log_p, -1e9)
