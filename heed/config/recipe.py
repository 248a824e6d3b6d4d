"""A whole recipe: read from TOML, changed from the command line, written back with every key."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heed.config.base import Section
from heed.config.model import ModelConfig
from heed.config.sections import (
    DataConfig,
    DecodeConfig,
    InitConfig,
    TokenizerConfig,
    TrainConfig,
)
from heed.errors import ConfigError, nearest

TASKS = ("translate", "classify", "generate")

SECTIONS: dict[str, type[Section]] = {
    "data": DataConfig,
    "tokenizer": TokenizerConfig,
    "model": ModelConfig,
    "init": InitConfig,
    "train": TrainConfig,
    "decode": DecodeConfig,
}


@dataclass(frozen=True)
class Recipe:
    """Everything about a run. Make one with `Recipe.read` or `Recipe.of`."""

    task: str
    seed: int
    data: DataConfig
    tokenizer: TokenizerConfig
    model: ModelConfig
    init: InitConfig
    train: TrainConfig
    decode: DecodeConfig

    @classmethod
    def of(cls, tables: Mapping[str, Any], *, where: str | None = None) -> Recipe:
        """A recipe from tables as TOML gives them; `ConfigError` with every complaint about it."""
        known = ["task", "seed", *SECTIONS]
        complaints = [
            f"There is no section or key {key!r}.{_within(key) or nearest(key, known)}"
            for key in tables
            if key not in known
        ]
        task, seed = tables.get("task", "translate"), tables.get("seed", 0)
        if task not in TASKS:
            options = ", ".join(TASKS)
            hint = nearest(str(task), TASKS)
            complaints.append(f"task cannot be {task!r}: it is one of {options}.{hint}")
        if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
            complaints.append(f"seed cannot be {seed!r}: it is a whole number, 0 or more.")
        parts: dict[str, Any] = {}
        for name, kind in SECTIONS.items():
            values = tables.get(name, {})
            if not isinstance(values, Mapping):
                complaints.append(f"{name} is a section: write [{name}] and its keys below it.")
                continue
            try:
                parts[name] = kind(**values)
            except ConfigError as error:
                complaints += [f"[{name}] {complaint}" for complaint in error.complaints]
        leak = parts["model"].leak(task) if "model" in parts else None
        complaints += [f"[model] {leak}"] if leak else []
        if complaints:
            raise ConfigError(complaints, where=where)
        return cls(task=task, seed=seed, **parts)

    @classmethod
    def read(cls, path: Path, changes: Sequence[str] = ()) -> Recipe:
        """The recipe in a TOML file, with `section.key=value` changes."""
        return cls.of(changed(read_tables(path), changes), where=blamed(path, changes))

    def tables(self) -> dict[str, Any]:
        """Every key with its value, as `of` takes them; what is unset is left out.

        So are defaults that the model to begin from has yet to decide.
        """
        top: dict[str, Any] = {"task": self.task, "seed": self.seed}
        for name in SECTIONS:
            open_yet = self.init.run is not None and name in ("model", "tokenizer")
            values = getattr(self, name).model_dump(by_alias=True, exclude_unset=open_yet)
            top[name] = {key: value for key, value in values.items() if value not in (None, {})}
        return top

    def toml(self) -> str:
        """The same as a TOML file."""
        tables = self.tables()
        lines = [f"{key} = {toml_value(tables.pop(key))}" for key in ("task", "seed")]
        for name, values in tables.items():
            lines += [
                "",
                f"[{name}]",
                *(f"{key} = {toml_value(value)}" for key, value in values.items()),
            ]
        return "\n".join(lines) + "\n"


def _within(key: str) -> str:
    """' Did you mean ...?' for a key whose section was left out."""
    known = {name: kind.keys() for name, kind in SECTIONS.items()}
    whole = [f"{name}.{key}" for name, keys in known.items() if key in keys]
    return f" Did you mean {' or '.join(whole)}?" if whole else ""


def read_tables(path: Path) -> dict[str, Any]:
    """The tables of a TOML file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError([f"This is not TOML: {error}."], where=str(path)) from None


def changed(tables: Mapping[str, Any], changes: Sequence[str]) -> dict[str, Any]:
    """Tables with `section.key=value` applied; values are TOML, or else plain words."""
    fresh = {k: dict(v) if isinstance(v, Mapping) else v for k, v in tables.items()}
    for change in changes:
        key, equals, text = change.partition("=")
        if not equals or not key.strip():
            raise ConfigError([f"{change!r} is not a change: write section.key=value."])
        try:
            value = tomllib.loads(f"value = {text.strip()}")["value"]
        except tomllib.TOMLDecodeError:
            value = text.strip()
        section, dot, name = key.strip().partition(".")
        if not dot:
            fresh[section] = value
        elif isinstance(fresh.setdefault(section, {}), dict):
            fresh[section][name] = value
    return fresh


def blamed(path: Path, changes: Sequence[str]) -> str:
    """What a complaint is about: a file, which may be right but for what it is changed to."""
    return f"{path}, changed by {', '.join(changes)}" if changes else str(path)


def toml_value(value: Any) -> str:
    """A plain value as TOML writes it."""
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, Mapping):
        pairs = (f"{json.dumps(key)} = {toml_value(item)}" for key, item in value.items())
        return f"{{ {', '.join(pairs)} }}"
    return json.dumps(value, ensure_ascii=False)
