"""The shell of the lab in a real browser: navigation, bookmarks, themes, a phone's width."""

from __future__ import annotations

import struct
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit
from xml.etree import ElementTree

import pytest
from browser import PATIENCE, Scheme, wait_to_read
from labs import LabProcess, running_lab, serious_findings, visit_lab

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Route

pytestmark = pytest.mark.slow


def test_the_runs_of_the_folder_are_there(chromium: Browser, tiny_lab: LabProcess) -> None:
    with visit_lab(chromium, tiny_lab) as visit:
        for task in ("translate", "classify", "generate"):
            visit.page.get_by_role("link", name=f"tiny-{task}").wait_for()
        wait_to_read(visit.page, visit.page.title, "Runs · heed lab")


def test_a_bookmark_works_after_the_link(chromium: Browser, tiny_lab: LabProcess) -> None:
    context = chromium.new_context()
    context.set_default_timeout(PATIENCE)
    page = context.new_page()
    bookmark = f"{tiny_lab.address}/runs?filter=x%20y"
    answer = page.goto(bookmark)
    assert answer is not None
    assert answer.status == 401
    assert "Open the link that heed lab printed" in page.inner_text("main")
    count = tiny_lab.output.count("/open?token=")
    page.goto(tiny_lab.link(number=count))
    tiny_lab.link(number=count + 1)
    page.goto(bookmark)
    page.get_by_role("heading", name="Runs", level=1).wait_for()
    assert page.url == bookmark
    context.close()


def test_a_key_is_entered_in_the_browser(chromium: Browser, tiny_runs: Path) -> None:
    with running_lab(tiny_runs, "--key", "correct horse") as lab:
        context = chromium.new_context()
        context.set_default_timeout(PATIENCE)
        page = context.new_page()
        page.goto(f"{lab.address}/runs?filter=x")
        for key in ("battery staple", "correct horse"):
            page.get_by_label("Key").fill(key)
            page.get_by_role("button", name="Open the lab").click()
            if key == "battery staple":
                page.get_by_text("This is not the key.").wait_for()
        page.get_by_role("heading", name="Runs", level=1).wait_for()
        assert page.url == f"{lab.address}/runs?filter=x"
        context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_the_shell_is_accessible(
    chromium: Browser, tiny_lab: LabProcess, scheme: Scheme, width: int
) -> None:
    with visit_lab(chromium, tiny_lab, "/runs", scheme=scheme, width=width) as visit:
        visit.page.get_by_role("link", name="tiny-translate").wait_for()
        assert serious_findings(visit) == []
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_figure_is_saved_as_it_is_on_screen(chromium: Browser, tiny_lab: LabProcess) -> None:
    with visit_lab(chromium, tiny_lab, "/run/tiny-translate") as visit:
        visit.page.locator(".curves path.line").first.wait_for()  # curves come after the axes
        tools = visit.page.get_by_role("group", name="Save the figure").first
        files = {}
        for kind in ("SVG", "PNG"):
            with visit.page.expect_download() as download:
                tools.get_by_role("button", name=kind).click()
            files[kind] = download.value.path().read_bytes()
        drawing = ElementTree.fromstring(files["SVG"])  # noqa: S314 (the lab's own)
        texts = {element.text for element in drawing.iter("{http://www.w3.org/2000/svg}text")}
        assert "step" in texts
        assert list(drawing.iter("{http://www.w3.org/2000/svg}path"))
        size = [int(drawing.attrib[name]) for name in ("width", "height")]
        assert files["PNG"].startswith(b"\x89PNG")
        assert [*struct.unpack(">II", files["PNG"][16:24])] == [2 * length for length in size]


def test_an_unknown_page_says_so(chromium: Browser, tiny_lab: LabProcess) -> None:
    with visit_lab(chromium, tiny_lab, "/nowhere") as visit:
        assert visit.page.inner_text("h1") == "There is no such page"
        visit.page.get_by_role("link", name="Runs").click()
        visit.page.get_by_role("heading", name="Runs", level=1).wait_for()
        assert visit.page.url == f"{tiny_lab.address}/runs"


def test_a_run_and_its_text_are_kept_between_rooms(chromium: Browser, tiny_lab: LabProcess) -> None:
    """In the address, from a run's page through every room and back, also after a detour."""

    def query() -> dict[str, list[str]]:
        return parse_qs(urlsplit(page.url).query)

    def chosen() -> tuple[list[str], list[str]]:
        return query().get("run", []), query().get("text", [])

    def go_to(room: str) -> None:
        page.get_by_role("navigation").get_by_role("link", name=room).click()
        page.get_by_role("heading", name=room, level=1).wait_for()

    with visit_lab(chromium, tiny_lab, "/run/tiny-generate") as visit:
        page = visit.page
        picker = page.get_by_role("combobox", name="Run", exact=True)
        go_to("Playground")
        wait_to_read(page, chosen, (["tiny-generate"], []))
        page.get_by_label("Prompt").fill("The old cat")
        # The link has all that the room begins with; the room adds the head that it shows.
        link = page.get_by_role("navigation").get_by_role("link", name="Attention")
        wait_to_read(
            page,
            lambda: parse_qs(urlsplit(link.get_attribute("href") or "").query),
            {"run": ["tiny-generate"], "text": ["The old cat"]},
        )
        go_to("Attention")
        wait_to_read(page, chosen, (["tiny-generate"], ["The old cat"]))
        page.get_by_test_id("heat-map").wait_for()
        wait_to_read(page, picker.input_value, "tiny-generate")
        # Another run is chosen: it is in the address at once, and the other rooms have it.
        picker.select_option("tiny-classify")
        page.wait_for_url("**run=tiny-classify**")
        page.get_by_text("Encoder, layer 1, head 1", exact=True).wait_for()
        go_to("Design")
        go_to("Heads")
        wait_to_read(page, chosen, (["tiny-classify"], ["The old cat"]))
        page.locator("[data-head='encoder.1.1']").wait_for()
        page.go_back()
        page.get_by_role("heading", name="Design", level=1).wait_for()
        page.wait_for_timeout(600)  # longer than any room waits before it writes the address
        assert "run" not in query()


def test_a_room_that_was_left_changes_nothing(chromium: Browser, tiny_lab: LabProcess) -> None:
    """Answers that arrive after a room was left write no address, and leave no connection open."""
    with visit_lab(chromium, tiny_lab, "/runs") as visit:
        page = visit.page
        nav = page.get_by_role("navigation")
        for _ in range(8):  # a browser has six connections for one server
            nav.get_by_role("link", name="Runs").click()
            nav.get_by_role("link", name="Design").click()
        page.locator("[data-weight]").first.wait_for()
        page.locator("[data-point='query-0']").press("ArrowRight")
        nav.get_by_role("link", name="Runs").click()
        page.get_by_role("link", name="tiny-translate").wait_for()
        page.wait_for_timeout(1000)
        assert urlsplit(page.url).query == ""


@pytest.mark.parametrize(
    "address",
    [
        "/runs?select=tiny-translate",
        "/run/tiny-generate",
        "/playground?run=tiny-translate&text=the+cat",
        "/attention?run=tiny-translate&text=the+cat",
        "/attention?run=tiny-translate&text=the+cat&view=pair&run2=tiny-translate",
        "/heads?run=tiny-classify",
        "/design",
        "/train",
    ],
)
def test_answers_after_a_room_was_left_reach_no_one(
    chromium: Browser, tiny_lab: LabProcess, address: str
) -> None:
    """The room is left while it waits for its first, second, … request; then the answers come."""
    with visit_lab(chromium, tiny_lab, "/nowhere") as visit:
        page = visit.page
        held: list[Route] = []
        answered, allowed = 0, 0

        def answer_first_ones(route: Route) -> None:
            nonlocal answered
            answered += 1
            if answered > allowed:
                held.append(route)
            else:
                route.continue_()

        def go_to(address: str) -> None:
            page.evaluate(
                "(address) => {"
                "  history.pushState(null, '', address);"
                "  dispatchEvent(new PopStateEvent('popstate'));"
                "}",
                address,
            )

        def rest() -> None:
            """Wait until all is answered but what is held, and nothing more is asked for."""
            end = time.monotonic() + PATIENCE / 1000
            before = -1
            while before != len(visit.requests) or visit.unanswered - {one.request for one in held}:
                assert time.monotonic() < end, visit.unanswered
                before = len(visit.requests)
                page.wait_for_timeout(300)  # longer than a room waits before it asks

        page.route(lambda url: "/api/" in url and "/api/events" not in url, answer_first_ones)
        while allowed == 0 or held:
            answered = 0
            held.clear()
            go_to(address)
            rest()
            go_to("/nowhere")
            page.get_by_role("heading", name="There is no such page").wait_for()
            for route in held:
                with suppress(Exception):  # of a request that was aborted with its room
                    route.continue_()
            rest()
            assert visit.messages == [], f"after {allowed} answers"
            allowed += 1
        assert allowed > 1  # the room has asked for something
