"""The folder of a study that has begun: its resolved `study.toml`, which is never changed.

What is added later (seeds, systems, budget) is in `additions.jsonl`, with the time at which it was.
"""

from __future__ import annotations

import json
import shutil
import time
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from heed import checksums, recipes
from heed.config import read_tables
from heed.errors import ConfigError, RunError
from heed.files import delete_drafts, read_regular, write_atomic
from heed.study.recipe_copies import RECIPES, copy_recipes, find_copy, verify_copies
from heed.study.study_config import StudyConfig
from heed.study.study_systems import ReadTables, check_study, expand_systems
from heed.study.study_texts import verify_texts, write_texts
from heed.study.trials import TRIALS

STUDY_FILE, ADDITIONS = "study.toml", "additions.jsonl"
"""Files of a study's folder: the declared study, and what was added."""
HEAD = '# checksum = "{}"; declared before training: additions are in additions.jsonl'
RESTORE = "Restore it from a copy of the study."
BEGIN_ANEW = (
    f"{RESTORE[:-1]}; or begin anew in another folder (--out), where --reuse takes the finished "
    "runs of this one."
)
TEXTS = ("title", "question", "author", "notes")
"""Keys that no result depends on."""


@dataclass(frozen=True)
class Additions:
    """What was added to a study after it was declared."""

    seeds: tuple[int, ...] = ()
    systems: tuple[str, ...] = ()
    entries: tuple[dict[str, Any], ...] = field(default=())
    """Every addition with its `time`, as additions.jsonl has them."""
    before: tuple[StudyConfig, ...] = ()
    """The study as it was before each addition."""


def is_study_folder(folder: Path) -> bool:
    """Whether a study has begun in a folder."""
    return (folder / STUDY_FILE).is_file()


def refuse_lost_study(folder: Path) -> None:
    """Raise an error for the folder of a study whose study.toml is missing."""
    if (folder / TRIALS).is_dir() and not is_study_folder(folder):
        raise RunError(
            f"this study has trials, but its {STUDY_FILE} is missing.",
            where=str(folder),
            todo="Restore it from a copy of the study; a new study needs another folder (--out).",
        )


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


def read_copies(folder: Path) -> ReadTables:
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
    data = read_regular(path)
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
    lines = read_regular(path).splitlines()
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
    verify_texts(folder, texts or {})
    extended, entry = merge_studies(folder, config)
    if not entry:
        return extended
    copy_recipes(folder, _recipe_names(extended))
    line = json.dumps({"time": round(time.time(), 3), **entry, checksums.KEY: checksums.BLANK})
    path = folder / ADDITIONS
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    write_atomic(path, before + checksums.seal_text(line) + "\n")
    return extended


def merge_studies(folder: Path, config: StudyConfig) -> tuple[StudyConfig, dict[str, Any]]:
    """The study of a folder with what `config` has beyond it, and that; nothing is written.

    Raises a `RunError` where the folder has another study.
    """
    verify_copies(folder)
    stored = read_study_folder(folder)
    entry = find_additions(stored, config, folder)
    if not entry:
        return stored, entry
    extended = _extend(stored, entry)
    check_study(extended, read_copies(folder), where=str(folder))
    return extended, entry


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
