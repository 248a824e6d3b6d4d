"""The form of a recipe, made from its schema: every key with its type, default and description.

A form sends values as TOML text, as `--set` takes them, so that Python reads every number. What is
wrong with a recipe is said in the sentences of `heed train`, each with the keys that it is about.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from heed import recipes
from heed.config import MERGES, POSITIONS, SECTIONS, Recipe
from heed.config.base import MAX_SEED
from heed.config.recipe import TASKS, toml_value
from heed.config.train import OPTIMIZERS, SCHEDULES
from heed.data.raw_files import is_hub_name
from heed.errors import ConfigError, HeedError
from heed.files import describe_os_error

COMMON = (
    *("task", "data.train", "data.dev", "data.synthetic", "model.position", "model.layers"),
    *("model.width", "model.heads", "train.epochs", "train.steps", "train.lr"),
    *("train.batch_tokens", "train.batch_size", "seed"),
)
"""Keys that most trainings set, in the order of the form."""
FILE_KEYS = ("data.train", "data.dev", "data.test", "tokenizer.text")
"""Keys whose values are names of files."""
TYPES = {"boolean": "boolean", "integer": "integer", "number": "number", "string": "text"}
"""Kinds of a field by the type of JSON Schema."""
BOUNDS = {
    "minimum": "at_least",
    "exclusiveMinimum": "more_than",
    "maximum": "at_most",
    "exclusiveMaximum": "less_than",
}
"""Names of the bounds of a number by those of JSON Schema."""

Field = dict[str, Any]


def describe_form() -> dict[str, Any]:
    """The sections of a recipe with their keys, the keys to show first, and shipped recipes."""
    top = [
        _describe_key("task", {"type": "string", "default": TASKS[0]}, "What the model does.")
        | {"choices": [{"value": task, "about": ""} for task in TASKS], "kind": "choice"},
        _describe_key(
            "seed",
            {"type": "integer", "default": 0, "minimum": 0, "maximum": MAX_SEED},
            "Random seed of the weights, of dropout and of the order of the training text.",
        ),
    ]
    sections = [{"name": "", "about": "", "keys": top}]
    for name, kind in SECTIONS.items():
        schema = kind.model_json_schema()
        keys = [
            _describe_key(f"{name}.{key}", one, one.get("description", ""))
            for key, one in schema["properties"].items()
        ]
        sections.append({"name": name, "about": (kind.__doc__ or "").strip(), "keys": keys})
    shipped = [{"name": name, "about": recipes.about(name)} for name in recipes.names()]
    return {"sections": sections, "common": list(COMMON), "shipped": shipped}


def _describe_key(key: str, schema: Mapping[str, Any], description: str) -> Field:
    """One key: how it is entered, what it may be, and its default."""
    variants = [one for one in schema.get("anyOf", [schema]) if one.get("type") != "null"]
    default = schema.get("default")
    if default is None and variants[0].get("type") in ("array", "object"):
        is_optional = "anyOf" in schema
        default = None if is_optional else {"array": [], "object": {}}[variants[0]["type"]]
    field: Field = {
        "key": key,
        "description": " ".join(description.split()),
        "default": default,
        "default_text": None if default is None else toml_value(default),
        "is_optional": any(one.get("type") == "null" for one in schema.get("anyOf", [])),
        "choices": _choices(key, variants),
        **{ours: variants[0][theirs] for theirs, ours in BOUNDS.items() if theirs in variants[0]},
    }
    return field | {"kind": _kind(variants, field["choices"])}


def _kind(variants: Sequence[Mapping[str, Any]], choices: Sequence[Any]) -> str:
    """How a value is entered; `toml` where only the text of a recipe can say it."""
    first = variants[0]
    if len(variants) > 1:
        return "toml"
    if first.get("type") == "array":
        is_text = first.get("items", {}).get("type") == "string"
        return "choices" if choices else "lines" if is_text else "toml"
    if choices:
        return "choice"
    return TYPES.get(first.get("type", ""), "toml")


def _choices(key: str, variants: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """The values that a key may have, with a line about each where there is one."""
    registry = {"model.position": POSITIONS, "model.merge": MERGES}.get(key)
    if registry is not None:
        return [{"value": name, "about": registry.describe(name)} for name in registry.names()]
    if key == "train.optimizer":
        return [{"value": name, "about": about} for name, about in OPTIMIZERS.items()]
    named: Sequence[str] = SCHEDULES if key == "train.schedule" else ()
    if not named and len(variants) == 1:
        one = variants[0].get("items", variants[0])
        named = one.get("enum") or ([one["const"]] if "const" in one else [])
    return [{"value": name, "about": ""} for name in named]


def list_keys() -> list[str]:
    """Every key of a recipe, as `section.key`."""
    sections = {name: kind.keys() for name, kind in SECTIONS.items()}
    return ["task", "seed", *(f"{name}.{key}" for name, keys in sections.items() for key in keys)]


def flatten_tables(tables: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The values that a recipe sets, by key, as JSON values and as the text of a recipe."""
    flat: dict[str, Any] = {}
    for name, value in tables.items():
        if name in SECTIONS and isinstance(value, Mapping):
            flat |= {f"{name}.{key}": one for key, one in value.items()}
        else:
            flat[name] = value
    return {key: {"value": one, "text": toml_value(one)} for key, one in flat.items()}


def without_keys(tables: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    """Tables without these keys, which then have their defaults."""
    result = {k: dict(v) if isinstance(v, Mapping) else v for k, v in tables.items()}
    for key in keys:
        section, dot, name = key.partition(".")
        if not dot:
            result.pop(section, None)
        elif isinstance(result.get(section), dict):
            result[section].pop(name, None)
    return result


def build_recipe(
    tables: Mapping[str, Any], overrides: Sequence[str], data_folder: str | None, where: str | None
) -> Recipe:
    """The recipe of a form, refused as `heed train` refuses it before it writes anything.

    The model of `init.from` and datasets of the hub are read by training itself.
    """
    from heed.train.prepare.setup import validate_recipe
    from heed.train.resolve import resolve_tables

    folder = None if data_folder is None else Path(data_folder)
    recipe = resolve_tables(tables, overrides, folder, where=where)
    if recipe.init.from_model is None and not any(map(is_hub_name, _files(recipe))):
        validate_recipe(recipe)
    return recipe


def _files(recipe: Recipe) -> list[str]:
    data = recipe.data
    sets = [name for names in data.sets.values() for name in names]
    return [*data.train, *data.dev, *data.test, *sets, *recipe.tokenizer.text]


def list_complaints(error: HeedError | OSError, values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What is wrong with a recipe, a sentence each, and the keys that each is about."""
    if isinstance(error, OSError):
        error = describe_os_error(error, where="a file of the recipe") or HeedError(str(error))
    texts = error.complaints if isinstance(error, ConfigError) else [str(error)]
    return [
        {"text": text, "keys": find_keys(text) or _keys_of_file(text, values)} for text in texts
    ]


def find_keys(complaint: str) -> list[str]:
    """The keys that a complaint names: those of its section before the colon, and `section.key`."""
    match = re.match(r"\[(\w+)\] ", complaint)
    section = match[1] if match and match[1] in SECTIONS else None
    start = complaint.partition(":")[0]
    if section is not None:
        known = SECTIONS[section].keys()
        words = re.findall(r"\w+", start.partition("]")[2])
        named = [f"{section}.{word}" for word in words if word in known]
    else:
        words = re.findall(r"\w+", start)
        named = [word for word in words[:1] if word in ("task", "seed")]
        named += [word for word in re.findall(r"\w+\.\w+", complaint) if word in list_keys()]
    return list(dict.fromkeys(named))


def _keys_of_file(complaint: str, values: Mapping[str, Any]) -> list[str]:
    """The keys that name a file which a complaint is about."""
    flat = flatten_tables(values)
    return [
        key
        for key in FILE_KEYS
        if any(str(name) and str(name) in complaint for name in flat.get(key, {}).get("value", []))
    ]
