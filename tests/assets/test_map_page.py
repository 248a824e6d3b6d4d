"""The page of attention maps in a real browser: its numbers are the model's, to the last bit."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from browser import Scheme, visit_file, wait_to_read
from numpy.typing import NDArray
from typer.testing import CliRunner

import heed
from heed import assets
from heed.assets import fill_page
from heed.cli.main import app
from heed.decode.alignment import by_word

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

pytestmark = pytest.mark.slow

Weights = list[NDArray[np.float32]]
SOURCE = ["The", "old", "wo", "+man", "sees", "the", "cat", "<eos>"]
TARGET = ["la", "vieille", "fe", "+mme", "voit", "le", "chat", "<eos>"]
LINKS = [[0, 0], [1, 1], [2, 2], [2, 3], [3, 2], [3, 3], [4, 4], [5, 5], [6, 6]]
"""Gold alignment by token."""
AA = 4.5
"""The contrast that WCAG 2 asks of text at level AA."""


# ------------------------------------------------------------------------------------ made-up maps


def tokens_of(names: list[str]) -> list[dict[str, Any]]:
    """Tokens; + continues a word, and <name> is special."""
    tokens, word = [], -1
    for name in names:
        special = name.startswith("<") and name.endswith(">") and name.isascii() and len(name) < 9
        word += not special and not name.startswith("+")
        tokens.append(
            {"text": name.removeprefix("+"), "special": special, "word": None if special else word}
        )
    return tokens


def random_weights(heads: list[int], n: int, m: int, *, causal: bool = False) -> Weights:
    """Rows that sum to one, from almost even to almost one-hot."""
    rng = np.random.default_rng(n * m)
    layers = []
    for count in heads:
        scores = rng.normal(size=(count, n, m)) * np.linspace(0.5, 6, count)[:, None, None]
        if causal:
            scores[:, np.triu(np.ones((n, m), bool), 1)] = -np.inf
        exponentials = np.exp(scores - scores.max(axis=2, keepdims=True))
        layers.append((exponentials / exponentials.sum(axis=2, keepdims=True)).astype(np.float32))
    return layers


def map_of(
    kind: str,
    queries: list[str],
    keys: list[str],
    weights: Weights,
    links: list[list[int]] | None = None,
) -> dict[str, Any]:
    """A map in the JSON form of `AttentionMaps.to_dict`."""
    visible = np.tri(len(queries), len(keys)) if kind == "decoder" else weights[0][0] >= 0
    content = b"".join(layer.astype("<f4").tobytes() for layer in weights)
    return {
        "kind": kind,
        "query_tokens": tokens_of(queries),
        "key_tokens": tokens_of(keys),
        "heads": [len(layer) for layer in weights],
        "weights": base64.b64encode(content).decode(),
        "visible": ["".join("01"[int(cell)] for cell in row) for row in visible],
        "links": links,
    }


def write_page(path: Path, *maps: dict[str, Any], target: str | None = None) -> Path:
    data = {"format": 1, "run": "demo", "task": "translate", "weights": "best"}
    text = "The old woman sees the cat."
    path.write_text(
        fill_page("map", {**data, "text": text, "target": target, "maps": maps}), encoding="utf-8"
    )
    return path


CROSS = random_weights([4, 4], len(TARGET), len(SOURCE))
DECODER = random_weights([4, 3], len(TARGET), len(TARGET), causal=True)


@pytest.fixture
def page_file(tmp_path: Path) -> Path:
    """A translation: cross-attention with gold links, and a decoder with a pruned layer."""
    return write_page(
        tmp_path / "map.html",
        map_of("cross", TARGET, SOURCE, CROSS, LINKS),
        map_of("decoder", TARGET, TARGET, DECODER),
        target="la vieille femme voit le chat",
    )


# ---------------------------------------------------------------------------- what the page shows


def heat_map(page: Page) -> Locator:
    return page.get_by_role("application")


def hover_cell(page: Page, row: int, column: int) -> None:
    """Put the pointer on a cell: beside its query, below its key."""
    across = heat_map(page).locator(f"[data-key='{column}']").bounding_box()
    down = heat_map(page).locator(f"[data-query='{row}']").bounding_box()
    assert across
    assert down
    page.mouse.move(across["x"] + across["width"] / 2, down["y"] + down["height"] / 2)


def shown_value(page: Page) -> float:
    """The weight of the cell under the pointer, as the page has it."""
    value = page.get_by_test_id("readout").locator("data").get_attribute("value")
    assert value
    return float(value)


def shown_row(page: Page) -> list[float]:
    """The weights of one query, in the order of the text."""
    cells = page.get_by_test_id("row").locator("data")
    return cells.evaluate_all("cells => cells.map((cell) => Number(cell.value))")


def cell_colors(page: Page, rows: int, columns: int) -> NDArray[np.float64]:
    """[rows, columns, 3]: the color in each cell's middle."""
    return np.asarray(
        page.get_by_test_id("heat-map").evaluate(
            """(canvas, [rows, columns]) => {
              const { width, height } = canvas;
              const { data } = canvas.getContext("2d").getImageData(0, 0, width, height);
              return Array.from({ length: rows * columns }, (_, cell) => {
                const x = Math.floor((cell % columns + 0.5) * width / columns);
                const y = Math.floor((Math.floor(cell / columns) + 0.5) * height / rows);
                return [...data.slice(4 * (y * width + x), 4 * (y * width + x) + 3)];
              });
            }""",
            [rows, columns],
        ),
        np.float64,
    ).reshape(rows, columns, 3)


def test_hovering_a_cell_shows_its_exact_weight(chromium: Browser, page_file: Path) -> None:
    with visit_file(chromium, page_file) as visit:
        page = visit.page
        for row, column in [(0, 0), (2, 3), (7, 7), (4, 0)]:
            hover_cell(page, row, column)
            weight = CROSS[0][0, row, column]
            wait_to_read(page, lambda: shown_value(page), float(weight))
            assert shown_row(page) == [float(w) for w in CROSS[0][0, row]]
            text = page.get_by_test_id("readout").inner_text()
            assert f"query “{TARGET[row].lstrip('+')}”" in text
            assert f"key “{SOURCE[column].lstrip('+')}”" in text
            assert f"{weight:.6f}" in text or weight < 5e-5


def test_hovering_a_token_shows_its_row(chromium: Browser, page_file: Path) -> None:
    with visit_file(chromium, page_file) as visit:
        heat_map(visit.page).locator("[data-query='5']").hover()
        row = [float(w) for w in CROSS[0][0, 5]]
        wait_to_read(visit.page, lambda: shown_row(visit.page), row)
        assert visit.page.get_by_test_id("query").inner_text() == "le"


def test_arrow_keys_switch_layer_and_head(chromium: Browser, page_file: Path) -> None:
    with visit_file(chromium, page_file) as visit:
        page, heading = visit.page, visit.page.get_by_test_id("head")
        assert heading.inner_text() == "Cross, layer 1, head 1"
        page.get_by_role("gridcell", name="layer 1, head 1").focus()
        page.keyboard.press("ArrowRight")
        assert heading.inner_text() == "Cross, layer 1, head 2"
        page.keyboard.press("ArrowDown")
        assert heading.inner_text() == "Cross, layer 2, head 2"
        assert shown_row(page) == [float(w) for w in CROSS[1][1, 0]]
        for _ in range(9):
            page.keyboard.press("ArrowRight")
        assert heading.inner_text() == "Cross, layer 2, mean of heads"
        mean = CROSS[1][:, 0].astype(np.float64).mean(axis=0)
        np.testing.assert_allclose(shown_row(page), mean, rtol=0, atol=1e-12)
        # The focus follows in the next frame.
        focused = "document.activeElement.ariaLabel"
        wait_to_read(page, lambda: page.evaluate(focused), "layer 2, mean of heads")
        ring = page.evaluate("getComputedStyle(document.activeElement).outlineWidth")
        assert ring == "3px"


def test_keys_move_in_the_map_and_change_its_head(chromium: Browser, page_file: Path) -> None:
    with visit_file(chromium, page_file) as visit:
        page = visit.page
        heat_map(page).focus()
        for key in ("ArrowDown", "ArrowDown", "ArrowRight", "ArrowRight", "Shift+ArrowRight"):
            page.keyboard.press(key)
        assert shown_value(page) == float(CROSS[0][1, 2, 1])
        page.keyboard.press("Shift+ArrowDown")
        assert shown_value(page) == float(CROSS[1][1, 2, 1])
        page.keyboard.press("End")
        assert shown_row(page) == [float(w) for w in CROSS[1][1, -1]]


def test_a_pruned_layer_and_masked_cells(chromium: Browser, page_file: Path) -> None:
    with visit_file(chromium, page_file) as visit:
        page = visit.page
        page.get_by_role("radio", name="Decoder").check()
        page.get_by_role("gridcell", name="layer 2, head 3").click()
        assert not page.get_by_role("gridcell", name="layer 2, head 4").count()
        assert page.get_by_role("gridcell", name="layer 1, head 4").count()
        hover_cell(page, 3, 2)
        wait_to_read(page, lambda: shown_value(page), float(DECODER[1][2, 3, 2]))
        assert page.get_by_test_id("row").get_by_text("masked").count() == len(TARGET) - 4
        assert "masked" in page.get_by_test_id("legend").inner_text()
        page.get_by_role("radio", name="Cross").check()
        assert "masked" not in page.get_by_test_id("legend").inner_text()
        assert "gold alignment" in page.get_by_test_id("legend").inner_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_color_is_monotone_in_the_weight(
    chromium: Browser, tmp_path: Path, scheme: Scheme
) -> None:
    """In grey, too: a larger weight is never lighter (in the dark theme, never darker)."""
    names = [f"t{i}" for i in range(20)]
    weights = random_weights([1], 20, 20)
    path = write_page(tmp_path / "map.html", map_of("encoder", names, names, weights))
    with visit_file(chromium, path, scheme=scheme) as visit:
        colors = cell_colors(visit.page, 20, 20)
    grey = colors[1:].reshape(-1, 3) @ [0.2126, 0.7152, 0.0722]
    order = np.argsort(weights[0][0, 1:].ravel(), kind="stable")
    steps = np.diff(grey[order])
    assert np.all(steps <= 0.5) if scheme == "light" else np.all(steps >= -0.5)
    assert abs(grey[order[-1]] - grey[order[0]]) > 40


def test_words_sum_over_keys_and_average_over_queries(chromium: Browser, page_file: Path) -> None:
    groups = [0, 1, 2, 2, 3, 4, 5, 6], 7
    weights = by_word(CROSS[0][0].astype(np.float64), groups, groups)
    with visit_file(chromium, page_file) as visit:
        page = visit.page
        page.get_by_role("radio", name="Words", exact=True).check()
        heat_map(page).locator("[data-query='2']").hover()
        wait_to_read(page, page.get_by_test_id("query").inner_text, "femme")
        np.testing.assert_allclose(shown_row(page), weights[2], rtol=0, atol=1e-12)
        page.get_by_role("radio", name="Lines").check()
        heat_map(page).locator("[data-query='4']").hover()
        fourth = pytest.approx(weights[4].tolist(), rel=0, abs=1e-12)
        wait_to_read(page, lambda: shown_row(page), fourth)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1280])
def test_every_text_has_contrast_and_nothing_overflows(
    chromium: Browser, page_file: Path, scheme: Scheme, width: int
) -> None:
    with visit_file(chromium, page_file, width=width, scheme=scheme) as visit:
        page = visit.page
        page.get_by_text("Keyboard").click()
        for view in ("Heat map", "Lines"):
            page.get_by_role("radio", name=view).check()
            heat_map(page).locator("[data-query='2']").hover()
            contrasts = visit.contrasts()
            assert len(contrasts) > 30
            assert [(text, ratio) for text, ratio in contrasts if ratio < AA] == []
            assert page.evaluate("document.documentElement.scrollWidth") <= width
        # The other theme is a choice away, and has the same contrast.
        page.get_by_role("radio", name="Dark" if scheme == "light" else "Light").check()
        assert [(text, ratio) for text, ratio in visit.contrasts() if ratio < AA] == []


def test_every_control_has_a_name(chromium: Browser, page_file: Path) -> None:
    with visit_file(chromium, page_file) as visit:
        controls = visit.page.locator("button, input, summary, [tabindex='0']")
        names = controls.evaluate_all(
            "all => all.map((one) => one.ariaLabel || one.innerText || one.labels?.[0]?.innerText)"
        )
    assert len(names) > 15
    assert all(names)


def test_right_to_left_endless_and_hostile_tokens(chromium: Browser, tmp_path: Path) -> None:
    endless = "Donaudampfschifffahrt" * 500
    names = ["القطة", "العجوز", "שולחן", "<script>alert(1)</script>", endless, " ", "\u202eabc"]
    weights = random_weights([2], len(names), len(names))
    path = write_page(tmp_path / "map.html", map_of("encoder", names, names, weights))
    with visit_file(chromium, path) as visit:
        page = visit.page
        labels = heat_map(page).locator("[data-query] bdi")
        assert labels.all_inner_texts()[:4] == names[:4]
        isolation = labels.evaluate_all(
            "all => all.map((one) => getComputedStyle(one).unicodeBidi)"
        )
        assert set(isolation) == {"isolate"}
        long_label = heat_map(page).locator("[data-query='4']")
        assert long_label.get_attribute("title") == f"5: {endless}"  # with its number
        box, canvas = long_label.bounding_box(), page.get_by_test_id("heat-map").bounding_box()
        assert box
        assert canvas
        assert box["width"] <= 160
        assert canvas["width"] > 150
        assert canvas["height"] > 150
        hover_cell(page, 4, 3)
        wait_to_read(page, lambda: shown_value(page), float(weights[0][0, 4, 3]))
        assert page.evaluate("document.documentElement.scrollWidth") <= 1280


def test_512_tokens_are_drawn_and_scroll(
    chromium: Browser, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    names = [f"token{i}" for i in range(512)]
    weights = random_weights([4], 512, 512, causal=True)
    path = write_page(tmp_path / "map.html", map_of("decoder", names, names, weights))
    with visit_file(chromium, path) as visit:
        page = visit.page
        drawn = "performance.getEntriesByName('heed-map-drawn').map((entry) => entry.duration)[0]"
        record_property("milliseconds from opening to the map", page.evaluate(drawn))
        heat_map(page).focus()
        for key in ("End", "ArrowRight", "ArrowRight"):
            page.keyboard.press(key)
        assert shown_value(page) == float(weights[0][0, 511, 1])
        box = heat_map(page).locator("[data-query='511']").bounding_box()
        assert box
        assert box["height"] >= 11  # tokens are legible
        hover_cell(page, 500, 10)
        wait_to_read(page, lambda: shown_value(page), float(weights[0][0, 500, 10]))
        switch = """() => new Promise((resolve) => {
          const start = performance.now();
          document.querySelector("[data-head='3']").click();
          requestAnimationFrame(() => setTimeout(() => resolve(performance.now() - start)));
        })"""
        record_property("milliseconds to another head", page.evaluate(switch))
        hover_cell(page, 500, 10)
        wait_to_read(page, lambda: shown_value(page), float(weights[0][2, 500, 10]))
        page.get_by_text("Whole map").click()
        canvas = page.get_by_test_id("heat-map").bounding_box()
        assert canvas
        assert 512 <= canvas["width"] < 520
        assert 512 <= canvas["height"] < 520
        page.get_by_role("radio", name="Lines").check()
        assert heat_map(page).locator("[data-key]").count() == 512


def test_the_whole_map_is_printed_in_light(chromium: Browser, page_file: Path) -> None:
    with visit_file(chromium, page_file, scheme="dark") as visit:
        themes = visit.page.evaluate(
            """() => ["beforeprint", "afterprint"].map((name) => {
              window.dispatchEvent(new Event(name));
              return document.documentElement.dataset.theme;
            })"""
        )
        assert themes == ["light", "dark"]
        assert visit.page.pdf().startswith(b"%PDF")


def test_the_numbers_of_a_run_are_those_of_its_trace(
    chromium: Browser, run: Path, text: Path, tmp_path: Path
) -> None:
    """By the command, from the run folder to the screen: every kind, layer and head."""
    source = (text / "test.en").read_text("utf-8").splitlines()[0]
    target = (text / "test.fr").read_text("utf-8").splitlines()[0]
    path = tmp_path / "map.html"
    command = ["attend", str(run), source, "--target", target, "--out", str(path)]
    answer = CliRunner().invoke(app, [*command, "--device", "cpu"])
    assert answer.exit_code == 0, answer.output

    loaded = heed.load(run, device="cpu")
    assert isinstance(loaded, heed.Translator)
    encode, specials = loaded.tokenizer.encode, loaded.tokenizer.specials
    source_ids = torch.tensor([[*encode(source), specials.eos]])
    target_ids = torch.tensor([[specials.bos, *encode(target)]])
    with torch.no_grad():
        trace = loaded.model.trace(source_ids, target_ids)
    with visit_file(chromium, path) as visit:
        page = visit.page
        for kind in ("encoder", "decoder", "cross"):
            page.get_by_role("radio", name=kind.title()).check()
            for layer, weights_bhnm in enumerate(getattr(trace, kind)):
                for head, weights_nm in enumerate(weights_bhnm[0]):
                    page.locator(f"[data-layer='{layer + 1}'][data-head='{head + 1}']").click()
                    for row in (0, len(weights_nm) - 1):
                        heat_map(page).locator(f"[data-query='{row}']").hover()
                        numbers = weights_nm[row].tolist()
                        shown = pytest.approx(numbers, rel=0, abs=1e-6)
                        wait_to_read(page, lambda: shown_row(page), shown)


def test_a_template_without_data_says_so(chromium: Browser) -> None:
    with visit_file(chromium, Path(assets.__file__).parent / "map.html") as visit:
        assert "template" in visit.page.inner_text("body")
