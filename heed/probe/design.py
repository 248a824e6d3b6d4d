"""Attention by design: the query, or the key, that makes attention give chosen weights.

Attention with the query q gives key j the weight softmax(scale · K q)_j. Three facts decide what a
query can do:

1. It can give all weight to a set of keys, in the limit, only if it separates them from all others
   by their scores (`separation`). A key in the hull of the others can never be selected.
2. Weights w on a set are reached only if log w is an affine function of the keys there.
3. A linear dependence of the keys, Σ z_j k_j = 0 with Σ z_j = 0, makes Σ z_j log w_j = 0 for every
   query. A target that violates it is impossible, and the z proves it.

Weights that are zero are reached by no query, only in the limit of long ones; `sharpness` says how
much of the weight the chosen keys get together. Items are counted from 0 in Python.

Shapes: m keys, d coordinates of a key, v coordinates of a value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from heed.arrays import Floats
from heed.errors import HeedError
from heed.probe.separation import (
    Dependence,
    affine_hull,
    null_space,
    separate,
)
from heed.probe.weight_fit import (
    fit_query,
    log_sum_exp,
    shortest_sharp_query,
    softmax,
)

SHARPNESS = 0.99
LARGEST = 1e100
"""The largest number of a key or value, and 1 over the smallest that a whole matrix may have."""
EQUAL = 1e-8
"""Weights that differ by less are equal."""


@dataclass(frozen=True)
class Design:
    """A query (and keys) for target weights, with what attention makes of it."""

    keys_md: Floats
    target_m: Floats
    query_d: Floats
    limit_m: Floats
    """The weights that queries approach, the closest to the target by KL(target ‖ weights)."""
    scale: float
    sharpness: float
    dependence: Dependence | None = None
    """The proof that no query reaches the target; None where the limit is the target."""
    replaced: int | None = None
    """The key that was replaced."""
    values_mv: Floats | None = field(default=None, repr=False)

    @property
    def weights_m(self) -> Floats:
        """The weights that attention gives with this query."""
        return softmax(self.scale * self.keys_md @ self.query_d)

    @property
    def is_possible(self) -> bool:
        """Whether the target is reached, exactly or in the limit of long queries."""
        return bool(np.abs(self.limit_m - self.target_m).max() <= EQUAL)

    @property
    def is_exact(self) -> bool:
        """Whether this very query gives the target, not only the limit of longer ones."""
        return self.is_possible and bool((self.limit_m > 0).all())

    @property
    def largest_deviation(self) -> float:
        """The largest |weight − target|."""
        return float(np.abs(self.weights_m - self.target_m).max())

    @property
    def divergence(self) -> float:
        """KL(target ‖ weights) in nats."""
        return divergence(self.target_m, self.weights_m)

    @property
    def length(self) -> float:
        """The Euclidean length of the query."""
        return float(np.linalg.norm(self.query_d))

    @property
    def is_level(self) -> bool:
        """Whether the query scores all keys alike, as the query 0 does."""
        return bool(np.ptp(self.scale * self.keys_md @ self.query_d) <= EQUAL)

    @property
    def output_v(self) -> Floats | None:
        """What attention returns; None without values."""
        return None if self.values_mv is None else self.weights_m @ self.values_mv

    @property
    def value_error(self) -> float | None:
        """The distance of the output from that of the target weights; None without values."""
        if self.values_mv is None:
            return None
        return float(np.linalg.norm((self.weights_m - self.target_m) @ self.values_mv))

    def to_dict(self) -> dict[str, Any]:
        """The fields for JSON; items are counted from 1."""
        output_v, dependence = self.output_v, self.dependence
        return {
            "possible": self.is_possible,
            "exact": self.is_exact,
            "scale": self.scale,
            "sharpness": self.sharpness,
            "query": self.query_d.tolist(),
            "query_length": self.length,
            "target": self.target_m.tolist(),
            "weights": self.weights_m.tolist(),
            "limit": self.limit_m.tolist(),
            "largest_deviation": self.largest_deviation,
            "kl_divergence": self.divergence,
            "output": None if output_v is None else output_v.tolist(),
            "value_error": self.value_error,
            "replaced_key": None if self.replaced is None else self.replaced + 1,
            "keys": self.keys_md.tolist(),
            "dependence": None if dependence is None else dependence.coefficients_m.tolist(),
            "least_squares_deviation": float(
                np.abs(least_squares_weights(self) - self.target_m).max()
            ),
        }


def design_query(
    keys: ArrayLike,
    target: ArrayLike,
    *,
    values: ArrayLike | None = None,
    scale: float | None = None,
    sharpness: float = SHARPNESS,
) -> Design:
    """The shortest query for these target weights, or for the closest that a query reaches.

    Where some target weights are zero, the other keys together get `sharpness` of the weight, in
    the right proportions. `scale` is that of `attend`: 1/√d where it is None.
    """
    keys_md, values_mv = check_items(keys, values)
    target_m = check_target(target, len(keys_md))
    scale, sharpness = check_settings(scale, sharpness, keys_md.shape[1])
    size = float(np.abs(keys_md).max()) or 1.0
    rows_md = keys_md / size  # rounding is that of keys near 1, whatever their unit
    face_m, dependence = find_face(rows_md, target_m > 0)
    inner_d = fit_query(rows_md[face_m], target_m[face_m])
    limit_m = np.zeros(len(keys_md))
    limit_m[face_m] = softmax(rows_md[face_m] @ inner_d)
    if dependence is None and np.abs(limit_m - target_m).max() > EQUAL:
        dependence = find_dependence(rows_md, target_m)
    whole_d = inner_d + _push_others_down(rows_md, face_m, inner_d, 1 - sharpness)
    query_d = whole_d / size / scale
    return Design(
        keys_md, target_m, query_d, limit_m, scale, sharpness, dependence, values_mv=values_mv
    )


def find_face(
    keys_md: Floats, wanted_m: NDArray[np.bool_]
) -> tuple[NDArray[np.bool_], Dependence | None]:
    """The smallest set of keys around the wanted ones that a query can separate from the others.

    It is the wanted set itself, or a dependence says why not: it names keys that no query scores
    lower than the wanted ones. These join them, and the larger set is tried. Geometrically the set
    is the smallest face of the keys' hull with all wanted keys.
    """
    face_m, first = wanted_m.copy(), None
    while isinstance(answer := separate(keys_md, face_m), Dependence):
        first = first or answer
        face_m = affine_hull(keys_md, face_m | (answer.coefficients_m < -1e-12))
    return face_m, first


def find_dependence(keys_md: Floats, target_m: Floats) -> Dependence:
    """The dependence of the keys that positive target weights violate most, of length 1."""
    used_m = target_m > 0
    basis = null_space(np.column_stack([keys_md[used_m], np.ones(used_m.sum())]).T)
    violation = basis @ (basis.T @ np.log(target_m[used_m]))
    coefficients_m = np.zeros(len(keys_md))
    coefficients_m[used_m] = violation / (np.abs(violation).max() or 1.0)
    return Dependence(coefficients_m)


def select_target(items: int, index: int) -> Floats:
    """Target weights that select one item."""
    return average_target(items, [index])


def average_target(items: int, chosen: Sequence[int]) -> Floats:
    """Target weights that average the chosen items."""
    target_m = np.zeros(items)
    target_m[list(chosen)] = 1 / len({*chosen})
    return target_m


def largest_weight(design: Design) -> float | None:
    """A bound on the weight of a selected key that lies in the hull of the others, for any query.

    If k = Σ c_j k_j with c ≥ 0, then exp is convex and w ≤ Σ c_j w_j ≤ max c · (1 − w).
    """
    if design.dependence is None or design.target_m.max() < 1:
        return None
    shares_m = np.maximum(-design.dependence.coefficients_m, 0.0)
    top = float(shares_m.max())
    return top / (1 + top)


def least_squares_weights(design: Design) -> Floats:
    """The weights of the naive query: least squares on scale · K q = the target's log-weights.

    Zeros of the target share what the sharpness leaves. A longer query is always sharper, so the
    naive one is then given the length of the designed one.
    """
    zero_m, target_m = design.target_m == 0, design.target_m
    if zero_m.any():
        rest = (1 - design.sharpness) / zero_m.sum()
        target_m = np.where(zero_m, rest, design.sharpness * target_m)
    rows_md = design.scale * design.keys_md
    query_d = np.linalg.lstsq(rows_md, np.log(target_m), rcond=None)[0]
    length = float(np.linalg.norm(query_d))
    if zero_m.any() and length > 0:
        query_d = query_d * (design.length / length)
    return softmax(rows_md @ query_d)


def divergence(target_m: Floats, weights_m: Floats) -> float:
    """KL(target ‖ weights) in nats."""
    used = target_m > 0
    with np.errstate(divide="ignore"):
        logs = np.log(target_m[used]) - np.log(weights_m[used])
    return max(0.0, float(target_m[used] @ logs))  # rounding alone makes it negative


def _push_others_down(
    keys_md: Floats, face_m: NDArray[np.bool_], inner_d: Floats, share: float
) -> Floats:
    """The shortest addition to a query that leaves keys outside a face this share of the weight.

    It scores the keys of the face alike, so their proportions stay.
    """
    face_fd, others_od = keys_md[face_m], keys_md[~face_m]
    basis_db = null_space(face_fd - face_fd[0])
    start_o = others_od @ inner_d - log_sum_exp(face_fd @ inner_d)
    rows_ob = (others_od - face_fd[0]) @ basis_db
    return np.asarray(basis_db @ shortest_sharp_query(rows_ob, start_o, share))


def check_items(keys: ArrayLike, values: ArrayLike | None) -> tuple[Floats, Floats | None]:
    """Keys and values as matrices, or an error that says what is wrong with them."""
    keys_md = _check_matrix(keys, "keys")
    if values is None:
        return keys_md, None
    values_mv = _check_matrix(values, "values")
    if len(values_mv) != len(keys_md):
        raise HeedError(
            f"there are {len(keys_md)} keys and {len(values_mv)} values.",
            todo="Give one value for each key.",
        )
    return keys_md, values_mv


def _check_matrix(rows: ArrayLike, name: str) -> Floats:
    try:
        matrix = np.asarray(rows, dtype=np.float64)
    except (TypeError, ValueError):
        matrix = np.empty(0)
    if matrix.ndim != 2 or not matrix.size:
        what = f"{name} are a table of numbers: one row for each item, rows of one length."
        raise HeedError(what, todo="Give them as [[1, 0], [0, 1]].")
    if not np.isfinite(matrix).all():
        row = int(np.argwhere(~np.isfinite(matrix))[0][0])
        raise HeedError(f"row {row + 1} of the {name} has a number that is not finite.")
    top = float(np.abs(matrix).max())
    if top > LARGEST or 0 < top < 1 / LARGEST:
        what = f"the largest of the {name} is {top:.3g}: a query for such numbers overflows."
        raise HeedError(what, todo="Use another unit, so that they are near 1.")
    return matrix


def check_target(target: ArrayLike, items: int) -> Floats:
    """Target weights that sum to one, or an error."""
    target_m = np.asarray(target, dtype=np.float64)
    if target_m.shape != (items,):
        what = f"there are {items} keys and {target_m.size} target weights."
        raise HeedError(what, todo="Give one weight for each key.")
    if not np.isfinite(target_m).all() or (target_m < 0).any() or target_m.sum() <= 0:
        raise HeedError("target weights are numbers from 0 to 1.", todo="Correct them.")
    if abs(target_m.sum() - 1) > min(0.005 * items, 0.05):  # rounded to two decimals
        what = f"the target weights sum to {target_m.sum():.4g}, and attention weights sum to 1."
        raise HeedError(what, todo="Divide them by their sum.")
    return target_m / target_m.sum()


def check_settings(scale: float | None, sharpness: float, width: int) -> tuple[float, float]:
    """The scale, by default that of `attend`, and the sharpness; or an error."""
    if scale is not None and not (np.isfinite(scale) and scale > 0):
        raise HeedError(f"the scale is {scale}.", todo="Give a number above 0.")
    if not 0 < sharpness < 1:
        what = f"the sharpness is {sharpness}, and no query gives a key less than 0 or all of it."
        raise HeedError(what, todo="Give a number between 0 and 1, such as 0.99.")
    return width**-0.5 if scale is None else float(scale), sharpness
