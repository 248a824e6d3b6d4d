"""Attention maps as files, as text on a terminal, and in a notebook."""

from __future__ import annotations

import base64
import html
import io
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
from rich.cells import cell_len, set_cell_size
from rich.console import Group
from rich.text import Text

from heed import plot
from heed.assets import fill_page
from heed.errors import DataError
from heed.files import make_folder, to_json, write_atomic
from heed.probe.map_figure import MEAN, draw_maps, last_layer, select_head
from heed.terminal import PlainConsole, build_note, build_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from heed.probe.attention_maps import AttentionMap, AttentionMaps

FIGURES = tuple(plot.METADATA)
PAGE = "html"
FORMATS = (*FIGURES, PAGE, "json")
MAX_PAGE_CELLS = 4_000_000
"""Weights that a page holds: 16 MB of float32."""
STRONGEST, LEAST_SHOWN = 3, 0.005
"""Keys that the terminal shows for each query, and the least weight that it shows."""
LINE_WIDTH, TOKEN_WIDTH, LINK_WIDTH = 79, 14, 12
"""Columns of the terminal: of a line, at most of a token, and of a link beside its token."""
BLOCKS = " ▏▎▍▌▋▊▉█"
BAR_WIDTH = 4
"""Characters of the bar beside a weight."""
SCREEN_DPI = 110


def check_format(path: Path) -> str:
    """The format that a file name ends in; an error that lists the formats for any other."""
    suffix = path.suffix[1:].lower()
    if suffix not in FORMATS:
        raise DataError(
            f"an attention map cannot be written as {path.suffix or 'a file without an ending'}.",
            where=str(path),
            todo=f"End the name in {', '.join(f'.{one}' for one in FORMATS)}.",
        )
    return suffix


class KindResult(Protocol):
    """What was measured of one kind of attention."""

    @property
    def kind(self) -> str: ...
    def to_dict(self) -> dict[str, Any]: ...


Result = TypeVar("Result", bound=KindResult)


def check_result_format(path: Path) -> str:
    """The format of a file for results by kind: a figure, or JSON; an error for any other."""
    suffix = path.suffix[1:].lower()
    if suffix not in (*FIGURES, "json"):
        raise DataError(
            f"this result cannot be written as {path.suffix or 'a file without an ending'}.",
            where=str(path),
            todo=f"End the name in {', '.join(f'.{one}' for one in (*FIGURES, 'json'))}.",
        )
    return suffix


def save_by_kind(
    results: Sequence[Result], path: Path, draw: Callable[[Result], Figure]
) -> Iterator[Path]:
    """Write a figure for each kind, named in the file name, or all as JSON; yields the paths."""
    suffix = check_result_format(path)
    make_folder(path.parent)
    if suffix == "json":
        write_atomic(path, to_json([one.to_dict() for one in results]) + "\n")
        yield path
        return
    for one in results:
        name = f"{path.stem}-{one.kind}{path.suffix}" if len(results) > 1 else path.name
        plot.save_as(draw(one), path.with_name(name))
        yield path.with_name(name)


def save_maps(
    maps: AttentionMaps,
    path: Path,
    kind: str | None = None,
    layer: int | None = None,
    head: int | str | None = None,
) -> Path:
    """Write maps in the format that the path ends in; layers and heads are counted from 0."""
    suffix = check_format(path)
    if suffix in FIGURES:
        figure = draw_maps(maps, kind, layer, head)
        make_folder(path.parent)
        plot.save_as(figure, path)
        return path
    if head is not None and suffix == PAGE:
        raise DataError(
            "a page has every head, to choose from.",
            where=str(path),
            todo="Leave the head out, or write .json.",
        )
    selected = maps.select(kind, layer, head)
    content = _fill_page(selected, path) if suffix == PAGE else to_json(selected.to_dict()) + "\n"
    make_folder(path.parent)
    write_atomic(path, content)
    return path


def _fill_page(maps: AttentionMaps, path: Path) -> str:
    """One page with the exact weights in it, that works without a network."""
    cells = sum(one.cells for one in maps.maps)
    if cells > MAX_PAGE_CELLS:
        raise DataError(
            f"these maps have {cells:,} weights, and a page holds {MAX_PAGE_CELLS:,}.",
            where=str(path),
            todo="Choose one layer with --layer, or one kind of attention with --kind.",
        )
    return fill_page("map", maps.to_dict(binary=True))


def render_links(
    maps: AttentionMaps,
    kind: str | None = None,
    layer: int | None = None,
    head: int | str | None = None,
) -> Group:
    """What each token attends to most, as a table for the terminal; counted from 0.

    Without a layer it is the last one; without a head the mean of its heads.
    """
    attention = maps.get(kind)
    layer = last_layer(attention) if layer is None else layer
    weights_nm, title = select_head(attention, layer, MEAN if head is None else head)
    width = min(TOKEN_WIDTH, max(map(cell_len, attention.query_tokens + attention.key_tokens)))
    count = max(1, min(STRONGEST, (LINE_WIDTH - width) // (width + LINK_WIDTH)))
    table = build_table("query", *_headers(count), title=title, compact=True)
    for query, row in zip(attention.query_tokens, weights_nm, strict=True):
        keys = [key for key in np.argsort(-row, kind="stable")[:count] if row[key] >= LEAST_SHOWN]
        links = [_link(attention.key_tokens[key], float(row[key]), width) for key in keys]
        table.add_row(_fit(query, width), *links)
    return Group(*_heading(maps), table, build_note(_summary(maps, attention)), "")


def _headers(count: int) -> list[str]:
    return ["keys, by weight", *[""] * (count - 1)][:count]


def _heading(maps: AttentionMaps) -> Iterator[Text]:
    yield Text(maps.text)
    if maps.target is not None:
        yield Text(f"→ {maps.target}")


def _link(token: str, weight: float, width: int) -> Text:
    return Text(f"{_bar(weight)} {weight:.2f} {_fit(token, width)}")


def _bar(weight: float) -> str:
    """A bar of eighths of a character, as long as the weight."""
    eighths = round(weight * BAR_WIDTH * 8)
    whole, part = divmod(eighths, 8)
    bar = BLOCKS[-1] * whole + (BLOCKS[part] if part else "")
    return bar.ljust(BAR_WIDTH)


def _fit(token: str, width: int) -> Text:
    """The token in a column of its own: padded, or with its end left out."""
    token = plot.replace_unprintable(token)
    if cell_len(token) > width:
        token = set_cell_size(token, width - 1).rstrip() + "…"
    return Text(set_cell_size(token, width))


def _summary(maps: AttentionMaps, attention: AttentionMap) -> str:
    """What there is beside what is shown, and how to choose it."""
    heads = max(map(len, attention.weights))  # of a pruned model, most
    kinds = ", ".join(one.kind for one in maps.maps)
    others = f", --kind {kinds}" if len(maps.maps) > 1 else ""
    layer, head = (f"1–{n}" if n > 1 else "1" for n in (len(attention.weights), heads))
    return f"Choose with --layer {layer}, --head {head} or mean{others}; --out FILE"


# ------------------------------------------------------------------------------------- notebooks


def show_maps(
    maps: AttentionMaps,
    kind: str | None = None,
    layer: int | None = None,
    head: int | str | None = None,
) -> None:
    """Show the figure in a notebook, elsewhere the strongest links as text."""
    shell = _notebook_shell()
    if shell is None:
        PlainConsole().print(render_links(maps, kind, layer, head))
        return
    image = _figure_base64(draw_maps(maps, kind, layer, head))
    shell.display_pub.publish({"text/plain": repr(maps), "image/png": image})


def _notebook_shell() -> Any:
    """The shell of a notebook; None where there is none."""
    ipython: Any = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell if type(shell).__name__ == "ZMQInteractiveShell" else None


def notebook_html(maps: AttentionMaps) -> str:
    """The maps as a notebook shows them: the texts, and an overview of the first kind."""
    image = _figure_base64(draw_maps(maps))
    texts = "<br>".join(html.escape(text.plain) for text in _heading(maps))
    sizes = html.escape("; ".join(one.describe() for one in maps.maps))
    return (
        f'<figure style="margin:0"><figcaption>{texts}<br><small>{sizes}</small></figcaption>'
        f'<img alt="Attention maps" src="data:image/png;base64,{image}"></figure>'
    )


def _figure_base64(figure: Figure) -> str:
    """A figure as PNG, in the form that notebooks and pages embed."""
    buffer = io.BytesIO()
    with plot.use_style():
        figure.savefig(buffer, format="png", dpi=SCREEN_DPI, bbox_inches="tight")
    return base64.b64encode(buffer.getvalue()).decode()
