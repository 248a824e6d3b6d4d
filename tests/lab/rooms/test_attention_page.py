"""The room Attention in a browser: what it shows is what Python computes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import pytest
from browser import Scheme, wait_to_read
from labs import LabProcess, running_lab, serious_findings, train_tiny, visit_lab

import heed
from heed.probe.attend import View
from heed.probe.attention_stages import row_stages
from heed.probe.map_comparison import compare_maps
from heed.probe.mask_audit import audit_map, change_future
from heed.probe.patch import Head

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

pytestmark = pytest.mark.slow

TEXT = "The old woman sees the cat."


def address(run: str, **query: object) -> str:
    return f"/attention?{urlencode({'run': run, 'text': TEXT, **query})}"


def number(place: Locator) -> float:
    value = place.get_attribute("value")
    assert value is not None
    return float(value)


def close(value: float) -> Any:
    """A number of another process, whose threads may round otherwise."""
    return pytest.approx(value, rel=1e-5, abs=1e-8)


def wait_for_number(place: Locator, value: float) -> None:
    """Wait until a number on screen is this one: it comes from the server."""
    wait_to_read(place.page, lambda: number(place), close(value))


def cell(page: Page, table: str, row: int, column: int) -> Locator:
    """The place of a number in a table on screen."""
    line = page.get_by_test_id(table).locator("tbody tr").nth(row)
    return line.locator("> *").nth(column).locator("data").first


def test_a_weight_a_stage_and_the_audit_are_pythons(
    chromium: Browser, tiny_lab: LabProcess, tiny_runs: Path
) -> None:
    model = heed.load(tiny_runs / "tiny-translate", device="cpu")
    assert isinstance(model, heed.Translator)
    maps = model.attention(TEXT)
    assert maps.cross is not None
    assert maps.decoder is not None
    query = {"kind": "cross", "layer": 2, "head": 1, "row": 2}
    with visit_lab(chromium, tiny_lab, address("tiny-translate", **query)) as visit:
        page = visit.page
        wait_to_read(page, page.get_by_test_id("head").inner_text, "Cross, layer 2, head 1")
        wait_to_read(page, page.get_by_test_id("output").inner_text, maps.target)
        weights = page.get_by_test_id("row").locator("data")
        for key, weight in enumerate(maps.cross.weights[1][0, 1]):
            wait_for_number(weights.nth(key), float(weight))
        # Another head, by the keyboard, comes from the server.
        page.get_by_role("gridcell", name="layer 2, head 1").press("ArrowRight")
        page.get_by_text("Cross, layer 2, head 2", exact=True).wait_for()
        wait_for_number(weights.nth(0), float(maps.cross.weights[1][1, 1, 0]))
        page.get_by_text("Layer 2, head 2: ").wait_for()
        stages = row_stages(model.model, *model.inputs(TEXT), Head("cross", 1, 1), 1)
        for key in range(len(stages.scores)):
            for column, values in ((1, stages.scores), (2, stages.scaled), (6, stages.weights)):
                wait_for_number(cell(page, "stages", key, column), values[key])
        assert number(page.get_by_test_id("deviation")) < 1e-6 > stages.deviation
        page.get_by_test_id("audit").wait_for()
        audit = audit_map(maps.decoder)
        forbidden = page.get_by_test_id("audit").locator("[data-kind=decoder] data")
        assert number(forbidden.nth(0)) == audit.largest_hidden == 0
        assert number(forbidden.nth(1)) == 0  # the weight on padding, in a padded batch
        assert number(forbidden.nth(2)) == close(audit.smallest_sum)
        assert page.get_by_test_id("audit").locator("[data-padding] data").count() == 3
        page.get_by_label("First token to change").select_option("2")
        page.get_by_role("button", name="Change the future").click()
        verdict = page.get_by_test_id("future")
        verdict.wait_for()
        read, source = model.inputs(TEXT)
        change = change_future(model.model, read, source, 2, vocab=model.tokenizer.vocab_size)
        assert number(verdict.locator("data").nth(0)) == close(change.earlier_weights)
        assert "No leak" in verdict.inner_text()
        # The address is a bookmark of this head.
        page.wait_for_url("**head=2**")
        page.reload()
        page.get_by_text("Cross, layer 2, head 2", exact=True).wait_for()


def test_two_weights_side_by_side(chromium: Browser, tiny_lab: LabProcess, tiny_runs: Path) -> None:
    folder = tiny_runs / "tiny-generate"
    runs = [heed.load(folder, device="cpu", weights=weights) for weights in ("best", "3")]
    (pairs,) = compare_maps(runs[0], runs[1], [(TEXT,)], View(), names=("a", "b"))
    query = {"view": "pair", "run2": "tiny-generate", "weights2": "3"}
    with visit_lab(chromium, tiny_lab, address("tiny-generate", **query)) as visit:
        page = visit.page
        assert number(page.get_by_test_id("similarity")) == close(pairs.matching.similarity)
        shown = page.get_by_test_id("pair")
        for i, match in enumerate(pairs.matching.matches):
            assert number(shown.nth(i).locator("data")) == close(match.similarity)
        shown.nth(1).click()
        match = pairs.matching.matches[1]
        values = page.get_by_test_id("pair-value").locator("data")
        values.nth(1).wait_for()
        first = pairs.first[0].weights[match.first.layer][match.first.head]
        second = pairs.second[0].weights[match.second.layer][match.second.head]
        wait_for_number(values.nth(0), float(first[0, 0]))
        wait_for_number(values.nth(1), float(second[0, 0]))
        page.get_by_label("Second text (empty: the same)").fill("The cat sleeps.")
        page.get_by_role("button", name="Compare").click()
        page.get_by_text("paired by layer and number").wait_for()


def test_side_by_side_begins_with_another_run_of_the_same_task(
    chromium: Browser, tiny_runs: Path, tmp_path: Path
) -> None:
    shutil.copytree(tiny_runs, tmp_path / "runs")
    shutil.copytree(tiny_runs / "tiny-translate", tmp_path / "runs" / "another")
    with running_lab(tmp_path / "runs", "--read-only") as lab:
        with visit_lab(chromium, lab, address("another")) as visit:
            page = visit.page
            first = page.get_by_role("combobox", name="Run", exact=True)
            second = page.get_by_label("Second run")
            page.get_by_label("Side by side").check()
            wait_to_read(page, second.input_value, "tiny-translate")
            first.select_option("tiny-translate")
            wait_to_read(page, second.input_value, "another")
            first.select_option("tiny-generate")  # the only one of its task
            wait_to_read(page, second.input_value, "tiny-generate")
            first.select_option("tiny-translate")
            assert "run2" not in page.url  # nothing is compared before it is asked for
            page.get_by_role("button", name="Compare").click()
            page.get_by_test_id("similarity").wait_for()
            assert "run2=another" in page.url
        # Where nothing is computed yet, a text of dev can be chosen all the same.
        with visit_lab(chromium, lab, address("another", view="pair")) as visit:
            visit.page.locator("select:enabled", has_text="Choose one…").wait_for()
        # A bookmark shows what it says, also one run twice.
        asked = address("tiny-translate", view="pair", run2="tiny-translate")
        with visit_lab(chromium, lab, asked) as visit:
            visit.page.get_by_test_id("similarity").wait_for()
            visit.settle()
            assert visit.page.get_by_label("Second run").input_value() == "tiny-translate"
            assert "run2=tiny-translate" in visit.page.url


def test_nothing_of_another_run_stays_under_a_run_without_weights(
    chromium: Browser, tiny_runs: Path, tmp_path: Path
) -> None:
    shutil.copytree(tiny_runs / "tiny-translate", tmp_path / "runs" / "kept")
    gone_run = Path(shutil.copytree(tiny_runs / "tiny-translate", tmp_path / "runs" / "gone"))
    (gone_run / "model.safetensors").unlink()
    shutil.rmtree(gone_run / "checkpoints", ignore_errors=True)
    with running_lab(tmp_path / "runs", "--read-only") as lab:
        with visit_lab(chromium, lab, address("kept")) as visit:
            page = visit.page
            page.get_by_text("checks pass").wait_for()
            run = page.get_by_role("combobox", name="Run", exact=True)
            gone = run.locator("option[value=gone]")
            assert gone.inner_text() == "gone (weights not kept)"
            assert gone.is_disabled()
            assert run.locator("option[value=kept]").inner_text() == "kept"
            # The list of a page that was open before the weights were deleted.
            gone.evaluate("(option) => (option.disabled = false)")
            run.select_option("gone")
            alert = page.get_by_role("alert")
            alert.get_by_text("its study did not keep its weights").wait_for()
            visit.messages[:] = [m for m in visit.messages if "400 (Bad Request)" not in m]
            assert "Wait for" not in alert.inner_text()
            for heading in ("One row in stages", "The mask, audited"):
                assert page.get_by_role("heading", name=heading).count() == 0
            for place in ("output", "head", "stages", "audit"):
                assert page.get_by_test_id(place).count() == 0
            run.select_option("kept")
            page.get_by_text("checks pass").wait_for()
            assert alert.count() == 0
        with visit_lab(chromium, lab, "/playground") as visit:
            run = visit.page.get_by_role("combobox", name="Run", exact=True)
            wait_to_read(visit.page, run.input_value, "kept")
            assert run.locator("option[value=gone]").is_disabled()


@pytest.fixture(scope="module")
def snapshot_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabProcess]:
    folder = tmp_path_factory.mktemp("snapshots") / "runs"
    train_tiny(folder / "snapshots", "demo-generate", "train.snapshot_every=2")
    with running_lab(folder, "--read-only") as lab:
        yield lab


def test_a_scrubber_over_training(chromium: Browser, snapshot_lab: LabProcess) -> None:
    with visit_lab(chromium, snapshot_lab, address("snapshots", view="training")) as visit:
        page = visit.page
        weights = page.get_by_test_id("row").locator("data")
        slider = page.get_by_role("slider")
        slider.wait_for()
        wait_to_read(page, page.get_by_test_id("step").inner_text, "6")
        visit.settle()  # the weights of this step are there
        last = number(weights.nth(0))
        slider.press("Home")
        page.get_by_text("Step 0 of 6").wait_for()
        folder = Path(str(snapshot_lab.process.args[4])) / "snapshots"  # type: ignore[index]
        model = heed.load(folder, device="cpu", weights="0")
        decoder = model.attention(TEXT).decoder
        assert decoder is not None
        first = float(decoder.weights[0][0, 1, 0])
        wait_for_number(weights.nth(0), first)
        assert first != close(last)
        page.get_by_role("button", name="Follow every head").click()
        page.get_by_test_id("history").nth(3).wait_for()
        # The choice of a head enters the address a moment later, and deletes no history.
        page.get_by_role("gridcell", name="layer 1, head 2").click()
        page.wait_for_url("**head=2**")
        assert page.get_by_test_id("history").nth(3).is_visible()


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (400, "dark")])
def test_the_room_is_accessible(
    chromium: Browser, tiny_lab: LabProcess, width: int, scheme: Scheme
) -> None:
    with visit_lab(
        chromium, tiny_lab, address("tiny-translate"), width=width, scheme=scheme
    ) as visit:
        visit.page.get_by_test_id("audit").wait_for()
        visit.page.get_by_test_id("stages").wait_for()
        assert serious_findings(visit) == []
        assert [text for text, ratio in visit.contrasts() if ratio < 4.5] == []
        body = visit.page.evaluate("document.documentElement.scrollWidth")
        assert body <= width


def test_a_text_of_script_is_shown_as_text(chromium: Browser, tiny_lab: LabProcess) -> None:
    hostile = "<img src=x onerror=alert(1)> <script>alert(2)</script>"
    query = {"run": "tiny-generate", "text": hostile}
    with visit_lab(chromium, tiny_lab, f"/attention?{urlencode(query)}") as visit:
        visit.page.get_by_test_id("stages").wait_for()
        visit.settle()  # what is shown late is text, too
        assert visit.page.locator("main img").count() == 0


def test_a_token_of_the_output_has_one_number(
    chromium: Browser, tiny_lab: LabProcess, tiny_runs: Path
) -> None:
    """In the cross and the decoder map, the row table, the stages, the audit and the address."""
    maps = heed.load(tiny_runs / "tiny-translate", device="cpu").attention(TEXT)
    assert maps.cross is not None
    assert maps.decoder is not None
    token = maps.cross.query_tokens[1]  # the second token that is written
    assert maps.decoder.query_tokens[2] == token  # the begin token has the number 0
    for kind in ("cross", "decoder"):
        query = {"kind": kind, "layer": 1, "head": 1, "row": 2}
        with visit_lab(chromium, tiny_lab, address("tiny-translate", **query)) as visit:
            page = visit.page
            heading = page.get_by_label("Weights of the chosen token").get_by_role("heading")
            heading.filter(has_text="token 2 of").wait_for()
            assert heading.get_by_test_id("query").inner_text() == token
            page.get_by_text("Layer 1, head 1: query 2,").wait_for()
            page.get_by_test_id("audit").wait_for()
            option = page.get_by_label("First token to change").locator("option[value='2']")
            assert option.inner_text() == f"2: {token}"
            page.wait_for_url(f"**kind={kind}**row=2**")
