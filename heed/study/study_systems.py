"""Systems of a study: the named ones times the grid, checked against the schema of recipes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import product
from pathlib import Path
from typing import Any

from heed.config import SECTIONS, Recipe, apply_overrides
from heed.config.recipe import EXCLUSIVE, toml_value
from heed.config.task_metrics import TASK_METRICS
from heed.errors import ConfigError, nearest
from heed.runs.results_file import OTHER_WINDOW
from heed.study.search.search_space import check_search
from heed.study.study_config import MAX_NAME, PRETRAINED, StudyConfig
from heed.study.study_texts import replace_texts

ReadTables = Callable[[str], dict[str, Any]]
"""Reads the tables of a recipe by its name or path."""
MAX_SYSTEMS = 10_000
_PLAIN_VALUE = re.compile(r"(?!(?:true|false)$)[A-Za-z_][\w-]*")


@dataclass(frozen=True)
class System:
    """A recipe without its seed, under a name."""

    name: str
    recipe: str
    """The recipe that the changes apply to: a file, or the name of a shipped one."""
    changes: dict[str, Any]
    """Every key that the study sets, the fixed ones included."""
    scientific: dict[str, Any]
    """The keys that the study asks about, of `systems` and `grid`."""


def expand_systems(config: StudyConfig) -> list[System]:
    """The systems of a study, in its order: each named one with each cell of the grid."""
    named = [
        (system.name, system.recipe or config.recipe, system.set) for system in config.systems
    ] or [("", config.recipe, {})]
    keys = list(config.grid)
    cells = [dict(zip(keys, values, strict=True)) for values in product(*config.grid.values())]
    if len(named) * len(cells) > MAX_SYSTEMS:
        raise ConfigError(
            [f"[grid] gives {len(named) * len(cells):,} systems, and {MAX_SYSTEMS:,} are the most."]
        )
    cell_names = _name_cells(cells)
    systems = []
    for name, recipe, values in named:
        if recipe is None:
            where = f"the system {name!r}" if name else "the study"
            raise ConfigError([f"There is no recipe for {where}: write recipe = … in the study."])
        for cell, cell_name in zip(cells, cell_names, strict=True):
            parts = [part for part in (name, cell_name) if part] or [Path(recipe).stem]
            scientific = {**values, **cell}
            systems.append(System("-".join(parts), recipe, config.set | scientific, scientific))
    return systems


def _name_cells(cells: Sequence[Mapping[str, Any]]) -> list[str]:
    """A short name for each combination of a grid: `rope`, `rope-layers2`; none is used twice."""
    names = ["-".join(_name_value(key, value) for key, value in cell.items()) for cell in cells]
    counts = Counter(names)
    return [
        name
        if counts[name] == 1 and len(name) <= MAX_NAME
        else f"{name[: MAX_NAME - 8]}-{_short_hash(cell)}"
        for cell, name in zip(cells, names, strict=True)
    ]


def _short_hash(cell: Mapping[str, Any]) -> str:
    return blake2b(repr(sorted(cell.items())).encode(), digest_size=3).hexdigest()


def _name_value(key: str, value: Any) -> str:
    """A word alone, anything else after the last part of its key: `rope`, `layers2`."""
    if isinstance(value, str) and _PLAIN_VALUE.fullmatch(value):
        return value
    text = re.sub(r"[^\w.+-]+", "-", str(value), flags=re.ASCII).strip("-")
    return f"{key.rpartition('.')[2]}{text}"


def change_tables(tables: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The tables of a recipe with changed keys; a key that another one excludes is dropped."""
    excluded = {other for key, other in EXCLUSIVE.items() if f"train.{key}" in changes}
    result = dict(tables)
    if isinstance(result.get("train"), Mapping):
        result["train"] = {k: v for k, v in result["train"].items() if k not in excluded}
    return apply_overrides(result, write_overrides(changes))


def write_overrides(changes: Mapping[str, Any]) -> list[str]:
    """Changed keys as `heed train --set` takes them."""
    return [f"{key}={toml_value(value)}" for key, value in changes.items()]


# ------------------------------------------------------------------------------------ checks


def check_study(config: StudyConfig, read: ReadTables, *, where: str | None = None) -> StudyConfig:
    """The study with its metric and sets filled in; raises `ConfigError` with every error in it."""

    def read_with_texts(name: str) -> dict[str, Any]:
        return replace_texts(read(name), config.texts)

    complaints = [*_check_keys(config)]
    try:
        systems = expand_systems(config)
    except ConfigError as error:
        raise ConfigError([*complaints, *error.complaints], where=where) from None
    names = [*_check_names(config, systems)]
    if complaints:
        raise ConfigError([*complaints, *names], where=where)
    complaints += names
    recipes, wrong = _read_recipes(systems, read_with_texts)
    complaints += wrong
    if not wrong:
        complaints += _check_same_recipes(recipes)
        complaints += _check_space(config, systems, read_with_texts)
        complaints += _check_task(config, recipes)
        complaints += _check_sets(config, recipes)
        complaints += _check_pretraining(config, recipes, read)
    if complaints:
        raise ConfigError(complaints, where=where)
    first = next(iter(recipes.values()))
    metric = config.metric or TASK_METRICS[first.task][0]
    if first.task == "generate" and first.train.objective == "masked" and config.metric is None:
        metric = "loss"
    has_test = all(map(_has_test, recipes.values()))
    sets = config.sets or (["test"] if has_test else [])
    return config.model_copy(update={"metric": metric, "sets": sets})


def _has_test(recipe: Recipe) -> bool:
    return bool(recipe.data.test) or recipe.data.synthetic is not None


def find_unknown_keys(keys: Sequence[str], label: str) -> list[str]:
    """An error, with the nearest name, for each key that no recipe has."""
    known = [f"{name}.{key}" for name, kind in SECTIONS.items() for key in sorted(kind.keys())]
    complaints = []
    for key in keys:
        if key == "seed":
            complaints.append(f"{label} cannot have seed: the seeds of a study are its key seeds.")
        elif key != "task" and key not in known:
            same = [one for one in known if one.partition(".")[2] == key]
            hint = f" Did you mean {' or '.join(map(repr, same))}?" if same else nearest(key, known)
            complaints.append(f"{label} has {key!r}, and no recipe has this key.{hint}")
    return complaints


def _check_keys(config: StudyConfig) -> Iterator[str]:
    """Keys that no recipe has, and keys of two kinds at once."""
    yield from find_unknown_keys(list(config.set), "[set]")
    yield from find_unknown_keys(list(config.grid), "[grid]")
    space = config.search.space if config.search else {}
    yield from find_unknown_keys(list(space), "[search.space]")
    for system in config.systems:
        yield from find_unknown_keys(list(system.set), f"system {system.name!r}")
    scientific = dict.fromkeys(key for system in config.systems for key in system.set)
    for key in config.grid:
        if key in config.set:
            yield f"{key} is in [set] and in [grid]: it is fixed or varied, not both."
        if key in scientific:
            yield f"{key} is in [grid] and in a system: leave it out of one of them."
    for key, one in space.items():
        kinds = {"[set]": config.set, "[grid]": config.grid, "a system": scientific}
        for label in (label for label, keys in kinds.items() if key in keys):
            yield f"{key} is in {label} and in [search.space]: it is searched or not."
        yield from find_unknown_keys(list(one.when), f'[search.space] "{key}" when')
        for other, wanted in one.when.items():
            if other in space and space[other].choices is None:
                yield f'[search.space] "{key}" depends on {other}, which is a range, not choices.'
            elif other in space:
                options = wanted if isinstance(wanted, list) else [wanted]
                choices = space[other].choices or []
                yield from (
                    f'[search.space] "{key}" is for {other} = {value!r}, which is none of the '
                    "choices there."
                    for value in options
                    if value not in choices
                )
        if _depends_on(key, key, {name: list(entry.when) for name, entry in space.items()}):
            yield f'[search.space] "{key}" depends on itself: change its `when`.'
    yield from check_search(config)


def _depends_on(key: str, target: str, conditions: Mapping[str, list[str]]) -> bool:
    """Whether a condition leads from one key of the space back to another."""
    seen, waiting = set(), list(conditions.get(key, ()))
    while waiting:
        one = waiting.pop()
        if one == target:
            return True
        if one not in seen:
            seen.add(one)
            waiting += conditions.get(one, ())
    return False


def _check_names(config: StudyConfig, systems: Sequence[System]) -> Iterator[str]:
    names = [system.name for system in systems]
    for name, count in Counter(names).items():
        if count > 1:
            yield f"The name {name!r} stands for {count} systems: give each its own."
        if len(name) > 2 * MAX_NAME or not name.isprintable() or name != name.strip():
            yield f"A system cannot be called {name!r}: use a short name of printable characters."
    if config.baseline is not None and config.baseline not in names:
        yield (
            f"The baseline {config.baseline!r} is no system: choose one of "
            f"{', '.join(names[:20])}.{nearest(config.baseline, names)}"
        )


def _read_recipes(
    systems: Sequence[System], read: ReadTables
) -> tuple[dict[str, Recipe], list[str]]:
    """The recipe of every system by its name, and the errors in them, each told once."""
    recipes: dict[str, Recipe] = {}
    tables: dict[str, dict[str, Any]] = {}
    complaints: dict[str, list[str]] = {}
    for name in dict.fromkeys(system.recipe for system in systems):
        try:
            tables[name] = read(name)
        except ConfigError as error:
            complaints |= {one: [] for one in error.complaints}
    for system in systems:
        if system.recipe not in tables:
            continue
        try:
            recipes[system.name] = Recipe.of(change_tables(tables[system.recipe], system.changes))
        except ConfigError as error:
            for one in error.complaints:
                complaints.setdefault(one, []).append(system.name)
    return recipes, [
        one if len(names) in (0, len(systems)) else f"system {', '.join(map(repr, names))}: {one}"
        for one, names in complaints.items()
    ]


def _check_same_recipes(recipes: Mapping[str, Recipe]) -> Iterator[str]:
    """Two systems with the same recipe are one."""
    by_recipe: dict[str, str] = {}
    for name, recipe in recipes.items():
        text = recipe.toml()
        if text in by_recipe:
            yield f"Systems {by_recipe[text]!r} and {name!r} have the same recipe: leave one out."
        by_recipe.setdefault(text, name)


def _check_space(config: StudyConfig, systems: Sequence[System], read: ReadTables) -> Iterator[str]:
    """Values of the search space that a recipe does not take, for the first system."""
    space = config.search.space if config.search else {}
    tables = read(systems[0].recipe)
    for key, one in space.items():
        conditions = {k: v[0] if isinstance(v, list) else v for k, v in one.when.items()}
        for value in one.choices if one.choices is not None else (one.low, one.high):
            changes = systems[0].changes | conditions | {key: value}
            try:
                Recipe.of(change_tables(tables, changes))
            except ConfigError as error:
                yield from (f'[search.space] "{key}": {text}' for text in error.complaints)


def _check_task(config: StudyConfig, recipes: Mapping[str, Recipe]) -> Iterator[str]:
    tasks = sorted({recipe.task for recipe in recipes.values()})
    if len(tasks) > 1:
        yield (
            f"The systems have different tasks ({', '.join(tasks)}), and no metric is common to "
            "them: make a study of each."
        )
    elif config.metric is not None and config.metric not in TASK_METRICS[tasks[0]]:
        known = TASK_METRICS[tasks[0]]
        yield (
            f"metric cannot be {config.metric!r}: task {tasks[0]!r} is scored by "
            f"{', '.join(known)}.{nearest(config.metric, known)}"
        )


def _check_pretraining(
    config: StudyConfig, recipes: Mapping[str, Recipe], read: ReadTables
) -> Iterator[str]:
    """Errors of [pretrain], and systems that begin from a run that is not declared."""
    used = [name for name, one in recipes.items() if one.init.from_model == PRETRAINED]
    if config.pretrain is None:
        if used:
            yield f"The system {used[0]!r} begins from a pretrained run: declare it in [pretrain]."
        return
    if not used:
        yield f'No system begins from the run of [pretrain]: set "init.from" = {PRETRAINED!r}.'
    unknown = find_unknown_keys(list(config.pretrain.set), "[pretrain] set")
    yield from unknown
    if not unknown:
        try:
            Recipe.of(change_tables(read(config.pretrain.recipe), config.pretrain.set))
        except ConfigError as error:
            yield from (f"[pretrain] {text}" for text in error.complaints)


def _check_sets(config: StudyConfig, recipes: Mapping[str, Recipe]) -> Iterator[str]:
    """Sets that a system's recipe does not have."""
    without_dev = [name for name, recipe in recipes.items() if not recipe.data.has_dev]
    if config.search and without_dev:
        yield (
            f"A search chooses on dev, and the recipe of {without_dev[0]!r} has no dev set: name "
            "its files in data.dev."
        )
    for name, recipe in recipes.items():
        data = recipe.data
        known = [*(["test"] if _has_test(recipe) else []), *data.sets]
        for one in config.sets:
            base, mark, tokens = one.partition(OTHER_WINDOW)
            if mark and (recipe.task != "generate" or not tokens.isdecimal()):
                yield (
                    f"sets names {one!r}: {OTHER_WINDOW} and a number of tokens are for language "
                    "models, as dev@window-256."
                )
                return
            if base not in (*known, "dev"):
                has = f"has {', '.join(known)}" if known else "has none"
                yield f"sets names {one!r}, and the recipe of {name!r} {has}.{nearest(one, known)}"
                return
