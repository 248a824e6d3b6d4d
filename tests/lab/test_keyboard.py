"""Every room of the lab by the keyboard alone: what is reached, what is seen, what can be done."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from browser import Visit
from labs import LabProcess, running_lab, visit_lab
from study_folders import write_study

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator

pytestmark = pytest.mark.slow

TEXT = "The old woman sees the cat."
MOST_STOPS = 120
"""Presses of Tab that reach any control of a room."""
RUN = "run=tiny-translate"
ADDRESSES = (
    *("/runs", "/run/tiny-classify", "/study/study", "/train?run=tiny-classify"),
    *(f"/playground?{RUN}", f"/attention?{RUN}&text=The+cat.", f"/heads?{RUN}&limit=50"),
    "/design?preset=inside",
)
FOCUSED = """() => {
  const one = document.activeElement;
  if (one === document.body) return null;
  const box = one.getBoundingClientRect();
  const drawn = one.closest("svg") ? [...one.querySelectorAll("rect, circle")] : [];
  const shown = [one, one.nextElementSibling, ...drawn].filter((each) => each);
  const hasOutline = (each) => {
    const style = getComputedStyle(each);
    return style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 1;
  };
  const id = `${one.tagName} ${one.id} ${one.getAttribute("aria-label") ?? one.textContent.trim()}`;
  return {
    id: `${id.slice(0, 60)} ${Math.round(box.x)} ${Math.round(box.y + scrollY)}`,
    isOutlined: shown.some(hasOutline) || drawn.length > 0,
    isInView: box.bottom > 0 && box.top < innerHeight,
    isInMain: one.closest("main") !== null,
  };
}"""
"""The element that has the focus, whether it shows that, and where it is."""
CONTROLS = "a[href], button, input, select, textarea, summary"
UNREACHABLE = """(controls) => [...document.querySelectorAll(controls)]
  .filter((one) => one.checkVisibility({visibilityProperty: true}) && !one.disabled)
  .filter((one) => one.tabIndex < 0 && !one.closest("[role=grid], [role=group], [role=listbox]"))
  .map((one) => one.outerHTML.slice(0, 120))"""
"""Visible controls that Tab skips, but those of a group in which the arrow keys move."""


@pytest.fixture(scope="module")
def lab(tiny_runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabProcess]:
    """A lab of a run of each task and of a study, in which runs can be trained."""
    folder = tmp_path_factory.mktemp("keyboard") / "runs"
    shutil.copytree(tiny_runs, folder)
    write_study(folder / "study", {"base": 0.6, "wide": 0.8}, seeds=2)
    with running_lab(folder) as process:
        yield process


def press_tab_to(visit: Visit, wanted: Locator) -> None:
    """Press Tab until a control has the focus; what has it on the way shows that."""
    page = visit.page
    wanted.wait_for(state="attached")
    visit.settle()  # what comes late would move the focus out of view
    for _ in range(MOST_STOPS):
        page.keyboard.press("Tab")
        place: dict[str, Any] | None = page.evaluate(FOCUSED)
        if place is not None:
            assert place["isOutlined"], place
            assert place["isInView"], place
        if wanted.evaluate("one => one === document.activeElement"):
            return
    raise AssertionError(f"{wanted} is not reached by Tab")


@pytest.mark.parametrize("address", ADDRESSES)
def test_the_focus_goes_through_a_room_and_back(
    chromium: Browser, lab: LabProcess, address: str
) -> None:
    with visit_lab(chromium, lab, address) as visit:
        page = visit.page
        page.locator("main").locator(CONTROLS).nth(5).wait_for(state="attached")
        visit.settle()  # what comes late would move the places that are compared
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
        page.keyboard.press("Enter")
        stops: list[str] = []
        for _ in range(2 * MOST_STOPS):
            page.keyboard.press("Tab")
            place: dict[str, Any] | None = page.evaluate(FOCUSED)
            if place is None or not place["isInMain"]:
                break
            assert place["isOutlined"], place
            assert place["isInView"], place
            stops.append(place["id"])
        else:
            raise AssertionError(f"the focus does not leave the room: {stops[-3:]}")
        assert len(stops) >= 5
        assert len(set(stops)) == len(stops)
        assert page.evaluate(UNREACHABLE, CONTROLS) == []
        # Backwards from the last control there is the one before.
        page.keyboard.press("Shift+Tab")
        page.keyboard.press("Shift+Tab")
        assert page.evaluate(FOCUSED)["id"] in stops


def test_runs_are_opened_and_selected(chromium: Browser, lab: LabProcess) -> None:
    with visit_lab(chromium, lab, "/runs") as visit:
        page = visit.page
        press_tab_to(visit, page.get_by_label("Filter"))
        page.keyboard.type("tiny-classify")
        box = page.get_by_role("checkbox", name="Select", exact=False)
        page.wait_for_function("document.querySelectorAll('main tbody tr').length === 1")
        press_tab_to(visit, box)
        page.keyboard.press("Space")
        assert box.is_checked()
        page.get_by_role("button", name="Select none").wait_for()
        press_tab_to(visit, page.get_by_role("link", name="tiny-classify"))
        page.keyboard.press("Enter")
        page.get_by_role("heading", name="tiny-classify", level=1).wait_for()
        # The focus is in the new room, and its notes can be written.
        notes = page.get_by_role("textbox", name="Notes")
        press_tab_to(visit, notes)
        page.keyboard.type("By keys.")
        press_tab_to(visit, page.get_by_role("button", name="Save the notes"))
        page.keyboard.press("Enter")
        page.get_by_text("Saved").first.wait_for()


def test_trials_of_a_study_are_brushed(chromium: Browser, lab: LabProcess) -> None:
    with visit_lab(chromium, lab, "/study/study") as visit:
        page = visit.page
        bound = page.get_by_role("slider", name="model.width, lower bound")
        press_tab_to(visit, bound)
        status = page.get_by_role("status").filter(has_text="selected")
        assert "4 of 4 selected" in status.inner_text()
        page.keyboard.press("End")
        page.wait_for_function("document.body.innerText.includes('2 of 4 selected')")


def test_a_run_is_trained(chromium: Browser, lab: LabProcess) -> None:
    with visit_lab(chromium, lab, "/train?run=tiny-classify") as visit:
        page = visit.page
        steps = page.get_by_label("train.steps")
        press_tab_to(visit, steps)
        page.keyboard.press("Control+a")
        page.keyboard.type("4")
        page.get_by_text("1 key changed. heed accepts this recipe.").wait_for()
        press_tab_to(visit, page.get_by_role("button", name="Start"))
        page.keyboard.press("Enter")
        page.get_by_role("link", name="tiny-classify-2").wait_for()


def test_a_text_is_translated(chromium: Browser, lab: LabProcess) -> None:
    with visit_lab(chromium, lab, f"/playground?{RUN}") as visit:
        page = visit.page
        press_tab_to(visit, page.get_by_label("Text to translate"))
        page.keyboard.type(TEXT)
        press_tab_to(visit, page.get_by_role("button", name="Translate", exact=True))
        page.keyboard.press("Enter")
        page.get_by_role("heading", name="Tokens and their probabilities").wait_for()


def test_heads_of_a_text_are_looked_at(chromium: Browser, lab: LabProcess) -> None:
    with visit_lab(chromium, lab, f"/attention?{RUN}") as visit:
        page = visit.page
        press_tab_to(visit, page.get_by_label("Text", exact=True))
        page.keyboard.press("Control+a")
        page.keyboard.type(TEXT)
        press_tab_to(visit, page.get_by_role("button", name="Look"))
        page.keyboard.press("Enter")
        head = page.get_by_role("gridcell", name="layer 1, head 1")
        press_tab_to(visit, head)
        page.keyboard.press("ArrowDown")
        page.locator("[role=gridcell][aria-label='layer 2, head 1'][aria-selected=true]").wait_for()


def test_the_card_of_a_head_is_opened(chromium: Browser, lab: LabProcess) -> None:
    """Tab reaches one head of each attention, and the arrow keys the others."""
    with visit_lab(chromium, lab, f"/heads?{RUN}&limit=50") as visit:
        page = visit.page
        page.locator("[data-head]").first.wait_for()
        visit.settle()
        assert page.locator("[data-head][tabindex='0']").count() == 3
        press_tab_to(visit, page.locator("[data-head='decoder.1.1']"))
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowRight")
        page.keyboard.press("Enter")
        page.get_by_role("heading", name="decoder.2.2").wait_for()
        page.keyboard.press("Shift+Tab")
        page.keyboard.press("Tab")  # back to the head that was left
        assert page.evaluate("document.activeElement.dataset.head") == "decoder.2.2"


def test_a_query_is_moved(chromium: Browser, lab: LabProcess) -> None:
    with visit_lab(chromium, lab, "/design?preset=inside") as visit:
        page = visit.page
        query = page.locator("[data-point='query-0']")
        press_tab_to(visit, query)
        before = query.get_attribute("aria-label")
        page.keyboard.press("ArrowRight")
        assert query.get_attribute("aria-label") != before
