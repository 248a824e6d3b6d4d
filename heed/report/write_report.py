"""Write a document to a file: HTML or Markdown, by the ending of its name."""

from __future__ import annotations

from pathlib import Path

from heed.errors import ConfigError
from heed.files import write_atomic
from heed.report.document import Document, Figure, Table
from heed.report.html import render_html
from heed.report.markdown import render_markdown

ENDINGS = (".html", ".md")


def check_ending(path: Path) -> None:
    """Raise an error unless the name of a report's file ends in .html or .md."""
    if path.suffix.lower() not in ENDINGS:
        what = f"--out cannot be {str(path)!r}: a report's name ends in {' or '.join(ENDINGS)}."
        if path.suffix.lower() == ".pdf":
            what += " For PDF write .html, open it in a browser and print it."
        raise ConfigError([what])


def figures_folder(path: Path) -> Path:
    """The folder of the figures of a Markdown report: `report-figures` beside `report.md`."""
    return path.with_name(f"{path.stem}-figures")


def write_report(document: Document, path: Path) -> None:
    """Write a document; the figures of Markdown lie in a folder beside it."""
    check_ending(path)
    if path.suffix.lower() == ".md":
        text = render_markdown(document, figures_folder(path))
    else:
        text = render_html(document)
    # A lone surrogate, which a damaged corpus may hold, has no UTF-8.
    write_atomic(path, text.encode("utf-8", "replace"))


def describe_report(document: Document, path: Path) -> str:
    """One line about a report that was written: its file, and what is in it."""
    blocks = list(document.numbered_blocks())
    tables = sum(isinstance(block, Table) for block in blocks)
    figures = len(blocks) - tables
    is_apart = any(isinstance(one, Figure) for one in blocks) and path.suffix.lower() == ".md"
    beside = f", figures in {figures_folder(path)}" if is_apart else ""
    size = f"{path.stat().st_size / 2**20:.1f} MB"
    return (
        f"{path}: {len(document.sections)} sections, {figures} figures, {tables} tables "
        f"({size}{beside})"
    )
