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

from heed.errors import HeedError
from heed.probe.separation import (
    Dependence,
    Floats,
    least_distance,
    null_space,
    separate,
)
from heed.probe.weight_fit import (
    fit_query,
    log_sum_exp,
    shortest_sharp_length,
    shortest_sharp_query,
    softmax,
)

SHARPNESS = 0.99
EQUAL = 1e-8
"""Weights that differ by less are equal."""
STARTS = 200
"""Directions from which a unit-length key is searched where there is no closed form."""


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
    keys_md, values_mv = _check_items(keys, values)
    target_m = _check_target(target, len(keys_md))
    scale, sharpness = _check_settings(scale, sharpness, keys_md.shape[1])
    face_m, dependence = find_face(keys_md, target_m > 0)
    inner_d = fit_query(keys_md[face_m], target_m[face_m], scale)
    limit_m = np.zeros(len(keys_md))
    limit_m[face_m] = softmax(scale * keys_md[face_m] @ inner_d)
    if dependence is None and np.abs(limit_m - target_m).max() > EQUAL:
        dependence = find_dependence(keys_md, target_m)
    query_d = inner_d + _push_others_down(keys_md, face_m, inner_d, scale, 1 - sharpness)
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
        face_m = face_m | (answer.coefficients_m < -1e-12)
    return face_m, first


def find_dependence(keys_md: Floats, target_m: Floats) -> Dependence:
    """The dependence of the keys that positive target weights violate most, of length 1."""
    used_m = target_m > 0
    basis = null_space(np.column_stack([keys_md[used_m], np.ones(used_m.sum())]).T)
    violation = basis @ (basis.T @ np.log(target_m[used_m]))
    coefficients_m = np.zeros(len(keys_md))
    coefficients_m[used_m] = violation / (np.abs(violation).max() or 1.0)
    return Dependence(coefficients_m)


def replace_key(
    keys: ArrayLike,
    index: int,
    target: ArrayLike,
    *,
    unit: bool = False,
    query: ArrayLike | None = None,
    values: ArrayLike | None = None,
    scale: float | None = None,
    sharpness: float = SHARPNESS,
) -> Design:
    """Another key in place of key `index`, and the query, for these target weights.

    The new key is as close to the old one as the target allows. With `unit` it has the length 1. A
    `query` may be given: then only the weight of the new key can be chosen.
    """
    keys_md, values_mv = _check_items(keys, values)
    target_m = _check_target(target, len(keys_md))
    scale, sharpness = _check_settings(scale, sharpness, keys_md.shape[1])
    if len(keys_md) < 2:
        raise HeedError("a single key has all of the weight.", todo="Give two keys or more.")
    others_m = np.arange(len(keys_md)) != index
    share = float(target_m[index])
    dependence, limit_m = None, target_m
    if query is not None:
        query_d = _check_query(query, keys_md.shape[1])
    elif share == 1.0:
        query_d = _query_for_new_key(keys_md[others_m], unit, scale, sharpness)
    else:
        rest = design_query(
            keys_md[others_m],
            target_m[others_m] / (1 - share),
            scale=scale,
            sharpness=_sharpness_of_rest(share, sharpness),
        )
        query_d = rest.query_d
        if rest.length <= EQUAL and abs(share * len(keys_md) - 1) > EQUAL:
            query_d = _level_query(keys_md, index, share, scale, sharpness)
        limit_m = np.insert((1 - share) * rest.limit_m, index, share)
        if rest.dependence is not None:
            dependence = Dependence(np.insert(rest.dependence.coefficients_m, index, 0.0))
    wanted_m = others_m & (limit_m > 0) if share < 1.0 and query is None else others_m
    score = _score_for_weight(scale * keys_md[wanted_m] @ query_d, share, sharpness) / scale
    old_d = keys_md[index]
    if share == 0 and old_d @ query_d <= score and (not unit or _is_unit(old_d)):
        key_d = old_d  # it is low enough where it is
    else:
        key_d = _place_key(old_d, query_d, score, unit=unit, is_selected=share == 1.0)
    changed_md = keys_md.copy()
    changed_md[index] = key_d
    if query is not None and share < 1.0:
        limit_m = softmax(scale * changed_md @ query_d)
    return Design(
        changed_md,
        target_m,
        query_d,
        limit_m,
        scale,
        sharpness,
        dependence,
        replaced=index,
        values_mv=values_mv,
    )


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
        return float((target_m[used] * np.log(target_m[used] / weights_m[used])).sum())


def _push_others_down(
    keys_md: Floats, face_m: NDArray[np.bool_], inner_d: Floats, scale: float, share: float
) -> Floats:
    """The shortest addition to a query that leaves keys outside a face this share of the weight.

    It scores the keys of the face alike, so their proportions stay.
    """
    face_fd, others_od = keys_md[face_m], keys_md[~face_m]
    basis_db = null_space(face_fd - face_fd[0])
    start_o = scale * others_od @ inner_d - log_sum_exp(scale * face_fd @ inner_d)
    rows_ob = scale * (others_od - face_fd[0]) @ basis_db
    return np.asarray(basis_db @ shortest_sharp_query(rows_ob, start_o, share))


def _query_for_new_key(others_od: Floats, unit: bool, scale: float, sharpness: float) -> Floats:
    """The query for a key that may be placed anywhere: along the direction with the lowest scores.

    For a key of length 1 the query is as long as the sharpness needs; else its length is 1.
    """
    direction_d = _farthest_direction(others_od)
    if not unit:
        return direction_d
    slopes_o = scale * (others_od @ direction_d - 1.0)
    if slopes_o.max() >= -EQUAL * scale:
        raise HeedError(
            "no unit-length key was found that scores higher than all other keys: they surround "
            "the unit sphere.",
            todo="Shorten the other keys, or replace the key by one of any length.",
        )
    return direction_d * shortest_sharp_length(slopes_o, 1 - sharpness)


def _farthest_direction(keys_md: Floats) -> Floats:
    """The unit vector whose largest score among the keys is smallest.

    Where the hull of the keys excludes zero, it points away from the hull's point next to zero.
    Else it is the best of a search over the sphere.
    """
    answer = least_distance(-keys_md / (np.abs(keys_md).max() or 1.0))
    if answer.feasible:
        return np.asarray(answer.values_u / np.linalg.norm(answer.values_u))
    around_bd = null_space(keys_md).T
    if len(around_bd):
        return np.asarray(around_bd[0])
    random = np.random.default_rng(0)
    starts = np.vstack([-keys_md, random.normal(size=(STARTS, keys_md.shape[1]))])
    starts = starts[np.linalg.norm(starts, axis=1) > 0]
    directions = starts / np.linalg.norm(starts, axis=1, keepdims=True)
    top = float(np.linalg.norm(keys_md, axis=1).max())
    for step in 0.5 * 0.97 ** np.arange(STARTS):  # subgradient descent, all starts at once
        highest = keys_md[(directions @ keys_md.T).argmax(axis=1)]
        moved = directions - step * highest / top
        moved /= np.linalg.norm(moved, axis=1, keepdims=True)
        better = (moved @ keys_md.T).max(axis=1) < (directions @ keys_md.T).max(axis=1)
        directions = np.where(better[:, None], moved, directions)
    return np.asarray(directions[(directions @ keys_md.T).max(axis=1).argmin()])


def _level_query(
    keys_md: Floats, index: int, share: float, scale: float, sharpness: float
) -> Floats:
    """A query that scores all other keys alike, and is not 0: it leaves the new key its choice.

    It is long enough that a key of length 1 can have the score, where the others are shorter.
    """
    others_od = np.delete(keys_md, index, axis=0)
    basis_db = null_space(others_od - others_od[0])
    if not basis_db.size:
        raise HeedError(
            "only the query 0 gives the other keys these weights, and it gives every key the same.",
            todo=f"Give the new key the weight 1/{len(keys_md)}, or leave out a key.",
        )
    toward_b = (keys_md[index] - others_od[0]) @ basis_db
    if np.linalg.norm(toward_b) <= EQUAL:
        toward_b = np.eye(len(toward_b))[0]
    axis_d = basis_db @ (toward_b / np.linalg.norm(toward_b))
    level = abs(float(others_od[0] @ axis_d))
    offset = _score_for_weight(np.zeros(len(others_od)), share, sharpness) / scale
    return np.asarray(axis_d * (max(1.0, 2 * abs(offset) / (1 - level)) if level < 1 else 1.0))


def _sharpness_of_rest(share: float, sharpness: float) -> float:
    """The sharpness among the other keys that leaves the whole set its sharpness.

    The new key's share enlarges the set; a new key that is to be ignored takes half of what is
    left to ignored keys.
    """
    if share == 0:
        return 1 - (1 - sharpness) / 2
    odds = (1 - sharpness) / sharpness / (1 - share)
    return 1 / (1 + odds)


def _score_for_weight(scores_m: Floats, share: float, sharpness: float) -> float:
    """The score that a new key needs beside these, for its share of the weight.

    All of it means the sharpness, none of it half of the rest.
    """
    wanted = share if 0 < share < 1 else sharpness if share else (1 - sharpness) / 2
    return log_sum_exp(scores_m) + float(np.log(wanted) - np.log1p(-wanted))


def _place_key(
    old_d: Floats, query_d: Floats, score: float, *, unit: bool, is_selected: bool
) -> Floats:
    """The key closest to the old one with this score; a selected unit key may have a higher one."""
    length = float(np.linalg.norm(query_d))
    if length <= EQUAL:  # all keys have the score 0
        return old_d / (np.linalg.norm(old_d) or 1.0) if unit else old_d
    axis_d, along = query_d / length, score / length
    if not unit:
        return np.asarray(old_d + (along - old_d @ axis_d) * axis_d)
    if abs(along) > 1 + EQUAL:
        raise HeedError(
            f"with this query the key needs the product {score:.4g} with it, and a key of length 1 "
            f"has at most {length:.4g} (the Cauchy-Schwarz inequality).",
            todo="Leave out the unit length, or scale all keys to the length 1.",
        )
    if is_selected:
        return np.asarray(axis_d)
    across_d = old_d - (old_d @ axis_d) * axis_d
    if np.linalg.norm(across_d) <= EQUAL and len(axis_d) > 1:
        across_d = null_space(axis_d[None])[:, 0]
    across_d = across_d / (np.linalg.norm(across_d) or 1.0)
    along = float(np.clip(along, -1.0, 1.0))
    return np.asarray(along * axis_d + np.sqrt(1 - along**2) * across_d)


def _is_unit(vector_d: Floats) -> bool:
    return abs(float(np.linalg.norm(vector_d)) - 1) <= EQUAL


def _check_items(keys: ArrayLike, values: ArrayLike | None) -> tuple[Floats, Floats | None]:
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
    return matrix


def _check_target(target: ArrayLike, items: int) -> Floats:
    target_m = np.asarray(target, dtype=np.float64)
    if target_m.shape != (items,):
        what = f"there are {items} keys and {target_m.size} target weights."
        raise HeedError(what, todo="Give one weight for each key.")
    if not np.isfinite(target_m).all() or (target_m < 0).any() or target_m.sum() <= 0:
        raise HeedError("target weights are numbers from 0 to 1.", todo="Correct them.")
    if abs(target_m.sum() - 1) > 0.005 * items:
        what = f"the target weights sum to {target_m.sum():.4g}, and attention weights sum to 1."
        raise HeedError(what, todo="Divide them by their sum.")
    return target_m / target_m.sum()


def _check_settings(scale: float | None, sharpness: float, width: int) -> tuple[float, float]:
    if scale is not None and not (np.isfinite(scale) and scale > 0):
        raise HeedError(f"the scale is {scale}.", todo="Give a number above 0.")
    if not 0 < sharpness < 1:
        what = f"the sharpness is {sharpness}, and no query gives a key less than 0 or all of it."
        raise HeedError(what, todo="Give a number between 0 and 1, such as 0.99.")
    return width**-0.5 if scale is None else float(scale), sharpness


def _check_query(query: ArrayLike, width: int) -> Floats:
    query_d = np.asarray(query, dtype=np.float64)
    if query_d.shape != (width,) or not np.isfinite(query_d).all():
        what = f"the query has {query_d.size} numbers, and keys have {width}."
        raise HeedError(what, todo=f"Give {width} finite numbers.")
    return query_d
