"""The document of a report: sections of paragraphs, tables, figures, interactive parts and code.

A document holds text, never markup: `html` and `markdown` escape every text. Figures are SVG
made with `svg`, which escapes the texts in them. Figures and tables are numbered in the order in
which they appear, so that findings can refer to them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

from heed.report.svg import NARROW_WIDTH, WIDTH

ID = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
"""Ids of sections and blocks: they are anchors in HTML and names of files beside Markdown."""

ParagraphKind = Literal["text", "finding", "note"]


@dataclass(frozen=True)
class Paragraph:
    """A paragraph; a finding names the figure or table that supports it."""

    text: str
    kind: ParagraphKind = "text"
    figure: str | None = None
    """The id of a figure or table."""


@dataclass(frozen=True)
class Heading:
    """A heading within a section."""

    text: str


@dataclass(frozen=True)
class Table:
    """A table of texts; `right` names the columns that are aligned at the right, as numbers are."""

    id: str
    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: Sequence[str] = ()

    def __post_init__(self) -> None:
        _check_id(self.id)
        for row in self.rows:
            if len(row) != len(self.columns):
                message = f"{self.id}: a row has {len(row)} of {len(self.columns)} cells"
                raise ValueError(message)
        if unknown := [name for name in self.right if name not in self.columns]:
            raise ValueError(f"{self.id}: there is no column {unknown[0]!r}")


@dataclass(frozen=True)
class Figure:
    """A figure: SVG whose colors are CSS variables, and its content in words for `alt`."""

    id: str
    caption: str
    alt: str
    svg: str
    narrow_svg: str = ""
    """The same for a narrow screen, where a smaller `svg` could not be read; empty for none."""

    def __post_init__(self) -> None:
        _check_id(self.id)

    @classmethod
    def drawn(cls, name: str, caption: str, alt: str, draw: Callable[..., str]) -> Self:
        """A chart for wide and for narrow screens: `draw` takes the `width` of the figure."""
        return cls(name, caption, alt, draw(width=WIDTH), draw(width=NARROW_WIDTH))


@dataclass(frozen=True)
class Interactive:
    """A component of `web/` with its data, as JSON can express it.

    The alternative is shown without JavaScript, on paper, and in Markdown.
    """

    id: str
    component: str
    data: Mapping[str, Any]
    caption: str
    alternative: Figure | Table

    def __post_init__(self) -> None:
        _check_id(self.id)


@dataclass(frozen=True)
class Code:
    """Text whose lines and spaces count: commands, a recipe, versions."""

    text: str


Block = Paragraph | Heading | Table | Figure | Interactive | Code


@dataclass(frozen=True)
class Section:
    """A section of a document."""

    id: str
    title: str
    blocks: Sequence[Block]

    def __post_init__(self) -> None:
        _check_id(self.id)


@dataclass(frozen=True)
class Document:
    """A report: its title, its author, the author's notes, and its sections."""

    title: str
    author: str = ""
    notes: str = ""
    """The author's own words; an empty line begins a new paragraph."""
    sections: Sequence[Section] = ()
    problems: Sequence[str] = ()
    """What could not be read for it, in sentences, which its sections have, too."""

    def __post_init__(self) -> None:
        ids = [section.id for section in self.sections]
        ids += [block.id for block in self.numbered_blocks()]
        if twice := {name for name in ids if ids.count(name) > 1}:
            raise ValueError(f"an id is used twice: {min(twice)}")
        known = self.references()
        for block in self.blocks():
            if isinstance(block, Paragraph) and block.figure not in (None, *known):
                raise ValueError(f"a paragraph refers to {block.figure!r}, which is not there")

    def blocks(self) -> Iterator[Block]:
        """All blocks, in order."""
        for section in self.sections:
            yield from section.blocks

    def numbered_blocks(self) -> Iterator[Figure | Table | Interactive]:
        """Figures, tables and interactive parts, in order."""
        for block in self.blocks():
            if isinstance(block, (Figure, Table, Interactive)):
                yield block

    def references(self) -> dict[str, str]:
        """How the text refers to each figure and table, by id: `Figure 2`, `Table 1`."""
        counts = {"Figure": 0, "Table": 0}
        names = {}
        for block in self.numbered_blocks():
            kind = "Table" if isinstance(block, Table) else "Figure"
            counts[kind] += 1
            names[block.id] = f"{kind} {counts[kind]}"
        return names

    def note_paragraphs(self) -> list[str]:
        """The paragraphs of the author's notes."""
        return [part.strip() for part in re.split(r"\n\s*\n", self.notes) if part.strip()]


def _check_id(name: str) -> None:
    if not ID.fullmatch(name):
        raise ValueError(f"an id is made of a-z, 0-9 and single hyphens, not {name!r}")
