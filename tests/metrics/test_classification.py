"""Figures of classifiers: scikit-learn's where it has them, and what must be true of the others."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from heed.metrics import calibration
from heed.metrics.calibration import (
    MAX_TEMPERATURE,
    MIN_TEMPERATURE,
    apply_temperature,
    calibration_metrics,
    expected_calibration_error,
    fit_temperature,
    reliability_curve,
)
from heed.metrics.classification import (
    Predictions,
    classification_metrics,
    compare_accuracy,
    confusion_matrix,
    macro_f1,
    precision_recall_f1,
)
from heed.stats import bootstrap
from heed.stats.bootstrap import Floats, bootstrap_indices
from heed.stats.paired_tests import mcnemar_p

metrics = pytest.importorskip("sklearn.metrics", reason="scikit-learn is not installed")


@st.composite
def predictions(draw: st.DrawFn, *, least: int = 1) -> Predictions:
    """Some texts, some classes, and probabilities that may be sure, torn or equal."""
    n, k = draw(st.integers(least, 40)), draw(st.integers(2, 5))
    truth = draw(hnp.arrays(np.int64, n, elements=st.integers(0, k - 1)))
    # Further apart, scikit-learn clips their probabilities.
    logits = draw(hnp.arrays(np.float64, (n, k), elements=st.floats(-15, 15)))
    return Predictions.from_log_probs(truth, apply_temperature(logits, 1.0))


def known(answers: Predictions) -> Floats:
    assert answers.log_probs is not None
    return answers.log_probs


def names(answers: Predictions) -> list[str]:
    return [f"class {i}" for i in range(answers.classes)]


@given(answers=predictions())
def test_answers_are_scored_as_scikit_learn_does(answers: Predictions) -> None:
    truth, said, every = answers.labels, answers.predicted, range(answers.classes)
    facts = classification_metrics(answers, names(answers), resamples=0)
    assert facts["accuracy"] == pytest.approx(metrics.accuracy_score(truth, said))
    expected = metrics.f1_score(truth, said, average="macro", zero_division=0)
    assert facts["macro_f1"] == pytest.approx(expected)
    counts = confusion_matrix(answers)
    assert facts["confusion"]["counts"] == counts.tolist()
    assert np.array_equal(counts, metrics.confusion_matrix(truth, said, labels=every))
    theirs = metrics.precision_recall_fscore_support(truth, said, labels=every, zero_division=0)
    for ours, other in zip(precision_recall_f1(counts), theirs, strict=False):
        assert ours == pytest.approx(other)
    assert [one["texts"] for one in facts["classes"].values()] == list(theirs[3])


@given(answers=predictions())
def test_probabilities_are_scored_as_scikit_learn_does(answers: Predictions) -> None:
    p, every = np.exp(known(answers)), np.arange(answers.classes)
    facts = calibration_metrics(answers, resamples=0)
    log_loss = metrics.log_loss(answers.labels, np.maximum(p, 1e-300), labels=every)
    assert facts["log_loss"] == pytest.approx(log_loss, rel=1e-6, abs=1e-9)
    true = np.eye(answers.classes)[answers.labels]
    assert facts["brier"] == pytest.approx(((p - true) ** 2).sum(axis=1).mean())
    assert 0 <= facts["brier"] <= 2
    assert 0 <= facts["calibration_error"] <= 1


@given(answers=predictions(), bins=st.integers(1, 20))
def test_the_reliability_curve_holds_every_text_once(answers: Predictions, bins: int) -> None:
    points = reliability_curve(answers, bins=bins)
    assert points[:, 0].sum() == len(answers)
    assert points[:, 2].sum() == answers.correct.sum()
    sure = calibration.confidence(answers)
    assert points[:, 1].sum() == pytest.approx(sure.sum())
    edges = np.arange(bins) / bins
    for i, (texts, total, _) in enumerate(points):
        if texts:
            assert edges[i] - 1e-9 <= total / texts <= edges[i] + 1 / bins + 1e-9
    one = reliability_curve(answers, bins=1)
    # One bin can only hide differences: the error over several is never smaller.
    assert expected_calibration_error(one) <= expected_calibration_error(points) + 1e-12
    gap = abs(answers.correct.mean() - sure.mean())
    assert float(expected_calibration_error(one)) == pytest.approx(gap)


@given(answers=predictions(least=2), seed=st.integers(0, 99))
def test_draws_are_the_figures_of_the_texts_drawn(answers: Predictions, seed: int) -> None:
    """What is computed for many bootstrap_indices at once is what each draw alone would give."""
    (drawn,) = bootstrap_indices(len(answers), 5, seed)
    several = confusion_matrix(answers, drawn)
    points = reliability_curve(answers, drawn)
    for i, rows in enumerate(drawn):
        alone = answers.subset(rows.tolist())
        assert np.array_equal(several[i], confusion_matrix(alone))
        assert macro_f1(several)[i] == pytest.approx(float(macro_f1(confusion_matrix(alone))))
        assert points[i] == pytest.approx(reliability_curve(alone))


@given(answers=predictions(least=2))
def test_order_does_not_matter_and_chance_is_repeatable(answers: Predictions) -> None:
    facts = classification_metrics(answers, names(answers), resamples=50)
    again = classification_metrics(answers, names(answers), resamples=50)
    assert facts == again
    turned = answers.subset(range(len(answers))[::-1])
    other = classification_metrics(turned, names(answers), resamples=0)
    assert other["accuracy"] == pytest.approx(facts["accuracy"])
    assert other["confusion"]["counts"] == facts["confusion"]["counts"]
    for span in facts["interval"].values():
        assert 0 <= span["low"] <= span["high"] <= 1


def test_blocks_of_draws_are_one_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """How much is held at once changes nothing."""
    whole = np.concatenate(list(bootstrap_indices(7, 20)))
    monkeypatch.setattr(bootstrap, "BLOCK", 21)
    parts = list(bootstrap_indices(7, 20))
    assert len(parts) > 1
    assert np.array_equal(np.concatenate(parts), whole)


def test_a_system_without_fault_has_no_doubt() -> None:
    truth = np.array([0, 1, 2, 2, 1])
    sure = np.where(np.eye(3)[truth] > 0, 0.0, -50.0)
    answers = Predictions.from_log_probs(truth, apply_temperature(sure, 1.0))
    facts = classification_metrics(answers, ["a", "b", "c"])
    assert facts["accuracy"] == facts["macro_f1"] == 1
    assert facts["interval"]["accuracy"] == {"low": 1.0, "high": 1.0}
    assert calibration_metrics(answers)["calibration_error"] == pytest.approx(0)


def test_an_interval_holds_the_truth_as_often_as_it_says() -> None:
    """Of many samples from one population, about 95 in 100 have its accuracy in their interval."""
    random, held, share, texts, trials = np.random.default_rng(5), 0, 0.7, 150, 200
    for trial in range(trials):
        right = random.random(texts) < share
        answers = Predictions(np.zeros(texts, np.int64), 1 - right.astype(np.int64), 2)
        span = classification_metrics(answers, ["a", "b"], resamples=300, seed=trial)["interval"][
            "accuracy"
        ]
        held += span["low"] <= share <= span["high"]
    assert 0.89 <= held / trials <= 0.99


def test_a_class_that_no_text_has_is_no_reason_to_stop() -> None:
    truth, said = np.array([0, 0, 1]), np.array([0, 1, 1])
    facts = classification_metrics(Predictions(truth, said, 4), ["a", "b", "c", "d"], resamples=50)
    assert facts["classes"]["c"]["texts"] == 0
    assert facts["macro_f1"] == pytest.approx(metrics.f1_score(truth, said, average="macro"))
    assert facts["confusion"]["share_low"][2] == [None] * 4


# ------------------------------------------------------------------------------------ two systems


@given(wins=st.integers(0, 400), losses=st.integers(0, 400))
def test_mcnemar_is_the_binomial_test(wins: int, losses: int) -> None:
    stats = pytest.importorskip("scipy.stats")
    p = mcnemar_p(wins, losses)
    assert p == mcnemar_p(losses, wins)
    if wins + losses:
        expected = stats.binomtest(wins, wins + losses).pvalue
        assert p == pytest.approx(min(1.0, expected), rel=1e-6, abs=1e-12)
    else:
        assert p == 1


@given(answers=predictions(least=2), data=st.data())
def test_a_paired_test_counts_what_differs(answers: Predictions, data: st.DataObject) -> None:
    n, k = len(answers), answers.classes
    said = data.draw(hnp.arrays(np.int64, n, elements=st.integers(0, k - 1)))
    other = Predictions(answers.labels, said, k)
    test = compare_accuracy(answers, other, resamples=50)
    assert test.difference == pytest.approx((test.only_ours - test.only_theirs) / n)
    assert test.difference == pytest.approx(answers.correct.mean() - other.correct.mean())
    back = compare_accuracy(other, answers, resamples=50)
    assert back.difference == pytest.approx(-test.difference)
    assert back.p == test.p
    assert test.interval is not None
    assert back.interval is not None
    assert back.interval.low == pytest.approx(-test.interval.high)
    same = compare_accuracy(answers, answers, resamples=50)
    assert (same.difference, same.p) == (0, 1)


def test_a_paired_test_needs_the_same_texts() -> None:
    a = Predictions(np.array([0, 1]), np.array([0, 1]), 2)
    with pytest.raises(ValueError, match="same texts"):
        compare_accuracy(a, Predictions(np.array([1, 1]), np.array([0, 1]), 2))


# ------------------------------------------------------------------------------------ temperature


@given(answers=predictions(least=3), temperature=st.floats(0.2, 5.0))
def test_a_temperature_changes_no_answer_but_how_sure_it_is(
    answers: Predictions, temperature: float
) -> None:
    p = np.exp(apply_temperature(known(answers), temperature))
    assert p.sum(axis=1) == pytest.approx(np.ones(len(answers)))
    chosen = p[np.arange(len(answers)), answers.predicted]
    assert np.all(chosen >= p.max(axis=1) - 1e-12)
    before = calibration.confidence(answers)
    assert np.all(chosen >= before - 1e-9 if temperature <= 1 else chosen <= before + 1e-9)


@given(answers=predictions(least=3), other=st.floats(0.06, 18.0))
def test_the_fitted_temperature_is_the_best(answers: Predictions, other: float) -> None:
    def loss(temperature: float) -> float:
        log_p = apply_temperature(known(answers), temperature)
        return float(-log_p[np.arange(len(answers)), answers.labels].mean())

    found = fit_temperature(answers.labels, known(answers))
    assert loss(found) <= loss(other) + 1e-9
    assert loss(found) <= loss(1.0) + 1e-9


@given(scale=st.floats(0.3, 3.0))
def test_a_temperature_undoes_what_made_it_too_sure(scale: float) -> None:
    random = np.random.default_rng(1)
    logits = random.normal(size=(4000, 3)) * 1.5
    log_p = apply_temperature(logits, 1.0)
    truth = (random.random(4000)[:, None] > np.exp(log_p).cumsum(axis=1)).sum(axis=1)
    truth = np.minimum(truth, 2)
    honest = fit_temperature(truth, log_p)
    assert honest == pytest.approx(1.0, abs=0.12)
    assert fit_temperature(truth, log_p * scale) == pytest.approx(honest * scale, rel=1e-6)


@given(answers=predictions())
def test_what_is_always_right_is_made_surer_but_not_without_end(answers: Predictions) -> None:
    found = fit_temperature(answers.predicted, known(answers))
    assert found * (1 + 1e-9) >= MIN_TEMPERATURE
    assert found <= MAX_TEMPERATURE * (1 + 1e-9)
