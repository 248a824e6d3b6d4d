"""Power: the smallest difference that a comparison would have found, and the seeds it needs.

Seed variance shrinks with the number of seeds; the system × item variance only with more items. So
more seeds alone cannot show every difference.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import erfc, sqrt

import numpy as np

from heed.stats.distributions import student_t_quantile
from heed.stats.variance import Floats, Variances

POWER = 0.8
"""The share of experiments that find a difference as large as the smallest visible one."""
SQRT2 = sqrt(2)
MAX_SEEDS = 100
"""More seeds than anyone would train; beyond, more test items are the better advice."""


@dataclass(frozen=True)
class Design:
    """An experiment before it is run: variances per run and item, seeds and items."""

    seed_variances: tuple[float, float]
    """Of one run of either system, over seeds."""
    interaction_variance: float
    """System × item: of the difference of the two systems on one item, seeds averaged out."""
    residual_variances: tuple[float, float]
    """Seed × item: of one run of either system on one item."""
    seeds: tuple[int, int]
    items: int
    pooled_freedom: int | None = None
    """Degrees of freedom of a shared seed variance, where several systems share one."""

    def variance(self) -> float:
        """V of the difference between the two systems' mean scores."""
        seed = sum(v / s for v, s in zip(self.seed_variances, self.seeds, strict=True))
        residual = sum(v / s for v, s in zip(self.residual_variances, self.seeds, strict=True))
        return seed + (self.interaction_variance + residual) / self.items

    def degrees_of_freedom(self) -> float:
        """ν as the comparison would estimate it."""
        residual = [v / self.items for v in self.residual_variances]
        seed = [
            (v + r) / s for v, r, s in zip(self.seed_variances, residual, self.seeds, strict=True)
        ]
        item = self.variance() - sum(
            v / s for v, s in zip(self.seed_variances, self.seeds, strict=True)
        )
        if self.pooled_freedom:
            seed_part = sum(seed) ** 2 / self.pooled_freedom
        else:
            seed_part = sum(v**2 / max(s - 1, 1) for v, s in zip(seed, self.seeds, strict=True))
        parts = seed_part + item**2 / max(self.items - 1, 1)
        return self.variance() ** 2 / parts if parts > 0 else float(self.items - 1)

    def smallest_visible(self, alpha: float = 0.05, power: float = POWER) -> float:
        """The smallest difference that is found at level alpha with this power."""
        df = self.degrees_of_freedom()
        critical = student_t_quantile(1 - alpha / 2, df)
        return noncentrality(critical, df, power) * sqrt(self.variance())

    def with_seeds(self, seeds: int) -> Design:
        """This design with so many seeds for both systems."""
        pooled = self.pooled_freedom
        if pooled:
            pooled = round(pooled * (seeds - 1) / max(sum(self.seeds) / 2 - 1, 0.5))
        return replace(self, seeds=(seeds, seeds), pooled_freedom=pooled)


def design_of(variances: Variances, a: int, b: int) -> Design:
    """The design of the comparison of systems a and b, with variances as estimated."""
    pair = (a, b)
    units = variances.units
    seeds = tuple(int(variances.seeds_k[i]) for i in pair)
    residual = [
        float(variances.residual_kk[i, i]) * s * units for i, s in zip(pair, seeds, strict=True)
    ]
    seed = [
        max(float(variances.seed_kk[i, i]) * s - r / units, 0.0)
        for i, s, r in zip(pair, seeds, residual, strict=True)
    ]
    contrast = variances.contrast(a, b)
    item = float(contrast @ variances.item_kk @ contrast) * units
    interaction = max(item - sum(r / s for r, s in zip(residual, seeds, strict=True)), 0.0)
    freedom = int((variances.seeds_k - 1).sum()) if variances.pooled else None
    return Design(
        (seed[0], seed[1]),
        interaction,
        (residual[0], residual[1]),
        (seeds[0], seeds[1]),
        units,
        freedom,
    )


def seeds_needed(
    design: Design, difference: float, *, alpha: float = 0.05, power: float = POWER
) -> int | None:
    """Seeds per system that would show this difference, or None if more than `MAX_SEEDS`."""

    def shows(seeds: int) -> bool:
        return design.with_seeds(seeds).smallest_visible(alpha, power) <= abs(difference)

    low, high = 2, MAX_SEEDS
    if difference == 0 or not shows(high):
        return None
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if shows(middle) else (middle + 1, high)
    return low


def noncentrality(critical: float, df: float, power: float = POWER) -> float:
    """The noncentrality δ with P(|T(δ)| > critical) = power, for noncentral t with ν = df."""
    scale, weight = _chi_density(df)
    # The usual approximation is the start; the secant method needs a few steps from there.
    high = max(critical + student_t_quantile(power, df), 0.1)
    low = 0.9 * high
    low_gap, high_gap = (_found_share(x, critical, scale, weight) - power for x in (low, high))
    for _ in range(50):
        if abs(high_gap) < 1e-9 or high_gap == low_gap:
            break
        step = high - high_gap * (high - low) / (high_gap - low_gap)
        low, low_gap, high = high, high_gap, max(step, 0.0)
        high_gap = _found_share(high, critical, scale, weight) - power
    return high


def _found_share(delta: float, critical: float, scale: Floats, weight: Floats) -> float:
    """P(|T(δ)| > critical): the mean over χ of two normal tails."""
    tails = [
        erfc((critical * x - delta) / SQRT2) + erfc((critical * x + delta) / SQRT2) for x in scale
    ]
    return float(weight @ np.array(tails)) / 2


@lru_cache(maxsize=256)
def _chi_density(df: float) -> tuple[Floats, Floats]:
    """Points of √(χ²/ν) and their probabilities, by the trapezoidal rule on the log scale."""
    spread = 1 / sqrt(2 * df)
    points = 1000 if df < 3 else 120  # with few degrees of freedom the curve is steep beside χ
    logs = np.linspace(-8 * spread - 8 / df, 8 * spread, points)
    # The logarithm of the density of log √(χ²/ν), without its constant: the sum is set to 1.
    exponent = df * (logs - np.exp(2 * logs) / 2)
    density = np.exp(exponent - exponent.max())
    return np.exp(logs), density / density.sum()
