"""Pages built from `web/`, each one HTML file that needs no other, and how data is put into them.

`npm run build` in `web/` writes the HTML files of this folder, so users need no Node.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from html import escape
from importlib import resources
from typing import Any

SLOT = '<script type="application/json" id="heed-data">null</script>'
"""The element of a page that holds its data."""
BODY_SLOT = '<div id="heed-body"></div>'
"""The element of a page that is replaced by HTML made elsewhere."""
ESCAPES = {"<": "\\u003c", "\u2028": "\\u2028", "\u2029": "\\u2029"}
"""Characters that could end the element, or a line of it, and JSON's other form of them."""


def fill_page(
    name: str, data: Mapping[str, Any], *, title: str | None = None, body: str | None = None
) -> str:
    """The page `NAME.html` of this folder with `data`, which JSON can express, in it.

    `title` is text; `body` is HTML, whose texts are escaped already.
    """
    page = resources.files(__name__).joinpath(f"{name}.html").read_text(encoding="utf-8")
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character, replacement in ESCAPES.items():
        text = text.replace(character, replacement)
    page = page.replace(SLOT, SLOT.replace("null", text))
    if title is not None:
        page = re.sub("<title>.*?</title>", lambda _: f"<title>{escape(title)}</title>", page)
    return page if body is None else page.replace(BODY_SLOT, body, 1)
