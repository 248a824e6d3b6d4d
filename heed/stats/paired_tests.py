"""Exact paired tests: McNemar's test, and the smallest p-value of a randomization test."""

from __future__ import annotations

from math import exp, lgamma, log


def mcnemar_p(wins: int, losses: int) -> float:
    """The two-sided p-value of the exact McNemar test (McNemar 1947) on discordant pairs.

    p = min(1, 2 Σ_{i ≤ min(b, c)} C(b + c, i) / 2^(b + c)), computed with logarithms because the
    binomial coefficients overflow.
    """
    n, fewer = wins + losses, min(wins, losses)
    terms = [
        lgamma(n + 1) - lgamma(i + 1) - lgamma(n - i + 1) - n * log(2) for i in range(fewer + 1)
    ]
    return min(1.0, 2 * sum(exp(term) for term in terms))


def smallest_p(differing: int) -> float:
    """The smallest p-value that an exact randomization test can give for so many differing items.

    Of the 2^n ways to exchange n items, two always give a difference as large as the observed one:
    exchanging none and exchanging all.
    """
    return min(1.0, 2.0 ** (1 - differing))
