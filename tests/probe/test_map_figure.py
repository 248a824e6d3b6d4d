"""Figures of maps: one scale, readable labels, hidden cells, and whatever tokens there are."""

from __future__ import annotations

import base64
import html
import io
import re
import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from heed import plot
from heed.errors import HeedError
from heed.probe.attention_maps import AttentionMap, AttentionMaps
from heed.probe.map_figure import MAX_LABELS, draw_head, draw_maps, draw_overview, short_labels
from heed.probe.map_output import render_links
from heed.probe.text_trace import TokenLabels
from heed.terminal import PlainConsole

ROWS = ["The", "lighthouse", "<keeper>", "sleeps", "."]
COLUMNS = ["Le", "gardien", "du", "phare", "dort", "&"]
GOLD = [(0, 0), (4, 5)]


def weights(*shape: int) -> NDArray[np.float32]:
    raw = np.exp(np.random.default_rng(7).normal(size=shape))
    return np.divide(raw, raw.sum(axis=-1, keepdims=True)).astype(np.float32)


def labels(tokens: list[str]) -> TokenLabels:
    return TokenLabels(tokens, [*range(len(tokens))], tokens)


def a_map(
    rows: list[str] = ROWS,
    columns: list[str] = COLUMNS,
    *,
    heads: tuple[int, ...] = (3, 2),
    kind: str = "cross",
    **changes: Any,
) -> AttentionMap:
    shape = len(rows), len(columns)
    visible = np.tri(*shape, dtype=bool) if kind == "decoder" else np.ones(shape, bool)
    layers = [weights(count, *shape) * visible for count in heads]
    return AttentionMap(kind, labels(rows), labels(columns), layers, visible, **changes)


def svg_texts(figure: Figure, folder: Path) -> list[str]:
    """All text of a figure as SVG."""
    svg = folder / "figure.svg"
    plot.save_as(figure, svg)
    found = re.findall(r"<text\b[^>]*>(.*?)</text>", svg.read_text("utf-8"), re.DOTALL)
    return [html.unescape(re.sub(r"<[^>]+>", "", text)) for text in found]


def test_one_head_names_every_token_and_both_axes(tmp_path: Path) -> None:
    figure = draw_head(a_map(gold=GOLD), 1, 0)
    found = svg_texts(figure, tmp_path)
    assert {*ROWS, *COLUMNS, "query: target", "key: source", "0", "1"} <= set(found)
    assert {"Cross-attention, layer 2, head 1 of 2", "gold alignment"} <= set(found)
    boxes = [box for box in figure.axes[0].patches if isinstance(box, Rectangle)]
    assert [(int(box.get_y()), int(box.get_x())) for box in boxes] == GOLD


@pytest.mark.parametrize("peak", [0.003, 0.4, 1.0])
def test_every_map_has_the_same_scale(peak: float) -> None:
    attention = a_map(["a"], ["b", "c"], heads=(1,))
    attention.weights[0][:] = peak
    mesh = draw_head(attention, 0, 0).axes[0].collections[0]
    assert mesh.get_clim() == (0.0, 1.0)


def test_hidden_cells_are_hatched_and_explained(tmp_path: Path) -> None:
    attention = a_map(ROWS, ROWS, kind="decoder")
    assert "hidden by the mask" in svg_texts(draw_overview(attention), tmp_path)
    figure = draw_head(attention, 0, "mean")
    assert "hidden by the mask" in svg_texts(figure, tmp_path)
    (ground,) = (box for box in figure.axes[0].patches if box.get_hatch())
    assert isinstance(ground, Rectangle)
    assert (ground.get_width(), ground.get_height()) == (5, 5)
    mesh: Any = figure.axes[0].collections[0]
    assert (np.ma.getmaskarray(mesh.get_array()).reshape(5, 5) == ~attention.visible).all()


def test_an_overview_names_layers_and_heads(tmp_path: Path) -> None:
    found = svg_texts(draw_overview(a_map(gold=GOLD)), tmp_path)
    assert {"layer 1", "layer 2", "head 1", "head 2", "head 3", "gold alignment"} <= set(found)
    one = svg_texts(draw_overview(a_map(heads=(2, 8)), 1), tmp_path)
    assert {f"head {number}" for number in range(1, 9)} <= set(one)


@pytest.mark.parametrize("shape", [(1, 1), (1, 70), (70, 1)])
def test_maps_of_any_shape(shape: tuple[int, int], tmp_path: Path) -> None:
    rows, columns = (["word"] * count for count in shape)
    attention = a_map(rows, columns)
    for figure in (draw_head(attention, 0), draw_overview(attention)):
        plot.save_as(figure, tmp_path / "map.png")
        assert (tmp_path / "map.png").stat().st_size > 1000


@pytest.mark.parametrize("count", [8, 31, 45, 200])
def test_labels_do_not_overlap(count: int) -> None:
    words = [f"word{number:02}" for number in range(count)]
    figure = draw_head(a_map(words, words, heads=(1,)), 0)
    figure.draw_without_rendering()
    axes = figure.axes[0]
    rows = [label.get_window_extent() for label in axes.get_yticklabels()]
    assert len(rows) <= MAX_LABELS
    assert all(below.y1 <= above.y0 for above, below in pairwise(rows))
    columns = axes.get_xticklabels()
    step = axes.get_window_extent().width / len(columns)
    # Upright text keeps clear of its neighbor if it is no higher than a step; slanted, step / √2.
    room = step if columns[0].get_rotation() == 90 else step / 2**0.5
    assert all(float(label.get_fontsize()) / 72 * figure.dpi <= room for label in columns)


def test_an_endless_token_leaves_the_map_its_room() -> None:
    figure = draw_head(a_map(["a", "b" * 5000], ["c", "d"]), 0)
    figure.draw_without_rendering()
    assert figure.get_size_inches().max() < 4
    (short,) = short_labels(["b" * 5000])
    assert short == "bbbbbbb…bbbbbb"


def test_512_tokens_are_an_image_of_a_bounded_size(tmp_path: Path) -> None:
    """Not a shape for each of 12 million cells."""
    words = [f"token{number}" for number in range(512)]
    attention = a_map(words, words, heads=(8,) * 6, kind="decoder")
    for name, figure in (("all", draw_overview(attention)), ("one", draw_head(attention, 0, 0))):
        assert figure.get_size_inches().max() < 10
        plot.save_as(figure, tmp_path / f"{name}.png")
        assert (tmp_path / f"{name}.png").stat().st_size < 1_000_000


@given(words=st.lists(st.text(max_size=6), min_size=8, max_size=8))
@settings(deadline=None, max_examples=3)
@example(words=["$x^$", "\\frac{$", "雨", "😀", "<eos>", "a\x00b", "\ud800", "\uffff\x1b"])
@example(words=["שלום", "עולם", "مرحبا", "بالعالم", "abc שלום", "", " ", "\u202eabc"])
def test_any_word_can_be_drawn(tmp_path_factory: pytest.TempPathFactory, words: list[str]) -> None:
    attention = a_map(words[:4], words[4:])
    svg = tmp_path_factory.mktemp("any") / "map.svg"
    plot.save_as(draw_head(attention, 0), svg)
    # XML allows no control characters, not even escaped.
    assert re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f]", svg.read_text("utf-8")) is None


def test_layers_and_heads_that_are_missing_are_errors() -> None:
    maps = AttentionMaps("a text", "translate", cross=a_map())
    for layer, head, said in (
        (2, 0, r"no layer 2: cross attention has 2 layers\. Choose 0 to 1\."),
        (-1, 0, r"no layer -1: cross attention has 2 layers\. Choose 0 to 1\."),
        (1, 2, r"no head 2: this layer has 2\. Choose 0 to 1, or mean\."),
        (1, "all", "no head all"),
    ):
        with pytest.raises(HeedError, match=said):
            draw_maps(maps, None, layer, head)


@pytest.mark.parametrize(
    "tokens", [ROWS, ["b" * 500, "雨雨雨雨雨雨雨雨雨雨", "a", "שלום", "\x1b[1m"]]
)
def test_the_terminal_shows_the_largest_weights_in_80_columns(tokens: list[str]) -> None:
    attention = a_map(tokens, tokens, kind="encoder")
    console = PlainConsole(width=80, record=True, file=io.StringIO())
    console.print(render_links(AttentionMaps("a text", "classify", encoder=attention)))
    lines = console.export_text().splitlines()
    rows = lines[4 : 4 + len(tokens)]
    mean = attention.mean_over_heads(-1)
    for row, values in zip(rows, mean, strict=True):
        assert f"{values.max():.2f}" in row
    assert all(len(line) <= 80 for line in lines)


def test_maps_show_themselves_in_a_notebook_and_elsewhere(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    maps = AttentionMaps("a <b> text", "translate", cross=a_map())
    maps.show()
    assert "Cross-attention, layer 2, mean of 2 heads" in capsys.readouterr().out
    published: list[dict[str, str]] = []
    shell = type("ZMQInteractiveShell", (), {"display_pub": SimpleNamespace()})()
    shell.display_pub.publish = published.append
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    maps.show(head="mean")
    (data,) = published
    assert base64.b64decode(data["image/png"]).startswith(b"\x89PNG")
    assert data["text/plain"] == repr(maps)
    assert "a &lt;b&gt; text" in maps._repr_html_()
