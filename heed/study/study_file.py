"""Study files: read one by its path or name, build one from flags, write the resolved one.

A study that has begun lies in a folder with its resolved `study.toml`, which is never changed. What
is added later (seeds, systems, budget) is in `additions.jsonl`, with the time at which it was.
"""

from __future__ import annotations

import json
import shutil
import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from heed import checksums, recipes
from heed.config import TASKS, read_tables
from heed.errors import ConfigError, RunError
from heed.files import delete_drafts, write_atomic
from heed.study import studies
from heed.study.recipe_copies import RECIPES, copy_recipes, find_copy, verify_copies
from heed.study.study_config import (
    BudgetConfig,
    SearchConfig,
    SearchRange,
    StudyConfig,
    SystemConfig,
)
from heed.study.study_systems import ReadTables, check_study, expand_systems
from heed.study.study_texts import verify_texts, write_texts

__all__ = [
    "Additions",
    "BudgetConfig",
    "SearchConfig",
    "SearchRange",
    "StudyConfig",
    "StudyFlags",
    "SystemConfig",
    "declare_study",
    "is_study_folder",
    "read_additions",
    "read_study",
]
STUDY_FILE, ADDITIONS = "study.toml", "additions.jsonl"
"""Files of a study's folder: the declared study, and what was added."""
HEAD = '# checksum = "{}"; declared before training: additions are in additions.jsonl'
RESTORE = "Restore it from a copy of the study."
BEGIN_ANEW = (
    f"{RESTORE[:-1]}; or begin anew in another folder (--out), where --reuse takes the finished "
    "runs of this one."
)
ONLY_IN_STUDIES = ("recipe", "systems", "grid", "seeds", "search", "question")
"""Keys that a study file has, and no recipe."""
TEXTS = ("title", "question", "author", "notes")
"""Keys that no result depends on."""


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


@dataclass(frozen=True)
class Additions:
    """What was added to a study after it was declared."""

    seeds: tuple[int, ...] = ()
    systems: tuple[str, ...] = ()
    entries: tuple[dict[str, Any], ...] = field(default=())
    """Every addition with its `time`, as additions.jsonl has them."""
    before: tuple[StudyConfig, ...] = ()
    """The study as it was before each addition."""


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
        read = _reader_of_copies(path)
        return check_study(StudyConfig.of(tables, where=str(path)), read, where=str(path))
    if path.is_dir():
        what = "there is no study in this folder: study.toml is missing."
        raise RunError(what, where=str(path), todo="Name the folder that `heed study` made.")
    file, tables = _read_tables(str(name), flags)
    where = str(name)
    tables = _apply_flags({"name": file.stem} | tables, flags)
    config = StudyConfig.of(_with_recipe_paths(tables, file.parent), where=where)
    return check_study(config, lambda one: read_tables(recipes.find(one)), where=where)


def find_task(name: str | Path, *, quick: bool = False) -> str:
    """The task of a study's first recipe, which says what its lists of texts hold."""
    path = Path(name)
    if is_study_folder(path):
        first = expand_systems(read_study_folder(path))[0]
        return str(_reader_of_copies(path)(first.recipe).get("task", TASKS[0]))
    file, tables = _read_tables(str(name), StudyFlags(seeds="1", quick=quick))
    tables = _with_recipe_paths(tables, file.parent)
    systems = tables.get("systems") or [{}]
    recipe = systems[0].get("recipe", tables.get("recipe"))
    task = read_tables(recipes.find(str(recipe))).get("task", TASKS[0])
    return task if task in TASKS else TASKS[0]  # another is an error of the recipe


def is_study_folder(folder: Path) -> bool:
    """Whether a study has begun in a folder."""
    return (folder / STUDY_FILE).is_file()


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
            options = [parse_value(value) for value in split_values(values)]
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
        seeds = [parse_value(one) for one in split_values(flags.seeds)]
        result["seeds"] = seeds if "," in flags.seeds or len(seeds) != 1 else seeds[0]
    return result


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
    """`a,[1,2],"x,y"` at its commas, but not inside brackets or quotes."""
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
    return [part.strip() for part in parts if part.strip()]


# ------------------------------------------------------------------------------- the folder


def create_study_folder(
    folder: Path, config: StudyConfig, texts: Mapping[str, bytes] | None = None
) -> None:
    """Write a declared study into its folder: copies of its recipes first, study.toml last.

    `texts` are the content of files in its `data/`, by name.
    """
    delete_drafts(folder)
    shutil.rmtree(folder / RECIPES, ignore_errors=True)  # of a command killed before study.toml
    write_texts(folder, texts or {})
    copy_recipes(folder, _recipe_names(config))
    text = checksums.seal_text(f"{HEAD.format(checksums.BLANK)}\n{config.toml()}")
    write_atomic(folder / STUDY_FILE, text)


def _recipe_names(config: StudyConfig) -> list[str]:
    pretraining = [config.pretrain.recipe] if config.pretrain else []
    return [*(system.recipe for system in expand_systems(config)), *pretraining]


def _reader_of_copies(folder: Path) -> ReadTables:
    return lambda name: read_tables(find_copy(folder, name) or recipes.find(name))


def read_study_folder(folder: Path) -> StudyConfig:
    """The study of a folder, with everything that was added to it."""
    config = read_declared_study(folder)
    for entry in read_additions(folder).entries:
        config = _extend(config, entry)
    return config


def read_declared_study(folder: Path) -> StudyConfig:
    """The study of a folder as it was declared before training."""
    path = folder / STUDY_FILE
    data = path.read_bytes()
    try:
        tables = tomllib.loads(data.decode())
    except (ValueError, RecursionError):
        tables = {}
    if not tables or not checksums.is_intact(data):
        raise checksums.damage(str(path), BEGIN_ANEW)
    try:
        config = StudyConfig.of(tables)
        expand_systems(config)
    except ConfigError as error:  # without a checksum: it was changed by hand
        raise ConfigError(error.complaints, where=str(path)) from None
    return config


def read_additions(folder: Path) -> Additions:
    """What was added to a study after it was declared, in order."""
    path = folder / ADDITIONS
    if not path.exists():
        return Additions()
    lines = path.read_bytes().splitlines()
    entries = tuple(
        checksums.parse_json(line, where=f"{path}:{number}", todo=RESTORE)
        for number, line in enumerate(lines, 1)
    )
    versions = [read_declared_study(folder)]
    for entry in entries:
        versions.append(_extend(versions[-1], entry))
    declared = {system.name for system in expand_systems(versions[0])}
    names = [system.name for system in expand_systems(versions[-1])]
    return Additions(
        tuple(seed for entry in entries for seed in entry.get("seeds", ())),
        tuple(name for name in names if name not in declared),
        entries,
        tuple(versions[:-1]),
    )


def _extend(config: StudyConfig, entry: Mapping[str, Any]) -> StudyConfig:
    """The study with one addition."""
    tables = config.tables()
    tables["seeds"] = [*tables["seeds"], *entry.get("seeds", ())]
    systems = [*tables.get("systems", []), *entry.get("systems", ())]
    if systems:
        tables["systems"] = systems
    for key, values in entry.get("grid", {}).items():
        grid = tables.setdefault("grid", {})
        grid[key] = [*grid.get(key, ()), *values]
    for key in (*TEXTS, "budget", "keep_weights"):
        if key in entry:
            tables[key] = entry[key]
    return StudyConfig.of(tables)


def extend_study(
    folder: Path, config: StudyConfig, texts: Mapping[str, bytes] | None = None
) -> StudyConfig:
    """Record what a study has beyond the one in its folder; returns the whole.

    Raises a `RunError` where the folder has another study, one with other `texts` included.
    """
    verify_copies(folder)
    verify_texts(folder, texts or {})
    stored = read_study_folder(folder)
    entry = find_additions(stored, config, folder)
    if not entry:
        return stored
    extended = _extend(stored, entry)
    check_study(extended, _reader_of_copies(folder), where=str(folder))
    copy_recipes(folder, _recipe_names(extended))
    line = json.dumps({"time": round(time.time(), 3), **entry, checksums.KEY: checksums.BLANK})
    path = folder / ADDITIONS
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    write_atomic(path, before + checksums.seal_text(line) + "\n")
    return extended


def find_additions(stored: StudyConfig, config: StudyConfig, folder: Path) -> dict[str, Any]:
    """What `config` has beyond the stored study; an error where it is another study."""
    old, new = stored.tables(), config.tables()
    entry: dict[str, Any] = {}
    if seeds := [seed for seed in config.seeds if seed not in stored.seeds]:
        entry["seeds"] = seeds
    names = {system["name"]: system for system in old.get("systems", [])}
    for system in new.get("systems", []):
        if system["name"] not in names:
            entry.setdefault("systems", []).append(system)
        elif system != names[system["name"]]:
            raise _other_study(folder, f"system {system['name']!r}", names[system["name"]], system)
    old_grid, new_grid = old.get("grid", {}), new.get("grid", {})
    if old_grid.keys() != new_grid.keys() or bool(names) != bool(new.get("systems")):
        raise _other_study(folder, "grid", list(old_grid), list(new_grid))
    for key, values in new_grid.items():
        if more := [value for value in values if value not in old_grid[key]]:
            entry.setdefault("grid", {})[key] = more
    for key in (*TEXTS, "budget", "keep_weights"):
        if key in new and new[key] != old.get(key):
            entry[key] = new[key]
    compared = (old.keys() | new.keys()) - {*entry, *TEXTS, "name", "seeds", "systems", "grid"}
    for key in sorted(compared - {"budget", "keep_weights"}):
        if old.get(key) != new.get(key):
            raise _other_study(folder, key, old.get(key), new.get(key))
    return entry


def _other_study(folder: Path, key: str, old: Any, new: Any) -> RunError:
    shown, asked = (_describe_value(one) for one in (old, new))
    return RunError(
        f"another study has begun in this folder: its {key} is {shown}, not {asked}.",
        where=str(folder),
        todo="Name another folder with --out, or leave out what differs.",
    )


def _describe_value(value: Any) -> str:
    """A value of a study file in words: `train.steps = 3`, `model.norm`, `empty`."""
    if value is None or value in ({}, []):
        return "empty"
    if isinstance(value, dict):
        return ", ".join(f"{key} = {_describe_value(one)}" for key, one in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
