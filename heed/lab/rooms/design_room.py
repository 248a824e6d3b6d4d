"""The design room: keys, values and a query in two dimensions, and what attention makes of them.

Items are counted from 0 in JSON. The designed query, and the proof where there is none, are those
of `heed design`.
"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from heed.arrays import Floats
from heed.errors import HeedError
from heed.lab.lab_context import Lab
from heed.probe.design import (
    SHARPNESS,
    Design,
    average_target,
    check_items,
    check_settings,
    design_query,
    largest_weight,
)
from heed.probe.design_text import describe_answer
from heed.probe.key_replacement import replace_key
from heed.probe.separation import Separation, separate
from heed.probe.weight_fit import softmax

MAX_ITEMS = 12
"""Keys that a plane has room for."""
LARGEST = 1000.0

router = APIRouter(prefix="/api/design")

Coordinate = Annotated[float, Field(ge=-LARGEST, le=LARGEST, allow_inf_nan=False)]
Point = tuple[Coordinate, Coordinate]
Item = Annotated[int, Field(ge=0, lt=MAX_ITEMS)]


class DesignRequest(BaseModel):
    """Keys, values and a query, and the weights that are wanted."""

    model_config = ConfigDict(extra="forbid")

    keys: Annotated[list[Point], Field(min_length=1, max_length=MAX_ITEMS)]
    values: Annotated[list[Point], Field(max_length=MAX_ITEMS)] | None = None
    query: Point = (0.0, 0.0)
    scale: float | None = None
    """The factor of the scores: 1/√2 where it is unset."""
    average: Annotated[list[Item], Field(min_length=1, max_length=MAX_ITEMS)] | None = None
    """The items that are to share all weight; one item is selected."""
    weights: Annotated[list[float], Field(max_length=MAX_ITEMS)] | None = None
    """The weights that are wanted, instead of `average`."""
    replace: Item | None = None
    """A key that the design may move."""
    unit: bool = False
    """Whether the moved key has the length 1."""
    sharpness: float = SHARPNESS


class Preset(DesignRequest):
    """A request to begin with, and its name."""

    name: str
    title: str
    lesson: str
    """What there is to see."""


KEYS: list[Point] = [(1.0, 0.3), (0.2, 1.0), (-0.9, 0.5), (-0.1, -1.0)]
VALUES: list[Point] = [(-0.8, -0.6), (0.9, -0.4), (0.6, 0.8), (-0.5, 0.7)]
INSIDE: list[Point] = [(1.0, 0.3), (0.2, 1.0), (-0.9, 0.5), (0.1, 0.55)]
PRESETS = [
    Preset(
        name="select",
        title="Select one value",
        lesson="A query along which key 1 scores highest; longer is sharper.",
        keys=KEYS,
        values=VALUES,
        query=(1.5, -0.5),
        average=[0],
    ),
    Preset(
        name="average-two",
        title="Average two values",
        lesson="The query is perpendicular to the line through keys 1 and 2, so both score alike.",
        keys=KEYS,
        values=VALUES,
        query=(1.0, 1.0),
        average=[0, 1],
    ),
    Preset(
        name="average-all",
        title="Average all values",
        lesson="The query 0 scores every key alike: all weights are equal.",
        keys=KEYS,
        values=VALUES,
        query=(0.8, 0.2),
        average=[0, 1, 2, 3],
    ),
    Preset(
        name="weights",
        title="Give 0.5, 0.3 and 0.2",
        lesson="Three keys that are not on a line: a query reaches any positive weights exactly.",
        keys=KEYS[:3],
        values=VALUES[:3],
        query=(0.5, 0.5),
        weights=[0.5, 0.3, 0.2],
    ),
    Preset(
        name="inside",
        title="A key inside the hull",
        lesson="Key 4 lies among the others. No query selects it, and the certificate says why.",
        keys=INSIDE,
        values=VALUES,
        query=(0.5, 1.0),
        average=[3],
    ),
    Preset(
        name="opposite",
        title="Average across the hull",
        lesson="Keys 1 and 3 face each other: what scores both alike scores key 2 or 4 no lower.",
        keys=KEYS,
        values=VALUES,
        query=(0.0, 1.0),
        average=[0, 2],
    ),
    Preset(
        name="replace",
        title="Average three, key 3 moved",
        lesson="With key 3 moved onto the line of keys 1 and 2, one query averages all three.",
        keys=KEYS,
        values=VALUES,
        query=(1.0, 1.0),
        average=[0, 1, 2],
        replace=2,
    ),
    Preset(
        name="unit-key",
        title="Select with a key of length 1",
        lesson="Key 4 is moved to where a key of length 1 stands out most.",
        keys=INSIDE,
        values=VALUES,
        query=(0.5, -1.0),
        average=[3],
        replace=3,
        unit=True,
    ),
]
"""The tasks of the course's problem set in two dimensions, and two that are impossible."""


@router.get("/presets")
def list_presets() -> list[dict[str, Any]]:
    """Problems to begin with."""
    return [preset.model_dump() for preset in PRESETS]


@router.post("")
async def compute_design(body: DesignRequest, lab: Lab) -> dict[str, Any]:
    """Weights and output of the query, the hulls, and the designed query with its proof."""
    return await lab.queue.run(solve, body)


def solve(body: DesignRequest) -> dict[str, Any]:
    """What attention makes of these keys, values and query, and the design for the target."""
    keys_md, values_mv = check_items(body.keys, body.values)
    scale, _ = check_settings(body.scale, body.sharpness, keys_md.shape[1])
    scores_m = scale * keys_md @ np.array(body.query)
    weights_m = softmax(scores_m)
    return {
        "scale": scale,
        "query_length": float(np.linalg.norm(body.query)),
        "scores": scores_m.tolist(),
        "weights": weights_m.tolist(),
        "output": None if values_mv is None else (weights_m @ values_mv).tolist(),
        "key_hull": find_hull(keys_md),
        "value_hull": None if values_mv is None else find_hull(values_mv),
        "design": _design(body, keys_md, scale),
    }


def _design(body: DesignRequest, keys_md: Floats, scale: float) -> dict[str, Any] | None:
    """The design for the wanted weights; None where none are wanted."""
    if body.average is not None and body.weights is not None:
        raise HeedError("average and weights are different tasks.", todo="Give one of them.")
    items, target = len(keys_md), body.weights
    if body.average is not None:
        _check_items([*body.average], items)
        target = average_target(items, body.average).tolist()
    if target is None:
        return None
    options: dict[str, Any] = {
        "values": body.values,
        "scale": scale,
        "sharpness": body.sharpness,
    }
    if body.replace is None:
        design = design_query(keys_md, target, **options)
    else:
        _check_items([body.replace], items)
        design = replace_key(keys_md, body.replace, target, unit=body.unit, **options)
    fields = design.to_dict()
    del fields["keys"], fields["replaced_key"]  # counted from 1 there
    return fields | {
        "keys": design.keys_md.tolist(),
        "replaced": design.replaced,
        "answer": describe_answer(design),
        "largest_weight": largest_weight(design),
        "gap": _measure_gap(design),
    }


def _measure_gap(design: Design) -> float | None:
    """How far the keys with weight stand out along the best direction; None where none does."""
    wanted_m = design.target_m > 0
    answer = separate(design.keys_md, wanted_m)
    return answer.margin if isinstance(answer, Separation) and not wanted_m.all() else None


def _check_items(indices: list[int], items: int) -> None:
    for index in indices:
        if index >= items:
            raise HeedError(f"there is no item {index + 1}: there are {items}.")


def find_hull(points_m2: Floats) -> list[int]:
    """The corners of the convex hull of points in a plane, in order around it.

    This is Andrew's monotone chain (1979). Points on a border are no corners.
    """
    order = sorted({tuple(point): i for i, point in reversed([*enumerate(points_m2)])}.items())
    if len(order) < 3:
        return [i for _, i in order]

    def chain(points: list[tuple[Any, int]]) -> list[int]:
        corners: list[int] = []
        for _, index in points:
            while len(corners) > 1 and _turn(points_m2[[*corners[-2:], index]]) <= 0:
                corners.pop()
            corners.append(index)
        return corners[:-1]

    return chain(order) + chain(order[::-1])


def _turn(points_32: Floats) -> float:
    """Twice the signed area of a triangle: positive if its corners go around to the left."""
    (ax, ay), (bx, by) = points_32[1] - points_32[0], points_32[2] - points_32[0]
    return float(ax * by - ay * bx)
