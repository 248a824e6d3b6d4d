"""Weighted least squares as a function of summed item counts.

The coefficients depend on the items only through the sums of w·x·xᵀ and w·x·y. So they are a metric
like any other: their variance over seeds and items comes from the same jackknife.

Shapes: n items, s seeds, p predictors, the first of which is constant.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from heed.arrays import Floats
from heed.stats.variance import Metric

RIDGE = 1e-9
"""Added to the diagonal, as a share of it: predictors that are nearly the same stay finite."""


def regression_counts(outcome_sn: Floats, predictors_np: Floats, weight_n: Floats) -> Floats:
    """The counts [s, n, p·p + p] whose sums the coefficients are a function of.

    `outcome_sn` is the sum of the outcome over an item of weight w, such as the loss of a text of w
    tokens: w·y.
    """
    squares = np.einsum("n,ni,nj->nij", weight_n, predictors_np, predictors_np)
    squares = squares.reshape(len(weight_n), -1)
    products = outcome_sn[..., None] * predictors_np
    shared = np.broadcast_to(squares, (*outcome_sn.shape, squares.shape[-1]))
    return np.concatenate([shared, products], axis=-1)


def solve_coefficients(sums: Floats, predictors: int) -> Floats:
    """The coefficients […, p] from sums […, p·p + p]."""
    matrix, right = _split(sums, predictors)
    scale = np.einsum("...ii->...i", matrix)[..., None] * np.eye(predictors)
    return np.asarray(np.linalg.solve(matrix + RIDGE * scale, right[..., None])[..., 0])


def coefficient_metric(index: int, predictors: int) -> Metric:
    """One coefficient as a metric: the outcome for one unit of the predictor, others equal."""
    return lambda sums: solve_coefficients(sums, predictors)[..., index]


def gap_metric(group: int, predictors: int) -> Metric:
    """The difference of the mean outcome between items in a group and the others.

    The predictor with index `group` is 1 for items in the group and 0 for others.
    """

    def metric(sums: Floats) -> Floats:
        matrix, right = _split(sums, predictors)
        inside, whole = matrix[..., 0, group], matrix[..., 0, 0]
        mean_inside = right[..., group] / inside
        return np.asarray(mean_inside - (right[..., 0] - right[..., group]) / (whole - inside))

    return metric


def contribution_metric(group: int, indices: Sequence[int], predictors: int) -> Metric:
    """How much of a group's gap these predictors account for: Σ coefficient × difference of means.

    With the group itself among the predictors, the contributions of all others and the group's
    coefficient add up to the gap (Oaxaca 1973, Blinder 1973; pooled coefficients).
    """

    def metric(sums: Floats) -> Floats:
        matrix, _ = _split(sums, predictors)
        coefficients = solve_coefficients(sums, predictors)
        inside, whole = matrix[..., 0, group], matrix[..., 0, 0]
        total = np.zeros(coefficients.shape[:-1])
        for i in indices:
            mean_inside = matrix[..., group, i] / inside
            mean_outside = (matrix[..., 0, i] - matrix[..., group, i]) / (whole - inside)
            total = total + coefficients[..., i] * (mean_inside - mean_outside)
        return total

    return metric


def _split(sums: Floats, predictors: int) -> tuple[Floats, Floats]:
    size = predictors * predictors
    matrix = sums[..., :size].reshape(*sums.shape[:-1], predictors, predictors)
    return matrix, sums[..., size:]
