"""Analysis of variance of a full grid: how much of the spread of scores each factor explains.

Every cell of the grid has the same number of runs, its seeds. Then the sums of squares of main
effects and interactions add up exactly, and each is tested against the spread over seeds within
cells (Fisher 1925). The share of an effect is its variance with the part that seeds alone would
make taken out, over the sum of all such variances.

Shapes: one axis for each factor, and s seeds last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import inf, nan, prod

import numpy as np

from heed.arrays import Floats
from heed.stats.distributions import f_tail

MAX_ORDER = 2
"""Interactions of more factors are one effect together."""


@dataclass(frozen=True)
class Effect:
    """A factor, or several together, and how much of the spread of scores it explains."""

    factors: tuple[str, ...]
    """One for a main effect, two for an interaction, all for the rest of the interactions."""
    sum_of_squares: float
    df: int
    f: float
    p: float
    """Of the F test against the spread over seeds; NaN with one seed each."""
    share: float
    """Of the variance that is not the seeds'; 0 where seeds alone would make as much."""


@dataclass(frozen=True)
class Anova:
    """The effects of a grid, the largest share first."""

    effects: list[Effect]
    seed_variance: float
    """The variance of one run over seeds, within cells."""
    seed_df: int


def analyze_grid(scores: Floats, factors: Sequence[str]) -> Anova:
    """Main effects and interactions of pairs of factors of a full grid of scores."""
    if scores.ndim != len(factors) + 1 or 0 in scores.shape:
        raise ValueError(f"{len(factors)} factors need as many axes and one for seeds")
    if not np.isfinite(scores).all():
        raise ValueError("a full grid has a finite score in every cell")
    seeds, cells = scores.shape[-1], scores.mean(axis=-1)
    seed_df = cells.size * (seeds - 1)
    within = float(((scores - cells[..., None]) ** 2).sum())
    seed_variance = within / seed_df if seed_df else 0.0
    parts = _sums_of_squares(cells, seeds)
    varied = [axes for axes in parts if _degrees(cells, axes) > 0]
    low_order = [axes for axes in varied if len(axes) <= MAX_ORDER]
    grouped = {tuple(factors[i] for i in axes): [axes] for axes in low_order}
    rest = [axes for axes in varied if len(axes) > MAX_ORDER]
    if rest:
        grouped[tuple(factors)] = rest
    sums = {name: sum(parts[axes] for axes in group) for name, group in grouped.items()}
    freedom = {
        name: sum(_degrees(cells, axes) for axes in group) for name, group in grouped.items()
    }
    excess = {name: max(sums[name] - freedom[name] * seed_variance, 0.0) for name in sums}
    total = sum(excess.values())
    effects = []
    for name, square in sums.items():
        f = p = nan
        if seed_df:
            f = square / freedom[name] / seed_variance if seed_variance > 0 else inf
            f = 0.0 if square == 0 else f
            p = f_tail(f, freedom[name], seed_df)
        share = excess[name] / total if total > 0 else 0.0
        effects.append(Effect(name, square, freedom[name], f, p, share))
    effects.sort(key=lambda effect: -effect.share)
    return Anova(effects, seed_variance, seed_df)


def _sums_of_squares(cells: Floats, seeds: int) -> dict[tuple[int, ...], float]:
    """The sum of squares of every set of factors: its marginal means without smaller effects."""
    axes = range(cells.ndim)
    effects: dict[tuple[int, ...], Floats] = {}
    sums = {}
    for order in range(cells.ndim + 1):
        for chosen in combinations(axes, order):
            others = tuple(axis for axis in axes if axis not in chosen)
            effect = cells.mean(axis=others, keepdims=True)
            for smaller, values in effects.items():
                if set(smaller) < set(chosen):
                    effect = effect - values
            effects[chosen] = effect
            if chosen:
                sums[chosen] = float((effect**2).sum()) * cells.size / effect.size * seeds
    return sums


def _degrees(cells: Floats, axes: Sequence[int]) -> int:
    return prod(cells.shape[axis] - 1 for axis in axes)
