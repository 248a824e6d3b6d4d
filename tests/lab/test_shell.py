"""The shell of the lab in a real browser: navigation, bookmarks, themes, a phone's width."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import pytest
from browser import Scheme
from labs import LabProcess, running_lab, serious_findings, visit_lab

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.slow


def test_the_runs_of_the_folder_are_there(chromium: Browser, tiny_lab: LabProcess) -> None:
    with visit_lab(chromium, tiny_lab) as visit:
        for task in ("translate", "classify", "generate"):
            visit.page.get_by_role("link", name=f"tiny-{task}").wait_for()
        assert visit.page.title() == "Runs · heed lab"


def test_a_bookmark_works_after_the_link(chromium: Browser, tiny_lab: LabProcess) -> None:
    context = chromium.new_context()
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
