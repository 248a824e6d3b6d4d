"""`heed attend`: the attention maps of texts, on the terminal or in files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, Protocol

from heed.config import Recipe
from heed.data.tokenizers.tokenizer import Tokenizer
from heed.errors import ConfigError, DataError, nearest
from heed.probe.attention_maps import KINDS, AttentionMaps
from heed.probe.lens import OWN_OUTPUT, TARGET, Lens, read_lens
from heed.probe.map_figure import MEAN
from heed.probe.map_output import check_format, render_links
from heed.probe.mask_checks import Check, check_attention
from heed.probe.text_trace import InputTokens, count_traceable
from heed.runs.weight_files import BEST_WEIGHTS

MOST_CHECKED = 64
"""Texts that are checked: they are one batch, of fewer where texts are long."""


class LoadedModel(Protocol):
    """A model as `heed.load` returns it."""

    @property
    def recipe(self) -> Recipe: ...
    @property
    def tokenizer(self) -> Tokenizer: ...
    @property
    def model(self) -> Any: ...
    @property
    def inputs(self) -> Callable[..., tuple[InputTokens, InputTokens | None]]: ...
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


def refuse_conflicts(
    *,
    check: bool,
    lens: bool,
    patch: bool = False,
    against: bool = False,
    over_training: bool = False,
    weights: str = BEST_WEIGHTS,
    out: Path | None,
) -> None:
    """Raise an error for flags that ask for two results at once."""
    flags = {"--check": check, "--lens": lens, "--patch": patch, "--against": against}
    flags["--over-training"] = over_training
    asked = [flag for flag, is_set in flags.items() if is_set]
    if len(asked) > 1:
        raise ConfigError([f"{' and '.join(asked)} are different questions: give one of them."])
    if over_training and weights != BEST_WEIGHTS:
        raise ConfigError(
            ["--over-training reads every snapshot, and --weights one step: omit one of them."]
        )
    if out is not None and (check or lens):
        raise ConfigError([f"--out writes maps, and {asked[0]} prints a table: omit one of them."])


def refuse_view(view: View, *, check: bool, lens: bool, patch: bool) -> None:
    """Raise an error for flags that choose maps, where none are shown."""
    results = {"--check": check, "--lens": lens, "--patch without --out": patch}
    asked = next((flag for flag, is_set in results.items() if is_set), None)
    unset = (None, False)
    chosen = [
        f"--{flag}" for flag, value in vars(view).items() if not any(value is one for one in unset)
    ]
    if asked is not None and chosen:
        flags, verb = " and ".join(chosen), "chooses" if len(chosen) == 1 else "choose"
        raise ConfigError([f"{asked} shows no maps, and {flags} {verb} among them: omit it."])


def read_texts(
    model: LoadedModel, groups: Iterable[list[str]], target: str | None = None
) -> Iterator[tuple[Any, ...]]:
    """The arguments of `attention` for each line that is not blank: a text, and a target if given.

    A line of a classifier of pairs is a pair.
    """
    if target is not None and model.recipe.task != "translate":
        raise ConfigError(["--target is for translators: other models read one text only."])
    pipeline, count = model.pipeline if model.recipe.task == "classify" else None, 0
    for number, line in enumerate(chain.from_iterable(groups), 1):
        if not line.strip():
            continue
        count += 1
        if target is not None and count > 1:
            raise ConfigError(["--target is the translation of one text: give one."])
        text = line if pipeline is None else pipeline.parse_line(line, number)
        yield (text,) if target is None else (text, target)
    if not count:
        raise DataError("there is no text to look at.", todo="Give a text that is not blank.")


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
    arguments = read_texts(model, groups, target)
    two = [*islice(arguments, 2)]
    several = len(two) > 1
    for number, of_text in enumerate(chain(two, arguments), 1):
        maps = model.attention(*of_text)
        shown = maps.by_word() if view.words else maps
        path = out
        if out is not None:
            path = out.with_name(f"{out.stem}-{number}{out.suffix}") if several else out
            shown.save(path, view.kind, view.layer, view.head)
        yield shown, path


def check_texts(
    model: LoadedModel, groups: Iterable[list[str]], *, target: str | None = None
) -> list[Check]:
    """The checks of a model's attention on these texts, in one batch."""
    inputs, sources, longest = list[InputTokens](), list[InputTokens](), 0
    for of_text in islice(read_texts(model, groups, target), MOST_CHECKED):
        text, source = model.inputs(*of_text)
        longest = max(longest, len(text.ids), 0 if source is None else len(source.ids))
        if inputs and len(inputs) >= count_traceable(model.model, longest):
            break
        inputs.append(text)
        sources += [] if source is None else [source]
    return check_attention(model.model, inputs, sources, pad=model.tokenizer.specials.pad)


def lens_texts(
    model: LoadedModel, groups: Iterable[list[str]], *, target: str | None = None
) -> Iterator[Lens]:
    """What each layer would predict over each text."""
    classes = model.pipeline.classes.names if model.recipe.task == "classify" else ()
    reference = OWN_OUTPUT if model.recipe.task == "translate" and target is None else TARGET
    for of_text in read_texts(model, groups, target):
        inputs = model.inputs(*of_text)
        yield read_lens(model.model, model.tokenizer, *inputs, classes=classes, reference=reference)


def render_view(maps: AttentionMaps, view: View) -> Any:
    """The strongest links of each token, for the terminal."""
    return render_links(maps, view.kind, view.layer, view.head)
