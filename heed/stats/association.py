"""Association by ranks: whether a score is associated with a key's values, tested by permutation.

A number is ranked, and its Spearman correlation (1904) with the score's ranks squared. Choices
have no order: the share of the variance of ranks that lies between them, η², as Kruskal and Wallis
(1952). Both lie between 0 and 1, and both see what is monotone, or any difference between choices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from heed.arrays import Floats

DRAWS = 2000
"""Permutations: the smallest p is 1 / 2001."""
SEED = 20_150_403


@dataclass(frozen=True)
class Association:
    """How strongly a score is associated with a key, and the p-value under no association."""

    share: float
    """Spearman's ρ², or η² of ranks for choices."""
    direction: float
    """Spearman's ρ for numbers; 0 for choices."""
    p: float


def associate(
    values: Sequence[object], scores: Sequence[float] | Floats, *, draws: int = DRAWS
) -> Association:
    """The association of a score with values, numbers or choices, by permutation of the scores."""
    ranks = _ranks(np.asarray(scores, dtype=np.float64))
    centered = ranks - ranks.mean()
    total = float(centered @ centered)
    is_number = all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in values)
    if len(ranks) < 3 or total == 0:
        return Association(0.0, 0.0, 1.0)
    if is_number:
        basis = _ranks(np.array(values, dtype=np.float64))[None, :]
        basis = basis - basis.mean(axis=1, keepdims=True)
        lengths = (basis**2).sum(axis=1)
    else:
        names = [repr(value) for value in values]
        basis = np.stack([[name == one for name in names] for one in sorted(set(names))])
        basis = basis.astype(np.float64)
        lengths = basis.sum(axis=1)
    if not lengths.all() or (not is_number and len(basis) < 2):
        return Association(0.0, 0.0, 1.0)

    def share(rows: Floats) -> Floats:
        return np.asarray((((rows @ basis.T) ** 2) / lengths).sum(axis=-1) / total)

    observed = float(share(centered))
    random = np.random.Generator(np.random.PCG64(SEED))
    shuffled = random.permuted(np.tile(centered, (draws, 1)), axis=1)
    as_large = int((share(shuffled) >= observed - 1e-12).sum())
    direction = 0.0
    if is_number:
        direction = float((basis[0] @ centered) / np.sqrt(lengths[0] * total))
    return Association(observed, direction, (as_large + 1) / (draws + 1))


def _ranks(values: Floats) -> Floats:
    """Ranks from 1; ties share the mean of theirs."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[inverse], dtype=np.float64)
