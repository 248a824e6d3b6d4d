"""Every number of a recipe has bounds: an extreme one is a sentence, not an overflow later."""

from __future__ import annotations

import sys
import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heed.config import SECTIONS, Recipe
from heed.config.base import MAX_SEED
from heed.config.recipe import apply_overrides, read_tables
from heed.errors import ConfigError

EXTREME_INTS = (-1, 10**10, 2**31 * 2, 2**63, 2**64, 10**19, 10**400)
EXTREME_FLOATS = (-1e308, 1e308, sys.float_info.max, float("inf"), float("nan"))


def numeric_keys(kind: type) -> list[tuple[str, str]]:
    """All keys of all sections whose value is a number of this type."""
    return [
        (name, key)
        for name, section in SECTIONS.items()
        for key, field in section.model_fields.items()
        if kind in _types(field.annotation)
    ]


def _types(annotation: Any) -> set[Any]:
    parts = getattr(annotation, "__args__", ())
    return {annotation}.union(*map(_types, parts))


@pytest.mark.parametrize(("section", "key"), numeric_keys(int))
@pytest.mark.parametrize("value", EXTREME_INTS, ids=lambda value: str(value)[:12])
def test_an_extreme_whole_number_is_refused(section: str, key: str, value: int) -> None:
    if key.endswith("seed") and 0 <= value <= MAX_SEED:
        return
    with pytest.raises(ConfigError, match=key) as error:
        Recipe.of({section: {key: value}})
    assert len(str(error.value)) < 300


@pytest.mark.parametrize(("section", "key"), numeric_keys(float))
@pytest.mark.parametrize("value", EXTREME_FLOATS)
def test_an_extreme_number_is_refused(section: str, key: str, value: float) -> None:
    wrong: Any = {"name": value} if key == "class_weights" else value
    with pytest.raises(ConfigError, match=key):
        Recipe.of({section: {key: [value] if key == "betas" else wrong}})


@pytest.mark.parametrize("seed", [-1, 2**63, 2**64, 10**400, 1.0, True])
def test_a_seed_fits_in_an_integer_of_toml(seed: Any) -> None:
    with pytest.raises(ConfigError, match="seed cannot be"):
        Recipe.of({"seed": seed})
    assert Recipe.of({"seed": MAX_SEED}).seed == MAX_SEED


names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)


@given(name=names, key=names)
def test_a_recipe_with_any_names_is_read_back(name: str, key: str) -> None:
    tables = {"data": {"train": [name], "sets": {key.replace("/", "") + "-set": [name]}}}
    recipe = Recipe.of(tables)
    assert Recipe.of(tomllib.loads(recipe.toml())) == recipe


@pytest.mark.parametrize("tables", [{"train": ["a\udcff.en"]}, {"sets": {"x\udcff": ["a"]}}])
def test_a_name_that_is_not_utf8_is_refused_at_once(tables: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"not UTF-8.*Rename") as error:
        Recipe.of({"data": tables})
    str(error.value).encode()


@pytest.mark.parametrize(
    "text", ["seed = " + "9" * 5000, "x = " + "[" * 5000, "seed = 1\x00", "\udcff"]
)
def test_toml_that_the_parser_cannot_hold_is_a_sentence(tmp_path: Any, text: str) -> None:
    path = tmp_path / "r.toml"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ConfigError, match="TOML"):
        read_tables(path)
    with pytest.raises(ConfigError):
        Recipe.of(apply_overrides({}, [f"train.steps={text}"]))
