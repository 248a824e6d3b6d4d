"""Replacement of a key: another key in its place, and the query, for target weights.

The other keys get their weights from the query alone; so it is designed for them first. The new key
then needs one score, which fixes its height along the query and nothing else: it stays as close to
the old key as that allows.

Shapes: m keys, o other keys, d coordinates of a key.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from heed.arrays import Floats
from heed.errors import HeedError
from heed.probe.design import (
    EQUAL,
    SHARPNESS,
    Design,
    check_items,
    check_settings,
    check_target,
    design_query,
)
from heed.probe.separation import Dependence, least_distance, null_space
from heed.probe.weight_fit import log_sum_exp, shortest_sharp_length, softmax

STARTS = 200
"""Directions from which a unit-length key is searched where there is no closed form."""


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
    keys_md, values_mv = check_items(keys, values)
    target_m = check_target(target, len(keys_md))
    scale, sharpness = check_settings(scale, sharpness, keys_md.shape[1])
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
        if rest.is_level:  # the shortest such query is 0, and gives every key the same weight
            query_d = np.zeros_like(query_d)
            if abs(share * len(keys_md) - 1) > EQUAL:
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


def _query_for_new_key(others_od: Floats, unit: bool, scale: float, sharpness: float) -> Floats:
    """The query for a key that may be placed anywhere: along the direction with the lowest scores.

    For a key of length 1 the query is as long as the sharpness needs. Else its length is 1, or less
    where keys are large: their scores must not be so large that rounding hides a difference.
    """
    direction_d = _farthest_direction(others_od)
    if not unit:
        return direction_d / max(1.0, float(np.abs(others_od).max()))
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
    if np.linalg.norm(toward_b) <= EQUAL * np.abs(keys_md).max():
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
    if length == 0:  # every key has the score 0
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
    if np.linalg.norm(across_d) <= EQUAL * np.linalg.norm(old_d) and len(axis_d) > 1:
        across_d = null_space(axis_d[None])[:, 0]
    across_d = across_d / (np.linalg.norm(across_d) or 1.0)
    along = float(np.clip(along, -1.0, 1.0))
    return np.asarray(along * axis_d + np.sqrt(1 - along**2) * across_d)


def _is_unit(vector_d: Floats) -> bool:
    return abs(float(np.linalg.norm(vector_d)) - 1) <= EQUAL


def _check_query(query: ArrayLike, width: int) -> Floats:
    query_d = np.asarray(query, dtype=np.float64)
    if query_d.shape != (width,):
        what = f"the query has {query_d.size} numbers, and keys have {width}."
        raise HeedError(what, todo=f"Give {width} numbers.")
    if not np.isfinite(query_d).all():
        raise HeedError("the query has a number that is not finite.", todo="Correct it.")
    return query_d
