"""Figures of designed attention: keys, their hull, the query's direction, and the weights.

Keys in the plane are drawn where they are. Keys with more coordinates are seen from the side, so
that the query points straight up: the height of a key is its score. An edge of the hull joins two
keys where a query can score both higher than all keys off their line. Dotted lines show why a task
is impossible: they join the keys of the combination that proves it.

Shapes: m keys, d coordinates.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from heed import plot
from heed.arrays import Floats
from heed.probe.design import EQUAL, Design, find_face
from heed.probe.design_problem import Solution
from heed.probe.separation import null_space

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_EDGES = 24
"""Keys up to which edges of the hull are drawn."""
SIDE, BARS, GAP = 2.7, 1.9, 0.55
"""Inches: the side of the keys' panel, the width of the weights' panel, the space between."""
CHOSEN, OTHER = plot.GOLD, plot.COLORS[0]
UNIT = np.array([-1.0, 1.0])


def draw_solutions(solutions: Sequence[Solution]) -> Figure:
    """One row for each solution: the keys and the query at the left, the weights at the right."""
    row = SIDE + 1.0
    with plot.use_style():
        figure = plot.new_figure(SIDE + BARS + 2 * GAP + 0.35, row * len(solutions))
        for number, solution in enumerate(solutions):
            bottom = row * (len(solutions) - 1 - number) + 0.45
            keys = plot.add_axes(figure, 0.2, bottom, SIDE, SIDE)
            weights = plot.add_axes(figure, 0.2 + SIDE + GAP, bottom, BARS, SIDE)
            _draw_keys(keys, solution.design)
            _draw_weights(weights, solution.design)
            note = "" if solution.design.is_possible else " (impossible)"
            keys.set_title(f"{solution.title}{note}", pad=8)
    return figure


def project_keys(design: Design) -> tuple[Floats, Floats]:
    """Where keys are drawn [m, 2], and the direction of the query there [2].

    In the plane these are the keys. Else the vertical axis is the query's direction, and the
    horizontal one that in which the keys differ most beside it.
    """
    keys_md, width = design.keys_md, design.keys_md.shape[1]
    up_d = np.zeros(width) if design.is_level else design.query_d / design.length
    if width == 2:
        return keys_md, up_d
    if width == 1:
        return np.column_stack([np.zeros(len(keys_md)), keys_md[:, 0]]), np.array([0.0, up_d[0]])
    if design.is_level:
        _, _, axes = np.linalg.svd(keys_md - keys_md.mean(axis=0), full_matrices=True)
        return keys_md @ axes[:2].T, np.zeros(2)
    around_db = null_space(up_d[None])
    spread = (keys_md - keys_md.mean(axis=0)) @ around_db
    right_d = around_db @ np.linalg.svd(spread, full_matrices=True)[2][0]
    right_d = right_d * (np.sign(right_d[np.abs(right_d).argmax()]) or 1.0)
    return np.column_stack([keys_md @ right_d, keys_md @ up_d]), np.array([0.0, 1.0])


def hull_edges(keys_md: Floats) -> list[tuple[int, int]]:
    """Pairs of keys on one edge of the hull: the smallest face with both is a line."""
    if len(keys_md) > MOST_EDGES:
        return []
    edges = []
    for pair in combinations(range(len(keys_md)), 2):
        face_m, _ = find_face(keys_md, np.isin(np.arange(len(keys_md)), pair))
        face_fd = keys_md[face_m]
        if np.linalg.matrix_rank(face_fd - face_fd[0]) == 1:
            edges.append(pair)
    return edges


def _draw_keys(axes: Axes, design: Design) -> None:
    from matplotlib.patheffects import withStroke

    points_m2, up_2 = project_keys(design)
    for a, b in hull_edges(design.keys_md):
        axes.plot(*points_m2[[a, b]].T, color="#a6a6a6", linewidth=1.0, zorder=1)
    _draw_dependence(axes, points_m2, design)
    tip_2 = 0.9 * up_2 * float(np.linalg.norm(points_m2, axis=1).max())
    shown = np.vstack([points_m2, np.zeros(2), tip_2])
    low_2, high_2 = shown.min(axis=0), shown.max(axis=0)
    center_2, reach = (low_2 + high_2) / 2, 0.7 * float((high_2 - low_2).max()) or 1.0
    middle_2 = points_m2.mean(axis=0)
    for index, (point_2, weight) in enumerate(zip(points_m2, design.weights_m, strict=True)):
        chosen = design.target_m[index] > 0
        axes.scatter(
            [point_2[0]],
            [point_2[1]],
            s=28 + 260 * weight,
            marker="s" if chosen else "o",
            facecolor=CHOSEN if chosen else OTHER,
            edgecolor="white",
            linewidth=1.0,
            zorder=3,
        )
        name = f"{index + 1} (new)" if index == design.replaced else str(index + 1)
        away_2 = point_2 - middle_2
        axes.annotate(
            name,
            point_2,
            away_2 / (np.linalg.norm(away_2) or 1.0) * 14,
            textcoords="offset points",
            ha="center",
            va="center",
            fontsize=plot.TEXT_SIZE,
            path_effects=[withStroke(linewidth=2.5, foreground="white")],  # over lines too
            zorder=4,
        )
    axes.plot(0, 0, marker="+", color=plot.INK, markersize=7, zorder=2)
    if not design.is_level:
        arrow = {"arrowstyle": "-|>", "color": plot.INK, "linewidth": 1.6, "shrinkA": 0}
        axes.annotate("", (tip_2[0], tip_2[1]), (0, 0), arrowprops=arrow, zorder=2)
        _draw_level(axes, points_m2, up_2)
    limits = {"xlim": center_2[0] + reach * UNIT, "ylim": center_2[1] + reach * UNIT}
    axes.set(**limits, aspect="equal", xticks=[], yticks=[])
    axes.spines[["top", "right", "bottom", "left"]].set_color(plot.FAINT)
    axes.set_xlabel(_describe_view(design), fontsize=plot.NOTE_SIZE)


def _draw_level(axes: Axes, points_m2: Floats, up_2: Floats) -> None:
    """A dashed line through the highest score: keys below it have lower scores."""
    top = float((points_m2 @ up_2).max())
    far = 20 * float(np.abs(points_m2).max())
    ends = up_2 * top + np.outer(UNIT, [up_2[1], -up_2[0]]) * far
    axes.plot(*ends.T, color=plot.INK, linewidth=0.8, linestyle=(0, (4, 3)), zorder=0)


def _draw_dependence(axes: Axes, points_m2: Floats, design: Design) -> None:
    """Dotted lines between the two sides of the combination that proves a task impossible."""
    if design.dependence is None:
        return
    coefficients_m = design.dependence.coefficients_m
    for a in np.flatnonzero(coefficients_m > EQUAL):
        for b in np.flatnonzero(coefficients_m < -EQUAL):
            axes.plot(*points_m2[[a, b]].T, color=plot.INK, linewidth=1.2, linestyle=":", zorder=1)


def _describe_view(design: Design) -> str:
    width = design.keys_md.shape[1]
    if design.is_level:
        return "no arrow: the query scores all keys alike"
    if width <= 2:
        return "arrow: the query; dashed: the highest score"
    return "up: the query, so height is the score"


def _draw_weights(axes: Axes, design: Design) -> None:
    places = np.arange(len(design.target_m))
    chosen = design.target_m > 0
    axes.barh(
        places,
        design.weights_m,
        height=0.62,
        color=[CHOSEN if each else OTHER for each in chosen],
        zorder=2,
    )
    axes.barh(
        places,
        design.target_m,
        height=0.86,
        facecolor="none",
        edgecolor=plot.INK,
        linewidth=1.0,
        zorder=3,
    )
    for place, weight in zip(places, design.weights_m, strict=True):
        at = max(float(weight), float(design.target_m[place]))
        axes.annotate(
            f"{weight:.3f}",
            (at, place),
            (4, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )
    axes.set(xlim=(0, 1.28), ylim=(len(places) - 0.4, -0.6), xticks=[0, 0.5, 1])
    axes.set_yticks(places, [str(place + 1) for place in places])
    axes.set_xticks([0, 0.5, 1], ["0", "0.5", "1"])
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(length=0)
    axes.set_xlabel("weight (outline: target)", fontsize=plot.NOTE_SIZE)
