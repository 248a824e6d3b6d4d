"""Fits of cost by size: a power law with its interval, and a polynomial with non-negative terms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from heed.stats.distributions import student_t_quantile

LEVEL = 0.95
"""The confidence level of an exponent's interval."""
FEWEST = 3
"""Sizes that a fit needs: with two there is no residual, so no interval."""


@dataclass(frozen=True)
class PowerLaw:
    """y = constant · x^exponent, by least squares on logarithms, over the range of x."""

    exponent: float
    low: float
    high: float
    """The 95% interval of the exponent, by Student's t on the residuals."""
    constant: float
    range: tuple[float, float]

    def at(self, x: float) -> float:
        """The fitted y."""
        return float(self.constant * x**self.exponent)


def fit_power_law(xs: Sequence[float], ys: Sequence[float]) -> PowerLaw:
    """Fit a line to (log x, log y). The interval covers noise, not curvature of the truth."""
    _check(xs, ys)
    x, y = np.log(np.asarray(xs, dtype=np.float64)), np.log(np.asarray(ys, dtype=np.float64))
    centered = x - x.mean()
    spread = float(centered @ centered)
    exponent = float(centered @ (y - y.mean())) / spread
    offset = float(y.mean() - exponent * x.mean())
    residuals = y - offset - exponent * x
    df = len(xs) - 2
    error = math.sqrt(float(residuals @ residuals) / df / spread)
    half = student_t_quantile(1 - (1 - LEVEL) / 2, df) * error
    ends = (float(min(xs)), float(max(xs)))
    return PowerLaw(exponent, exponent - half, exponent + half, math.exp(offset), ends)


@dataclass(frozen=True)
class Polynomial:
    """y = fixed + linear · x + quadratic · x², no term negative, over the range of x."""

    fixed: float
    linear: float
    quadratic: float
    worst: float
    """The largest deviation of a point, as a share of it."""
    range: tuple[float, float]

    def at(self, x: float) -> float:
        """The fitted y."""
        return self.fixed + self.linear * x + self.quadratic * x**2

    @property
    def crossover(self) -> float:
        """The x beyond which the quadratic term exceeds the linear one; infinite if none is."""
        return self.linear / self.quadratic if self.quadratic else math.inf


def fit_polynomial(xs: Sequence[float], ys: Sequence[float], *, fixed: bool = True) -> Polynomial:
    """Non-negative least squares on relative deviations, since timing noise is relative.

    With three terms all seven subsets are tried: the best one whose terms are all positive is the
    solution, exactly. `fixed` is whether there may be a fixed term.
    """
    _check(xs, ys)
    x, y = np.asarray(xs, dtype=np.float64), np.asarray(ys, dtype=np.float64)
    terms = np.stack([np.ones_like(x), x, x**2], axis=1) / y[:, None]
    scale = np.linalg.norm(terms, axis=0)  # columns of one size: lengths reach thousands
    best, coefficients = math.inf, np.zeros(3)
    allowed = range(0 if fixed else 1, 3)
    for count in (1, 2, 3):
        for chosen in combinations(allowed, count):
            columns = list(chosen)
            found = np.linalg.lstsq(terms[:, columns] / scale[columns], np.ones_like(y))[0]
            if float(found.min()) < 0:
                continue
            solution = np.zeros(3)
            solution[columns] = found / scale[columns]
            deviation = float(np.sum((terms @ solution - 1) ** 2))
            if deviation < best:
                best, coefficients = deviation, solution
    constant, linear, quadratic = map(float, coefficients)
    worst = float(np.abs(terms @ coefficients - 1).max())
    return Polynomial(constant, linear, quadratic, worst, (float(x.min()), float(x.max())))


def _check(xs: Sequence[float], ys: Sequence[float]) -> None:
    if len(xs) != len(ys):
        raise ValueError(f"{len(xs)} sizes, but {len(ys)} values.")
    if len(set(xs)) < FEWEST:
        raise ValueError(f"a fit needs {FEWEST} different sizes.")
    if min(xs) <= 0 or min(ys) <= 0:
        raise ValueError("a fit needs positive sizes and values.")
