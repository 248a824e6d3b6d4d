"""The room Heads in a browser: an ablation's change and a patch on screen are Python's."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from browser import Scheme, wait_to_read
from labs import LabProcess, serious_findings, visit_lab

import heed
from heed.probe.ablate import METRICS, Scorer, compare_counts
from heed.probe.examples import open_probe_set
from heed.probe.head_cards import measure_heads
from heed.probe.patch import Head
from heed.probe.patched_output import patch_output

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator

pytestmark = pytest.mark.slow

TEXT = "The old woman sees the cat."
ADDRESS = "/heads?run=tiny-translate&limit=50&measure=previous&text=The+old+woman+sees+the+cat."


def number(place: Locator) -> float:
    value = place.get_attribute("value")
    assert value is not None
    return float(value)


def close(value: float) -> Any:
    return pytest.approx(value, rel=1e-4, abs=1e-6)


def wait_for_number(place: Locator, value: float) -> None:
    """Wait until a number on screen is this one: it comes from the server."""
    wait_to_read(place.page, lambda: number(place), close(value))


def test_cards_ablations_and_patches_are_pythons(
    chromium: Browser, tiny_lab: LabProcess, tiny_runs: Path
) -> None:
    folder = tiny_runs / "tiny-translate"
    probe = open_probe_set(folder, limit=50, device="cpu")
    cards = {card.head.label: card for card in measure_heads(probe, align=False).cards}
    scorer = Scorer(probe)
    counts = [scorer.counts("loss", [Head("decoder", 0, head)]) for head in (0, 1)]
    changes = compare_counts(METRICS["loss"], scorer.counts("loss"), counts, scorer.text_of)
    with visit_lab(chromium, tiny_lab, ADDRESS) as visit:
        page = visit.page
        head = page.locator("[data-head='decoder.1.1']")
        head.wait_for()
        for label, card in cards.items():
            if "previous" not in card.metrics:
                continue
            shown = page.locator(f"[data-head='{label}'] data")
            wait_for_number(shown, card.metrics["previous"].value)
        # Another metric recolors the grid, and the brush leaves the heads above its lower end.
        page.get_by_label("Color by").select_option("entropy")
        entropies = sorted(card.metrics["entropy"].value for card in cards.values())
        wait_for_number(head.locator("data"), cards["decoder.1.1"].metrics["entropy"].value)
        # The legend has the ends of the scale, and what they mean.
        legend = page.get_by_test_id("head-legend")
        assert number(legend.locator("data").nth(0)) == close(entropies[0])
        assert number(legend.locator("data").nth(1)) == close(entropies[-1])
        assert "looks at fewer tokens" in legend.inner_text()
        assert "No end is better" in legend.inner_text()
        page.get_by_label("Lower end of the brush").fill("0.99")
        least = entropies[0] + 0.99 * (entropies[-1] - entropies[0])
        count = sum(value >= least for value in entropies)
        brushed = page.get_by_test_id("brushed")
        wait_to_read(page, brushed.inner_text, f"{count} of {len(entropies)} heads")
        page.get_by_role("button", name="All", exact=True).click()
        # A click silences; the second head joins the family of the first.
        page.get_by_role("radio", name="Silence").check()
        table = page.get_by_test_id("ablation")
        for label in ("decoder.1.1", "decoder.1.2"):
            page.locator(f"[data-head='{label}']").click()
            table.locator(f"[data-heads='{label}']").wait_for()
        assert number(page.get_by_test_id("whole")) == close(
            float(METRICS["loss"].function(scorer.counts("loss").sum(axis=0)))
        )
        for label, change in zip(("decoder.1.1", "decoder.1.2"), changes, strict=True):
            values = table.locator(f"[data-heads='{label}'] data")
            interval = change.interval
            for i, value in enumerate((change.difference, interval.low, interval.high)):
                assert number(values.nth(i)) == pytest.approx(value, rel=0.01, abs=1e-6)
        # A pattern by the keyboard, then one that is dragged.
        model = heed.load(folder, device="cpu")
        head.focus()
        page.get_by_role("radio", name="Card").check()
        head.press("Enter")
        page.get_by_role("button", name="Put “uniform” onto decoder.1.1").click()
        page.get_by_test_id("patched").wait_for()
        edits: dict[Head, str] = {Head("decoder", 0, 0): "uniform"}
        expected = patch_output(model, edits, TEXT)
        assert number(page.get_by_test_id("moved")) == close(expected.moved)
        second = page.locator("[data-head='decoder.2.1']")
        page.locator(".chip", has_text="previous").drag_to(second)
        second.get_by_text("previous", exact=True).wait_for()
        edits[Head("decoder", 1, 0)] = "previous"
        expected = patch_output(model, edits, TEXT)
        wait_for_number(page.get_by_test_id("moved"), expected.moved)
        after = page.get_by_test_id("predictions").locator("tbody tr").nth(0).locator("data").nth(1)
        assert number(after) == close(expected.predictions[0].after)


@pytest.mark.parametrize(("width", "scheme"), [(1280, "dark"), (400, "light")])
def test_the_room_is_accessible(
    chromium: Browser, tiny_lab: LabProcess, width: int, scheme: Scheme
) -> None:
    with visit_lab(chromium, tiny_lab, ADDRESS, width=width, scheme=scheme) as visit:
        page = visit.page
        page.locator("[data-head='decoder.1.1']").click()
        page.get_by_role("button", name="Each head in turn").click()
        page.get_by_test_id("ablation").wait_for()
        assert serious_findings(visit) == []
        assert [text for text, ratio in visit.contrasts() if ratio < 4.5] == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width
