"""Tables and notes on the terminal, in one style for every command.

`PlainConsole` is the one place where heed prints text that users named.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from heed.errors import make_printable

Say = Callable[[str], None]
"""A function that shows the user a line of text."""


class PlainConsole(Console):
    """A console that prints strings as they are, whatever users named their files and labels.

    Square brackets are no markup, `:name:` is no emoji, control characters are escaped. A closed
    pipe raises `BrokenPipeError`, where rich would exit with code 1.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield Segment(make_printable(segment.text, multiline=True), segment.style)

    def on_broken_pipe(self) -> None:
        raise  # the exception that rich is handling


def print_message(console: Console, text: str) -> None:
    """Print a text. A terminal gets lines that end between words; a pipe, the text as it is.

    A word that is longer than a line, such as a path, stays whole, so that it can be copied.
    """
    if console.is_terminal:
        wrap = partial(
            textwrap.wrap, width=console.width, break_long_words=False, break_on_hyphens=False
        )
        text = "\n".join("\n".join(wrap(line)) for line in text.split("\n"))
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def build_table(
    *headers: str,
    title: str | None = None,
    right: Collection[str] = (),
    no_wrap: Collection[str] = (),
    show_header: bool = True,
    compact: bool = False,
) -> Table:
    """An empty table with these column headers.

    Long cells continue on the next line and are never cut. `right` and `no_wrap` name columns to
    align to the right and to keep on one line. `compact` draws no vertical lines and leaves one
    space between columns, for wide tables.
    """
    table = Table(
        title=None if title is None else Text(title, style="table.title"),
        title_justify="left",
        show_edge=False,
        show_header=show_header,
    )
    if compact:
        table.box, table.padding, table.pad_edge = SIMPLE_HEAD, (0, 1, 0, 0), False
    for header in headers:
        table.add_column(
            Text(header),
            justify="right" if header in right else "left",
            no_wrap=header in no_wrap,
            overflow="fold",
        )
    return table


def build_grid(*, no_wrap_first: bool = False) -> Table:
    """An empty table without lines and headers, for names and their descriptions."""
    grid = Table.grid(padding=(0, 2))
    if no_wrap_first:
        grid.add_column(no_wrap=True)
    return grid


def build_note(text: str) -> Text:
    """A dim line beside a table: provenance, caveats, signatures."""
    return Text(text, style="dim")
