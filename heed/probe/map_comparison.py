"""Two models on the same text: their heads paired by similarity, as a table and as a figure.

Shapes: h heads, n queries, m keys. Sizes are in inches, font sizes in points.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType

from heed import plot
from heed.errors import ConfigError, HeedError
from heed.probe.attend import LoadedModel, View
from heed.probe.attention_maps import AttentionMap, AttentionMaps
from heed.probe.head_matching import HeadMatch, HeadMatching, match_heads
from heed.probe.map_figure import (
    GAP_PIXELS,
    MEAN,
    NAMES,
    PANEL_PIXELS,
    add_scale,
    draw_panels,
    draw_weights,
    font_size,
    label_columns,
    label_rows,
    short_labels,
)
from heed.probe.map_output import save_by_kind
from heed.probe.patch import Head
from heed.terminal import build_note, build_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ACROSS = {8: 4, 24: 6}
"""Pairs in a row of the figure, by the number of pairs up to which that is so."""
MOST_ACROSS = 8
NAME_CHARACTERS = 16
"""Characters of a run's name beside the pairs."""
CELL, LARGEST_SIDE = 0.3, 3.6
"""Height and width of a cell of one large pair, and at most of its map."""


@dataclass(frozen=True)
class MapComparison:
    """One kind of attention of two models over the same texts."""

    names: tuple[str, str]
    first: list[AttentionMap]
    second: list[AttentionMap]
    matching: HeadMatching
    texts: list[str]
    by_word: bool
    """Whether words are compared, because the models have different tokens or on request."""

    @property
    def kind(self) -> str:
        """The kind of attention."""
        return self.first[0].kind

    def select(self, view: View) -> MapComparison:
        """The pairs of one layer or head of the first model."""
        if view.head == MEAN:
            raise ConfigError(["--against pairs heads: --head is a number, not mean."])
        matches = [
            match
            for match in self.matching.matches
            if view.layer in (None, match.first.layer) and view.head in (None, match.first.head)
        ]
        if not matches:
            raise HeedError(
                f"{self.names[0]} has no such head of {self.kind} attention in a pair.",
                todo="Leave --layer or --head out to see all pairs.",
            )
        return replace(self, matching=replace(self.matching, matches=matches))

    def to_dict(self) -> dict[str, Any]:
        """The pairs for JSON; heads are named from 1."""
        return {
            "runs": list(self.names),
            "kind": self.kind,
            "texts": self.texts,
            "by_word": self.by_word,
            "similarity": self.matching.similarity,
            "by_number": self.matching.by_number,
            "any_pair": self.matching.any_pair,
            "pairs": [
                {"first": m.first.label, "second": m.second.label, "similarity": m.similarity}
                for m in self.matching.matches
            ],
        }


def compare_maps(
    first: LoadedModel,
    second: LoadedModel,
    texts: Sequence[tuple[Any, ...]],
    view: View,
    *,
    names: tuple[str, str],
) -> list[MapComparison]:
    """Compare two models kind by kind over the same texts, each alone or with its translation.

    Without a translation both models read the first one's.
    """
    if first.recipe.task != second.recipe.task:
        tasks = f"one is for {first.recipe.task}, the other for {second.recipe.task}"
        raise ConfigError([f"--against compares models of one task, and {tasks}."])
    ours, theirs = [], []
    for read in texts:
        if first.recipe.task == "translate" and len(read) == 1:
            read = (*read, first.attention(*read).target)
        ours.append(first.attention(*read))
        theirs.append(second.attention(*read))
    kinds = _shared_kinds(ours[0], theirs[0], view.kind)
    by_word = view.words or any(
        _tokens(a, kinds) != _tokens(b, kinds) for a, b in zip(ours, theirs, strict=True)
    )
    if by_word:
        ours, theirs = [one.by_word() for one in ours], [one.by_word() for one in theirs]
    shown = [maps.text for maps in ours]
    return [
        _compare_kind(
            [maps.get(kind) for maps in ours],
            [maps.get(kind) for maps in theirs],
            names,
            shown,
            by_word=by_word,
        ).select(view)
        for kind in kinds
    ]


def name_models(first: tuple[Path, str], second: tuple[Path, str]) -> tuple[str, str]:
    """Short names of two models, given as run folder and weights, that tell them apart."""
    (folder, weights), (other, other_weights) = first, second
    if folder.resolve() == other.resolve():
        return f"{folder.name} {weights}", f"{other.name} {other_weights}"
    if folder.name == other.name:
        return str(folder), str(other)
    return folder.name, other.name


def _compare_kind(
    first: list[AttentionMap],
    second: list[AttentionMap],
    names: tuple[str, str],
    texts: list[str],
    *,
    by_word: bool,
) -> MapComparison:
    for one, other in zip(first, second, strict=True):
        if one.visible.shape != other.visible.shape:
            raise HeedError(
                f"the models read different numbers of words of {one.kind} attention.",
                todo="Shorten the text: one of them has a limit.",
            )
    return MapComparison(names, first, second, match_heads(first, second), texts, by_word)


def _tokens(maps: AttentionMaps, kinds: Sequence[str]) -> list[tuple[list[str], list[str]]]:
    return [(one.query_tokens, one.key_tokens) for one in map(maps.get, kinds)]


def _shared_kinds(one: AttentionMaps, other: AttentionMaps, kind: str | None) -> list[str]:
    if kind is not None:
        return [one.get(kind).kind]
    kinds = [first.kind for first in one.maps if first.kind in {m.kind for m in other.maps}]
    if not kinds:
        raise HeedError("these models have no kind of attention in common.")
    return kinds


# ------------------------------------------------------------------------------------- the table


def render_comparison(comparison: MapComparison) -> RenderableType:
    """The pairs of heads, the most similar first, for the terminal."""
    first, second = comparison.names
    matching = comparison.matching
    name = NAMES.get(comparison.kind, "Cross-attention")
    table = build_table(
        first, second, "similarity", right=("similarity",), title=name, compact=True
    )
    for match in matching.matches:
        table.add_row(_short(match.first), _short(match.second), f"{match.similarity:.3f}")
    means = f"Mean similarity {matching.similarity:.3f} in pairs"
    if matching.by_number is not None:
        means += f", {matching.by_number:.3f} by layer and number"
    units = "words" if comparison.by_word else "tokens"
    note = (
        f"{means}, {matching.any_pair:.3f} of any two heads. Similarity is the weight on the same "
        f"{units}, 0 to 1. Heads are written layer.head."
    )
    return Group(table, build_note(note))


def _short(head: Head) -> str:
    return f"{head.layer + 1}.{head.head + 1}"


# ------------------------------------------------------------------------------------ the figure


def save_comparison(comparisons: Sequence[MapComparison], path: Path) -> Iterator[Path]:
    """Write the figure of each kind, or all pairs as JSON; yields the paths."""
    return save_by_kind(comparisons, path, draw_comparison)


def draw_comparison(comparison: MapComparison, text: int = 0) -> Figure:
    """Each head of the first model above the head of the second that it is paired with.

    One pair alone is drawn large, with its tokens. `text` is the number of the text.
    """
    first, second = comparison.first[text], comparison.second[text]
    matches = comparison.matching.matches
    if len(matches) == 1:
        return _draw_pair(comparison.names, first, second, matches[0])
    return _draw_pairs(comparison.names, first, second, matches)


def _fit(name: str, characters: int) -> str:
    """The end of a name that is too long: folders of runs often begin alike."""
    name = plot.replace_unprintable(name)
    return name if len(name) <= characters else f"…{name[1 - characters :]}"


def _weights(attention: AttentionMap, head: Head) -> Any:
    return attention.weights[attention.layers.index(head.layer)][head.head]


def _draw_pairs(
    names: tuple[str, str], first: AttentionMap, second: AttentionMap, matches: list[HeadMatch]
) -> Figure:
    fitting = (columns for most, columns in ACROSS.items() if len(matches) <= most)
    across = min(next(fitting, MOST_ACROSS), len(matches))
    rows = [matches[i : i + across] for i in range(0, len(matches), across)]
    with plot.use_style():
        panel = plot.clamp(6.0 / across, 0.5, 1.6)
        pitch = panel * (1 + GAP_PIXELS / PANEL_PIXELS)
        labels = [_fit(name, NAME_CHARACTERS) for name in names]
        left = 0.25 + plot.label_width(labels, 8.5)
        band, width = 2 * pitch + 0.55, across * pitch
        height = band * len(rows)
        figure = plot.new_figure(left + width + 0.9, height + 0.6)
        for number, row in enumerate(rows):
            bottom = height - band * (number + 1) + 0.3
            axes = plot.add_axes(figure, left, bottom, width, 2 * pitch)
            pair = [
                [_weights(first, match.first) for match in row],
                [_weights(second, match.second) for match in row],
            ]
            image = draw_panels(axes, pair, across, first.visible & second.visible)
            step = PANEL_PIXELS + GAP_PIXELS
            for column, match in enumerate(row):
                middle = column * step + PANEL_PIXELS / 2
                above, below = (middle, -3), (middle, 2 * step - GAP_PIXELS + 3)
                axes.text(*above, _short(match.first), ha="center", va="bottom", fontsize=8.5)
                label = f"{_short(match.second)}\n{match.similarity:.2f}"
                axes.text(*below, label, ha="center", va="top", fontsize=8.5, linespacing=1.1)
            for index, name in enumerate(labels):
                place = (-8, index * step + PANEL_PIXELS / 2)
                axes.text(*place, name, ha="right", va="center", fontsize=8.5)
            if number == 0:
                kind = NAMES.get(first.kind, "Cross-attention")
                axes.set_title(f"{kind}: heads (layer.head) in pairs, similarity below", pad=20)
        bar = plot.clamp(band - 0.6, 1.3, 2.4)
        add_scale(figure, image, left + width + 0.1, height - 0.25 - bar, bar)
    return figure


def _draw_pair(
    names: tuple[str, str], first: AttentionMap, second: AttentionMap, match: HeadMatch
) -> Figure:
    rows, columns = short_labels(first.query_tokens), short_labels(first.key_tokens)
    n, m = len(rows), len(columns)
    with plot.use_style():
        height, width = (min(LARGEST_SIDE, CELL * count) for count in (n, m))
        size = font_size(min(height / n, width / m))
        left, above = 0.4 + plot.label_width(rows, size), 0.9 + plot.label_width(columns, size)
        figure = plot.new_figure(left + 2 * width + 1.3, above + height + 0.3)
        pairs = ((first, match.first), (second, match.second))
        for i, (attention, head) in enumerate(pairs):
            axes = plot.add_axes(figure, left + i * (width + 0.25), 0.3, width, height)
            image = draw_weights(axes, _weights(attention, head), attention.visible)
            label_rows(axes, rows if i == 0 else [""] * n, size, start=first.queries.start)
            label_columns(axes, columns, size, start=first.keys.start, upright=True)
            axes.set_title(f"{_fit(names[i], int(width / 0.09))}\n{head.label}", fontsize=9, pad=8)
        note = f"similarity {match.similarity:.2f}; rows are queries, columns keys"
        figure.text(0.5, 0.02, note, ha="center", va="bottom", fontsize=plot.NOTE_SIZE)
        add_scale(figure, image, left + 2 * width + 0.4, 0.3, plot.clamp(height, 1.3, 2.4))
    return figure
