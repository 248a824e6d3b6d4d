"""A document as Markdown, with its figures as SVG files in a folder beside it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from heed.files import make_folder, write_atomic
from heed.plot import replace_unprintable
from heed.report.document import (
    Block,
    Code,
    Document,
    Figure,
    Heading,
    Interactive,
    Paragraph,
    Table,
)
from heed.report.svg import standalone_svg

SPECIAL = re.compile(r"([\\`*_\[\]<>#|~$&])")
"""Characters that Markdown, or HTML in it, gives a meaning anywhere in a line."""
LIST_START = re.compile(r"^(\d*)([-+=.)])(?=[-=]*(?:\s|$))")
"""What begins a list or underlines a heading at the start of a line."""


def render_markdown(document: Document, folder: Path) -> str:
    """The document as Markdown; its figures are written to `folder`, which lies beside it."""
    references = document.references()
    parts = [f"# {escape_markdown(document.title)}"]
    if document.author:
        parts.append(escape_markdown(document.author))
    notes = [escape_markdown(note) for note in document.note_paragraphs()]
    for section in document.sections:
        parts.append(f"## {escape_markdown(section.title)}")
        for block in section.blocks:
            parts += _render_block(block, references, folder)
        parts, notes = [*parts, *notes], []  # the first section has the answer: it comes first
    return "\n\n".join(parts) + "\n"


def escape_markdown(text: str) -> str:
    """A text on one line that Markdown shows as it is."""
    line = replace_unprintable(" ".join(text.split()))
    return LIST_START.sub(r"\1\\\2", SPECIAL.sub(r"\\\1", line))


def _render_block(block: Block, references: dict[str, str], folder: Path) -> Iterator[str]:
    if isinstance(block, Paragraph):
        text = escape_markdown(block.text)
        if block.figure is not None:
            text += f" ({references[block.figure]})"
        yield {"text": text, "finding": f"**{text}**", "note": f"> {text}"}[block.kind]
    elif isinstance(block, Heading):
        yield f"### {escape_markdown(block.text)}"
    elif isinstance(block, Code):
        fence = "`" * max(3, 1 + max(map(len, re.findall("`+", block.text)), default=0))
        lines = [replace_unprintable(line.expandtabs()) for line in block.text.splitlines()]
        yield "\n".join([f"{fence}text", *lines, fence])
    else:
        shown = block.alternative if isinstance(block, Interactive) else block
        yield _render_table(shown) if isinstance(shown, Table) else _write_figure(shown, folder)
        caption = escape_markdown(block.caption)
        if isinstance(shown, Table) and shown is not block:
            caption += f" {escape_markdown(shown.caption)}"
        yield f"*{references[block.id]}. {caption}*"


def _render_table(table: Table) -> str:
    marks = ["---:" if name in table.right else "---" for name in table.columns]
    header, *rows = [
        "| " + " | ".join(map(escape_markdown, row)) + " |" for row in (table.columns, *table.rows)
    ]
    return "\n".join([header, f"| {' | '.join(marks)} |", *rows])


def _write_figure(figure: Figure, folder: Path) -> str:
    make_folder(folder)
    write_atomic(folder / f"{figure.id}.svg", standalone_svg(figure.svg))
    return f"![{escape_markdown(figure.alt)}]({quote(folder.name)}/{figure.id}.svg)"
