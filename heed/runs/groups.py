"""Groups of runs: those of one recipe with different seeds, named by the keys that differ."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import PurePath
from typing import Any, TypeVar

from heed.config import Recipe

MAX_KEYS = 4
"""Keys in a group's name. Where more differ, the group is named after its runs."""
UNSET = "unset"
"""Stands for the value of a key that a recipe does not have."""
_PLAIN = re.compile(r"(?!(?:true|false|unset)$)[A-Za-z_][\w./-]*")
_Key = tuple[str, ...]
_K = TypeVar("_K")


@dataclass(frozen=True)
class RunGroup:
    """Runs whose recipes are equal except for the seed."""

    name: str
    """What sets this group apart: `position=rope, layers=4`; else the name of its runs."""
    runs: tuple[str, ...]
    seeds: tuple[int | None, ...]
    """The seed of each run."""
    differing: dict[str, Any]
    """The full keys whose values differ among the groups, with this group's values, or None."""


def group_runs(recipes: Mapping[str, Recipe | Mapping[str, Any]]) -> list[RunGroup]:
    """Group runs by their recipes without `seed`; groups are in the order of their first runs.

    `recipes` maps the name of each run, such as its folder, to its recipe.
    """
    groups: dict[str, list[str]] = {}
    flat: dict[str, dict[_Key, Any]] = {}
    seeds: dict[str, int | None] = {}
    for run, recipe in recipes.items():
        values = _flatten(recipe.tables() if isinstance(recipe, Recipe) else recipe)
        seeds[run] = values.pop(("seed",), None)
        flat[run] = values
        groups.setdefault(_to_text(sorted(values.items())), []).append(run)
    members = list(groups.values())
    settings = [flat[runs[0]] for runs in members]
    differing = differing_keys(settings)
    names = _name_by_keys(differing, settings) or _name_by_runs(members)
    return [
        RunGroup(
            name,
            tuple(runs),
            tuple(seeds[run] for run in runs),
            {".".join(key): values.get(key) for key in differing},
        )
        for name, runs, values in zip(names, members, settings, strict=True)
    ]


def comparable_recipes(
    runs: Mapping[str, tuple[Mapping[str, Any], Mapping[str, str]]],
) -> dict[str, Mapping[str, Any]]:
    """The recipes by run, without what does not change the weights.

    `runs` has the tables of each recipe, and the hashes of its training and dev text. Files of the
    same content at different places are the same text: their paths are left out.
    """
    hashes = [data for _, data in runs.values()]
    same_text = {
        split
        for split in ("train", "dev")
        if len({data.get(split) for data in hashes}) == 1 and hashes[0].get(split)
    }
    left_out = {"test", "sets", "groups", *same_text}
    tables: dict[str, Mapping[str, Any]] = {}
    for run, (recipe, _) in runs.items():
        data = {key: value for key, value in recipe.get("data", {}).items() if key not in left_out}
        train = {k: v for k, v in recipe.get("train", {}).items() if k != "evaluate_test"}
        tables[run] = {**recipe, "data": data, "train": train}
    return tables


def shorten_paths(paths: Sequence[str]) -> list[str]:
    """The last parts of each path: as many as distinguish it from the others."""
    parts = [PurePath(path).parts or (path,) for path in paths]
    endings = Counter(
        chain.from_iterable({one[-n:] for n in range(1, len(one) + 1)} for one in set(parts))
    )
    lengths = [
        next((n for n in range(1, len(one)) if endings[one[-n:]] == 1), len(one)) for one in parts
    ]
    return [str(PurePath(*one[-n:])) for one, n in zip(parts, lengths, strict=True)]


def _flatten(tables: Mapping[str, Any], above: _Key = ()) -> dict[_Key, Any]:
    """Every value of nested tables by its path. An empty table or None is as if it were unset."""
    values: dict[_Key, Any] = {}
    for key, value in tables.items():
        if isinstance(value, Mapping):
            values |= _flatten(value, (*above, key))
        elif value is not None:
            values[*above, key] = _normalize(value)
    return values


def _normalize(value: Any) -> Any:
    """The value as JSON has it, with 2.0 as 2: some programs write JSON so."""
    if isinstance(value, (list, tuple)):
        return [_normalize(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _to_text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def differing_keys(
    settings: Sequence[Mapping[_K, Any]], *, ignored: Collection[Any] = ()
) -> list[_K]:
    """The keys whose values are not the same in all recipes, in the order of the recipes.

    Values in `ignored` differ from nothing.
    """
    keys = dict.fromkeys(chain.from_iterable(settings))
    values = {
        key: {_to_text(one.get(key)) for one in settings if one.get(key) not in ignored}
        for key in keys
    }
    return [key for key in keys if len(values[key]) > 1]


def _name_by_keys(
    differing: Sequence[_Key], settings: Sequence[Mapping[_Key, Any]]
) -> list[str] | None:
    """`key=value` of the keys that differ, for each recipe; None where none or too many do.

    A key is written without its section where no other key of the recipes ends in the same name.
    """
    if not 1 <= len(differing) <= MAX_KEYS:
        return None
    last_parts = Counter(key[-1] for key in dict.fromkeys(chain.from_iterable(settings)))
    columns = []
    for key in differing:
        name = key[-1] if last_parts[key[-1]] == 1 else ".".join(key)
        texts = _format_values([one.get(key) for one in settings])
        columns.append([f"{name}={text}" for text in texts])
    return [", ".join(cells) for cells in zip(*columns, strict=True)]


def _name_by_runs(members: Sequence[Sequence[str]]) -> list[str]:
    """The name of each group's first run, and how many more there are."""
    runs = list(chain.from_iterable(members))
    short = dict(zip(runs, shorten_paths(runs), strict=True))
    return [
        short[group[0]] + (f" and {len(group) - 1} more" if len(group) > 1 else "")
        for group in members
    ]


def _format_values(values: Sequence[Any]) -> list[str]:
    """Each value as short text; different values give different texts."""
    forms: tuple[Callable[[Any], str], ...] = (_format_short, _format_plain)
    for form in forms:
        texts = [form(value) for value in values]
        if len(set(texts)) == len({_to_text(value) for value in values}):
            return texts
    return [UNSET if value is None else _to_text(value) for value in values]


def _format_short(value: Any) -> str:
    """A value with only the last part of every path in it, and six digits of a number."""
    if isinstance(value, list) and value:
        return "+".join(_format_short(item) for item in value)
    if isinstance(value, float):
        return f"{value:.6g}"
    return _format_plain(PurePath(value).name if isinstance(value, str) else value)


def _format_plain(value: Any) -> str:
    """A value as TOML writes it, without the quotes of a simple word."""
    if value is None:
        return UNSET
    if isinstance(value, str) and _PLAIN.fullmatch(value):
        return value
    return _to_text(value)
