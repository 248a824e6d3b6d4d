"""Built pages need no other file, and data comes back out of them as it went in."""

from __future__ import annotations

import base64
import json
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heed import assets

FOLDER = Path(assets.__file__).parent
PAGES = sorted(path.stem for path in FOLDER.glob("*.html"))
LOCK = Path(__file__).parents[2] / "web" / "package-lock.json"


class Outline(HTMLParser):
    """The elements of a page, and the text of each script."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.elements and self.elements[-1][0] == "script":
            self.scripts.append(data)


def data_of(page: str) -> object:
    """The data of a filled page, as a browser finds it."""
    outline = Outline(page)
    places = [attrs for tag, attrs in outline.elements if tag == "script"]
    (index,) = (i for i, attrs in enumerate(places) if attrs.get("id") == "heed-data")
    return json.loads(outline.scripts[index])


@pytest.mark.parametrize("name", PAGES)
def test_a_page_asks_for_no_other_file(name: str) -> None:
    page = (FOLDER / f"{name}.html").read_text(encoding="utf-8")
    assert page.count(assets.SLOT) == 1
    for tag, attrs in Outline(page).elements:
        assert "src" not in attrs, tag
        assert attrs.get("href", "data:,") == "data:,", tag
    (policy,) = [a["content"] for _, a in Outline(page).elements if "http-equiv" in a]
    assert policy is not None
    assert policy.startswith("default-src 'none'")


HOSTILE = [
    "</script><script>alert(1)</script>",
    "<!--<script>",
    "\u2028\u2029",
    '"\\',
    "\0",
    "\ud7ff",
]


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])) | st.sampled_from(HOSTILE)))
def test_texts_come_back_whatever_is_in_them(texts: list[str]) -> None:
    page = assets.fill_page("map", {"texts": texts})
    assert data_of(page) == {"texts": texts}
    assert len(Outline(page).elements) == len(Outline(assets.fill_page("map", {})).elements)


def test_float32_in_base64_comes_back_to_the_bit() -> None:
    weights = np.random.default_rng(0).random((2, 3, 5), dtype=np.float32)
    text = base64.b64encode(weights.astype("<f4").tobytes()).decode()
    data = data_of(assets.fill_page("map", {"weights": text}))
    assert isinstance(data, dict)
    assert np.frombuffer(base64.b64decode(data["weights"]), "<f4").tobytes() == weights.tobytes()


def test_a_number_that_json_has_not_is_refused() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        assets.fill_page("map", {"value": float("nan")})


def test_licenses_of_what_is_in_the_pages_are_beside_them() -> None:
    text = (FOLDER / "LICENSES.txt").read_text(encoding="utf-8")
    assert "svelte" in text
    assert "Permission is hereby granted" in text


def test_the_lock_file_names_no_registry() -> None:
    packages = json.loads(LOCK.read_text(encoding="utf-8"))["packages"]
    assert not [name for name, package in packages.items() if "resolved" in package]
    assert all("integrity" in package for name, package in packages.items() if name)
