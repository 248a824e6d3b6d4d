"""A room that waits for the server says so, and why, and moves no button meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from browser import wait_to_read
from labs import LabProcess, serious_findings, visit_lab

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

pytestmark = pytest.mark.slow

TEXT = "text=The+old+woman+sees+the+cat."
ROOMS = {
    "playground": (f"/playground?run=tiny-translate&{TEXT}", "**/api/playground/translate"),
    "attention": (f"/attention?run=tiny-translate&{TEXT}", "**/api/attention"),
    "heads": ("/heads?run=tiny-translate&limit=50", "**/api/heads/cards"),
}
"""The address of each room, and the request that its first computation is."""
ANSWER = {
    "playground": "h2:text-is('Translation')",
    "attention": "[data-testid=audit]",
    "heads": "[data-head]",
}
"""What is on the page after that computation."""
BUSY = {"computations": 5, "at_once": 2, "trainings": 1}
REASON = "5 computations run or wait in this lab, which does 2 at a time."


def places(page: Page) -> list[Any]:
    """Where the buttons and fields are, those above the answer first."""
    found = page.locator("main :is(button.primary, .examples button, select, textarea)")
    boxes = [one.bounding_box() for one in found.all()]
    return [box and (box["x"], box["y"], box["height"]) for box in boxes]


@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("room", ROOMS)
def test_a_room_says_what_it_waits_for(
    chromium: Browser, tiny_lab: LabProcess, room: str, width: int
) -> None:
    address, computed = ROOMS[room]
    with visit_lab(chromium, tiny_lab, "/design", width=width) as visit:
        page = visit.page
        held: list[Route] = []
        work = dict(BUSY)
        page.route(computed, lambda route: held.append(route))  # no answer, until it is passed on
        page.route("**/api/work", lambda route: route.fulfill(json=work))
        page.goto(tiny_lab.address + address)
        waiting = page.get_by_test_id("waiting").first
        status = waiting.get_by_role("status")

        def others() -> set[str]:
            """Requests that are not held, and that the page waits for."""
            urls = {request.url for request in visit.unanswered}
            return urls - {route.request.url for route in held} - {f"{tiny_lab.address}/api/work"}

        wait_to_read(page, lambda: (len(held), others()), (1, set()))
        before = places(page)
        assert before
        wait_to_read(page, status.inner_text, f"Still computing… {REASON}")
        assert places(page) == before
        # The seconds go on, outside of what a screen reader announces.
        seconds = waiting.locator(".numbers")
        wait_to_read(page, lambda: int(seconds.inner_text().removesuffix(" s")) >= 4, True)
        work.update(computations=1)
        reason = "A run trains on this machine meanwhile."
        wait_to_read(page, status.inner_text, f"Still computing… {reason}")
        work.update(trainings=0)
        wait_to_read(page, lambda: status.inner_text().strip(), "Still computing…")
        assert places(page) == before
        for route in held:
            route.continue_()
        wait_to_read(page, status.inner_text, "")
        page.locator(ANSWER[room]).first.wait_for()
        assert serious_findings(visit) == []
        assert places(page)[: len(before)] == before
