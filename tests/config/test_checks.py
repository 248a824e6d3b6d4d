"""Keys that would do nothing, or name what there is not, are refused before anything is written."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from heed.config import SECTIONS, Recipe
from heed.errors import ConfigError
from heed.recipes import find, names
from heed.train.prepare.setup import refuse_nonsense
from heed.train.sense import FOR, complaints

TASKS = ("translate", "classify", "generate")
OTHER: dict[str, Any] = {
    "data.both": True,
    "data.denoise": 0.5,
    "data.unit": "document",
    "model.decoder_layers": 3,
    "model.ngrams": 2,
    "train.class_weights": "balanced",
    "train.evaluate_bleu": True,
    "train.hide_source": 0.1,
    "train.mask_share": 0.3,
    "train.objective": "masked",
    "train.token_dropout": 0.2,
}
"""A value of each key that is not its default."""


def told(task: str, values: dict[str, Any], **init: str) -> Recipe:
    tables: dict[str, Any] = {"task": task, "data": {"world": 9}, "init": init}
    for key, value in values.items():
        section, _, name = key.partition(".")
        tables.setdefault(section, {})[name] = value
    return Recipe.of(tables)


@pytest.mark.parametrize(("key", "task"), [*product(FOR, TASKS)])
def test_a_key_is_for_its_task(key: str, task: str) -> None:
    masked = {"train.objective": "masked"} if key == "train.mask_share" else {}
    if task == FOR[key]:
        assert not list(complaints(told(task, {key: OTHER[key]} | masked)))
        return
    with pytest.raises(ConfigError, match=f"{key.partition('.')[2]} is for task '{FOR[key]}'"):
        refuse_nonsense(told(task, {key: OTHER[key]}))


@pytest.mark.parametrize("task", TASKS)
def test_what_every_key_is_by_default_is_never_refused(task: str) -> None:
    """So the recipe of a run, which has all keys, can be trained again."""
    plain = told(task, {})
    assert not list(complaints(plain))
    assert not list(complaints(Recipe.of(plain.tables())))
    for key in FOR:
        section, _, name = key.partition(".")
        default = SECTIONS[section].model_fields[name].default
        assert not list(complaints(told(task, {key: default})))


@pytest.mark.parametrize("name", names())
def test_every_shipped_recipe_makes_sense(name: str) -> None:
    assert not list(complaints(Recipe.read(find(name))))


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(("key", "named"), [("dev", ["a"]), ("test", ["a"]), ("sets", {"b": []})])
def test_files_beside_a_generated_world_are_not_left_unread(
    task: str, key: str, named: list[str] | dict[str, list[str]]
) -> None:
    with pytest.raises(ConfigError, match=rf"{key} would not be read: .* own text .*--train"):
        refuse_nonsense(told(task, {f"data.{key}": named}))
    assert not list(complaints(told(task, {f"data.{key}": named, "data.world": None})))


def test_a_share_to_mask_is_for_the_masked_objective() -> None:
    with pytest.raises(ConfigError, match="mask_share is for objective 'masked'"):
        refuse_nonsense(told("generate", {"train.mask_share": 0.3}))


def test_what_the_origin_has_is_not_held_against_a_recipe() -> None:
    """A classifier may begin from a translator of any shape."""
    assert not list(complaints(told("classify", {"model.decoder_layers": 3}, **{"from": "mt"})))


@pytest.mark.parametrize("init", [{}, {"from": "models/mine"}])
def test_more_positions_are_advised_only_where_they_can_be_had(init: dict[str, str]) -> None:
    few = {"model.position": "learned", "model.max_positions": 8}
    with pytest.raises(ConfigError, match=r"lower data\.max_length") as refused:
        refuse_nonsense(told("translate", few, **init))
    assert ("raise model.max_positions" in str(refused.value)) is not bool(init)


@pytest.mark.parametrize(
    ("values", "known"),
    [
        ({"train.best": "dev/loss"}, True),
        ({"train.best": "dev-clean/loss"}, True),
        ({"train.best": "dev/bleu"}, False),
        ({"train.best": "dev/bleu", "train.evaluate_bleu": True}, True),
        ({"train.best": "dev-clean/bleu", "train.evaluate_bleu": True}, True),
        ({"train.best": "train/bleu", "train.evaluate_bleu": True}, False),
        ({"train.best": "train/loss"}, False),
        ({"train.best": "train/loss", "train.evaluate_train": True}, True),
        ({"train.best": "train-clean/loss", "train.evaluate_train": True}, False),
        ({"train.best": "other/loss"}, False),
        ({"train.best": "other/loss", "data.sets": {"other": []}, "data.world": None}, True),
        ({"train.best": "a-clean/loss", "data.sets": {"a": []}, "data.world": None}, True),
    ],
)
def test_the_best_is_of_a_set_that_is_scored(values: dict[str, Any], known: bool) -> None:
    said = list(complaints(told("translate", values)))
    assert len(said) == (not known)
    assert all("best cannot be" in sentence for sentence in said)
