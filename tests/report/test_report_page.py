"""Reports in a real browser: no request, no error, both themes, phones, paper, no JavaScript."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from browser import Scheme, visit_file
from evaluating import evaluate_small, train_small, write_text
from study_folders import write_study

from heed.report.document import (
    Block,
    Document,
    Figure,
    Interactive,
    Paragraph,
    Section,
    Table,
)
from heed.report.html import render_html
from heed.report.line_charts import Series, line_chart
from heed.report.row_charts import Row, interval_plot
from heed.report.run_report import build_run_report
from heed.report.study_report import build_study_report
from heed.report.svg import SMALL
from heed.report.write_report import write_report

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.slow

AA = 4.5
"""The contrast that WCAG 2 asks of text at level AA."""
LEGIBLE = 8.5
"""The smallest type of a figure on a screen, in CSS pixels."""
HOSTILE = "</script><img src='https://example.org/x.png' onerror='alert(1)'>"
RATES = [1e-4, 1e-3, 1e-2, 3e-4, 3e-3]
SCORES = [20.0, 31.5, 12.0, 27.0, 29.0]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The report of a tiny classifier, with interactive attention maps."""
    folder = write_text(tmp_path_factory.mktemp("run"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEED_CACHE", str(folder / "cache"))
        run = train_small(folder, "classify", "run", data={"test": [str(folder / "test.tsv")]})
        evaluate_small(run)
        write_report(build_run_report(run), folder / "report.html")
        yield folder / "report.html"


@pytest.fixture(scope="module")
def search(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A document with charts, hostile texts, and trials as parallel coordinates."""
    lines = [
        {"name": f"trial{i} {HOSTILE}", "group": HOSTILE, "values": [rate, "adamw", None, score]}
        for i, (rate, score) in enumerate(zip(RATES, SCORES, strict=True))
    ]
    axes = [
        {"label": "train.lr", "scale": "log"},
        {"label": "train.optimizer", "scale": "category", "categories": ["adamw", "sgd"]},
        {"label": "train.momentum", "scale": "linear"},
        {"label": "BLEU", "scale": "linear"},
    ]
    data = {"axes": axes, "lines": lines, "score": 3, "higher_is_better": True}
    table = Table("trials-table", "Trials", ["trial", "BLEU"], [[HOSTILE, "31.5"]], right=["BLEU"])
    svg = interval_plot([Row(HOSTILE, 1, 0.5, 2, HOSTILE)], x=HOSTILE, reference=0)
    curve = line_chart([Series(HOSTILE, [(1, 2), (2, 3)])], x=HOSTILE, y=HOSTILE)
    blocks: list[Block] = [
        Paragraph(HOSTILE, "finding", figure="forest"),
        Figure("forest", HOSTILE, HOSTILE, svg),
        Figure("curve", HOSTILE, HOSTILE, curve),
        Interactive("trials", "parallel-coordinates", data, HOSTILE, table),
    ]
    path = tmp_path_factory.mktemp("search") / "report.html"
    document = Document(HOSTILE, HOSTILE, HOSTILE, [Section("search", HOSTILE, blocks)])
    path.write_text(render_html(document), encoding="utf-8")
    return path


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (400, "dark")])
def test_pages_are_legible_and_ask_for_nothing(
    chromium: Browser, report: Path, search: Path, width: int, scheme: Scheme
) -> None:
    for path in (report, search):
        with visit_file(chromium, path, width=width, scheme=scheme) as visit:
            visit.page.locator(".interactive.is-ready").first.wait_for()
            assert visit.page.evaluate("document.documentElement.scrollWidth") <= width
            low = [(text, ratio) for text, ratio in visit.contrasts() if ratio < AA]
            assert low == []


def test_attention_is_interactive_and_its_alternative_is_for_paper(
    chromium: Browser, report: Path
) -> None:
    with visit_file(chromium, report) as visit:
        page = visit.page
        part = page.locator("#attention-1")
        weights = part.get_by_test_id("row").locator("data")
        weights.first.wait_for()
        values = weights.evaluate_all("all => all.map((one) => Number(one.value))")
        assert math.isclose(sum(values), 1.0, abs_tol=1e-5)
        part.locator(".alternative").wait_for(state="hidden")
        page.emulate_media(media="print")
        part.locator(".alternative").wait_for()
        part.locator("[data-interactive]").wait_for(state="hidden")


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a study whose pairs are a table of eleven columns."""
    folder = tmp_path_factory.mktemp("wide")
    names = ["rope", "sinusoidal", "learned", "shaw", "t5", "alibi", "none"]
    systems = {name: 0.3 + 0.03 * number for number, name in enumerate(names)}
    write_study(folder / "study", systems, margin=0.5)
    write_report(build_study_report(folder / "study"), folder / "report.html")
    return folder / "report.html"


@pytest.mark.parametrize("width", [1600, 1280, 1100, 900, 400])
def test_wide_tables_use_the_margin_and_captions_are_never_cut(
    chromium: Browser, wide: Path, width: int
) -> None:
    with visit_file(chromium, wide, width=width) as visit:
        page = visit.page
        frame = page.locator(".scroll:has(#pairs)")
        scrolls = "one => one.scrollWidth > one.clientWidth"
        assert frame.evaluate(scrolls) == (width < 1000)
        frames = page.locator(".scroll:has(> table):visible")
        for number in range(frames.count()):
            one = frames.nth(number)
            for place in (0, 10_000):
                one.evaluate("(one, place) => (one.scrollLeft = place)", place)
                box = one.locator("caption").bounding_box()
                assert box is not None
                assert box["x"] >= 0
                assert box["x"] + box["width"] <= width
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        contents = page.locator("nav").bounding_box()
        table = frame.bounding_box()
        assert contents is not None
        assert table is not None
        if width >= 1200:  # the contents are beside the text
            assert contents["x"] + contents["width"] <= table["x"]


@pytest.mark.parametrize(("width", "drawn"), [(1280, 640), (600, 640), (400, 380), (320, 380)])
def test_figures_fit_the_page_and_can_be_read(
    chromium: Browser, wide: Path, report: Path, width: int, drawn: int
) -> None:
    for path in (wide, report):
        with visit_file(chromium, path, width=width) as visit:
            pictures = visit.page.locator("figure:not(.interactive) > .picture")
            assert pictures.count() > 1
            for picture in pictures.all():
                assert picture.evaluate("one => one.scrollWidth <= one.clientWidth")
                svg = picture.locator("svg:visible")
                assert svg.get_attribute("width") == str(drawn)
                box = svg.bounding_box()
                assert box is not None
                assert SMALL * box["width"] / drawn >= LEGIBLE
            visit.page.emulate_media(media="print")
            printed = pictures.first.locator("svg:visible")
            assert printed.get_attribute("width") == "640"


def test_wide_tables_fit_a_printed_page_and_break_no_number(chromium: Browser, wide: Path) -> None:
    """A4 less its margins is 665 px wide; a wider table would make Chromium shrink the page."""
    with visit_file(chromium, wide, width=665) as visit:
        visit.page.emulate_media(media="print")
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= 665
        broken = visit.page.evaluate("""() => [...document.querySelectorAll("td.right")]
          .filter((cell) => {
            const text = document.createRange();
            text.selectNodeContents(cell);
            const height = text.getBoundingClientRect().height;
            return height > 1.9 * parseFloat(getComputedStyle(cell).fontSize);
          })
          .map((cell) => cell.textContent)""")
        assert broken == []
        columns = visit.page.locator("#pairs thead th").count()
        assert columns >= 11


def test_without_javascript_the_alternative_is_shown(chromium: Browser, report: Path) -> None:
    context = chromium.new_context(java_script_enabled=False, offline=True)
    page = context.new_page()
    page.goto(report.as_uri())
    assert page.locator("#attention-1 .alternative svg").is_visible()
    assert page.locator("#scores-test").is_visible()
    context.close()


def test_keys_and_a_drag_select_trials(chromium: Browser, search: Path) -> None:
    with visit_file(chromium, search) as visit:
        page = visit.page
        page.emulate_media(reduced_motion="reduce")  # else places change while the page scrolls
        status = page.get_by_role("status")
        status.filter(has_text="5 of 5 selected").wait_for()
        assert status.locator("data").get_attribute("value") == str(max(SCORES))
        lower = page.get_by_role("slider", name="BLEU, lower bound")
        lower.focus()
        for _ in range(10):  # half of the axis
            page.keyboard.press("ArrowUp")
        middle = (min(SCORES) + max(SCORES)) / 2
        count = sum(score >= middle for score in SCORES)
        status.filter(has_text=f"{count} of 5 selected").wait_for()
        page.keyboard.press("Escape")
        status.filter(has_text="5 of 5 selected").wait_for()
        box = page.locator(".brush").first.bounding_box()
        assert box is not None
        at = box["x"] + box["width"] / 2
        page.mouse.move(at, box["y"] + box["height"] * 0.6)
        page.mouse.down()
        page.mouse.move(at, box["y"] + box["height"] * 0.4)
        page.mouse.up()
        shares = (np.log(RATES) - np.log(min(RATES))) / np.log(max(RATES) / min(RATES))
        count = int(((shares >= 0.4) & (shares <= 0.6)).sum())
        status.filter(has_text=f"{count} of 5 selected").wait_for()
        page.get_by_role("button", name="Select all").click()
        status.filter(has_text="5 of 5 selected").wait_for()
        assert not page.locator("img").count()
