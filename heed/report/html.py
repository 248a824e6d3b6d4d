"""A document as one HTML file that needs no network, no other file, and prints well.

The page, its style and the script of its interactive parts are built from `web/`. The body comes
from `document.html.jinja`, which escapes every text. Without JavaScript the alternative of each
interactive part is shown.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from heed import __version__
from heed.assets import fill_page
from heed.plot import replace_unprintable
from heed.report.document import Document, Interactive

if TYPE_CHECKING:
    from jinja2 import Environment


def render_html(document: Document) -> str:
    """The document as a whole HTML page."""
    body = (
        _environment()
        .get_template("document.html.jinja")
        .render(
            document=document,
            notes=document.note_paragraphs(),
            version=__version__,
            **_section_variables(document),
        )
    )
    parts = interactive_parts(document)
    return fill_page("report", parts, title=document.title, body=body)


def render_sections(document: Document) -> dict[str, str]:
    """Each section as HTML by its id, for a page that shows them in a frame of its own."""
    template = _environment().get_template("section.html.jinja")
    variables = _section_variables(document)
    return {one.id: template.render(section=one, **variables) for one in document.sections}


def interactive_parts(document: Document) -> dict[str, Any]:
    """The components of `web/` in a document, with their data, by the id of their place."""
    return {
        block.id: {"component": block.component, "data": block.data, "label": block.caption}
        for block in document.blocks()
        if isinstance(block, Interactive)
    }


def _section_variables(document: Document) -> dict[str, Any]:
    """What the template of a section needs beside the section."""
    return {"references": document.references(), "kind_of": lambda block: type(block).__name__}


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader("heed.report", package_path=""),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_clean,
    )


def _clean(value: object) -> object:
    """A text without characters that HTML forbids; SVG, which is marked as safe, as it is."""
    return replace_unprintable(value.expandtabs()) if type(value) is str else value
