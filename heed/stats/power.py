"""Power: the smallest difference that a comparison would have found, and the seeds it needs.

Seed variance shrinks with the number of seeds; the system × item variance only with more items. So
more seeds alone cannot show every difference.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import erfc, inf, sqrt

import numpy as np

from heed.arrays import Floats
from heed.stats.distributions import normal_quantile, student_t_quantile
from heed.stats.variance import MIN_DF, Variances

POWER = 0.8
"""The share of experiments that find a difference as large as the smallest visible one."""
SQRT2 = sqrt(2)
DRAWS = 400
"""Draws of the estimated variances: power is known to about one percent."""
SEED = 20_150_402
MAX_SEEDS = 100
"""More seeds than anyone would train."""
ENDLESS_SEEDS = 10**6
"""So many that seeds add nothing to the variance: what is left is that of the items."""


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

    def smallest_visible(self, alpha: float = 0.05, power: float = POWER) -> float:
        """The smallest difference that is found at level alpha with this power.

        The variance is estimated from few seeds, so it differs from experiment to experiment, and
        with it the degrees of freedom and the critical value. Power is the mean over such draws.
        """
        truth = sqrt(self.variance())
        if truth == 0:
            return 0.0
        threshold_r = self._draw_thresholds(alpha) / truth
        high = float(np.median(threshold_r)) + normal_quantile(power)
        low = 0.9 * high
        low_gap, high_gap = (_found_share(x, threshold_r) - power for x in (low, high))
        for _ in range(50):  # the secant method
            if abs(high_gap) < 1e-6 or high_gap == low_gap:
                break
            step = high - high_gap * (high - low) / (high_gap - low_gap)
            low, low_gap, high = high, high_gap, max(step, 0.0)
            high_gap = _found_share(high, threshold_r) - power
        return high * truth

    def _draw_thresholds(self, alpha: float) -> Floats:
        """Draws [r] of the difference from which on a comparison would claim something."""
        chi2_2r = _chi2_draws(self.pooled_freedom or 0, self.seeds)
        seed_2 = np.array(self.seed_variances) + np.array(self.residual_variances) / self.items
        seed_2r = chi2_2r * (seed_2 / self.seeds)[:, None]
        residual = sum(v / s for v, s in zip(self.residual_variances, self.seeds, strict=True))
        item = (self.interaction_variance + residual) / self.items
        variance_r = item + np.maximum(seed_2r.sum(axis=0) - residual / self.items, 0.0)
        if self.pooled_freedom:
            parts_r = seed_2r.sum(axis=0) ** 2 / self.pooled_freedom
        else:
            freedom = np.maximum(np.array(self.seeds) - 1, 1)
            parts_r = (seed_2r**2 / freedom[:, None]).sum(axis=0)
        parts_r = parts_r + item**2 / max(self.items - 1, 1)
        df_r = variance_r**2 / np.maximum(parts_r, 1e-300)
        return np.asarray(_critical_values(df_r, alpha) * np.sqrt(variance_r))

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
    if variances.paired:  # the differences of pairs are one sample
        residual = [float(contrast @ variances.residual_kk @ contrast) * seeds[0] * units, 0.0]
        pairs = float(contrast @ variances.seed_kk @ contrast) * seeds[0]
        seed = [max(pairs - residual[0] / units, 0.0), 0.0]
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
    design: Design, difference: float, *, alpha: float = 0.05, power: float = POWER, least: int = 2
) -> int | None:
    """Seeds per system, `least` or more, that show this difference; None if over `MAX_SEEDS`."""

    def shows(seeds: int) -> bool:
        return design.with_seeds(seeds).smallest_visible(alpha, power) <= abs(difference)

    low, high = least, MAX_SEEDS
    if difference == 0 or not shows(high):
        return None
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if shows(middle) else (middle + 1, high)
    return low


def _found_share(delta: float, threshold_r: Floats) -> float:
    """The share of experiments that find an effect of `delta` standard errors."""
    points, tails = _normal_tails()
    upper, lower = (np.interp(threshold_r + shift, points, tails) for shift in (-delta, delta))
    return float((upper + lower).mean())


@lru_cache(maxsize=1)
def _normal_tails() -> tuple[Floats, Floats]:
    """Points and the normal distribution's upper tails there; between them it is nearly linear."""
    points = np.linspace(-8, 8, 3201)
    return points, np.array([erfc(x / SQRT2) / 2 for x in points.tolist()])


@lru_cache(maxsize=256)
def _chi2_draws(pooled_freedom: int, seeds: tuple[int, int]) -> Floats:
    """Draws [2, r] of χ²/ν for the seed variances of two systems; pooled, both are the same."""
    random = np.random.Generator(np.random.PCG64(SEED))
    if pooled_freedom:
        return np.tile(random.chisquare(pooled_freedom, DRAWS) / pooled_freedom, (2, 1))
    freedom = [max(count - 1, 1) for count in seeds]
    return np.stack([random.chisquare(df, DRAWS) / df for df in freedom])


def _critical_values(df_r: Floats, alpha: float) -> Floats:
    """Two-sided critical values of Student's t, interpolated: they are smooth in 1 / ν."""
    inverse, values = _critical_table(float(f"{alpha:.2g}"))  # so that pairs share tables
    return np.exp(np.interp(1 / np.maximum(df_r, MIN_DF), inverse, values))


@lru_cache(maxsize=64)
def _critical_table(alpha: float) -> tuple[Floats, Floats]:
    """Points 1 / ν and the logarithms of their critical values."""
    inverse = np.linspace(0, 1 / MIN_DF, 30)
    values = [student_t_quantile(1 - alpha / 2, 1 / x if x > 0 else inf) for x in inverse]
    return inverse, np.log(values)
