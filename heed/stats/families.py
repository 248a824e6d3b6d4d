"""Many comparisons at once: single-step max-t, and Hsu's comparison with the best.

Each declared question is one family: every system against a baseline, or all pairs. The max-t
method (Hothorn, Bretz and Westfall 2008) compares every |t| with the distribution of the largest
|t| of the family. Corrected p-values and simultaneous intervals come from the same distribution,
so they agree. Comparisons have different degrees of freedom; each is judged with its own (Hasler
2014). The distribution is drawn with a fixed seed, so the same data give the same answer.

Shapes: k systems, f comparisons in the family, r draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import inf, sqrt

import numpy as np

from heed.arrays import Floats
from heed.stats.distributions import normal_quantile, student_t_p, student_t_quantile
from heed.stats.intervals import Interval
from heed.stats.variance import Variances

DRAWS = 100_000
"""Draws of the largest |t|: a corrected p of 0.05 is known to ± 0.0014."""
SEED = 20_150_401
MAX_NUMBERS = 20_000_000
"""Random numbers for one family: fewer draws where comparisons are more than 200."""
MAX_GAP_NUMBERS = 2_000_000
"""Random numbers for the gaps of one system to the best: fewer draws where systems are many."""
CRITICAL_NODES = 8
"""Degrees of freedom at which critical values are drawn; between them they are interpolated."""


@dataclass(frozen=True)
class JudgedContrast:
    """One comparison of a family: its t statistic, p-values and critical value."""

    difference: float
    standard_error: float
    df: float
    p: float
    """Two-sided, of this comparison alone."""
    corrected_p: float
    critical: float
    """The simultaneous interval is difference ± critical × standard error."""


def judge_family(
    variances: Variances,
    contrasts: Sequence[Floats],
    *,
    alpha: float = 0.05,
    draws: int = DRAWS,
) -> list[JudgedContrast]:
    """Judge every contrast of one family at the familywise level alpha."""
    errors = [sqrt(variances.variance(contrast)) for contrast in contrasts]
    dfs = [variances.degrees_of_freedom(contrast) for contrast in contrasts]
    differences = [float(contrast @ variances.means_k) for contrast in contrasts]
    t_values = [_t_value(d, error) for d, error in zip(differences, errors, strict=True)]
    if not contrasts:
        return []
    if len(contrasts) == 1:
        critical = student_t_quantile(1 - alpha / 2, dfs[0])
        p = student_t_p(t_values[0], dfs[0])
        return [JudgedContrast(differences[0], errors[0], dfs[0], p, p, critical)]
    draws = min(draws, MAX_NUMBERS // len(contrasts))
    largest_r = np.abs(_correlated_normals(variances, contrasts, errors, draws)).max(axis=1)
    judged = []
    for difference, error, df, t in zip(differences, errors, dfs, t_values, strict=True):
        largest = largest_r / _chi_scale(df, draws)
        p = student_t_p(t, df)
        # Never below the p of the comparison alone, which is exact where the draws end.
        corrected = max(p, float((largest >= abs(t)).mean()))
        critical = float(np.quantile(largest, 1 - alpha))
        judged.append(JudgedContrast(difference, error, df, p, min(1.0, corrected), critical))
    return judged


def best_set(
    variances: Variances, *, higher_is_better: bool, alpha: float = 0.05, draws: int = DRAWS
) -> list[int]:
    """The systems that are best or not distinguishable from the best (Hsu 1981, 1996).

    A system leaves the set if some other is better than it by more than the one-sided Dunnett
    critical value with this system as the control. The set holds the true best with probability
    1 - alpha.
    """
    k = len(variances.names)
    sign = 1.0 if higher_is_better else -1.0
    return [i for i in range(k) if not _is_beaten(variances, i, sign, alpha, draws)]


def gaps_to_best(
    variances: Variances, members: Sequence[int], *, higher_is_better: bool, alpha: float = 0.05
) -> list[Interval]:
    """Hsu's simultaneous intervals of each member's mean minus the best mean of the others.

    `members` is the set of `best_set`. The upper bound (of gains) of a system takes the one-sided
    Dunnett critical values with itself as the control, the lower bound those of the other members
    (Hsu 1984; Edwards and Hsu 1983 for unequal variances). The only member's lower bound is 0.
    """
    sign = 1.0 if higher_is_better else -1.0
    k = len(variances.names)
    draws = min(DRAWS, MAX_GAP_NUMBERS // k)
    widths = {i: _dunnett_widths(variances, i, alpha, draws) for i in members}
    gains_k = sign * variances.means_k
    gaps = []
    for i in members:
        high = min(gains_k[i] - gains_k[j] + widths[i][j] for j in range(k) if j != i)
        rivals = [gains_k[i] - gains_k[j] - widths[j][i] for j in members if j != i]
        low, high = min([0.0, *rivals]), max(0.0, high)
        gaps.append(Interval(low, high) if higher_is_better else Interval(-high, -low))
    return gaps


def _dunnett_widths(variances: Variances, i: int, alpha: float, draws: int) -> dict[int, float]:
    """One-sided Dunnett critical value × standard error of system i against each other system."""
    others = [j for j in range(len(variances.names)) if j != i]
    contrasts = [variances.contrast(j, i) for j in others]
    errors = [sqrt(variances.variance(contrast)) for contrast in contrasts]
    dfs = np.array([variances.degrees_of_freedom(contrast) for contrast in contrasts])
    if len(others) == 1:
        return {others[0]: student_t_quantile(1 - alpha, dfs[0]) * errors[0]}
    half_rf = _correlated_normals(variances, contrasts, errors, draws)
    largest_r = np.concatenate([half_rf.max(axis=1), (-half_rf).max(axis=1)])
    # The critical value is smooth in 1 / ν: few points serve many comparisons.
    nodes = np.unique(np.linspace(1 / dfs.max(), 1 / dfs.min(), min(len(dfs), CRITICAL_NODES)))
    criticals = [
        np.quantile(largest_r / np.tile(_chi_scale(1 / node, draws), 2), 1 - alpha)
        for node in nodes
    ]
    values = np.interp(1 / dfs, nodes, criticals)
    return {j: float(c * e) for j, c, e in zip(others, values, errors, strict=True)}


def _is_beaten(variances: Variances, i: int, sign: float, alpha: float, draws: int) -> bool:
    """Whether some other system is better than system i, by Dunnett's one-sided comparison."""
    rivals = [variances.contrast(j, i) for j in range(len(variances.names)) if j != i]
    errors = [sqrt(variances.variance(contrast)) for contrast in rivals]
    dfs = [variances.degrees_of_freedom(contrast) for contrast in rivals]
    t_values = [
        _t_value(sign * float(contrast @ variances.means_k), error)
        for contrast, error in zip(rivals, errors, strict=True)
    ]
    # The critical value is between those of a single comparison and of Bonferroni's correction;
    # of a single one it is no less than the normal distribution's.
    least = normal_quantile(1 - alpha)
    near = sorted((p for p in zip(t_values, dfs, strict=True) if p[0] > least), reverse=True)
    near = [(t, df) for t, df in near if t > student_t_quantile(1 - alpha, df)]
    if not near or len(rivals) == 1:
        return bool(near)
    if any(t > student_t_quantile(1 - alpha / len(rivals), df) for t, df in near):
        return True
    half_rf = _correlated_normals(variances, rivals, errors, draws)
    largest_r = np.concatenate([half_rf.max(axis=1), (-half_rf).max(axis=1)])
    return any(
        t > np.quantile(largest_r / np.tile(_chi_scale(df, draws), 2), 1 - alpha) for t, df in near
    )


def _t_value(difference: float, error: float) -> float:
    if difference == 0:
        return 0.0
    return difference / error if error > 0 else inf * np.sign(difference)


def _correlated_normals(
    variances: Variances, contrasts: Sequence[Floats], errors: Sequence[float], draws: int
) -> Floats:
    """Half of the draws [r/2, f] of a normal distribution with the correlations of the contrasts.

    The other half has the opposite signs, and the same largest absolute values.
    """
    matrix_fk = np.stack(contrasts)
    scale_f = np.array([error or 1.0 for error in errors])
    correlation = (matrix_fk @ variances.total_kk @ matrix_fk.T) / np.outer(scale_f, scale_f)
    # Estimates may leave the matrix slightly indefinite, and a variance raised to the items' part
    # leaves its diagonal below 1: the missing variance is independent of the other contrasts.
    values, vectors = np.linalg.eigh(correlation)
    positive = (vectors * np.maximum(values, 0)) @ vectors.T
    positive /= np.sqrt(np.outer(*[np.maximum(np.diag(positive), 1.0)] * 2))
    np.fill_diagonal(positive, 1.0)
    root = np.linalg.cholesky(positive + 1e-10 * np.eye(len(positive)))
    random = np.random.Generator(np.random.PCG64(SEED))
    return random.standard_normal((draws // 2, len(contrasts))) @ root.T


@lru_cache(maxsize=64)
def _chi_scale(df: float, draws: int) -> Floats:
    """Draws [r/2] of √(χ²/ν), the denominator of t; the same for both signs of a normal."""
    random = np.random.Generator(np.random.PCG64(SEED + 1))
    return np.sqrt(random.chisquare(df, draws // 2) / df) if df < 1e8 else np.ones(draws // 2)
