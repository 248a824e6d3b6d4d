"""Documents as HTML and Markdown: whatever a text holds, it is shown and never becomes markup."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from heed.errors import ConfigError
from heed.plot import replace_unprintable
from heed.report.document import (
    Block,
    Code,
    Document,
    Figure,
    Heading,
    Interactive,
    Paragraph,
    Section,
    Table,
)
from heed.report.heat_map import heat_map
from heed.report.html import render_html
from heed.report.line_charts import Series, line_chart
from heed.report.markdown import render_markdown
from heed.report.row_charts import Row, bar_chart, histogram, interval_plot
from heed.report.svg import FONT, LIGHT, NARROW_WIDTH, WIDTH, text_width
from heed.report.write_report import write_report

HOSTILE = [
    "</script><script>alert(1)</script>",
    '<img src=x onerror="alert(1)">',
    "<!-- <title>",
    "]]></svg><style>*{}</style>",
    '" onload="alert(1)',
    "{{ 7 * 7 }} {% raw %}",
    "# heading | cell | *a* _b_ `c` [d](e) ![f](g) <h>",
    "- item",
    "1. item",
    "=====",
    "&lt;b&gt; &amp;",
    "```",
    "\x00\x07\u2028",
    "\ud800",
    '<div id="heed-body"></div>',
    "שלום ‮ abc",
]
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1) | st.sampled_from(HOSTILE)


def make_document(text: str, rows: int = 2) -> Document:
    """A document with one text at every place where there can be one."""
    svg = interval_plot([Row(text, 1.0, 0.5, 2.0, text)], x=text, reference=0.0)
    figure = Figure("figure", text, text, svg)
    table = Table("table", text, ["name", "value"], [[text, text]] * rows, right=["value"])
    part = {"format": 1, "text": text}
    blocks: list[Block] = [
        Paragraph(text),
        Paragraph(text, "finding", figure="figure"),
        Paragraph(text, "note"),
        Heading(text),
        figure,
        table,
        Code(text),
        Interactive("part", "attention-map", part, text, replace(figure, id="part-figure")),
        Interactive("other", "attention-map", part, text, replace(table, id="other-table")),
    ]
    return Document(text, text, text, [Section("one", text, blocks), Section("two", text, [])])


class Outline(HTMLParser):
    """The elements of a page, the names of their attributes, and its text outside scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.attributes: set[str] = set()
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        # A label that is cut off has its whole text in a title element.
        self.elements += [] if tag == "title" else [tag]
        self.attributes |= {name for name, _ in attrs}
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] not in ("script", "style"):
            self.texts.append(data)


def shown(text: str) -> str:
    """A text as a page shows it, white space aside."""
    return "".join(replace_unprintable(text.expandtabs()).split())


# -------------------------------------------------------------------------------- escaped always


@given(TEXTS.filter(lambda text: text.strip()))
def test_text_never_becomes_an_element_of_the_page(text: str) -> None:
    outline, plain = (Outline(render_html(make_document(one))) for one in (text, "plain"))
    assert outline.elements == plain.elements
    assert outline.attributes == plain.attributes
    whole = "".join("".join(outline.texts).split())
    # Title, author, section titles (twice: contents), paragraphs, captions, cells, code …
    assert whole.count(shown(text)) >= 20


@given(TEXTS.filter(lambda text: text.strip()))
def test_text_never_becomes_markup_of_markdown(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    folder = tmp_path_factory.mktemp("figures")

    def kinds(value: str) -> list[str]:
        tokens = parse_markdown(render_markdown(make_document(value), folder))
        return [token.type for token in tokens if token.type not in ("text", "text_special")]

    assert kinds(text) == kinds("plain")


def parse_markdown(text: str) -> list[Any]:
    """The tokens of Markdown with tables, inline ones in place of their parents."""
    parser = MarkdownIt("commonmark", {"html": True}).enable("table")
    tokens = parser.parse(text.encode("utf-8", "replace").decode())
    return [one for token in tokens for one in (token.children or [token])]


@given(TEXTS.filter(lambda text: text.strip()))
def test_labels_of_charts_are_text(text: str) -> None:
    def outlines(label: str) -> list[Outline]:
        rows = [Row(label, 1.0, 0.5, 2.0, label), Row("b", -1.0, text=label)]
        series = [Series(label, [(1, 1.0), (2, 3.0)]), Series("b", [(1, 2.0)], [(1.0, 3.0)])]
        cells = [[label, ""]] * 2
        figures = [
            interval_plot(rows, x=label),
            bar_chart(rows, x=label),
            line_chart(series, x=label, y=label, mark=(1, label), second_x=(label, 2)),
            draw_cells(label, cells),
            histogram([0, 1, 2], [3, 4], x=label, y=label),
        ]
        return [Outline(svg) for svg in figures]

    for outline, plain in zip(outlines(text), outlines("plain"), strict=True):
        assert outline.elements == plain.elements
        assert outline.attributes == plain.attributes


# --------------------------------------------------------------------------- numbers and structure


def test_figures_and_tables_are_numbered_in_order_and_named_by_findings(tmp_path: Path) -> None:
    document = make_document("text")
    assert document.references() == {
        "figure": "Figure 1",
        "table": "Table 1",
        "part": "Figure 2",
        "other": "Figure 3",
    }
    page, markdown = render_html(document), render_markdown(document, tmp_path)
    assert '(<a href="#figure">Figure 1</a>)' in page
    assert "(Figure 1)" in markdown
    for name in ("Figure 1.", "Table 1.", "Figure 2.", "Figure 3."):
        assert f"<b>{name}</b>" in page
        assert f"*{name} text" in markdown


def test_headings_follow_one_another_without_gaps() -> None:
    page = render_html(make_document("text"))
    levels = [int(level) for level in re.findall(r"<h([1-6])", page.split("</style>")[1])]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))


def test_html_and_markdown_have_the_same_numbers(tmp_path: Path) -> None:
    rows = [[f"system {i}", f"{i * 1.37:.2f}", f"[{-i * 0.5:.3f}, {i:,}]"] for i in range(1, 9)]
    table = Table("scores", "8 systems", ["system", "BLEU", "interval"], rows)
    document = Document("T", sections=[Section("a", "A", [table, Paragraph("Mean 4.567, n = 8.")])])
    page = Outline(render_html(document)).texts
    lines = MarkdownIt("commonmark").enable("table").parse(render_markdown(document, tmp_path))
    markdown = ["".join(t.content for t in line.children) for line in lines if line.children]
    numbers = [
        re.findall(r"-?\d[\d.,]*\d|\d", re.sub(r"Made by heed \S+", "", " ".join(texts)))
        for texts in (page, markdown)
    ]
    assert len(numbers[0]) > 30
    assert sorted(numbers[0]) == sorted(numbers[1])


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        ([Paragraph("x", figure="none")], "refers to 'none'"),
        ([Table("a", "", ["x"], []), Table("a", "", ["x"], [])], "used twice: a"),
        ([Table("one", "", ["x"], [])], "used twice: one"),
    ],
)
def test_a_document_that_refers_to_nothing_is_refused(blocks: list[Block], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Document("T", sections=[Section("one", "One", blocks)])


def test_tables_and_ids_are_checked() -> None:
    with pytest.raises(ValueError, match="a row has 1 of 2 cells"):
        Table("t", "", ["a", "b"], [["1"]])
    with pytest.raises(ValueError, match="no column 'c'"):
        Table("t", "", ["a"], [], right=["c"])
    with pytest.raises(ValueError, match="an id is made of"):
        Section('x" onload="', "T", [])


# ------------------------------------------------------------------------------------ files


def test_markdown_has_its_figures_beside_it_in_plain_colors(tmp_path: Path) -> None:
    write_report(make_document("text"), tmp_path / "my report.md")
    text = (tmp_path / "my report.md").read_text(encoding="utf-8")
    assert "![text](my%20report-figures/figure.svg)" in text
    svg = (tmp_path / "my report-figures" / "figure.svg").read_text(encoding="utf-8")
    assert svg.startswith("<svg ")
    assert "var(" not in svg


def test_a_surrogate_in_a_text_can_be_written(tmp_path: Path) -> None:
    for name in ("a.html", "a.md"):
        write_report(make_document("a \ud800 b"), tmp_path / name)
        assert "a � b" in (tmp_path / name).read_text(encoding="utf-8")


def test_another_ending_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"ends in \.html or \.md.*print it"):
        write_report(make_document("text"), tmp_path / "report.pdf")
    assert [*tmp_path.iterdir()] == []


def test_figures_use_only_colors_that_the_page_has() -> None:
    page = render_html(make_document("text"))
    style = page[page.index("<style>") : page.index("</style>")].lower()
    for name, color in LIGHT.items():
        assert f"--{name}:{color}" in style, name
    for name in set(re.findall(r"var\(--([a-z0-9-]+)\)", make_svgs())):
        assert name in LIGHT


def draw_cells(name: str, texts: list[list[str]] | None = None) -> str:
    grid: list[list[float | None]] = [[0.0, None], [0.5, 1.0]]
    names = [name, "b"]
    return heat_map(grid, names, names, row_title=name, column_title=name, texts=texts)


class Texts(HTMLParser):
    """Where the upright texts of a figure begin and end, and how wide the figure is."""

    def __init__(self, svg: str) -> None:
        super().__init__()
        self.width = 0.0
        self.spans: list[tuple[float, float]] = []
        self.open: tuple[float, str, float] | None = None
        self.feed(svg)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag == "svg":
            self.width = float(values["width"] or 0)
        self.open = None
        if tag == "text" and "transform" not in values:
            size = float(values.get("font-size") or FONT)
            self.open = (float(values["x"] or 0), values.get("text-anchor") or "start", size)

    def handle_data(self, data: str) -> None:
        if self.open is not None:
            at, anchor, size = self.open
            width = text_width(data, size)
            start = at - {"start": 0.0, "middle": width / 2, "end": width}[anchor]
            self.spans.append((start, start + width))


@pytest.mark.parametrize("width", [WIDTH, NARROW_WIDTH])
def test_texts_of_charts_are_inside_the_figure_at_both_widths(width: int) -> None:
    long = "position=sinusoidal, merge=concat, layers=4"
    rows = [Row(long, -1.5, -2.1, -0.9, "-1.50 (-2.10 to -0.90)"), Row("b", 2.0, 1.0, 3.0, "+2.00")]
    series = [Series(f"{name} {long}", [(1, 0.001), (20_000, 0.5)]) for name in "abc"]
    axis = "difference from position=sinusoidal in BLEU on the newest test set"
    figures = [
        interval_plot(rows, x=axis, reference=0.0, margin=1.0, width=width),
        bar_chart(rows, x=axis, width=width),
        line_chart(series, x=axis, y="loss", second_x=("epoch", 50), width=width),
        histogram([0, 1, 2], [3000, 4], x=axis, y="texts", width=width),
        heat_map(
            [[0.5] * 5] * 5,
            [long] * 5,
            [long] * 5,
            row_title="true",
            column_title="predicted",
            texts=[["12,345"] * 5] * 5,
            width=width,
        ),
    ]
    for svg in figures:
        texts = Texts(svg)
        assert texts.width == width
        assert len(texts.spans) > 3
        assert min(start for start, _ in texts.spans) >= -1
        assert max(end for _, end in texts.spans) <= width + 1


def test_a_chart_is_drawn_for_narrow_screens_too_and_once_in_markdown(tmp_path: Path) -> None:
    draw = partial(interval_plot, [Row("a", 1.0)], x="x")
    figure = Figure.drawn("figure", "caption", "alt", draw)
    document = Document("T", sections=[Section("s", "S", [figure])])
    page = render_html(document)
    assert [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} ' in page
        for width in (WIDTH, NARROW_WIDTH)
    ] == [True, True]
    assert page.count('role="img"') == 1
    render_markdown(document, tmp_path)
    assert f'width="{WIDTH}"' in (tmp_path / "figure.svg").read_text(encoding="utf-8")


def make_svgs() -> str:
    series = [Series(str(i), [(1, i), (2, i + 1)], [(i, i + 2)] * 2) for i in range(9)]
    return "".join(
        [
            line_chart(series, x="x", y="y", log_y=True),
            draw_cells("a"),
            interval_plot([Row("a", 1, 0, 2)], x="", reference=0, margin=1),
        ]
    )
