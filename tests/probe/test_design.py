"""Designed attention: exact where it can be, the shortest query, and proofs that verify."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import linprog, minimize, nnls

from heed.arrays import Floats
from heed.errors import HeedError
from heed.nn.attention import attend
from heed.probe.design import (
    Design,
    average_target,
    design_query,
    divergence,
    largest_weight,
    least_squares_weights,
    select_target,
)
from heed.probe.design_problem import COURSE, Task, read_problem, solve_course, solve_task
from heed.probe.design_text import describe_solution
from heed.probe.key_replacement import replace_key
from heed.probe.separation import Dependence, Separation, nonnegative_least_squares, separate
from heed.probe.weight_fit import softmax

SQUARE = np.array([[0.0, 0.0], [2.0, 0.0], [0.0, 2.0], [0.5, 0.5], [1.0, 0.0]])
"""A triangle, a key inside it, and one in the middle of a side."""


@st.composite
def keys(draw: st.DrawFn, most: int = 7) -> Floats:
    """Keys on a grid, where ties, equal keys and keys on borders are frequent."""
    items, width = draw(st.integers(2, most)), draw(st.integers(1, 4))
    rows = st.lists(st.integers(-3, 3), min_size=width, max_size=width)
    return np.array(draw(st.lists(rows, min_size=items, max_size=items)), dtype=np.float64)


@st.composite
def keys_and_set(draw: st.DrawFn) -> tuple[Floats, NDArray[np.bool_]]:
    keys_md = draw(keys())
    chosen = draw(st.sets(st.integers(0, len(keys_md) - 1), min_size=1))
    return keys_md, np.isin(np.arange(len(keys_md)), list(chosen))


def linear_program_separates(keys_md: Floats, chosen: NDArray[np.bool_]) -> bool:
    """Whether scipy's solver finds scores that are equal on the set and lower elsewhere."""
    first, width = keys_md[chosen][0], keys_md.shape[1]
    below = keys_md[~chosen] - first
    answer = linprog(
        np.append(np.zeros(width), -1.0),  # the largest gap, at most 1
        A_ub=np.column_stack([below, np.ones(len(below))]),
        b_ub=np.zeros(len(below)),
        A_eq=np.column_stack([keys_md[chosen] - first, np.zeros(chosen.sum())]),
        b_eq=np.zeros(chosen.sum()),
        bounds=[(None, None)] * width + [(None, 1.0)],
    )
    assert answer.status == 0
    return bool(-answer.fun > 0.5)


@settings(max_examples=150)
@given(keys_and_set())
def test_feasibility_is_that_of_a_linear_program_and_is_proven(
    case: tuple[Floats, NDArray[np.bool_]],
) -> None:
    keys_md, chosen = case
    answer = separate(keys_md, chosen)
    assert isinstance(answer, Separation) == linear_program_separates(keys_md, chosen)
    if isinstance(answer, Separation):
        scores_m = keys_md @ answer.direction_d
        assert np.ptp(scores_m[chosen]) < 1e-7
        assert chosen.all() or scores_m[chosen].min() - scores_m[~chosen].max() > 1 - 1e-7
    else:
        assert answer.residual(keys_md) < 1e-9
        assert (answer.coefficients_m[~chosen] <= 0).all()
        assert answer.coefficients_m[~chosen].min() < -1e-3


@settings(max_examples=60)
@given(keys_and_set())
def test_a_design_is_possible_exactly_where_the_program_is(
    case: tuple[Floats, NDArray[np.bool_]],
) -> None:
    """Then it has the sharpness asked for; else no query comes closer, and the proof verifies."""
    keys_md, chosen = case
    design = design_query(keys_md, average_target(len(keys_md), np.flatnonzero(chosen).tolist()))
    assert design.is_possible == linear_program_separates(keys_md, chosen)
    assert (design.dependence is None) == design.is_possible
    if design.is_possible:
        assert design.weights_m[chosen].sum() >= 0.99 - 1e-9
        assert np.ptp(design.weights_m[chosen]) < 1e-7
        return
    assert design.dependence is not None
    assert design.dependence.residual(keys_md) < 1e-9
    best = divergence(design.target_m, design.limit_m)
    random = np.random.default_rng(0)
    for size in (0.1, 1.0, 10.0):
        query_d = size * random.normal(size=keys_md.shape[1])
        weights_m = softmax(design.scale * keys_md @ query_d)
        assert divergence(design.target_m, weights_m) >= best - 1e-9
        logs = np.log(np.maximum(weights_m, 1e-300))
        assume((weights_m > 1e-290).all())
        # What the proof says of every query.
        assert abs(float(design.dependence.coefficients_m @ logs)) < 1e-6


@settings(max_examples=60)
@given(keys(), st.data())
def test_given_weights_are_exact_where_a_linear_system_has_a_solution(
    keys_md: Floats, data: st.DataObject
) -> None:
    """Weights of some query are found again; other weights are approached better than by lstsq."""
    width = keys_md.shape[1]
    query_d = np.array(data.draw(st.lists(st.floats(-2, 2), min_size=width, max_size=width)))
    reachable_m = softmax(keys_md @ query_d)
    design = design_query(keys_md, reachable_m, scale=1.0)
    assert design.is_possible
    assert design.is_exact
    assert design.largest_deviation < 1e-8
    assert design.length <= np.linalg.norm(query_d) + 1e-6
    shares = data.draw(st.lists(st.floats(0.05, 1), min_size=len(keys_md), max_size=len(keys_md)))
    other = design_query(keys_md, np.array(shares) / sum(shares), scale=1.0)
    naive_m = least_squares_weights(other)
    assert other.divergence <= divergence(other.target_m, naive_m) + 1e-9
    if not other.is_possible:
        assert other.dependence is not None
        assert other.dependence.residual(keys_md) < 1e-8
        # Every query keeps this sum of log-weights at zero, and the target does not.
        assert abs(float(other.dependence.coefficients_m @ np.log(other.target_m))) > 1e-9


@pytest.mark.parametrize("sharpness", [0.6, 0.99, 0.9999])
def test_no_shorter_query_is_as_sharp(sharpness: float) -> None:
    """An independent solver of the same convex problem finds nothing shorter."""
    keys_md = COURSE.keys_md
    design = design_query(keys_md, select_target(4, 1), scale=1.0, sharpness=sharpness)
    assert design.weights_m[1] == pytest.approx(sharpness, abs=1e-9)

    def spare(query_d: Floats) -> float:
        scores_m = keys_md @ query_d - keys_md[1] @ query_d
        return float(np.log(1 / sharpness) - np.log(np.exp(scores_m).sum()))

    answer = minimize(
        lambda query_d: query_d @ query_d / 2,
        3 * design.query_d,
        jac=lambda query_d: query_d,
        constraints={"type": "ineq", "fun": spare},
        method="SLSQP",
        options={"maxiter": 500, "ftol": 1e-12},
    )
    assert answer.success
    assert design.length == pytest.approx(np.linalg.norm(answer.x), rel=1e-4)


def test_a_query_gets_longer_with_sharpness_and_turns_to_the_widest_gap() -> None:
    target = select_target(4, 0)
    designs = [
        design_query(COURSE.keys_md, target, scale=1.0, sharpness=1 - 10.0**-n) for n in range(1, 9)
    ]
    assert [d.length for d in designs] == sorted(d.length for d in designs)
    gap = separate(COURSE.keys_md, target > 0)
    assert isinstance(gap, Separation)
    last = designs[-1]
    cosine = last.query_d @ gap.direction_d / last.length * gap.margin
    assert cosine == pytest.approx(1, abs=0.01)


def test_the_course_matrices_are_those_of_its_seed() -> None:
    torch.manual_seed(447)
    for matrix in (COURSE.keys_md, COURSE.values_mv):
        drawn = torch.randn(4, 3)
        unit = drawn / drawn.norm(dim=1, keepdim=True)
        assert np.array_equal(np.round(unit.double().numpy(), 2), np.asarray(matrix))


def test_every_task_of_the_course_is_solved_and_least_squares_is_beaten() -> None:
    solutions = {solution.title: solution.design for solution in solve_course()}
    assert list(solutions) == [
        *(f"Select value {item}" for item in (1, 2, 3, 4)),
        "Average all values",
        "Average values 1 and 2",
        "Replace key 3: average values 1, 2 and 3",
        "Replace key 3 by one of length 1: select value 3",
    ]
    for design in solutions.values():
        assert design.is_possible
        assert design.weights_m[design.target_m > 0].sum() >= 0.99 - 1e-9
        assert np.ptp(design.weights_m[design.target_m > 0]) < 1e-9
        naive_m = least_squares_weights(design)
        assert design.largest_deviation < np.abs(naive_m - design.target_m).max()
        assert design.divergence < divergence(design.target_m, naive_m)
        assert design.values_mv is not None
        naive_error = np.linalg.norm((naive_m - design.target_m) @ design.values_mv)
        assert design.value_error is not None
        assert design.value_error < naive_error
    assert solutions["Average all values"].is_exact
    assert solutions["Average all values"].length == 0
    unit = solutions["Replace key 3 by one of length 1: select value 3"]
    assert np.linalg.norm(unit.keys_md[2]) == pytest.approx(1)
    others = [0, 1, 3]
    for design in solutions.values():
        assert np.array_equal(design.keys_md[others], COURSE.keys_md[others])


def test_weights_and_output_are_those_of_attend() -> None:
    for solution in solve_course(sharpness=0.9):
        design = solution.design
        assert design.values_mv is not None
        q, k, v = (
            torch.tensor(x)[None, None]
            for x in (design.query_d[None], design.keys_md, design.values_mv)
        )
        out, weights = attend(q, k, v, scale=design.scale)
        assert np.allclose(weights.flatten().numpy(), design.weights_m, atol=1e-6)
        assert design.output_v is not None
        assert np.allclose(out.flatten().numpy(), design.output_v, atol=1e-6)


def test_the_scale_is_that_of_attend() -> None:
    narrow, wide = (design_query(np.eye(4), select_target(4, 0), scale=s) for s in (1.0, None))
    assert wide.length == pytest.approx(2 * narrow.length)
    assert np.allclose(wide.weights_m, narrow.weights_m)


@pytest.mark.parametrize("unit", [1e-8, 1e8, 1e99])
def test_the_unit_of_the_keys_does_not_matter(unit: float) -> None:
    plain, scaled = (
        design_query(keys_md, average_target(4, [0, 1]))
        for keys_md in (COURSE.keys_md, unit * COURSE.keys_md)
    )
    assert np.allclose(scaled.query_d * unit, plain.query_d)
    assert np.allclose(scaled.weights_m, plain.weights_m)


def test_a_key_in_the_hull_is_refused_with_the_combination() -> None:
    design = design_query(SQUARE, select_target(5, 3), scale=1.0)
    assert not design.is_possible
    assert isinstance(design.dependence, Dependence)
    z = design.dependence.coefficients_m
    assert np.allclose(-z[[0, 1, 2, 4]] @ SQUARE[[0, 1, 2, 4]], SQUARE[3])
    bound = largest_weight(design)
    assert bound is not None
    random = np.random.default_rng(1)
    best = max(
        softmax(SQUARE @ (size * random.normal(size=2)))[3] for size in np.linspace(0, 30, 2000)
    )
    assert best <= design.weights_m[3] + 1e-9 <= bound


@pytest.mark.parametrize(
    ("chosen", "limit"),
    [
        ([0, 1], [1 / 3, 1 / 3, 0, 0, 1 / 3]),  # the key between them comes along
        ([4], [1 / 3, 1 / 3, 0, 0, 1 / 3]),
        ([1, 2], [0, 0.5, 0.5, 0, 0]),
    ],
)
def test_the_closest_weights_live_on_the_smallest_face(
    chosen: list[int], limit: list[float]
) -> None:
    design = design_query(SQUARE, average_target(5, chosen), sharpness=0.9999)
    assert np.allclose(design.limit_m, limit, atol=1e-6)
    assert np.allclose(design.weights_m, limit, atol=2e-4)


def test_equal_keys_share_their_weight() -> None:
    design = design_query([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]], select_target(3, 0))
    assert not design.is_possible
    assert np.allclose(design.limit_m, [0.5, 0.5, 0])


@settings(max_examples=40)
@given(keys(5), st.data())
def test_a_replaced_key_does_what_it_is_for(keys_md: Floats, data: st.DataObject) -> None:
    items = len(keys_md)
    index = data.draw(st.integers(0, items - 1))
    chosen = data.draw(st.sets(st.integers(0, items - 1), min_size=1))
    target = average_target(items, list(chosen))
    others = np.arange(items) != index
    differences = keys_md[others] - keys_md[others][0]
    fills_space = np.linalg.matrix_rank(differences) == keys_md.shape[1]
    if fills_space and (target[others] > 0).all() and target[index] == 0:
        with pytest.raises(HeedError, match="only the query 0"):
            replace_key(keys_md, index, target, scale=1.0)
        return
    design = replace_key(keys_md, index, target, scale=1.0)
    assert np.array_equal(design.keys_md[others], keys_md[others])
    if not design.is_possible:
        # Then the others alone could not do their part either.
        rest = target[others]
        assert not design_query(keys_md[others], rest / rest.sum(), scale=1.0).is_possible
        return
    assert design.weights_m[target > 0].sum() >= 0.99 - 1e-7
    assert np.ptp(design.weights_m[target > 0]) < 1e-6


@pytest.mark.parametrize("target", [select_target(4, 2), average_target(4, [0, 1, 2])])
def test_a_unit_key_has_the_length_one(target: Floats) -> None:
    design = replace_key(COURSE.keys_md, 2, target, unit=True, scale=1.0)
    assert np.linalg.norm(design.keys_md[2]) == pytest.approx(1)
    assert design.weights_m[target > 0].sum() >= 0.99 - 1e-9
    assert np.ptp(design.weights_m[target > 0]) < 1e-9


@pytest.mark.parametrize("unit", [False, True])
def test_a_key_that_is_in_the_way_is_moved(unit: bool) -> None:
    """Key 3 lies between 1 and 2, which cannot be averaged without it until it moves."""
    keys_md = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.5, 0.5, 0.0]])
    target = average_target(3, [0, 1])
    assert not design_query(keys_md, target).is_possible
    design = replace_key(keys_md, 2, target, unit=unit)
    assert design.is_possible
    assert design.weights_m[:2].min() >= 0.99 / 2 - 1e-9
    if unit:
        assert np.linalg.norm(design.keys_md[2]) == pytest.approx(1)


@pytest.mark.parametrize("unit", [1e-12, 1e12])
def test_a_replaced_key_has_the_unit_of_the_others(unit: float) -> None:
    for target in (average_target(4, [0, 1, 2]), average_target(4, [0, 1]), select_target(4, 2)):
        plain = replace_key(COURSE.keys_md, 2, target, scale=1.0)
        scaled = replace_key(unit * COURSE.keys_md, 2, target, scale=1.0)
        assert np.allclose(scaled.weights_m, plain.weights_m, atol=1e-6)


def test_a_unit_key_outside_surrounding_keys_is_searched() -> None:
    """The hull of the others contains zero: there is no closed form, and a key is found."""
    around = 0.9 * np.array([[1.0, 0], [-0.5, 0.8], [-0.5, -0.8], [0.0, 0.0]])
    design = replace_key(around, 3, select_target(4, 3), unit=True)
    assert np.linalg.norm(design.keys_md[3]) == pytest.approx(1)
    assert design.weights_m[3] >= 0.99 - 1e-9
    with pytest.raises(HeedError, match="no unit-length key"):
        replace_key(5 * around, 3, select_target(4, 3), unit=True)


def test_a_given_query_gets_its_key() -> None:
    query_d = np.array([1.0, -2.0, 0.5])
    design = replace_key(COURSE.keys_md, 2, [0.2, 0.2, 0.4, 0.2], query=query_d, scale=1.0)
    assert np.array_equal(design.query_d, query_d)
    assert design.weights_m[2] == pytest.approx(0.4)
    moved = design.keys_md[2] - COURSE.keys_md[2]
    assert np.allclose(np.cross(moved, query_d), 0)  # the shortest way is along the query
    assert not design.is_possible
    assert "fixes the weights of the other keys" in describe_solution(
        solve_task(COURSE, Task(weights="0.2,0.2,0.4,0.2", replace=3, query="1,-2,0.5"))[0]
    )
    with pytest.raises(HeedError, match="Cauchy"):
        replace_key(COURSE.keys_md, 2, select_target(4, 2), query=query_d, unit=True, scale=1.0)


@settings(max_examples=50)
@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 10**6))
def test_nonnegative_least_squares_is_scipys(rows: int, unknowns: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    matrix = random.integers(-2, 3, (rows, unknowns)).astype(np.float64)
    wanted = random.normal(size=rows)
    x = nonnegative_least_squares(matrix, wanted)
    assert (x >= 0).all()
    assert np.linalg.norm(matrix @ x - wanted) == pytest.approx(nnls(matrix, wanted)[1], abs=1e-7)


@pytest.mark.parametrize(
    ("keys_md", "target", "settings_of", "message"),
    [
        ([[1.0]], [0.5, 0.5], {}, "1 keys and 2 target weights"),
        ([[1.0], [2.0]], [0.5, 0.9], {}, "sum to 1.4"),
        ([[1.0], [2.0]], [-1.0, 2.0], {}, "from 0 to 1"),
        ([[1.0], [float("nan")]], [1.0, 0.0], {}, "row 2 of the keys"),
        ([[1.0], [1e200]], [1.0, 0.0], {}, "overflows"),
        ([[0.0], [1e-200]], [1.0, 0.0], {}, "overflows"),
        ([1.0, 2.0], [1.0, 0.0], {}, "one row for each item"),
        ([[1.0], [2.0]], [1.0, 0.0], {"sharpness": 1.0}, "sharpness is 1.0"),
        ([[1.0], [2.0]], [1.0, 0.0], {"scale": -1.0}, "the scale is -1.0"),
        ([[1.0], [2.0]], [1.0, 0.0], {"values": [[1.0]]}, "2 keys and 1 values"),
    ],
)
def test_invalid_problems_are_refused_in_words(
    keys_md: list[list[float]],
    target: list[float],
    settings_of: dict[str, Any],
    message: str,
) -> None:
    with pytest.raises(HeedError, match=message):
        design_query(keys_md, target, **settings_of)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("keys.txt", "1 2", "give a .json"),
        ("keys.json", "{", "not JSON"),
        ("keys.json", "[" * 100_000, "not JSON"),
        ("keys.toml", "keys = " + "[" * 5_000, "not TOML"),
        ("keys.json", '{"keys": [[' + "9" * 5_000 + "]]}", "not JSON"),
        ("keys.json", "{}", "there are no keys"),
        ("keys.json", '{"keys": [[1, 2], [3]]}', "row 2 has 1 numbers"),
        ("keys.json", '{"keys": [[1, "x"]]}', "row 1 has 'x'"),
        ("keys.json", '{"keys": [[1]], "valves": 1}', "'valves' is neither"),
        ("keys.json", '{"keys": [[1]], "scale": "x"}', "the scale is 'x'"),
        ("keys.toml", "keys = [[1, 2], [3, inf]]", "no finite number"),
        ("keys.csv", "a,b\n1,2\n", "row 1 has 'a'"),
        ("keys.csv", "", "no table of numbers"),
    ],
)
def test_invalid_files_are_refused_in_words(
    tmp_path: Path, name: str, content: str, message: str
) -> None:
    file = tmp_path / name
    file.write_text(content, encoding="utf-8")
    with pytest.raises(HeedError) as caught:
        read_problem(file)
    assert message.lower() in str(caught.value).lower()
    assert name in str(caught.value)


def test_every_format_gives_the_same_keys(tmp_path: Path) -> None:
    contents = {
        "keys.json": '{"keys": [[1, 2], [3, 4]], "values": [[5], [6]], "scale": 0.5}',
        "keys.toml": "keys = [[1, 2], [3, 4]]\nvalues = [[5], [6]]\nscale = 0.5",
        "keys.csv": "1,2\n3,4\n",
        "keys.tsv": "1\t2\n3\t4\n",
    }
    for name, content in contents.items():
        (tmp_path / name).write_text(content, encoding="utf-8")
    (tmp_path / "values.csv").write_text("5\n6\n", encoding="utf-8")
    for name in contents:
        is_table = name.endswith("sv")
        problem = read_problem(
            tmp_path / name,
            values=tmp_path / "values.csv" if is_table else None,
            scale=0.5 if is_table else None,
        )
        assert problem.keys_md.tolist() == [[1, 2], [3, 4]]
        assert problem.values_mv is not None
        assert problem.values_mv.tolist() == [[5], [6]]
        assert problem.scale == 0.5


def test_a_design_is_json(tmp_path: Path) -> None:
    design = design_query(SQUARE, select_target(5, 3))
    fields = design.to_dict()
    assert fields["possible"] is False
    assert fields["dependence"] is not None
    assert set(fields) >= {"query", "weights", "target", "kl_divergence", "least_squares_deviation"}
    assert isinstance(design, Design)
