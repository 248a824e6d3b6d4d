"""Study files: read one by its path or name, or build one from flags and a recipe."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from heed import recipes
from heed.config import TASKS, read_tables
from heed.errors import ConfigError, RunError
from heed.study import studies
from heed.study.study_config import (
    BudgetConfig,
    SearchConfig,
    SearchRange,
    StudyConfig,
    SystemConfig,
)
from heed.study.study_folder import (
    is_study_folder,
    read_copies,
    read_study_folder,
    refuse_lost_study,
)
from heed.study.study_systems import check_study, expand_systems

__all__ = [
    "BudgetConfig",
    "SearchConfig",
    "SearchRange",
    "StudyConfig",
    "StudyFlags",
    "SystemConfig",
    "declare_study",
    "read_study",
]
ONLY_IN_STUDIES = ("recipe", "systems", "grid", "seeds", "search", "question")
"""Keys that a study file has, and no recipe."""


@dataclass(frozen=True)
class StudyFlags:
    """What the command line changes of a study, or builds one of a recipe with."""

    vary: Sequence[str] = ()
    """`key=a,b,c`: scientific keys and their values."""
    seeds: str | None = None
    """A number of seeds, or seeds with commas between them."""
    changes: Sequence[str] = ()
    """`key=value`: fixed keys."""
    data: str | None = None
    """The folder of the recipes' data files."""
    quick: bool = False
    """Whether the study's [quick] section is applied."""
    threads: int | None = None
    """CPU threads of each trial."""
    texts: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Files in place of the text of the recipes, by split."""


def read_study(name: str | Path, *, quick: bool = False) -> StudyConfig:
    """The study of a file, of a shipped name, or of the folder of one that has begun.

    The study of a folder has everything that was added to it.
    """
    return declare_study(name, StudyFlags(quick=quick))


def declare_study(name: str | Path, flags: StudyFlags) -> StudyConfig:
    """A study by its file, folder or name, or of a recipe; with the flags applied, and checked."""
    path = Path(name)
    if is_study_folder(path):
        config = read_study_folder(path)
        if flags.quick and not config.is_quick:
            what = "this study was not declared as its quick form."
            raise RunError(what, where=str(path), todo="Leave --quick out.")
        if replace(flags, quick=False) == StudyFlags():
            return config
        tables = _apply_flags(config.tables(), flags, extends=True)
        read = read_copies(path)
        return check_study(StudyConfig.of(tables, where=str(path)), read, where=str(path))
    refuse_lost_study(path)
    if path.is_dir():
        what = "there is no study in this folder: study.toml is missing."
        raise RunError(what, where=str(path), todo="Name the folder that `heed study` made.")
    file, tables = _read_tables(str(name), flags)
    where = str(name)
    tables = _apply_flags({"name": file.stem} | tables, flags)
    config = StudyConfig.of(_with_recipe_paths(tables, file.parent), where=where)
    config = check_study(config, lambda one: read_tables(recipes.find(one)), where=where)
    _refuse_one_system(tables, flags)
    return config


def find_task(name: str | Path, *, quick: bool = False) -> str:
    """The task of a study's first recipe, which says what its lists of texts hold."""
    path = Path(name)
    if is_study_folder(path):
        first = expand_systems(read_study_folder(path))[0]
        return str(read_copies(path)(first.recipe).get("task", TASKS[0]))
    file, tables = _read_tables(str(name), StudyFlags(seeds="1", quick=quick))
    tables = _with_recipe_paths(tables, file.parent)
    systems = tables.get("systems") or [{}]
    recipe = systems[0].get("recipe", tables.get("recipe"))
    task = read_tables(recipes.find(str(recipe))).get("task", TASKS[0])
    return task if task in TASKS else TASKS[0]  # another is an error of the recipe


def _read_tables(name: str, flags: StudyFlags) -> tuple[Path, dict[str, Any]]:
    """The file and the tables of a study, or those of a study of a recipe."""
    if Path(name).suffix != ".toml" and name not in studies.names() and name in recipes.names():
        return _study_of_recipe(name, Path(name), flags)
    file = studies.find(name)
    tables = read_tables(file)
    if not tables.keys() & {*ONLY_IN_STUDIES} and tables.keys() & {"task", "model", "train"}:
        return _study_of_recipe(name, file, flags)
    quick = tables.pop("quick", None)
    if flags.quick:
        if not isinstance(quick, Mapping):
            what = "This study has no [quick] section: leave --quick out."
            raise ConfigError([what], where=name)
        tables = merge_tables(tables, quick) | {"is_quick": True}
    return file, tables


def _study_of_recipe(name: str, file: Path, flags: StudyFlags) -> tuple[Path, dict[str, Any]]:
    if not flags.vary and flags.seeds is None:
        raise ConfigError(
            [f"{name!r} is a recipe. A study of it says what varies: --vary key=a,b or --seeds 3."]
        )
    if flags.quick:
        raise ConfigError(["--quick is for study files, and this is a recipe: leave it out."])
    return file, {"recipe": name, "name": f"{file.stem}-study"}


def _with_recipe_paths(tables: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Tables in which a recipe file that lies beside the study is named by its path."""

    def locate(name: Any) -> Any:
        if isinstance(name, str) and name.endswith(".toml") and not Path(name).is_file():
            return str(folder / name) if (folder / name).is_file() else name
        return name

    result = dict(tables)
    if isinstance(pretrain := result.get("pretrain"), Mapping) and "recipe" in pretrain:
        result["pretrain"] = {**pretrain, "recipe": locate(pretrain["recipe"])}
    if "recipe" in result:
        result["recipe"] = locate(result["recipe"])
    if isinstance(result.get("systems"), list):
        result["systems"] = [
            {**one, "recipe": locate(one["recipe"])}
            if isinstance(one, Mapping) and "recipe" in one
            else one
            for one in result["systems"]
        ]
    return result


def merge_tables(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `changes` in place: tables are merged, anything else is replaced.

    A range of `search.space` is replaced as a whole: one with choices has no low.
    """
    merged = dict(base)
    for key, value in changes.items():
        inner = merged.get(key)
        if isinstance(inner, Mapping) and isinstance(value, Mapping) and "." not in key:
            merged[key] = merge_tables(inner, value)
        else:
            merged[key] = value
    return merged


# -------------------------------------------------------------------------------------- flags


def _apply_flags(
    tables: dict[str, Any], flags: StudyFlags, *, extends: bool = False
) -> dict[str, Any]:
    """The tables of a study with the flags of the command line.

    Where they extend a study that has begun, varied values are added to those that it has.
    """
    result = dict(tables)
    if flags.vary:
        grid = dict(result.get("grid", {}))
        for text in flags.vary:
            key, values = parse_assignment(text, "--vary")
            parts = split_values(values)
            if not all(parts):
                raise ConfigError(
                    [
                        f"--vary {key} has an empty value: {values!r}. Write a value on both sides "
                        'of every comma; an empty text is "".'
                    ]
                )
            options = [parse_value(part) for part in parts]
            before = grid.get(key, []) if extends else []
            grid[key] = [*before, *(one for one in options if one not in before)]
        result["grid"] = grid
    if flags.changes:
        fixed = dict(map(parse_assignment, flags.changes, ["--set"] * len(flags.changes)))
        result["set"] = result.get("set", {}) | {k: parse_value(v) for k, v in fixed.items()}
    if flags.data is not None:
        result["data"] = flags.data
    if flags.texts:
        result["texts"] = {split: list(names) for split, names in flags.texts.items()}
    if flags.threads is not None:
        result["threads"] = flags.threads
    if flags.seeds is not None:
        seeds = [parse_value(one) for one in split_values(flags.seeds.rstrip().removesuffix(","))]
        result["seeds"] = seeds if "," in flags.seeds or len(seeds) != 1 else seeds[0]
    return result


def _refuse_one_system(tables: Mapping[str, Any], flags: StudyFlags) -> None:
    """Refuse keys to vary that have one value each: there would be nothing to compare."""
    systems, grid = tables.get("systems"), tables.get("grid", {})
    has_several = isinstance(systems, list) and len(systems) > 1
    if not flags.vary or has_several or any(len(values) != 1 for values in grid.values()):
        return
    key, [value] = next(iter(grid.items()))
    raise ConfigError(
        [
            f"--vary {key} has one value, {value!r}, so there is one system and nothing to compare "
            "it with. Give two values or more; a key that is fixed is for --set."
        ]
    )


def parse_assignment(text: str, option: str) -> tuple[str, str]:
    """The key and the value of `key=value`."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError([f"{option} {text!r} is not an assignment: write section.key=value."])
    return key.strip(), value.strip()


def parse_value(text: str) -> Any:
    """A value of the command line: TOML, or else a plain string."""
    try:
        return tomllib.loads(f"value = {text.strip()}")["value"]
    except (ValueError, RecursionError):
        return text.strip()


def split_values(text: str) -> list[str]:
    """`a,[1,2],"x,y"` at its commas, but not inside brackets or quotes; none of an empty text."""
    if not text.strip():
        return []
    parts, depth, quote = [""], 0, ""
    for sign in text:
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "\"'":
            quote = sign
        elif sign in "[{":
            depth += 1
        elif sign in "]}":
            depth -= 1
        elif sign == "," and depth == 0:
            parts.append("")
            continue
        parts[-1] += sign
    return [part.strip() for part in parts]
