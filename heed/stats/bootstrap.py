"""Where a figure would lie on other texts of the kind: the percentile bootstrap (Efron 1979).

The texts are drawn again with replacement, many times over, and the figure of each draw is taken;
between its 2.5th and 97.5th percentile lies the interval. Draws are made in blocks, all texts of a
block at once. Translations have sacreBLEU's own instead, so that they agree with its command.

Shapes: n texts, r draws.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Whole = NDArray[np.int64]
Real = NDArray[np.float64]

RESAMPLES = 1000
"""Draws behind an interval, as many as sacreBLEU makes."""
SEED = 12345
"""sacreBLEU's, so that all of heed's intervals have one."""
LEVEL = 0.95
BLOCK = 2**22
"""Numbers held at once while drawing."""


@dataclass(frozen=True)
class Interval:
    """Where a figure would lie on other texts of the kind, 95 times in 100."""

    low: float
    high: float


def draws(texts: int, resamples: int, seed: int = SEED, *, held: int = 1) -> Iterator[Whole]:
    """[r, n] which texts each draw has, a block of draws at a time; the same for the same seed.

    `held`: how many numbers a draw's figures are made of, where that is more than its texts.
    """
    random = np.random.Generator(np.random.PCG64(seed))
    most = max(1, BLOCK // max(texts, held))
    for first in range(0, resamples, most):
        yield random.integers(texts, size=(min(most, resamples - first), texts))


def resampled(
    figure: Callable[[Whole], Real], texts: int, resamples: int, seed: int = SEED, *, held: int = 1
) -> Real:
    """A figure of every draw, [resamples, …]; `figure` takes draws [r, n] and gives [r, …]."""
    return np.concatenate([figure(block) for block in draws(texts, resamples, seed, held=held)])


def interval(figures: Real) -> Interval:
    """Of a figure by draw. Draws that do not have it (nan) do not count."""
    low, high = bounds(figures)
    return Interval(float(low), float(high))


def bounds(figures: Real) -> tuple[Real, Real]:
    """The same of many figures side by side, [r, …]; nan where no draw has one."""
    edges = (50 * (1 - LEVEL), 50 * (1 + LEVEL))
    never = np.isnan(figures).all(axis=0)
    known = np.where(never, 0.0, figures)
    low, high = np.nanpercentile(known, edges, axis=0)
    return np.where(never, np.nan, low), np.where(never, np.nan, high)
