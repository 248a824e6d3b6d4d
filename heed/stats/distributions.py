"""Student's t, normal, F and chi-squared distributions: probabilities and quantiles.

Written here because scipy, which has them too, would take more room than the rest of heed's
dependencies without torch. The tests compare every function with scipy's.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import exp, inf, isinf, lgamma, log, log1p, nan, pi
from statistics import NormalDist

ROUNDING = 1e-16
"""A continued fraction or series ends when a term changes it by less than this share."""
MAX_TERMS = 10_000
"""More terms than any argument below 1e8 degrees of freedom needs."""
TINY = 1e-300
"""Replaces a zero denominator in Lentz's algorithm."""
NORMAL_LIMIT = 1e8
"""From this many degrees of freedom on, Student's t is the normal distribution to 8 digits."""


def student_t_tail(t: float, df: float) -> float:
    """P(T > t) for Student's t with `df` degrees of freedom (any positive number, or infinity)."""
    if df <= 0:
        raise ValueError(f"degrees of freedom must be positive, not {df}")
    if t != t:
        return nan
    if df >= NORMAL_LIMIT:
        return NormalDist().cdf(-t)
    if isinf(t):
        return 0.0 if t > 0 else 1.0
    # P(|T| > t) = I_x(df/2, 1/2) with x = df / (df + t²); 1 - x is computed without cancellation.
    square = t * t
    x, complement = df / (df + square), square / (df + square)
    tail = incomplete_beta(df / 2, 0.5, x, complement) / 2
    return tail if t > 0 else 1 - tail


def student_t_p(t: float, df: float) -> float:
    """The two-sided p-value P(|T| ≥ |t|)."""
    return min(1.0, 2 * student_t_tail(abs(t), df))


@lru_cache(maxsize=4096)
def student_t_quantile(p: float, df: float) -> float:
    """The t with P(T ≤ t) = p."""
    _check_probability(p)
    if p == 0.5:
        return 0.0
    if p > 0.5:
        return -student_t_quantile(1 - p, df)
    if df >= NORMAL_LIMIT:
        return NormalDist().inv_cdf(p)
    # The lower half: -t > 0 is where the upper tail falls to p. The tail is convex there, so that
    # Newton's method climbs to the root from below, from within a factor of two.
    t = 0.0
    step = 1.0
    while student_t_tail(t + step, df) > p:
        t, step = t + step, t + step
        if isinf(step):
            return -inf
    for _ in range(100):
        step = (student_t_tail(t, df) - p) / _student_t_density(t, df)
        t += step
        if step <= 1e-15 * t:
            break
    return -t


def normal_quantile(p: float) -> float:
    """The z with P(Z ≤ z) = p for the standard normal distribution."""
    _check_probability(p)
    return NormalDist().inv_cdf(p)


def chi2_tail(x: float, df: float) -> float:
    """P(X > x) for the chi-squared distribution: the incomplete gamma function Q(df/2, x/2)."""
    if df <= 0:
        raise ValueError(f"degrees of freedom must be positive, not {df}")
    a, x = df / 2, x / 2
    if x <= 0:
        return 1.0
    if isinf(x):
        return 0.0
    front = exp(a * log(x) - x - lgamma(a))
    if x < a + 1:  # the series of P(a, x), which converges fast there
        term = total = 1 / a
        for n in range(1, MAX_TERMS):
            term *= x / (a + n)
            total += term
            if term < total * ROUNDING:
                break
        return 1 - front * total

    def terms(n: int) -> tuple[float, float]:
        return -n * (n - a), x + 2 * n + 1 - a

    return front / _continued_fraction(x + 1 - a, terms)


def f_tail(f: float, df1: float, df2: float) -> float:
    """P(F > f) for the F distribution with df1 and df2 degrees of freedom."""
    if df1 <= 0 or df2 <= 0:
        raise ValueError(f"degrees of freedom must be positive, not {df1} and {df2}")
    if f <= 0:
        return 1.0
    if isinf(f):
        return 0.0
    whole = df2 + df1 * f
    return incomplete_beta(df2 / 2, df1 / 2, df2 / whole, df1 * f / whole)


def incomplete_beta(a: float, b: float, x: float, complement: float | None = None) -> float:
    """The regularized incomplete beta function I_x(a, b).

    `complement` is 1 - x where the caller knows it more exactly than the subtraction does.
    """
    y = 1 - x if complement is None else complement
    if x <= 0:
        return 0.0
    if y <= 0:
        return 1.0
    # The fraction converges fast below the mean; above it, I_x(a, b) = 1 - I_{1-x}(b, a).
    if x > (a + 1) / (a + b + 2):
        return 1 - incomplete_beta(b, a, y, x)
    log_x = log1p(-y) if y < 0.5 else log(x)
    log_y = log1p(-x) if x < 0.5 else log(y)
    front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log_x + b * log_y) / a

    def terms(n: int) -> tuple[float, float]:
        m = n // 2
        if n % 2:
            return -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)), 1.0
        return m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)), 1.0

    return min(1.0, front / _continued_fraction(1.0, terms))


def _continued_fraction(first: float, terms: Callable[[int], tuple[float, float]]) -> float:
    """first + a1 / (b1 + a2 / (b2 + …)) with terms(n) = (a_n, b_n), by Lentz's algorithm (1976)."""
    value = first or TINY
    c, d = value, 0.0
    for n in range(1, MAX_TERMS):
        numerator, denominator = terms(n)
        d = 1 / (denominator + numerator * d or TINY)
        c = denominator + numerator / c or TINY
        value *= c * d
        if abs(c * d - 1) < 4 * ROUNDING:
            break
    return value


def _student_t_density(t: float, df: float) -> float:
    constant = lgamma((df + 1) / 2) - lgamma(df / 2) - log(df * pi) / 2
    return exp(constant - (df + 1) / 2 * log1p(t * t / df))


def _check_probability(p: float) -> None:
    if not 0 < p < 1:
        raise ValueError(f"a probability must lie between 0 and 1, not {p}")
