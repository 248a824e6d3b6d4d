"""What a model must beat: saying the commonest class every time, and a linear model of words.

The linear models are scikit-learn's, over TF-IDF of words and pairs of words, with characters or
without. What they leave open is chosen on dev alone, as a run chooses its weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np

from heed.errors import RunError
from heed.metrics.classification import Answers
from heed.stats.bootstrap import Real, Whole

PENALTIES = {"linear SVM": (0.05, 0.2, 0.5, 1.0), "logistic": (1.0, 4.0, 10.0, 20.0)}
"""The values of C that are tried: smaller is more careful."""
FEATURES = {"words 1-2": False, "words 1-2, characters 2-5": True}
"""What texts are made of, and whether of characters too."""
WORD = r"(?u)\b\w+\b"
STEPS = 2000


@dataclass(frozen=True)
class Labelled:
    """Texts and the numbers of their classes."""

    texts: Sequence[str]
    truth: Whole


@dataclass(frozen=True)
class Baseline:
    """A baseline's answers, and what was chosen for it on dev."""

    name: str
    answers: Answers
    chosen: dict[str, Any]


def require() -> None:
    """See that the linear models can be had, before anything slow begins."""
    if find_spec("sklearn") is None:
        raise RunError(
            "the baselines need scikit-learn, which is not installed.",
            todo="Install it: pip install 'heed[baseline]'",
        )


def majority(train: Labelled, test: Labelled, classes: int) -> Baseline:
    """The class that most training texts have; its probabilities are how often each occurs."""
    counts = np.bincount(train.truth, minlength=classes)
    with np.errstate(divide="ignore"):
        log_p = np.log(counts / counts.sum())
    each = np.broadcast_to(log_p, (len(test.texts), classes))
    return Baseline("majority class", Answers.likeliest(test.truth, each), {})


def linear(train: Labelled, dev: Labelled, test: Labelled, classes: int) -> Iterator[Baseline]:
    """A support vector machine and a logistic regression, each as good as dev makes it."""
    best: dict[str, tuple[float, Any, Any, dict[str, Any]]] = {}
    for features, characters in FEATURES.items():
        count = _features(characters)
        learnt, asked = count.fit_transform(train.texts), count.transform(dev.texts)
        for kind, penalties in PENALTIES.items():
            for penalty in penalties:
                model = _model(kind, penalty).fit(learnt, train.truth)
                share = float((model.predict(asked) == dev.truth).mean())
                if kind not in best or share > best[kind][0]:
                    chosen = {"features": features, "C": penalty, "dev_accuracy": share}
                    best[kind] = (share, count, model, chosen)
    for kind, (_, count, model, chosen) in best.items():
        read = count.transform(test.texts)
        log_p = _log_chances(model, read, classes)
        said = model.predict(read).astype(np.int64)
        yield Baseline(f"TF-IDF, {kind}", Answers(test.truth, said, classes, log_p), chosen)


def _features(characters: bool) -> Any:
    """TF-IDF of words and pairs of words, and of stretches of two to five characters."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.pipeline import make_union

    words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=WORD)
    if not characters:
        return words
    return make_union(
        words, TfidfVectorizer(analyzer="char", ngram_range=(2, 5), sublinear_tf=True)
    )


def _model(kind: str, penalty: float) -> Any:
    from sklearn.linear_model import LogisticRegression
    from sklearn.svm import LinearSVC

    if kind == "linear SVM":
        return LinearSVC(C=penalty, random_state=0, max_iter=STEPS)
    return LogisticRegression(C=penalty, max_iter=STEPS)


def _log_chances(model: Any, read: Any, classes: int) -> Real | None:
    """[n, k] of a model that gives probabilities; a class it never met has none."""
    if not hasattr(model, "predict_log_proba"):
        return None
    log_p = np.full((read.shape[0], classes), -np.inf)
    log_p[:, model.classes_] = model.predict_log_proba(read)
    return log_p
