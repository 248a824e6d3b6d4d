"""`heed attend`: the attention maps of texts, on the terminal or in files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

from heed.config import Recipe
from heed.errors import ConfigError, DataError, nearest
from heed.probe.attention_maps import KINDS, AttentionMaps
from heed.probe.map_figure import MEAN
from heed.probe.map_output import check_format, render_links


class LoadedModel(Protocol):
    """A model as `heed.load` returns it."""

    @property
    def recipe(self) -> Recipe: ...
    @property
    def attention(self) -> Callable[..., AttentionMaps]: ...
    @property
    def pipeline(self) -> Any: ...


@dataclass(frozen=True)
class View:
    """Which maps to show: layers and heads are counted from 0."""

    kind: str | None = None
    layer: int | None = None
    head: int | str | None = None
    words: bool = False

    @classmethod
    def from_flags(
        cls, kind: str | None, layer: int | None, head: str | None, *, words: bool = False
    ) -> View:
        """The view that flags describe, which count layers and heads from 1."""
        if kind is not None and kind not in KINDS:
            known = ", ".join(KINDS)
            raise ConfigError([f"--kind cannot be {kind!r}: use {known}.{nearest(kind, KINDS)}"])
        index: int | str | None = head
        if head is not None and head != MEAN:
            if not head.isdecimal() or int(head) < 1:
                raise ConfigError([f"--head cannot be {head!r}: use a number from 1 on, or mean."])
            index = int(head) - 1
        return cls(kind, None if layer is None else layer - 1, index, words)


def read_texts(model: LoadedModel, groups: Iterable[list[str]]) -> Iterator[Any]:
    """The texts of lines that are not blank; of a classifier of pairs, pairs."""
    pipeline = model.pipeline if model.recipe.task == "classify" else None
    for number, line in enumerate(chain.from_iterable(groups), 1):
        if line.strip():
            yield line if pipeline is None else pipeline.parse_line(line, number)


def map_texts(
    model: LoadedModel, texts: Iterable[Any], target: str | None
) -> Iterator[AttentionMaps]:
    """The attention maps of each text."""
    if target is None:
        yield from map(model.attention, texts)
        return
    if model.recipe.task != "translate":
        raise ConfigError(["--target is for translators: other models read one text only."])
    text, *others = texts
    if others:
        raise ConfigError(["--target is the translation of one text: give one."])
    yield model.attention(text, target)


def attend_texts(
    model: LoadedModel,
    groups: Iterable[list[str]],
    view: View,
    *,
    target: str | None = None,
    out: Path | None = None,
) -> Iterator[tuple[AttentionMaps, Path | None]]:
    """The maps of each text, and the file that they were written to, if one is named."""
    if out is not None:
        check_format(out)
    maps = map_texts(model, read_texts(model, groups), target)
    first = next(maps, None)
    if first is None:
        raise DataError("there is no text to look at.", todo="Give a text that is not blank.")
    second = next(maps, None)
    several = second is not None
    rest = chain([first], [] if second is None else [second], maps)
    for number, one in enumerate(rest, 1):
        shown = one.by_word() if view.words else one
        path = out
        if out is not None:
            path = out.with_name(f"{out.stem}-{number}{out.suffix}") if several else out
            shown.save(path, view.kind, view.layer, view.head)
        yield shown, path


def render_view(maps: AttentionMaps, view: View) -> Any:
    """The strongest links of each token, for the terminal."""
    return render_links(maps, view.kind, view.layer, view.head)
