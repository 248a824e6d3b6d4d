"""Baselines for classification: the majority class, and linear models over TF-IDF.

The linear models are scikit-learn's, over TF-IDF of word unigrams and bigrams, with or without
character n-grams. Their hyperparameters are chosen on dev alone, as a run chooses its weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np

from heed.arrays import Floats, Ints
from heed.errors import RunError, install_hint
from heed.metrics.classification import Predictions

PENALTIES = {"linear SVM": (0.05, 0.2, 0.5, 1.0), "logistic": (1.0, 4.0, 10.0, 20.0)}
"""Values of C to try; smaller regularizes more."""
FEATURES = {"words 1-2": False, "words 1-2, characters 2-5": True}
"""Feature sets, and whether each has character n-grams."""
WORD = r"(?u)\b\w+\b"
MAX_ITERATIONS = 2000


@dataclass(frozen=True)
class LabeledTexts:
    """Texts and the indices of their classes."""

    texts: Sequence[str]
    labels: Ints


@dataclass(frozen=True)
class Baseline:
    """A baseline's predictions, and the hyperparameters chosen on dev."""

    name: str
    predictions: Predictions
    hyperparameters: dict[str, Any]


def require_sklearn() -> None:
    """Raise an error if scikit-learn is not installed, before anything slow begins."""
    if find_spec("sklearn") is None:
        raise RunError(
            "the baselines need scikit-learn, which is not installed.",
            todo=install_hint("baseline"),
        )


def majority_class(train: LabeledTexts, test: LabeledTexts, classes: int) -> Baseline:
    """Predict the most frequent training class; probabilities are class frequencies."""
    counts = np.bincount(train.labels, minlength=classes)
    with np.errstate(divide="ignore"):
        log_probs = np.log(counts / counts.sum())
    repeated = np.broadcast_to(log_probs, (len(test.texts), classes))
    return Baseline("majority class", Predictions.from_log_probs(test.labels, repeated), {})


def linear_models(
    train: LabeledTexts, dev: LabeledTexts, test: LabeledTexts, classes: int
) -> Iterator[Baseline]:
    """A linear SVM and a logistic regression, each with the hyperparameters best on dev."""
    best: dict[str, tuple[float, Any, Any, dict[str, Any]]] = {}
    for features, characters in FEATURES.items():
        vectorizer = _build_vectorizer(characters)
        train_features = vectorizer.fit_transform(train.texts)
        dev_features = vectorizer.transform(dev.texts)
        for kind, penalties in PENALTIES.items():
            for penalty in penalties:
                model = _build_model(kind, penalty).fit(train_features, train.labels)
                accuracy = float((model.predict(dev_features) == dev.labels).mean())
                if kind not in best or accuracy > best[kind][0]:
                    chosen = {"features": features, "C": penalty, "dev_accuracy": accuracy}
                    best[kind] = (accuracy, vectorizer, model, chosen)
    for kind, (_, vectorizer, model, chosen) in best.items():
        test_features = vectorizer.transform(test.texts)
        log_probs = _log_probs(model, test_features, classes)
        predicted = model.predict(test_features).astype(np.int64)
        predictions = Predictions(test.labels, predicted, classes, log_probs)
        yield Baseline(f"TF-IDF, {kind}", predictions, chosen)


def _build_vectorizer(characters: bool) -> Any:
    """TF-IDF of word unigrams and bigrams, and of character n-grams of two to five."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.pipeline import make_union

    words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=WORD)
    if not characters:
        return words
    return make_union(
        words, TfidfVectorizer(analyzer="char", ngram_range=(2, 5), sublinear_tf=True)
    )


def _build_model(kind: str, penalty: float) -> Any:
    from sklearn.linear_model import LogisticRegression
    from sklearn.svm import LinearSVC

    if kind == "linear SVM":
        return LinearSVC(C=penalty, random_state=0, max_iter=MAX_ITERATIONS)
    return LogisticRegression(C=penalty, max_iter=MAX_ITERATIONS)


def _log_probs(model: Any, features: Any, classes: int) -> Floats | None:
    """Log-probabilities [n, k]; -inf for classes absent from train, None without probabilities."""
    if not hasattr(model, "predict_log_proba"):
        return None
    log_probs = np.full((features.shape[0], classes), -np.inf)
    log_probs[:, model.classes_] = model.predict_log_proba(features)
    return log_probs
