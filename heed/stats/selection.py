"""Selection: how good the best of n trials is expected to be, and how far a winner falls.

The score that a trial won by is too good: it won because it is the largest of many. Only fresh
seeds of the winner tell how good it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from heed.arrays import Floats
from heed.stats.intervals import Interval, mean_interval


def expected_best(
    scores: Sequence[float] | Floats, *, higher_is_better: bool = True, budget: int | None = None
) -> Floats:
    """The expected best of 1, 2, … `budget` trials (Dodge et al. 2019).

    Trials are drawn with replacement from those observed, whose number is the default budget:
    E[max of n] = Σ v_i (F(v_i)ⁿ - F(v_{i-1})ⁿ) over the sorted scores, F their share at or below.
    """
    sign = 1.0 if higher_is_better else -1.0
    ordered = np.sort(sign * np.asarray(scores, dtype=np.float64))
    if ordered.size == 0 or not np.isfinite(ordered).all():
        raise ValueError("expected best needs one finite score or more")
    edges = np.arange(len(ordered) + 1) / len(ordered)
    budgets = np.arange(1, (budget or len(ordered)) + 1)
    chance_bi = np.diff(edges[None, :] ** budgets[:, None], axis=1)
    return np.asarray(sign * (chance_bi @ ordered))


@dataclass(frozen=True)
class WinnerFall:
    """How the fresh seeds of a winner score beside the score that it was chosen by."""

    chosen: float
    """The mean score of the trials that it was chosen by."""
    fresh: float
    """The mean score of its fresh seeds, on the same set."""
    fall: float
    """How much worse the fresh seeds are, whichever way the metric points; negative if better."""
    interval: Interval | None
    """Of the fall, over fresh seeds, with the score of choosing as given; None for one seed."""


def winner_fall(
    chosen: Sequence[float] | Floats,
    fresh: Sequence[float] | Floats,
    *,
    higher_is_better: bool = True,
) -> WinnerFall:
    """How far a winner falls from the scores that it was chosen by to those of fresh seeds."""
    sign = 1.0 if higher_is_better else -1.0
    chosen_mean = float(np.mean(chosen))
    falls = sign * (chosen_mean - np.asarray(fresh, dtype=np.float64))
    return WinnerFall(chosen_mean, float(np.mean(fresh)), float(falls.mean()), mean_interval(falls))
