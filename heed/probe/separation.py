"""Separation of keys: the shortest query that scores some keys above all others, or why none does.

Attention can give its weight to a set of keys alone only if a query scores these keys alike and all
others lower. That is a system of linear inequalities, and exactly one of two things holds (Farkas
1902): it has a solution, or some positive combination of the inequalities is a contradiction.
Lawson and Hanson (1974, chapter 23) find either by one least-squares problem with non-negative
unknowns.

Shapes: m keys, d coordinates, e keys that are to be equal, o keys that are to be below, r
inequalities, u unknowns.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from heed.arrays import Floats

TOLERANCE = 1e-9
"""A residual is zero below this; keys are scaled to the length 1 first."""


@dataclass(frozen=True)
class Separation:
    """A direction that scores keys of a set alike and all other keys lower by 1 or more."""

    direction_d: Floats
    """The shortest such direction: the normal of the widest gap between the set and the others."""

    @property
    def margin(self) -> float:
        """The width of the gap: how much lower the next key is along the direction, in key units.

        Infinite where there are no other keys.
        """
        length = float(np.linalg.norm(self.direction_d))
        return 1.0 / length if length > 0 else np.inf


@dataclass(frozen=True)
class Dependence:
    """Numbers z with Σ z_j = 0 and Σ z_j key_j = 0: what the scores of every query obey.

    They satisfy Σ z_j score_j = 0, and so do the log-weights. The z that `separate` returns is not
    positive outside the set and negative for some key there: if the set had equal scores and the
    others lower ones, the sum would be positive.
    """

    coefficients_m: Floats

    def residual(self, keys_md: Floats) -> float:
        """How far the combination of these keys is from zero; rounding apart, it is zero."""
        z_m = self.coefficients_m
        return float(max(np.abs(z_m @ keys_md).max(initial=0.0), abs(z_m.sum())))


def separate(keys_md: Floats, equal: NDArray[np.bool_]) -> Separation | Dependence:
    """The direction of the widest gap between the keys `equal` and all others, or why none exists.

    `equal` is True for the keys of the set, of which there is at least one.
    """
    size = float(np.abs(keys_md).max(initial=0.0)) or 1.0
    scaled_md = keys_md / size
    equal_ed, below_od = scaled_md[equal], scaled_md[~equal]
    basis_db = null_space(equal_ed - equal_ed[0])
    gaps_od = equal_ed.mean(axis=0) - below_od
    solution = least_distance(gaps_od @ basis_db)
    if solution.feasible:
        return Separation(basis_db @ solution.values_u / size)
    weights_o = solution.values_u / solution.values_u.sum()
    coefficients_m = np.zeros(len(keys_md))
    coefficients_m[~equal] = -weights_o
    coefficients_m[equal] = affine_combination(equal_ed, weights_o @ below_od)
    return Dependence(coefficients_m)


def affine_hull(keys_md: Floats, chosen: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The keys on the line, plane or space through the chosen ones: one score for these is theirs.

    A query that scores the chosen keys alike gives all of them the same score.
    """
    size = float(np.abs(keys_md).max(initial=0.0)) or 1.0
    origin_d = keys_md[chosen][0]
    basis_db = null_space((keys_md[chosen] - origin_d) / size)
    away_m = np.linalg.norm((keys_md - origin_d) / size @ basis_db, axis=1)
    return np.asarray(away_m <= TOLERANCE)


@dataclass(frozen=True)
class LeastDistance:
    """The answer to a least-distance problem: a point, or multipliers of a contradiction."""

    feasible: bool
    values_u: Floats
    """The shortest x with G x ≥ 1 if feasible; else c ≥ 0, not all zero, with Gᵀc = 0."""


def least_distance(rows_rd: Floats) -> LeastDistance:
    """The shortest x with G x ≥ 1 in every row, by the dual non-negative least squares."""
    rows, width = rows_rd.shape
    if rows == 0:
        return LeastDistance(True, np.zeros(width))
    matrix = np.vstack([rows_rd.T, np.ones(rows)])
    wanted = np.append(np.zeros(width), 1.0)
    multipliers_r = nonnegative_least_squares(matrix, wanted)
    residual = matrix @ multipliers_r - wanted
    if np.linalg.norm(residual) <= TOLERANCE:
        return LeastDistance(False, multipliers_r)
    x_d = -residual[:-1] / residual[-1]
    # A gap that rounding could have made is none.
    if (rows_rd @ x_d).min() < 0.5:
        return LeastDistance(False, multipliers_r)
    return LeastDistance(True, x_d)


def nonnegative_least_squares(matrix_ru: Floats, wanted_r: Floats) -> Floats:
    """The x ≥ 0 with the smallest ‖A x − b‖, by the active-set method of Lawson and Hanson (1974).

    Unknowns enter one at a time, that with the steepest descent first; where the least-squares
    solution would make one negative, the step ends there, and it leaves.
    """
    unknowns = matrix_ru.shape[1]
    x_u, free_u = np.zeros(unknowns), np.zeros(unknowns, dtype=bool)
    tolerance = 1e-13 * max(1.0, float(np.abs(matrix_ru).sum(axis=0).max(initial=0.0)))
    for _ in range(30 * max(unknowns, 1)):
        descent_u = matrix_ru.T @ (wanted_r - matrix_ru @ x_u)
        descent_u[free_u] = -np.inf
        entering = int(descent_u.argmax())
        if descent_u[entering] <= tolerance:
            break
        free_u[entering] = True
        trial_u = _solve_free(matrix_ru, wanted_r, free_u)
        if trial_u[entering] <= 0:  # rounding let it enter: it cannot lower the residual
            free_u[entering] = False
            break
        while (trial_u[free_u] <= 0).any():
            leaving_u = free_u & (trial_u <= 0)
            steps = x_u[leaving_u] / (x_u[leaving_u] - trial_u[leaving_u])
            x_u = x_u + steps.min() * (trial_u - x_u)
            free_u &= x_u > tolerance
            x_u[~free_u] = 0.0
            trial_u = _solve_free(matrix_ru, wanted_r, free_u)
        x_u = trial_u
    return x_u


def null_space(rows_rd: Floats) -> Floats:
    """An orthonormal basis [d, b] of the vectors that are orthogonal to every row."""
    if not rows_rd.size:
        return np.eye(rows_rd.shape[1])
    _, singular, vectors = np.linalg.svd(rows_rd)
    rank = int((singular > TOLERANCE * max(1.0, float(singular.max(initial=0.0)))).sum())
    return np.asarray(vectors[rank:].T)


def affine_combination(points_ed: Floats, target_d: Floats) -> Floats:
    """Coefficients that sum to one and combine the points to the target, or as near as can be."""
    matrix = np.vstack([points_ed.T, np.ones(len(points_ed))])
    return np.linalg.lstsq(matrix, np.append(target_d, 1.0), rcond=None)[0]


def _solve_free(matrix_ru: Floats, wanted_r: Floats, free_u: NDArray[np.bool_]) -> Floats:
    """The least-squares solution in the free unknowns; the others are zero."""
    solution_u = np.zeros(matrix_ru.shape[1])
    solution_u[free_u] = np.linalg.lstsq(matrix_ru[:, free_u], wanted_r, rcond=None)[0]
    return solution_u
