"""A run's recipe in its report: what the model is, and which keys differ from the default."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from heed.config import SECTIONS, Recipe
from heed.config.recipe import toml_value
from heed.report.document import Block, Paragraph, Section, Table
from heed.runs.index import NOT_FOR_LSTM

UNSET = "unset"
KINDS = {"translate": "translator", "classify": "classifier", "generate": "language model"}
"""What a model of each task is called."""
WITH_SOURCE = "translate"
"""The task whose models have an encoder and a decoder."""


def build_recipe_section(recipe: Recipe) -> Section:
    """The section about the recipe."""
    rows = changed_keys(recipe)
    blocks: list[Block] = []
    if rows:
        caption = "Keys of the recipe that differ from the default. The rest has its default value."
        blocks.append(Table("recipe-keys", caption, ["key", "here", "default", "meaning"], rows))
    else:
        blocks.append(Paragraph("Every key of the recipe has its default value."))
    return Section("recipe", "Recipe", blocks)


def describe_architecture(recipe: Recipe) -> str:
    """The model in one sentence: family, layers, width, heads, position encoding."""
    model = recipe.model
    decoder = model.decoder_layers or model.layers
    if recipe.task == WITH_SOURCE:
        layers = f"{model.layers} encoder and {decoder} decoder layers"
    else:
        layers = f"{model.layers} layer{'' if model.layers == 1 else 's'}"
    parts = [layers, f"width {model.width}"]
    if model.family == "transformer":
        parts += [f"{model.heads} heads", f"position encoding {model.position}"]
        if model.merge != "concat":
            parts.append(f"merge of heads {model.merge}")
        family = "a Transformer"
    else:
        family = f"an {model.family.upper()}"
    kind = "masked language model" if recipe.train.objective == "masked" else KINDS[recipe.task]
    article = "an" if kind[0] in "aeiou" else "a"
    return f"The model is {article} {kind}: {family} with {', '.join(parts)}."


def changed_keys(recipe: Recipe) -> list[list[str]]:
    """Key, value, default and meaning of each key that differs from the task's default recipe."""
    here, default = recipe.tables(), Recipe.of({"task": recipe.task}).tables()
    rows = []
    if here["seed"] != default["seed"]:
        rows.append(["seed", str(here["seed"]), str(default["seed"]), "The seed of every draw."])
    for section in SECTIONS:
        keys = list(dict.fromkeys([*here.get(section, {}), *default.get(section, {})]))
        for key in keys:
            name = f"{section}.{key}"
            if recipe.model.family == "lstm" and name in NOT_FOR_LSTM:
                continue
            values = [_show(tables.get(section, {}), key) for tables in (here, default)]
            if values[0] != values[1]:
                rows.append([name, *values, _meaning(section, key)])
    return rows


def _show(values: Mapping[str, Any], key: str) -> str:
    return toml_value(values[key]) if key in values else UNSET


def _meaning(section: str, key: str) -> str:
    """The first sentence of a key's description."""
    for name, field in SECTIONS[section].model_fields.items():
        if key in (name, field.alias):
            text = " ".join((field.description or "").split())
            return text.partition(". ")[0].rstrip(".") + "." if text else ""
    return ""
