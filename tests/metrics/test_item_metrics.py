"""Metrics from summed item counts equal sacreBLEU's and scikit-learn's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER
from sklearn.metrics import accuracy_score, f1_score, log_loss

from heed.metrics.classification import Predictions
from heed.metrics.item_columns import classification_columns
from heed.metrics.item_metrics import bleu_score, chrf_score, item_metrics, ter_score
from heed.metrics.translation_counts import translation_columns
from heed.runs.item_counts import ItemCounts

words = st.lists(st.sampled_from(["the", "cat", "sat", "a", "mat", "."]), max_size=12).map(" ".join)
pairs = st.lists(st.tuples(words, words), min_size=1, max_size=8)


@given(st.integers(0, 60), st.integers(0, 60), st.data())
def test_bleu_is_sacrebleus_for_any_counts(hyp: int, ref: int, data: st.DataObject) -> None:
    total = [max(hyp - i, 0) for i in range(4)]
    match = [data.draw(st.integers(0, size)) for size in total]
    counts = np.array([hyp, ref, *match, *total], dtype=float)
    expected = BLEU()._compute_score_from_stats([hyp, ref, *match, *total]).score
    assert float(bleu_score(counts)) == pytest.approx(expected, rel=1e-12)


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), min_size=6, max_size=6))
def test_chrf_is_sacrebleus_for_any_counts(sizes: list[tuple[int, int]]) -> None:
    counts = [x for hyp, ref in sizes for x in (hyp, ref, min(hyp, ref) // 2)]
    expected = CHRF()._compute_score_from_stats(counts).score
    assert float(chrf_score(np.array(counts, dtype=float))) == pytest.approx(expected, rel=1e-12)


@given(st.integers(0, 9), st.integers(0, 9))
def test_ter_is_sacrebleus_for_any_counts(edits: int, length: int) -> None:
    expected = TER()._compute_score_from_stats([edits, length]).score
    assert float(ter_score(np.array([edits, length], dtype=float))) == pytest.approx(expected)


@given(pairs)
def test_sums_over_sentences_give_the_corpus_score(sentences: list[tuple[str, str]]) -> None:
    hypotheses, references = [h for h, _ in sentences], [r for _, r in sentences]
    columns, signatures = translation_columns(hypotheses, [references], ("bleu", "chrf", "ter"))
    metrics = item_metrics(ItemCounts("translate", "test", "", columns, signatures))
    for name, metric in (("bleu", BLEU()), ("chrf", CHRF()), ("ter", TER())):
        expected = metric.corpus_score(hypotheses, [references])
        assert metrics[name].value == pytest.approx(expected.score, rel=1e-12)
        assert signatures[name] == str(metric.get_signature())


@given(st.integers(2, 4), st.integers(1, 40), st.integers(0, 2**32))
def test_classification_metrics_are_scikit_learns(classes: int, items: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    labels = random.integers(classes, size=items)
    logits = random.normal(size=(items, classes))
    log_probs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    predictions = Predictions.from_log_probs(labels, log_probs)
    names = tuple(map(str, range(classes)))
    metrics = item_metrics(
        ItemCounts("classify", "test", "", classification_columns(predictions), classes=names)
    )
    guesses = predictions.predicted
    assert metrics["accuracy"].value == pytest.approx(100 * accuracy_score(labels, guesses))
    f1 = f1_score(labels, guesses, average="macro", zero_division=0)
    assert metrics["macro_f1"].value == pytest.approx(100 * f1)
    expected = log_loss(labels, np.exp(log_probs), labels=range(classes))
    assert metrics["log_loss"].value == pytest.approx(expected, rel=1e-5)
