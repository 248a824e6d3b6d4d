"""Tables of notebooks: every cell is there, and no text of a user is markup."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from heed.notebook import render_table


class Cells(HTMLParser):
    """Collects the tags and the text of the cells."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.cells: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.cells += [""] if tag in ("td", "th") else []

    def handle_data(self, data: str) -> None:
        if self.cells:
            self.cells[-1] += data


texts = st.text(st.characters(blacklist_categories=("Cs", "Cc")), min_size=1)


@given(st.lists(st.fixed_dictionaries({"system": texts, "<b>": texts}), min_size=1), texts)
def test_texts_are_escaped(rows: list[dict[str, Any]], note: str) -> None:
    cells = Cells(render_table(rows, caption="", notes=[]))
    columns = [*rows[0]]
    assert cells.cells == [*columns, *(row[key] for row in rows for key in columns)]
    known = {"div", "p", "table", "thead", "tbody", "tr", "th", "td"}
    assert {*Cells(render_table(rows, caption=note, notes=[note])).tags} <= known


def test_numbers_are_short_and_columns_without_values_left_out() -> None:
    rows = [{"n": 1234567, "x": 0.123456, "none": None}, {"n": None, "x": 1e9, "none": None}]
    cells = Cells(render_table(rows)).cells
    assert cells == ["n", "x", "1,234,567", "0.1235", "–", "1,000,000,000"]
    assert render_table([], notes=["none yet"]) == "<div><p>none yet</p></div>"
