"""Figures: their content, their determinism, and errors for invalid input."""

from __future__ import annotations

import html
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import matplotlib
import pytest
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from heed import plot
from heed.errors import HeedError

SERIES = {
    "rope": [(step, 5 / (1 + step)) for step in range(20)],
    "alibi": [(step, 6 / (1 + step)) for step in range(20)],
    "none": [(step, 7.5 / (1 + step)) for step in range(20)],
}


def some_curves() -> Figure:
    return plot.curves(SERIES, title="Loss", x="step", y="nats", best={"rope": 19}, log_y=True)


def a_confusion_matrix() -> Figure:
    names = ["no", "strongly disagree with it", "<yes>"]
    return plot.confusion_matrix([[1200, 3, 0], [4, 5, 6], [0, 0, 0]], names, title="Confusion")


def a_reliability_diagram() -> Figure:
    bins = [
        {"confidence": c, "accuracy": a, "texts": n, "interval": {"low": a - 0.1, "high": a + 0.05}}
        for c, a, n in ((0.5, 0.4, 3), (0.9, 0.93, 80))
    ]
    return plot.reliability_diagram(bins, title="Reliability")


FIGURES = [some_curves, a_confusion_matrix, a_reliability_diagram]


def texts(svg: Path) -> list[str]:
    found = re.findall(r"<text[^>]*>(.*?)</text>", svg.read_text(encoding="utf-8"), re.DOTALL)
    return [html.unescape(re.sub(r"<[^>]*>", "", text)).strip() for text in found]


CLASSES = {
    "digits": ["0", "1", "2"],
    "two": ["no", "yes"],
    "long": ["neutral", "strongly disagree with it", "entailment"],
    "ten": [f"President number {i} of the republic" for i in range(10)],
}


@pytest.mark.parametrize("names", CLASSES.values(), ids=CLASSES.keys())
def test_a_confusion_matrix_is_no_narrower_than_its_title(names: list[str]) -> None:
    """Title, names and counts lie side by side, and short names are not rotated."""
    counts = [[1000 + i * j for i in range(len(names))] for j in range(len(names))]
    title = "Confusion matrix on a test set with a rather long name of its own, 2014"
    figure = plot.confusion_matrix(counts, names, title=title)
    figure.draw_without_rendering()
    axes, *_ = figure.axes
    (heading,) = figure.texts
    assert heading.get_window_extent().width <= figure.bbox.width
    labels = axes.get_xticklabels()
    assert all((label.get_rotation() == 0) == (len(names) < 10) for label in labels)
    boxes = [label.get_window_extent() for label in labels]
    if len(names) < 10:
        assert all(a.x1 <= b.x0 for a, b in pairwise(boxes))
    label = axes.xaxis.label.get_window_extent()
    assert max(box.y1 for box in boxes) <= label.y0 + 1
    assert label.y1 <= heading.get_window_extent().y0 + 1
    cell = axes.bbox.width / len(names)
    assert all(text.get_window_extent().width < cell for text in axes.texts)


def test_text_on_a_color_is_legible() -> None:
    """The contrast of WCAG 2.2 is at least 4.5 on every blue of a heat map."""
    for step in range(256):
        face = matplotlib.colormaps["Blues"](step)
        ink = 1.0 if plot.text_color(face) == "white" else 0.0
        low, high = sorted((ink, plot.relative_luminance(face)))
        assert (high + 0.05) / (low + 0.05) >= 4.5


def test_counts_of_a_confusion_matrix_are_legible() -> None:
    """The darkest cells have white counts, and cells as dark as each other the same color."""
    figure = plot.confusion_matrix([[62, 38], [0, 100]], ["a", "b"], title="Confusion")
    colors = [text.get_color() for text in figure.axes[0].texts]
    assert colors == ["black", "black", "black", "white"]


def test_the_legend_of_reliability_covers_no_interval() -> None:
    figure = a_reliability_diagram()
    figure.draw_without_rendering()
    axes = figure.axes[0]
    (note,) = axes.texts
    assert "perfect calibration" in note.get_text()
    box = note.get_window_extent()
    assert box.y1 < axes.xaxis.label.get_window_extent().y0
    assert box.x1 <= figure.bbox.x1


def test_a_single_bin_of_reliability_is_visible(tmp_path: Path) -> None:
    bins = [
        {"confidence": 0.99, "accuracy": 1.0, "texts": 7, "interval": {"low": 0.6, "high": 1.0}}
    ]
    _, svg = plot.save(plot.reliability_diagram(bins, title="One"), tmp_path / "one")
    assert svg.read_text(encoding="utf-8").count("#0072b2") >= 2  # the point and its interval


@pytest.mark.parametrize("make", FIGURES)
def test_both_files_are_deterministic(make: Callable[[], Figure], tmp_path: Path) -> None:
    figure = make()
    png, svg = plot.save(figure, tmp_path / "figures" / "layer.3")
    assert (png.name, svg.name) == ("layer.3.png", "layer.3.svg")
    assert sorted((tmp_path / "figures").iterdir()) == [png, svg]
    first = [png.read_bytes(), svg.read_bytes()]
    assert first[0].startswith(b"\x89PNG\r\n\x1a\n")
    assert b"<svg" in first[1][:1000]
    for again in (figure, make()):
        plot.save(again, tmp_path / "figures" / "layer.3")
        assert [png.read_bytes(), svg.read_bytes()] == first


def test_user_style_is_ignored_and_left_unchanged(tmp_path: Path) -> None:
    plain = plot.save(a_confusion_matrix(), tmp_path / "plain")
    with matplotlib.rc_context({"font.size": 20.0, "text.color": "red", "svg.fonttype": "path"}):
        styled = plot.save(a_confusion_matrix(), tmp_path / "styled")
        assert matplotlib.rcParams["font.size"] == 20.0
        assert matplotlib.rcParams["svg.fonttype"] == "path"
    assert [path.read_bytes() for path in plain] == [path.read_bytes() for path in styled]


def test_curves_have_a_legend_with_the_best_value(tmp_path: Path) -> None:
    _, svg = plot.save(some_curves(), tmp_path / "curves")
    found = " ".join(texts(svg))
    assert all(name in found for name in (*SERIES, "Loss", "step", "nats"))
    assert "best 0.25 at 19" in found


def test_names_that_begin_with_an_underscore_are_in_the_legend() -> None:
    points = [(1.0, 2.0), (2.0, 1.0)]
    legend = plot.curves({"_a": points, "b": points}, title="", x="", y="").axes[0].get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["_a", "b"]


def test_a_series_of_one_point_is_visible() -> None:
    """It has no line, so it has a dot."""
    points = {"one": [(3.0, 2.0)], "two": [(1.0, 2.0), (2.0, 1.0)]}
    lines = plot.curves(points, title="", x="", y="").axes[0].lines
    assert [line.get_marker() for line in lines] == ["o", ""]


def test_a_second_axis_counts_in_its_own_unit_and_a_note_stands_below(tmp_path: Path) -> None:
    points = {"one": [(0.0, 2.0), (600.0, 1.0)]}
    figure = plot.curves(
        points, title="Loss", x="step", y="", second_x=("epoch", 100.0), note="What it is."
    )
    words = texts(plot.save(figure, tmp_path / "curves")[1])
    assert {"epoch", "step", "What it is.", "6", "600"} <= set(words)


def test_the_dot_is_at_the_best_point_and_on_that_line_alone() -> None:
    lines = {str(line.get_label()): line for line in some_curves().axes[0].lines}
    (label,) = (label for label in lines if label.startswith("rope"))
    assert lines[label].get_markevery() == [19]
    assert [line.get_marker() for line in lines.values()].count("o") == 1


@pytest.mark.parametrize("word", ["$x^$", "雨"])
def test_formulas_and_missing_glyphs_are_drawn_as_text(word: str, tmp_path: Path) -> None:
    series = {word: [(0.0, 1.0)], "other": [(0.0, 2.0)]}
    _, svg = plot.save(plot.curves(series, title=word, x=word, y=word), tmp_path / "curves")
    assert texts(svg).count(word) == 4


def test_invalid_series_are_errors() -> None:
    with pytest.raises(HeedError, match="no series"):
        plot.curves({}, title="", x="", y="")
    with pytest.raises(HeedError, match="'rope' has no points"):
        plot.curves({"rope": []}, title="", x="", y="")
    with pytest.raises(HeedError, match="Did you mean 'alibi'"):
        plot.curves(SERIES, title="", x="", y="", best={"alibis": 3})
    with pytest.raises(HeedError, match="no logarithm"):
        plot.curves({"rope": [(0, 0.0)]}, title="", x="", y="", log_y=True)


def test_importing_and_drawing_never_touch_pyplot() -> None:
    program = (
        "import sys; from heed import plot; assert 'matplotlib' not in sys.modules;"
        "assert 'numpy' not in sys.modules;"
        "plot.curves({'a': [(0, 1.0)]}, title='', x='', y='');"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    root = Path(__file__).parents[1]
    subprocess.run([sys.executable, "-c", program], cwd=root, check=True, timeout=60)


def test_after_importing_matplotlib_a_figure_imports_no_more_of_it() -> None:
    program = (
        "import sys; from pathlib import Path; from heed import plot; plot.import_matplotlib();"
        "before = set(sys.modules) | {'matplotlib.style.core'};"  # which does nothing
        "figure = plot.curves({'a': [(0, 1.0)]}, title='', x='', y='', log_y=True);"
        "plot.save(figure, Path(sys.argv[1]));"
        "late = {name for name in set(sys.modules) - before if name.startswith('matplotlib')};"
        "assert not late, late"
    )
    root = Path(__file__).parents[1]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", program, str(Path(folder) / "figure")]
        subprocess.run(command, cwd=root, check=True, timeout=60)


def test_panels_share_x_and_their_legend_covers_no_line() -> None:
    many = [
        plot.Curve(f"layers={n}, position=rope, label_smoothing=0.1", [(1, n), (9, 2 * n)], color=n)
        for n in range(1, 12)
    ]
    figure = plot.curve_panels(
        {"loss": many, "bleu": many[:2]}, title="", x="step", log_x=True, log_y=True, note="Why."
    )
    upper, lower = figure.axes
    assert upper.get_xlim() == lower.get_xlim()
    figure.draw_without_rendering()
    for axes in (upper, lower):
        legend = axes.get_legend()
        assert legend is not None
        assert legend.get_window_extent().x0 > axes.get_window_extent().x1


def test_panels_with_other_curves_share_one_legend() -> None:
    curves = [plot.Curve(str(n), [(1, n), (9, 2 * n)], color=n) for n in range(1, 4)]
    legend = [
        *(plot.LegendEntry(f"position={n}, label_smoothing=0.1 (3 seeds)", n) for n in range(3)),
        *(plot.LegendEntry(f"{split}/loss", None, n) for n, split in enumerate(("train", "dev"))),
    ]
    panels = {"loss": [*curves, *curves], "train/lr": curves}
    figure = plot.curve_panels(panels, title="", x="step", legend=legend)
    upper, lower = (axes.get_legend() for axes in figure.axes)
    assert lower is None
    assert upper is not None
    assert [text.get_text().replace("\n", " ") for text in upper.get_texts()] == [
        entry.label for entry in legend
    ]


@pytest.mark.parametrize("log", [False, True])
def test_values_that_are_equal_up_to_rounding_are_one_value(log: bool) -> None:
    curve = plot.Curve("lr", [(1, 0.003), (5, 0.0030000000000000005), (9, 0.003)])
    figure = plot.curve_panels({"lr": [curve]}, title="", x="step", log_y=log)
    figure.draw_without_rendering()
    (axes,) = figure.axes
    low, high = axes.get_ylim()
    assert low < 0.0029 < 0.0031 < high
    ticks = [text.get_text() for text in axes.get_yticklabels()]
    assert len({*ticks}) == len(ticks)


def test_one_point_of_several_seeds_has_a_dot_and_a_bar() -> None:
    curve = plot.Curve("rope", [(3.0, 2.0)], [(1.0, 4.0)])
    (axes,) = plot.curve_panels({"loss": [curve]}, title="", x="step").axes
    assert axes.lines[0].get_marker() == "o"
    low, high = axes.get_ylim()
    assert low < 1.0
    assert high > 4.0
    assert any(isinstance(part, LineCollection) for part in axes.collections)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.5, "0.5"),
        (2000, "2,000"),
        (20_000, "20k"),
        (1.5e6, "1.5M"),
        (3e9, "3G"),
        (-0.25, "-0.25"),
    ],
)
def test_ticks_are_short_numbers(value: float, text: str) -> None:
    assert plot.format_tick(value) == text
