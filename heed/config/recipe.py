"""A whole recipe: read from TOML, overridden by the command line, written with every key."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any

from heed.config.base import MAX_SEED, Section, shorten
from heed.config.data import DataConfig, TokenizerConfig
from heed.config.decode import DecodeConfig
from heed.config.model import PRESET_TASKS, PRESETS, ModelConfig
from heed.config.train import LAST, InitConfig, TrainConfig
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
EXCLUSIVE = {"batch_size": "batch_tokens", "batch_tokens": "batch_size"}
"""Keys of [train] of which only one can be set: an override of one replaces the other."""


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
        """Build a recipe from TOML tables; raises `ConfigError` with every error in it."""
        known = ["task", "seed", *SECTIONS]
        complaints = [
            f"There is no section or key {key!r}.{_suggest_section(key) or nearest(key, known)}"
            for key in tables
            if key not in known
        ]
        task, seed = tables.get("task", "translate"), tables.get("seed", 0)
        if task not in TASKS:
            options = ", ".join(TASKS)
            hint = nearest(str(task), TASKS) if isinstance(task, str) else ""
            complaints.append(f"task cannot be {shorten(task)}: it is one of {options}.{hint}")
        if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed <= MAX_SEED:
            complaints.append(
                f"seed cannot be {shorten(seed)}: it is a whole number from 0 to {MAX_SEED}."
            )
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
        complaints += _check_preset_task(tables.get("model"), task)
        leak = parts["model"].find_leak(task) if "model" in parts else None
        complaints += [f"[model] {leak}"] if leak else []
        if complaints:
            raise ConfigError(complaints, where=where)
        train: TrainConfig = parts["train"]
        if not parts["data"].has_dev and "best_metric" not in train.model_fields_set:
            parts["train"] = train.model_copy(update={"best_metric": LAST})
        return cls(task=task, seed=seed, **parts)

    @classmethod
    def read(cls, path: Path, overrides: Sequence[str] = ()) -> Recipe:
        """Read a recipe from a TOML file and apply `section.key=value` overrides."""
        tables = apply_overrides(read_tables(path), overrides)
        return cls.of(tables, where=error_location(path, overrides))

    def tables(self) -> dict[str, Any]:
        """Every key with its value, as `of` takes them, without unset keys.

        With `init.from`, defaults of [model] and [tokenizer] are left out: that model decides them.
        """
        top: dict[str, Any] = {"task": self.task, "seed": self.seed}
        for name in SECTIONS:
            from_model = self.init.from_model is not None and name in ("model", "tokenizer")
            values = getattr(self, name).model_dump(by_alias=True, exclude_unset=from_model)
            top[name] = {key: value for key, value in values.items() if value not in (None, {})}
        return top

    def toml(self) -> str:
        """The recipe as the text of a TOML file."""
        tables = self.tables()
        lines = [f"{key} = {toml_value(tables.pop(key))}" for key in ("task", "seed")]
        for name, values in tables.items():
            lines += [
                "",
                f"[{name}]",
                *(f"{key} = {toml_value(value)}" for key, value in values.items()),
            ]
        return "\n".join(lines) + "\n"

    def with_absolute_paths(self) -> Recipe:
        """The recipe with absolute paths, so that a run of it can be resumed from any folder."""
        return self.map_paths(
            lambda name: str(Path(name).absolute()) if Path(name).exists() else name
        )

    def map_paths(self, place: Callable[[str], str]) -> Recipe:
        """The recipe with every name of a file or folder as `place` gives it."""
        data, tokenizer, init = self.data, self.tokenizer, self.init
        files = {key: [*map(place, getattr(data, key))] for key in ("train", "dev", "test")}
        sets = {name: [*map(place, names)] for name, names in data.sets.items()}
        return replace(
            self,
            data=data.model_copy(update=files | {"sets": sets}),
            tokenizer=tokenizer.model_copy(update={"text": [*map(place, tokenizer.text)]}),
            init=init
            if init.from_model is None
            else init.model_copy(update={"from_model": place(init.from_model)}),
        )


def _check_preset_task(model: Any, task: str) -> list[str]:
    """The error of a preset for another task, if there is one."""
    preset = model.get("preset") if isinstance(model, Mapping) else None
    tasks = PRESET_TASKS.get(preset, TASKS) if isinstance(preset, str) else TASKS
    if task in tasks or task not in TASKS:
        return []
    fitting = " or ".join(name for name, tasks in PRESET_TASKS.items() if task in tasks)
    return [f"[model] preset {preset!r} is not for task {task!r}: use {fitting}."]


def _suggest_section(key: str) -> str:
    """The hint ' Did you mean section.key?' for a key without its section."""
    known = {name: kind.keys() for name, kind in SECTIONS.items()}
    whole = [f"{name}.{key}" for name, keys in known.items() if key in keys]
    return f" Did you mean {' or '.join(whole)}?" if whole else ""


def read_tables(path: Path) -> dict[str, Any]:
    """Read the tables of a TOML file."""
    return parse_tables(path.read_bytes(), where=str(path))


def parse_tables(content: bytes, *, where: str) -> dict[str, Any]:
    """The tables of the content of a TOML file; `where` is named in the error."""
    try:
        return tomllib.loads(TextIOWrapper(BytesIO(content), encoding="utf-8").read())
    except RecursionError:
        raise ConfigError(["This TOML is nested too deeply."], where=where) from None
    except ValueError as error:  # not TOML, not UTF-8, or a number of thousands of digits
        raise ConfigError([f"This is not TOML: {error}."], where=where) from None


def apply_overrides(tables: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Apply `section.key=value` overrides to tables; a value is TOML, or else a plain string.

    An override of model.preset replaces the keys that the preset sets.
    """
    result = {k: dict(v) if isinstance(v, Mapping) else v for k, v in tables.items()}
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals or not key.strip():
            raise ConfigError([f"{override!r} is not an override: write section.key=value."])
        try:
            value = tomllib.loads(f"value = {text.strip()}")["value"]
        except (ValueError, RecursionError):
            value = text.strip()
        section, dot, name = key.strip().partition(".")
        if not dot:
            result[section] = value
        elif isinstance(result.setdefault(section, {}), dict):
            if key.strip() == "model.preset" and isinstance(value, str):
                for replaced in PRESETS.get(value, ()):
                    result[section].pop(replaced, None)
            result[section][name] = value
        else:
            raise ConfigError([f"{override!r} sets nothing: {section} is a key, not a section."])
    return result


def error_location(path: Path, overrides: Sequence[str]) -> str:
    """Where an error is: the file, and the overrides, which may be what is wrong."""
    return f"{path}, changed by {', '.join(overrides)}" if overrides else str(path)


def toml_value(value: Any) -> str:
    """Format a plain value as TOML."""
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, Mapping):
        pairs = (f"{toml_value(key)} = {toml_value(item)}" for key, item in value.items())
        return f"{{ {', '.join(pairs)} }}"
    # JSON's escapes are TOML's, but TOML also asks for one of the delete character.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
