"""Runs, a run and a study in a real browser: numbers on screen against Python's, live."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from browser import Scheme, Visit, wait_to_read
from lab_runs import HOSTILE, append_rows, write_run, write_seeds
from labs import LabProcess, running_lab, serious_findings, visit_lab
from study_folders import write_study
from typer.testing import CliRunner

from heed.cli.main import app
from heed.runs.run import Run
from heed.study.study_results import StudyResults
from heed.study.trials import write_state

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two recipes with seeds, a study, a damaged run, and hostile names."""
    folder = tmp_path_factory.mktemp("pages") / "runs"
    write_seeds(folder)
    write_study(folder / "study", {"base": 0.6, "wide": 0.8, HOSTILE: 0.7}, seeds=3)
    write_run(folder / HOSTILE, position="alibi")
    write_run(folder / "broken").metrics_path.write_text("broken\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def lab(folder: Path) -> Iterator[LabProcess]:
    with running_lab(folder) as lab:
        yield lab


def value_of(locator: Locator) -> float:
    """The number of a `<data>` element, with all its digits."""
    return float(locator.get_attribute("value") or "nan")


def test_a_curve_shows_its_exact_last_value(
    chromium: Browser, lab: LabProcess, folder: Path
) -> None:
    address = "/runs?metric=train%2Floss&by=run&filter=rope-1"
    with visit_lab(chromium, lab, address) as visit:
        chart = visit.page.get_by_role("slider", name="train/loss by step")
        visit.page.locator(".curves path.line").first.wait_for()
        chart.focus()
        chart.press("ArrowDown")
        while "rope-1" not in (chart.get_attribute("aria-valuetext") or ""):  # another may be first
            chart.press("ArrowDown")
        chart.press("End")
        shown = visit.page.get_by_test_id("point").locator("data")
        history = [row for row in Run(folder / "rope-1").history if "train/loss" in row]
        assert value_of(shown.nth(0)) == history[-1]["step"]
        assert value_of(shown.nth(1)) == history[-1]["train/loss"]
        chart.press("Home")
        assert value_of(shown.nth(1)) == history[0]["train/loss"]
        visit.page.get_by_text("Table of the curves").click()
        row = visit.page.get_by_role("row", name="rope-1").first
        assert value_of(row.locator("data").last) == history[-1]["train/loss"]


def test_a_selection_hears_the_verdict_of_the_command(
    chromium: Browser, lab: LabProcess, folder: Path
) -> None:
    names = [f"{position}-{seed}" for position in ("none", "rope") for seed in range(3)]
    command = ["compare", *(str(folder / name) for name in names), "--json"]
    verdicts = json.loads(CliRunner().invoke(app, command).output)["verdicts"]
    with visit_lab(chromium, lab, "/runs") as visit:
        page = visit.page
        for position in ("rope", "none"):
            page.get_by_role("checkbox", name=f"Select position={position}").check()
        sentences = page.get_by_test_id("verdict").locator(".sentence")
        wait_to_read(page, sentences.all_inner_texts, verdicts)
        page.reload()  # the selection is in the address
        wait_to_read(page, sentences.all_inner_texts, verdicts)


def test_best_and_last_scores_and_damage_are_shown(
    chromium: Browser, lab: LabProcess, folder: Path
) -> None:
    with visit_lab(chromium, lab, "/runs") as visit:
        page = visit.page
        page.get_by_role("button", name="position=rope").click()
        row = page.get_by_role("row", name="Select rope-2")
        evaluations = [row for row in Run(folder / "rope-2").history if "dev/loss" in row]
        losses = [one["dev/loss"] for one in evaluations]
        assert value_of(row.locator("data").nth(0)) == min(losses)
        assert value_of(row.locator("data").nth(1)) == losses[-1]
        broken = page.get_by_role("row", name="broken")
        broken.get_by_text("it is not a JSON object").first.wait_for()
        broken.get_by_role("link").click()
        page.get_by_role("heading", name="broken", level=1).wait_for()
        page.get_by_text("it is not a JSON object").first.wait_for()
        wait_to_read(page, page.get_by_test_id("status").inner_text, "damaged")


def test_a_run_that_needs_a_plugin_is_not_damaged(
    chromium: Browser, lab: LabProcess, folder: Path
) -> None:
    run = write_run(folder / "own", position="rope")
    part = {"name": "my_parts.py", "sha256": "0" * 64, "parts": ["position decay"]}
    run.write_environment(run.environment() | {"plugins": [part]})
    with visit_lab(chromium, lab, "/run/own") as visit:
        page = visit.page
        wait_to_read(page, page.get_by_test_id("status").inner_text, "needs --plugin my_parts.py")
        page.get_by_text("trained with the plug-in my_parts.py").first.wait_for()
    with visit_lab(chromium, lab, "/runs?filter=own") as visit:
        status = visit.page.get_by_role("row", name="own").locator(".status")
        wait_to_read(visit.page, status.inner_text, "needs --plugin my_parts.py")
        assert "damaged" not in (status.get_attribute("class") or "")
    shutil.rmtree(run.folder)


def test_the_seed_of_a_copied_run_counts_once(chromium: Browser, tmp_path: Path) -> None:
    for folder in ("first", "copy"):
        write_seeds(tmp_path / "runs" / folder)
    with running_lab(tmp_path / "runs") as lab, visit_lab(chromium, lab, "/runs") as visit:
        rows = visit.page.locator("tr.group")
        rows.nth(1).wait_for()
        for row in rows.all():
            assert row.locator("td.number").first.inner_text() == "3"


def test_a_run_and_its_notes(chromium: Browser, lab: LabProcess, folder: Path) -> None:
    with visit_lab(chromium, lab, "/run/rope-0") as visit:
        page = visit.page
        losses = [row["dev/loss"] for row in Run(folder / "rope-0").history if "dev/loss" in row]
        assert value_of(page.get_by_test_id("best").locator("data")) == min(losses)
        assert value_of(page.get_by_test_id("last").locator("data")) == losses[-1]
        page.get_by_role("heading", name="Data and tokenizer").wait_for()  # the slow part
        notes = page.get_by_label("Notes on this run")
        notes.fill(f"the warm-up was too short {HOSTILE}")
        page.get_by_role("button", name="Save the notes").click()
        page.get_by_text("Saved.").wait_for()
        text = (folder / "rope-0" / "notes.txt").read_text(encoding="utf-8")
        assert text == f"the warm-up was too short {HOSTILE}"
        page.reload()
        page.get_by_role("heading", name="Summary").wait_for()
        wait_to_read(page, notes.input_value, text)


def test_a_live_run_grows_and_goes_without_reload(
    chromium: Browser, lab: LabProcess, folder: Path
) -> None:
    with visit_lab(chromium, lab, "/runs?metric=dev%2Floss&by=run&filter=live-run") as visit:
        page = visit.page
        page.get_by_text("No run matches the filter.").wait_for()
        run = write_run(folder / "live-run", position="shaw", steps=3)
        link = page.get_by_role("link", name="live-run")
        link.wait_for()
        page.locator(".curves path.line").wait_for()
        link.click()
        last = page.get_by_test_id("last").locator("data")
        last.wait_for()
        before = value_of(last)
        with run.locked():
            append_rows(run, range(4, 9))
            value = next(row["dev/loss"] for row in reversed(run.history) if "dev/loss" in row)
            page.locator(f'[data-testid="last"] data[value="{value}"]').wait_for()
            page.locator('[data-testid="status"]:text-is("training")').wait_for()
            page.locator("#evaluations tbody tr:nth-child(8)").wait_for()
        assert value != before
        page.locator('[data-testid="status"]:text-is("stopped")').wait_for()
        visit.settle()  # a browser reports what is asked for and is gone
        run.folder.rename(folder.parent / "moved")  # at once, where a deletion has steps
        page.get_by_text("This run was deleted or moved").wait_for()


def test_a_study_links_its_curves_with_its_keys(
    chromium: Browser, lab: LabProcess, folder: Path
) -> None:
    with visit_lab(chromium, lab, "/study/study") as visit:
        page = visit.page
        results = StudyResults.read(folder / "study")
        assert results.comparison is not None
        sentences = page.get_by_test_id("verdict").locator(".sentence")
        wait_to_read(page, sentences.all_inner_texts, results.comparison.sentences)
        curves = page.get_by_test_id("curves")
        wait_to_read(page, curves.locator(".curves path.line").count, len(results.trials))
        # Pointing at a trial in the table emphasizes it in both figures.
        trial = results.trials[4].trial.name
        page.get_by_role("row", name=trial).first.hover()
        curves.locator("path.line.strong").wait_for()
        coordinates = page.get_by_test_id("coordinates")
        coordinates.get_by_role("status").filter(has_text=trial).wait_for()
        # A range of an axis leaves the other curves faint.
        dev = f"dev {results.metric}"
        bound = coordinates.get_by_role("slider", name=f"{dev}, lower bound")
        for _ in range(10):
            bound.press("ArrowUp")
        scores = [state.dev or 0.0 for state in results.trials]
        middle = (min(scores) + max(scores)) / 2
        faint = sum(score < middle for score in scores)
        wait_to_read(page, curves.locator("path.line.dim").count, faint)


def test_names_times_and_seeds_of_trials_can_be_read(chromium: Browser, tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "study"
    failed = "no-position-at-all-seed2000000"
    qualities = {"base": 0.6, "no-position-at-all": 0.7}
    write_study(folder, qualities, seeds=[0, 7, 2_000_000], failed=[failed])
    (state,) = (one for one in StudyResults.read(folder).trials if one.trial.name == failed)
    reason = "the process ended with code 137: killed, as by the system where memory is short; "
    write_state(folder, replace(state, reason=4 * reason))
    with running_lab(tmp_path / "runs") as lab, visit_lab(chromium, lab, "/study/study") as visit:
        page = visit.page
        table = page.get_by_role("region", name="Table of the trials")
        names = table.locator("tbody th bdi")
        names.nth(5).wait_for()
        lines = "(name) => name.getClientRects().length"
        assert [name.evaluate(lines) for name in names.all()] == [1] * 6
        times = table.locator("td.time").all_inner_texts()
        minutes = [one.minutes for one in StudyResults.read(folder).trials]
        assert times == ["–" if one is None else f"{60 * one:.0f} s" for one in minutes]
        ticks = page.get_by_test_id("coordinates").locator("text.tick").all_text_contents()
        assert {"0", "7", "2000000"} <= {*ticks}
        assert "500000" not in ticks


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (400, "dark")])
def test_pages_are_accessible_and_hostile_names_are_text(
    chromium: Browser, lab: LabProcess, width: int, scheme: Scheme
) -> None:
    addresses = ("/runs", f"/run/{HOSTILE}", "/study/study")
    for address in addresses:
        with visit_lab(chromium, lab, address, width=width, scheme=scheme) as visit:
            visit.page.locator(".curves path.line").first.wait_for()
            visit.page.get_by_text(HOSTILE).first.wait_for()
            assert serious_findings(visit) == []
            assert visit.page.locator("img").count() == 0
            assert page_width(visit) <= width


def page_width(visit: Visit) -> int:
    return int(visit.page.evaluate("document.documentElement.scrollWidth"))


def test_a_chart_is_saved_as_svg_and_png(chromium: Browser, lab: LabProcess) -> None:
    with visit_lab(chromium, lab, "/run/rope-0") as visit:
        visit.page.locator(".curves path.line").first.wait_for()
        tools = visit.page.get_by_role("group", name="Save the figure rope-0 loss")
        for kind, start in (("SVG", b"<svg"), ("PNG", b"\x89PNG")):
            with visit.page.expect_download() as download:
                tools.get_by_role("button", name=kind).click()
            content = Path(download.value.path()).read_bytes()
            assert content.startswith(start)
        assert download.value.suggested_filename == "rope-0-loss.png"


def test_sixteen_curves_differ_and_their_rows_point_at_them(
    chromium: Browser, tmp_path: Path
) -> None:
    """In color, dash or marker; the row under the pointer or the focus emphasizes its curve."""
    for layers in range(1, 19):
        write_run(tmp_path / "runs" / f"layers-{layers:02}", layers=layers)
    with running_lab(tmp_path / "runs") as lab, visit_lab(chromium, lab, "/runs") as visit:
        page = visit.page
        page.locator(".curves path.line").nth(17).wait_for(state="attached")
        visit.settle()
        rows = page.locator("tr.group")
        looks = rows.locator("th svg").evaluate_all("all => all.map((one) => one.innerHTML)")
        assert len(looks) == len(set(looks)) == 18
        assert page.locator(".curves .markers").count() == 11  # the first seven differ by color
        strong = page.locator("path.line.strong")
        rows.nth(4).get_by_role("checkbox").focus()
        strong.wait_for(state="attached")
        color = strong.get_attribute("stroke")
        rows.nth(5).get_by_role("checkbox").hover()
        page.wait_for_function(
            "color => document.querySelector('path.line.strong')?.getAttribute('stroke') !== color",
            arg=color,
        )
