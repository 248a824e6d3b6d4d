"""How good a classifier's answers are: accuracy, F1, confusion, and what chance does to them.

Shapes: n texts, k classes, r draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, lgamma, log
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heed.stats.bootstrap import (
    RESAMPLES,
    SEED,
    Interval,
    Real,
    Whole,
    bounds,
    interval,
    resampled,
)

MANY = 50
"""Classes up to which every cell of the confusion matrix gets an interval."""


@dataclass(frozen=True)
class Answers:
    """What a system said of some texts, and what is true of them; classes are numbers."""

    truth: Whole
    said: Whole
    classes: int
    log_p: Real | None = None
    """[n, k] logarithms of the probabilities it gave; None where it gives none."""

    @classmethod
    def likeliest(cls, truth: Whole, log_p: Real) -> Answers:
        """A system that says what it finds likeliest."""
        return cls(truth, log_p.argmax(axis=1), log_p.shape[1], log_p)

    def __len__(self) -> int:
        return len(self.truth)

    def only(self, rows: Sequence[int]) -> Answers:
        """Of some of the texts."""
        at = np.asarray(rows, np.int64)
        log_p = None if self.log_p is None else self.log_p[at]
        return Answers(self.truth[at], self.said[at], self.classes, log_p)

    @property
    def right(self) -> NDArray[np.bool_]:
        """[n] whether each answer is true."""
        return self.truth == self.said


# -------------------------------------------------------------------------- what is true of them


def confusion(answers: Answers, drawn: Whole | None = None) -> Whole:
    """[k, k] how often the class of the row was called that of the column; [r, k, k] of draws."""
    k = answers.classes
    cell = answers.truth * k + answers.said
    if drawn is None:
        return np.bincount(cell, minlength=k * k).reshape(k, k)
    found = np.empty((len(drawn), k, k), np.int64)
    for i, rows in enumerate(drawn):
        found[i] = np.bincount(cell[rows], minlength=k * k).reshape(k, k)
    return found


def shares(counts: Whole) -> tuple[Real, Real, Real]:
    """Precision, recall and F1 of each class, [… k], from confusion counts [… k, k].

    A class that nobody named has no precision and one that no text has no recall; both are 0 then.
    """
    right = np.diagonal(counts, axis1=-2, axis2=-1).astype(np.float64)
    named, there = counts.sum(axis=-2), counts.sum(axis=-1)
    precision, recall = _ratio(right, named), _ratio(right, there)
    return precision, recall, _ratio(2 * right, named + there)


def macro_f1(counts: Whole) -> Real:
    """The mean of F1 over the classes that some text has or some answer names, [… k, k] to […]."""
    _, _, f1 = shares(counts)
    met = (counts.sum(axis=-2) + counts.sum(axis=-1)) > 0
    return _ratio((f1 * met).sum(axis=-1), met.sum(axis=-1))


def _ratio(a: Any, b: Any) -> Real:
    """a / b, and 0 where b is."""
    return np.divide(a, b, out=np.zeros(np.shape(b), np.float64), where=np.asarray(b) > 0)


def describe(
    answers: Answers, names: Sequence[str], *, resamples: int = RESAMPLES, seed: int = SEED
) -> dict[str, Any]:
    """Accuracy, macro F1, every class and the confusion matrix, each with its interval."""
    counts = confusion(answers)
    precision, recall, f1 = shares(counts)
    facts: dict[str, Any] = {
        "accuracy": float(answers.right.mean()),
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
        _with_intervals(facts, answers, names, resamples, seed)
    return facts


def _with_intervals(
    facts: dict[str, Any], answers: Answers, names: Sequence[str], resamples: int, seed: int
) -> None:
    """Beside every figure, where it would lie on other texts."""
    k = answers.classes

    def figures(drawn: Whole) -> Real:
        counts = confusion(answers, drawn)
        right = np.trace(counts, axis1=-2, axis2=-1) / len(answers)
        ends = [right[:, None], macro_f1(counts)[:, None], *shares(counts)]
        if k <= MANY:
            there = counts.sum(axis=-1, keepdims=True)
            rows = np.divide(counts, there, out=np.full(counts.shape, np.nan), where=there > 0)
            ends.append(rows.reshape(len(drawn), -1))
        return np.concatenate(ends, axis=1)

    low, high = bounds(resampled(figures, len(answers), resamples, seed, held=k * k))
    spans = [{"low": a, "high": b} for a, b in zip(low.tolist(), high.tolist(), strict=True)]
    facts["interval"] = {"accuracy": spans[0], "macro_f1": spans[1]}
    for at, key in enumerate(("precision", "recall", "f1")):
        for i, name in enumerate(names):
            told = facts["classes"][name].setdefault("interval", {})
            told[key] = spans[2 + at * k + i]
    if k <= MANY:
        for end, values in (("share_low", low), ("share_high", high)):
            cells = values[2 + 3 * k :].reshape(k, k)
            facts["confusion"][end] = [[_number(cell) for cell in row] for row in cells]


def _number(value: float) -> float | None:
    """JSON has no nan: nothing is known of the row of a class that no text has."""
    return None if np.isnan(value) else float(value)


# ------------------------------------------------------------------------ one system and another


@dataclass(frozen=True)
class Paired:
    """One system against another on the same texts."""

    difference: float
    """Of the accuracies: ours less theirs."""
    interval: Interval | None
    only_ours: int
    """Texts that only ours got right,"""
    only_theirs: int
    """and only theirs."""
    p: float
    """The chance of so uneven a pair of counts if both were as good (exact McNemar)."""


def paired(
    ours: Answers, theirs: Answers, *, resamples: int = RESAMPLES, seed: int = SEED
) -> Paired:
    """Whether two systems differ, by their answers to the same texts."""
    if len(ours) != len(theirs) or not np.array_equal(ours.truth, theirs.truth):
        raise ValueError("A paired test needs two systems' answers to the same texts.")
    gain = ours.right.astype(np.float64) - theirs.right

    def mean(drawn: Whole) -> Real:
        return gain[drawn].mean(axis=1)

    span = interval(resampled(mean, len(gain), resamples, seed)) if resamples else None
    wins, losses = int((gain > 0).sum()), int((gain < 0).sum())
    return Paired(float(gain.mean()), span, wins, losses, exact_mcnemar(wins, losses))


def exact_mcnemar(wins: int, losses: int) -> float:
    """The two-sided chance of counts at least so uneven, were each a fair coin (McNemar 1947).

    p = min(1, 2 Σ_{i ≤ min(b, c)} C(b + c, i) / 2^(b + c)); by logarithms, for C grows fast.
    """
    n, fewer = wins + losses, min(wins, losses)
    terms = [
        lgamma(n + 1) - lgamma(i + 1) - lgamma(n - i + 1) - n * log(2) for i in range(fewer + 1)
    ]
    return min(1.0, 2 * sum(exp(term) for term in terms))
