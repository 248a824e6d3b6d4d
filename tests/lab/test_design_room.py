"""The design room: hulls, weights and designs are those of heed, over HTTP and on screen."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np
import pytest
import torch
from browser import Scheme
from hypothesis import given
from hypothesis import strategies as st
from labs import LabProcess, lab_client, running_lab, serious_findings, visit_lab

from heed.lab.rooms.design_room import PRESETS, DesignRequest, find_hull, solve
from heed.nn.attention import attend
from heed.probe.design import average_target, design_query

if TYPE_CHECKING:
    from fastapi.testclient import TestClient
    from playwright.sync_api import Browser, Page

grid = st.integers(-4, 4).map(lambda number: number / 2)
points = st.lists(st.tuples(grid, grid), min_size=1, max_size=9)
PRESET_ONLY = {"name", "title", "lesson"}
PROBLEM: dict[str, Any] = {
    "keys": [[1.0, 0.3], [0.2, 1.0], [-0.9, 0.5]],
    "values": [[-0.8, -0.6], [0.9, -0.4], [0.6, 0.8]],
    "query": [0.7, 0.4],
}


def cross(origin: Any, one: Any, other: Any) -> float:
    (ax, ay), (bx, by) = np.subtract(one, origin), np.subtract(other, origin)
    return float(ax * by - ay * bx)


@given(points=points)
def test_a_hull_has_all_points_on_its_left_and_no_idle_corner(
    points: list[tuple[float, float]],
) -> None:
    hull = [points[i] for i in find_hull(np.array(points))]
    assert len({*hull}) == len(hull)
    assert {min(points), max(points)} <= {*hull}
    edges = [*zip(hull, hull[1:] + hull[:1], strict=True)]
    for start, end in edges:
        assert all(cross(start, end, point) >= 0 for point in points)
    if len(hull) > 2:  # a corner on the border of the others would be idle
        for (start, end), (_, after) in zip(edges, edges[1:] + edges[:1], strict=True):
            assert cross(start, end, after) > 0


@given(points=points, query=st.tuples(grid, grid))
def test_weights_and_output_are_those_of_attend(
    points: list[tuple[float, float]], query: tuple[float, float]
) -> None:
    answer = solve(DesignRequest(keys=points, values=points[::-1], query=query))
    q, k, v = (torch.tensor([[rows]]).double() for rows in ([query], points, points[::-1]))
    output, weights = attend(q, k, v)
    assert answer["weights"] == pytest.approx(weights.flatten().tolist(), abs=1e-6)
    assert answer["output"] == pytest.approx(output.flatten().tolist(), abs=1e-6)
    assert answer["design"] is None


@pytest.mark.parametrize("preset", PRESETS, ids=lambda preset: preset.name)
def test_presets_are_designed_as_they_say(preset: Any) -> None:
    answer = solve(preset)
    design = answer["design"]
    assert design["possible"] == (preset.name not in ("inside", "opposite"))
    assert design["answer"].startswith("Impossible") != design["possible"]
    assert (design["dependence"] is None) == design["possible"]
    if design["possible"]:
        chosen = np.array(design["target"]) > 0
        assert sum(np.array(design["weights"])[chosen]) >= 0.99 - 1e-9
    # The designed query gives the designed weights, when it is the query.
    used = DesignRequest(keys=design["keys"], values=preset.values, query=design["query"])
    assert solve(used)["weights"] == pytest.approx(design["weights"], abs=1e-9)
    if preset.unit:
        assert np.linalg.norm(design["keys"][preset.replace]) == pytest.approx(1.0)


# ---------------------------------------------------------------------- over HTTP, in a browser


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder without a run: the room needs none."""
    return tmp_path_factory.mktemp("design") / ""


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[TestClient]:
    with lab_client(folder, is_read_only=True) as client:
        yield client


@pytest.fixture(scope="module")
def lab(folder: Path) -> Iterator[LabProcess]:
    with running_lab(folder) as lab:
        yield lab


def test_a_design_is_that_of_python(client: TestClient) -> None:
    answer = client.post("/api/design", json=PROBLEM | {"average": [0, 1]}).json()
    design = design_query(PROBLEM["keys"], average_target(3, [0, 1]), values=PROBLEM["values"])
    assert answer["design"]["query"] == design.query_d.tolist()
    assert answer["design"]["weights"] == design.weights_m.tolist()
    assert [one["name"] for one in client.get("/api/design/presets").json()] == [
        preset.name for preset in PRESETS
    ]


@pytest.mark.parametrize(
    ("fields", "status", "message"),
    [
        ({"keys": []}, 422, "keys"),
        ({"keys": [[1]]}, 422, "keys.0"),
        ({"keys": [[1e9, 0]]}, 422, "keys.0.0"),
        ({"values": [[1, 2]]}, 400, "3 keys and 1 values"),
        ({"scale": 0}, 400, "the scale is 0"),
        ({"average": [0], "sharpness": 1}, 400, "sharpness is 1"),
        ({"average": [5]}, 400, "no item 6"),
        ({"average": [0], "replace": 4}, 400, "no item 5"),
        ({"weights": [0.5, 0.1, 0.1]}, 400, "sum to 0.7"),
        ({"weights": [1.0]}, 400, "3 keys and 1 target weights"),
        ({"weights": [1, 0, 0], "average": [0]}, 400, "different tasks"),
        ({"targets": [1]}, 422, "targets"),
    ],
)
def test_what_cannot_be_designed_is_refused(
    client: TestClient, fields: dict[str, Any], status: int, message: str
) -> None:
    answer = client.post("/api/design", json=PROBLEM | fields)
    assert answer.status_code == status, answer.text
    assert message in answer.json()["error"]["message"]


def shown(page: Page, selector: str) -> list[float]:
    """The exact numbers of these elements."""
    values = page.eval_on_selector_all(selector, "all => all.map((one) => one.value)")
    return [float(value) for value in values]


def wait_until_shown(page: Page, selector: str, expected: list[float]) -> None:
    page.wait_for_function(
        "([selector, wanted]) => { const all = [...document.querySelectorAll(selector)];"
        " return all.length === wanted.length &&"
        " all.every((one, i) => Math.abs(Number(one.value) - wanted[i]) < 1e-9); }",
        arg=[selector, expected],
    )


@pytest.mark.slow
def test_numbers_on_screen_are_pythons(chromium: Browser, lab: LabProcess) -> None:
    """Also after a key was dragged, and after the query was moved by keyboard."""
    address = f"/design?problem={quote(json.dumps(PROBLEM | {'average': [0, 1]}))}"
    with visit_lab(chromium, lab, address) as visit:
        page = visit.page
        page.locator("[data-weight]").first.wait_for()
        answer = solve(DesignRequest(**PROBLEM, average=[0, 1]))
        assert shown(page, "[data-weight] data") == pytest.approx(answer["weights"], abs=1e-12)
        assert shown(page, "[data-output]") == pytest.approx(answer["output"], abs=1e-12)
        designed = answer["design"]["weights"]
        assert shown(page, "[data-designed] data") == pytest.approx(designed, abs=1e-12)
        assert page.get_by_test_id("answer").inner_text() == answer["design"]["answer"]

        page.locator("[data-point='query-0']").focus()
        page.keyboard.press("ArrowRight")
        page.keyboard.press("Shift+ArrowUp")
        moved = PROBLEM | {"query": [0.75, 0.41]}
        wait_until_shown(page, "[data-weight] data", solve(DesignRequest(**moved))["weights"])

        handle, target = page.locator("[data-point='key-0']"), page.locator("[data-point='key-1']")
        (start, end) = (one.locator(".dot").bounding_box() for one in (handle, target))
        assert start is not None
        assert end is not None
        page.mouse.move(start["x"] + start["width"] / 2, start["y"] + start["height"] / 2)
        page.mouse.down()
        page.mouse.move(end["x"] + end["width"] / 2, end["y"] + end["height"] / 2, steps=5)
        page.mouse.up()
        # Both keys are now in one place, to two decimals: their weights are equal.
        x, y = (float(page.get_by_label(f"Key 1, {axis}").input_value()) for axis in "xy")
        assert (x, y) == pytest.approx((0.2, 1.0), abs=0.02)
        moved["keys"] = [[x, y], *PROBLEM["keys"][1:]]
        wait_until_shown(page, "[data-weight] data", solve(DesignRequest(**moved))["weights"])


@pytest.mark.slow
def test_a_query_can_be_longer_than_the_plane(chromium: Browser, lab: LabProcess) -> None:
    """The plane grows with a query that is dragged over its border; a very long one is marked."""
    with visit_lab(chromium, lab, f"/design?problem={quote(json.dumps(PROBLEM))}") as visit:
        page = visit.page
        page.locator("[data-weight]").first.wait_for()
        plane = page.get_by_label("Plane of the keys, their hull and the query")
        handle = page.locator("[data-point='query-0'] .dot")
        start, box = handle.bounding_box(), plane.bounding_box()
        assert start is not None
        assert box is not None
        page.mouse.move(start["x"] + start["width"] / 2, start["y"] + start["height"] / 2)
        page.mouse.down()
        page.mouse.move(box["x"] + 1.5 * box["width"], box["y"] + box["height"] / 2, steps=8)
        page.mouse.up()
        x, y = (float(page.get_by_label(f"Query, {axis}").input_value()) for axis in "xy")
        assert x > 2  # the border was at 1.4
        moved = solve(DesignRequest(**PROBLEM | {"query": [x, y]}))
        wait_until_shown(page, "[data-weight] data", moved["weights"])
        end = handle.bounding_box()
        assert end is not None
        assert end["x"] + end["width"] < box["x"] + box["width"]  # it is inside the plane
        assert page.get_by_test_id("cut").count() == 0
        page.locator("[data-point='query-0']").press("ArrowRight")
        assert float(page.get_by_label("Query, x").input_value()) == pytest.approx(x + 0.05)

        page.get_by_label("Query, x").fill("40")
        page.get_by_label("Query, x").press("Enter")
        page.get_by_text("Query (40.00").wait_for()
        assert "ends beyond the plane" in page.get_by_test_id("cut").inner_text()


@pytest.mark.slow
def test_the_designed_query_can_be_used(chromium: Browser, lab: LabProcess) -> None:
    with visit_lab(chromium, lab, "/design?preset=replace") as visit:
        page = visit.page
        page.locator("[data-weight]").first.wait_for()
        designed = shown(page, "[data-designed] data")
        preset = next(one for one in PRESETS if one.name == "replace")
        moved = solve(DesignRequest(**preset.model_dump(exclude=PRESET_ONLY)))["design"]["keys"][2]
        assert shown(page, "[data-moved]") == pytest.approx(moved, abs=1e-12)
        assert page.locator("[data-moved-key='2']").inner_text().strip()
        assert page.locator("svg title").filter(has_text="Key 3 moved at").count() == 1
        page.get_by_role("button", name="Use the designed query and the moved key 3").click()
        wait_until_shown(page, "[data-weight] data", designed)
        assert float(page.get_by_label("Key 3, x").input_value()) == pytest.approx(
            moved[0], abs=0.01
        )
        page.wait_for_url("**/design?problem=*")
        page.reload()  # the bookmark has the whole problem
        page.locator("[data-weight]").first.wait_for()
        assert shown(page, "[data-weight] data") == pytest.approx(designed, abs=1e-9)


@pytest.mark.slow
def test_wanted_weights_begin_with_those_of_the_query(chromium: Browser, lab: LabProcess) -> None:
    """No error before something is typed; a scale of 0 is refused as a negative one is."""
    with visit_lab(chromium, lab, "/design?preset=select") as visit:
        page = visit.page
        page.locator("[data-weight]").first.wait_for()
        page.get_by_role("radio", name="Weights").check()
        wait_until_shown(page, "[data-designed] data", shown(page, "[data-weight] data"))
        assert page.get_by_test_id("answer").inner_text() == "Exact."
        assert page.get_by_role("alert").count() == 0
        for scale in ("0", "-1"):
            page.get_by_label("Scale").fill(scale)
            page.get_by_role("alert").get_by_text(f"the scale is {scale}").wait_for()
        visit.messages.clear()  # the browser itself reports the status 400


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scheme", "width"), [("light", 1280), ("dark", 400)], ids=["desk", "phone"]
)
def test_the_design_room_is_accessible(
    chromium: Browser, lab: LabProcess, scheme: Scheme, width: int
) -> None:
    with visit_lab(chromium, lab, "/design?preset=inside", scheme=scheme, width=width) as visit:
        visit.page.locator("[data-weight]").first.wait_for()
        assert "upper bound" in visit.page.get_by_test_id("answer").inner_text()
        assert serious_findings(visit) == []
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= width
        assert min(ratio for _, ratio in visit.contrasts()) >= 4.5
