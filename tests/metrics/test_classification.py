"""Classification metrics equal scikit-learn's; properties of calibration and paired tests."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.stats import binomtest

from heed.arrays import Floats
from heed.metrics import calibration
from heed.metrics.calibration import (
    BINS,
    MAX_TEMPERATURE,
    MIN_TEMPERATURE,
    apply_temperature,
    calibration_metrics,
    estimate_calibration_error,
    expected_calibration_error,
    fit_temperature,
    reliability_curve,
)
from heed.metrics.classification import (
    Predictions,
    classification_metrics,
    confusion_matrix,
    macro_f1_interval,
    precision_recall_f1,
)
from heed.metrics.paired_accuracy import compare_accuracy

metrics = pytest.importorskip("sklearn.metrics", reason="scikit-learn is not installed")


@st.composite
def predictions(draw: st.DrawFn, *, least: int = 1) -> Predictions:
    """Random labels and log-probabilities for a few texts and classes."""
    n, k = draw(st.integers(least, 40)), draw(st.integers(2, 5))
    labels = draw(hnp.arrays(np.int64, n, elements=st.integers(0, k - 1)))
    # Further apart, scikit-learn clips their probabilities.
    logits = draw(hnp.arrays(np.float64, (n, k), elements=st.floats(-15, 15)))
    return Predictions.from_log_probs(labels, apply_temperature(logits, 1.0))


def log_probs_of(preds: Predictions) -> Floats:
    assert preds.log_probs is not None
    return preds.log_probs


def names(preds: Predictions) -> list[str]:
    return [f"class {i}" for i in range(preds.classes)]


@given(preds=predictions())
def test_classification_metrics_equal_scikit_learn(preds: Predictions) -> None:
    labels, predicted, every = preds.labels, preds.predicted, range(preds.classes)
    result = classification_metrics(preds, names(preds), resamples=0)
    assert result["accuracy"] == pytest.approx(metrics.accuracy_score(labels, predicted))
    expected = metrics.f1_score(labels, predicted, average="macro", zero_division=0)
    assert result["macro_f1"] == pytest.approx(expected)
    counts = confusion_matrix(preds)
    assert result["confusion"]["counts"] == counts.tolist()
    assert np.array_equal(counts, metrics.confusion_matrix(labels, predicted, labels=every))
    theirs = metrics.precision_recall_fscore_support(
        labels, predicted, labels=every, zero_division=0
    )
    for ours, other in zip(precision_recall_f1(counts), theirs, strict=False):
        assert ours == pytest.approx(other)
    assert [one["texts"] for one in result["classes"].values()] == list(theirs[3])


@given(preds=predictions())
def test_probability_metrics_equal_scikit_learn(preds: Predictions) -> None:
    p, every = np.exp(log_probs_of(preds)), np.arange(preds.classes)
    result = calibration_metrics(preds)
    log_loss = metrics.log_loss(preds.labels, np.maximum(p, 1e-300), labels=every)
    assert result["log_loss"] == pytest.approx(log_loss, rel=1e-6, abs=1e-9)
    true = np.eye(preds.classes)[preds.labels]
    assert result["brier"] == pytest.approx(((p - true) ** 2).sum(axis=1).mean())
    assert 0 <= result["brier"] <= 2
    assert 0 <= result["calibration_error"] <= 1


@given(preds=predictions(), bins=st.integers(1, 20))
def test_reliability_curve_counts_every_text_once(preds: Predictions, bins: int) -> None:
    points = reliability_curve(preds, bins=bins)
    assert points[:, 0].sum() == len(preds)
    assert points[:, 2].sum() == preds.correct.sum()
    sure = calibration.confidence(preds)
    assert points[:, 1].sum() == pytest.approx(sure.sum())
    edges = np.arange(bins) / bins
    for i, (texts, total, _) in enumerate(points):
        if texts:
            assert edges[i] - 1e-9 <= total / texts <= edges[i] + 1 / bins + 1e-9
    one = reliability_curve(preds, bins=1)
    # One bin can only hide differences: the error over several is never smaller.
    assert expected_calibration_error(one) <= expected_calibration_error(points) + 1e-12
    gap = abs(preds.correct.mean() - sure.mean())
    assert float(expected_calibration_error(one)) == pytest.approx(gap)


@given(preds=predictions(least=2))
def test_metrics_ignore_order_and_intervals_repeat(preds: Predictions) -> None:
    result = classification_metrics(preds, names(preds), resamples=50)
    again = classification_metrics(preds, names(preds), resamples=50)
    assert result == again
    reversed_order = preds.subset(range(len(preds))[::-1])
    other = classification_metrics(reversed_order, names(preds), resamples=0)
    assert other["accuracy"] == pytest.approx(result["accuracy"])
    assert other["confusion"]["counts"] == result["confusion"]["counts"]
    assert "macro_f1" not in other["interval"]
    for part in (result, *result["classes"].values()):
        for key, span in part["interval"].items():
            assert 0 <= span["low"] <= part[key] + 1e-12
            assert part[key] - 1e-12 <= span["high"] <= 1


def test_perfect_predictions_have_intervals_with_a_width() -> None:
    labels = np.array([0, 1, 2, 2, 1])
    sure = np.where(np.eye(3)[labels] > 0, 0.0, -50.0)
    preds = Predictions.from_log_probs(labels, apply_temperature(sure, 1.0))
    result = classification_metrics(preds, ["a", "b", "c"])
    assert result["accuracy"] == result["macro_f1"] == 1
    parts = [result, *result["classes"].values()]
    for intervals in (part["interval"] for part in parts):
        for span in intervals.values():
            assert span["low"] < span["high"] == 1
    assert calibration_metrics(preds)["calibration_error"] == pytest.approx(0)


def test_the_interval_of_macro_f1_covers_it() -> None:
    """Also where nearly all predictions are correct, and few samples contain an error."""
    random, held, trials, k, texts = np.random.default_rng(5), 0, 250, 3, 120
    for accuracy in random.uniform(0.8, 1.0, trials):
        cells = np.full((k, k), (1 - accuracy) / (k - 1) / k)
        np.fill_diagonal(cells, accuracy / k)
        counts = random.multinomial(texts, cells.ravel()).reshape(k, k)
        span = macro_f1_interval(counts, 200)
        held += span.low <= accuracy <= span.high
    assert held / trials >= 0.94 - 4 * math.sqrt(0.94 * 0.06 / trials)


def drawn_curve(random: np.random.Generator, texts: int, temperature: float) -> Floats:
    """The reliability curve of a classifier whose logits are this many times too large."""
    confidences = random.uniform(0.34, 1.0, texts)
    log_odds = np.log(confidences / (1 - confidences)) / temperature
    correct = random.random(texts) < 1 / (1 + np.exp(-log_odds))
    index = calibration.bin_index(confidences)
    sums = [np.bincount(index, values, BINS) for values in (None, confidences, correct)]
    return np.stack(sums, axis=-1).astype(np.float64)


@pytest.mark.parametrize("texts", [60, 300, 2000])
def test_a_perfectly_calibrated_classifier_is_not_told_to_be_wrong(texts: int) -> None:
    random, trials, zero = np.random.default_rng(texts), 250, 0
    errors = [
        estimate_calibration_error(drawn_curve(random, texts, 1.0), draws=400)
        for _ in range(trials)
    ]
    zero = sum(one.interval.low == 0 for one in errors)
    assert zero / trials >= 0.97 - 4 * math.sqrt(0.97 * 0.03 / trials)
    plain, debiased, perfect = (
        float(np.mean([getattr(one, key) for one in errors]))
        for key in ("plain", "debiased", "perfect")
    )
    assert plain == pytest.approx(perfect, rel=0.1)  # what chance alone gives
    assert debiased < 0.4 * plain


@pytest.mark.parametrize("temperature", [1.5, 3.0])
def test_the_debiased_calibration_error_covers_the_true_one(temperature: float) -> None:
    random, trials, texts = np.random.default_rng(2), 200, 500
    true = expected_calibration_error(drawn_curve(random, 10**6, temperature))
    held, debiased = 0, []
    for _ in range(trials):
        one = estimate_calibration_error(drawn_curve(random, texts, temperature), draws=400)
        held += one.interval.low <= true <= one.interval.high
        debiased.append(one.debiased)
        assert one.debiased <= one.plain
    assert held / trials >= 0.93 - 4 * math.sqrt(0.93 * 0.07 / trials)
    assert float(np.mean(debiased)) == pytest.approx(true, rel=0.2)


def test_a_class_without_texts_is_allowed() -> None:
    labels, predicted = np.array([0, 0, 1]), np.array([0, 1, 1])
    result = classification_metrics(
        Predictions(labels, predicted, 4), ["a", "b", "c", "d"], resamples=50
    )
    assert result["classes"]["c"]["texts"] == 0
    assert result["macro_f1"] == pytest.approx(metrics.f1_score(labels, predicted, average="macro"))
    assert result["confusion"]["share_low"][2] == [None] * 4


# ------------------------------------------------------------------------------------ two systems


@settings(deadline=None, max_examples=20)
@given(preds=predictions(least=2), data=st.data())
def test_a_paired_test_counts_discordant_texts(preds: Predictions, data: st.DataObject) -> None:
    """Alone its p nears the exact McNemar test, which is a binomial test of discordant texts."""
    n, k = len(preds), preds.classes
    predicted = data.draw(hnp.arrays(np.int64, n, elements=st.integers(0, k - 1)))
    other = Predictions(preds.labels, predicted, k)
    [test] = compare_accuracy(preds, [other])
    assert test.difference == pytest.approx((test.only_ours - test.only_theirs) / n)
    assert test.difference == pytest.approx(preds.correct.mean() - other.correct.mean())
    [back] = compare_accuracy(other, [preds])
    assert back.difference == pytest.approx(-test.difference)
    assert back.interval.low == pytest.approx(-test.interval.high)
    if discordant := test.only_ours + test.only_theirs:
        exact = binomtest(test.only_ours, discordant).pvalue
        assert test.p == pytest.approx(exact, abs=0.03)
        assert test.p_corrected == test.p
    [same] = compare_accuracy(preds, [preds])
    assert (same.difference, same.p) == (0, 1)


def test_several_comparisons_of_accuracy_are_corrected() -> None:
    random = np.random.default_rng(0)
    labels = random.integers(2, size=300)
    systems = [
        Predictions(labels, np.where(random.random(300) < share, labels, 1 - labels), 2)
        for share in (0.8, 0.74, 0.76, 0.5)
    ]
    alone = [compare_accuracy(systems[0], [other])[0] for other in systems[1:]]
    together = compare_accuracy(systems[0], systems[1:])
    for one, many in zip(alone, together, strict=True):
        assert many.difference == one.difference
        assert one.p == many.p <= many.p_corrected
        assert many.interval.low < one.interval.low < one.interval.high < many.interval.high


def test_a_paired_test_needs_the_same_texts() -> None:
    a = Predictions(np.array([0, 1]), np.array([0, 1]), 2)
    with pytest.raises(ValueError, match="same texts"):
        compare_accuracy(a, [Predictions(np.array([1, 1]), np.array([0, 1]), 2)])


# ------------------------------------------------------------------------------------ temperature


@given(preds=predictions(least=3), temperature=st.floats(0.2, 5.0))
def test_temperature_changes_confidence_but_no_prediction(
    preds: Predictions, temperature: float
) -> None:
    p = np.exp(apply_temperature(log_probs_of(preds), temperature))
    assert p.sum(axis=1) == pytest.approx(np.ones(len(preds)))
    chosen = p[np.arange(len(preds)), preds.predicted]
    assert np.all(chosen >= p.max(axis=1) - 1e-12)
    before = calibration.confidence(preds)
    assert np.all(chosen >= before - 1e-9 if temperature <= 1 else chosen <= before + 1e-9)


@given(preds=predictions(least=3), other=st.floats(0.06, 18.0))
def test_the_fitted_temperature_minimizes_the_log_loss(preds: Predictions, other: float) -> None:
    def loss(temperature: float) -> float:
        log_p = apply_temperature(log_probs_of(preds), temperature)
        return float(-log_p[np.arange(len(preds)), preds.labels].mean())

    found = fit_temperature(preds.labels, log_probs_of(preds))
    assert loss(found) <= loss(other) + 1e-9
    assert loss(found) <= loss(1.0) + 1e-9


@given(scale=st.floats(0.3, 3.0))
def test_the_fitted_temperature_undoes_a_scaling(scale: float) -> None:
    random = np.random.default_rng(1)
    logits = random.normal(size=(4000, 3)) * 1.5
    log_p = apply_temperature(logits, 1.0)
    labels = (random.random(4000)[:, None] > np.exp(log_p).cumsum(axis=1)).sum(axis=1)
    labels = np.minimum(labels, 2)
    honest = fit_temperature(labels, log_p)
    assert honest == pytest.approx(1.0, abs=0.12)
    assert fit_temperature(labels, log_p * scale) == pytest.approx(honest * scale, rel=1e-6)


@given(preds=predictions())
def test_the_fitted_temperature_stays_in_its_range(preds: Predictions) -> None:
    found = fit_temperature(preds.predicted, log_probs_of(preds))
    assert found * (1 + 1e-9) >= MIN_TEMPERATURE
    assert found <= MAX_TEMPERATURE * (1 + 1e-9)
