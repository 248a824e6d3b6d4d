"""Fit of attention weights by a query: the closest weights, and the shortest query that is sharp.

The weights softmax(K q) over all queries q are an exponential family (Barndorff-Nielsen
1978). The member closest to target weights p by KL(p ‖ w) is the one whose mean key Σ w_j k_j is
that of p, and both problems below are convex: Newton's method solves them to rounding.

Shapes: m keys, d coordinates, o keys that are to be ignored, b coordinates of a subspace.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from heed.arrays import Floats

NEWTON_STEPS = 200
DECREASE = 1e-24
"""Newton's method ends where the next step would lower the function by less."""
ROOT_STEPS, ROOT = 100, 1e-12


def softmax(scores_m: Floats) -> Floats:
    """Weights of scores."""
    exponentials_m = np.exp(scores_m - scores_m.max())
    return np.asarray(exponentials_m / exponentials_m.sum())


def log_sum_exp(scores_m: Floats) -> float:
    """log Σ exp(score)."""
    top = float(scores_m.max())
    return top + float(np.log(np.exp(scores_m - top).sum()))


def fit_query(keys_md: Floats, target_m: Floats) -> Floats:
    """The shortest query whose weights are closest to the target by KL(target ‖ weights).

    The target's mean key must lie inside the keys' hull, not on its border: else no query is best.
    """
    mean_d = target_m @ keys_md
    _, singular, directions = np.linalg.svd(keys_md - mean_d, full_matrices=False)
    rank = int((singular > 1e-10 * max(1.0, float(singular.max(initial=0.0)))).sum())
    basis_db = directions[:rank].T
    rows_mb = (keys_md - mean_d) @ basis_db

    def curve(z_b: Floats) -> tuple[float, Floats, Floats]:
        return _log_sum_curve(rows_mb, np.zeros(len(rows_mb)), z_b)

    return np.asarray(basis_db @ _newton(curve, np.zeros(rank)))


def shortest_sharp_query(rows_ob: Floats, start_o: Floats, share: float) -> Floats:
    """The shortest z with Σ exp(start + rows z) ≤ share / (1 − share): so little weight elsewhere.

    `start` and `rows z` are scores of the keys to be ignored, relative to those that are not. Some
    direction must lower all of them (see `separate`).
    """
    limit = float(np.log(share) - np.log1p(-share))
    width = rows_ob.shape[1]
    if not len(rows_ob) or log_sum_exp(start_o) <= limit:
        return np.zeros(width)

    def solve(multiplier: float, z_b: Floats) -> Floats:
        def curve(z_b: Floats) -> tuple[float, Floats, Floats]:
            value, gradient_b, hessian_bb = _log_sum_curve(rows_ob, start_o, z_b)
            # Divided by the multiplier where that is large, so that the numbers stay near 1.
            weight, ridge = min(multiplier, 1.0), min(1.0, 1.0 / multiplier)
            return (
                weight * value + ridge * float(z_b @ z_b) / 2,
                weight * gradient_b + ridge * z_b,
                weight * hessian_bb + ridge * np.eye(width),
            )

        return _newton(curve, z_b)

    def excess(z_b: Floats) -> float:
        return log_sum_exp(start_o + rows_ob @ z_b) - limit

    low, high, z_b = -np.inf, 0.0, solve(1.0, np.zeros(width))
    over, under = excess(np.zeros(width)), excess(z_b)
    while under > 0:  # exponents of the multiplier: one too small, one large enough
        low, over, high = high, under, high + 2.0
        z_b = solve(float(np.exp(high)), z_b)
        under = excess(z_b)
    if not np.isfinite(low):
        low = high
        while (over := excess(solve(float(np.exp(low)), np.zeros(width)))) <= 0:
            low -= 2.0
    return _find_root(lambda at: solve(float(np.exp(at)), z_b), excess, (low, over), (high, under))


def _find_root(
    solve: Callable[[float], Floats],
    excess: Callable[[Floats], float],
    low: tuple[float, float],
    high: tuple[float, float],
) -> Floats:
    """The solution whose excess is zero or just below, by the Illinois method (Dowell 1971)."""
    (a, over), (b, under), last = low, high, 0
    answer_b = solve(b)
    for _ in range(ROOT_STEPS):
        if under > -ROOT or b - a < 1e-14 * max(1.0, abs(b)):
            break
        middle = (a * under - b * over) / (under - over)
        z_b = solve(middle)
        value = excess(z_b)
        if value > 0:
            a, over, under = middle, value, under / 2 if last == 1 else under
            last = 1
        else:
            b, under, over = middle, value, over / 2 if last == -1 else over
            last, answer_b = -1, z_b
    return answer_b


def shortest_sharp_length(slopes_o: Floats, share: float) -> float:
    """The smallest t ≥ 0 with Σ exp(slope · t) ≤ share / (1 − share); all slopes are negative."""
    if not len(slopes_o):
        return 0.0
    return float(shortest_sharp_query(slopes_o[:, None], np.zeros(len(slopes_o)), share)[0])


def _log_sum_curve(rows_mb: Floats, start_m: Floats, z_b: Floats) -> tuple[float, Floats, Floats]:
    """Value, gradient and Hessian of log Σ exp(start + rows z)."""
    scores_m = start_m + rows_mb @ z_b
    weights_m = softmax(scores_m)
    gradient_b = weights_m @ rows_mb
    spread_mb = rows_mb - gradient_b
    return log_sum_exp(scores_m), gradient_b, (spread_mb * weights_m[:, None]).T @ spread_mb


def _newton(curve: Callable[[Floats], tuple[float, Floats, Floats]], z_b: Floats) -> Floats:
    """The minimum of a convex function, by Newton's method with step halving."""
    value, gradient_b, hessian_bb = curve(z_b)
    for _ in range(NEWTON_STEPS):
        # A trace of damping: a flat direction has no curvature to divide by.
        damped_bb = hessian_bb + 1e-14 * max(1.0, float(np.trace(hessian_bb))) * np.eye(len(z_b))
        step_b = -np.linalg.solve(damped_bb, gradient_b)
        slope, share = float(gradient_b @ step_b), 1.0
        if -slope <= DECREASE:
            break
        candidate = curve(z_b + step_b)
        if -slope > 1e-12:
            while candidate[0] > value + 1e-4 * share * slope and share > 1e-10:
                share /= 2
                candidate = curve(z_b + share * step_b)
        elif np.abs(candidate[1]).max() >= np.abs(gradient_b).max():
            break  # values differ by rounding alone, and the gradient ends to shrink
        z_b, (value, gradient_b, hessian_bb) = z_b + share * step_b, candidate
    return z_b
