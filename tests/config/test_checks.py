"""Keys that would do nothing, or name what there is not, are refused before anything is written."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from heed.config import SECTIONS, Recipe
from heed.config.checks import TASK_OF_KEY, find_conflicts, find_long_warmup
from heed.config.train import TrainConfig
from heed.errors import ConfigError
from heed.recipes import find, names
from heed.train.prepare.setup import validate_recipe

TASKS = ("translate", "classify", "generate")
OTHER: dict[str, Any] = {
    "data.bidirectional": True,
    "data.denoise": 0.5,
    "data.unit": "document",
    "model.decoder_layers": 3,
    "model.ngrams": 2,
    "train.class_weights": "balanced",
    "train.evaluate_bleu": True,
    "train.source_token_dropout": 0.1,
    "train.mask_share": 0.3,
    "train.objective": "masked",
    "train.token_dropout": 0.2,
}
"""A value of each key that is not its default."""
FILES: dict[str, Any] = {"data.synthetic": None, "data.train": ["a", "b"]}


def make_recipe(task: str, values: dict[str, Any], **init: str) -> Recipe:
    tables: dict[str, Any] = {"task": task, "data": {"synthetic": 9}, "init": init}
    for key, value in values.items():
        section, _, name = key.partition(".")
        tables.setdefault(section, {})[name] = value
    return Recipe.of(tables)


@pytest.mark.parametrize(("key", "task"), [*product(TASK_OF_KEY, TASKS)])
def test_a_key_is_for_its_task(key: str, task: str) -> None:
    masked = {"train.objective": "masked"} if key == "train.mask_share" else {}
    if task == TASK_OF_KEY[key]:
        assert not list(find_conflicts(make_recipe(task, {key: OTHER[key]} | masked)))
        return
    with pytest.raises(
        ConfigError, match=f"{key.partition('.')[2]} is for task '{TASK_OF_KEY[key]}'"
    ):
        validate_recipe(make_recipe(task, {key: OTHER[key]}))


@pytest.mark.parametrize("task", TASKS)
def test_what_every_key_is_by_default_is_never_refused(task: str) -> None:
    """So the recipe of a run, which has all keys, can be trained again."""
    plain = make_recipe(task, {})
    assert not list(find_conflicts(plain))
    assert not list(find_conflicts(Recipe.of(plain.tables())))
    for key in TASK_OF_KEY:
        section, _, name = key.partition(".")
        default = SECTIONS[section].model_fields[name].default
        assert not list(find_conflicts(make_recipe(task, {key: default})))


@pytest.mark.parametrize("name", names())
def test_every_shipped_recipe_makes_sense(name: str) -> None:
    assert not list(find_conflicts(Recipe.read(find(name))))


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(("key", "named"), [("dev", ["a"]), ("test", ["a"]), ("sets", {"b": []})])
def test_files_beside_a_synthetic_corpus_are_refused(
    task: str, key: str, named: list[str] | dict[str, list[str]]
) -> None:
    with pytest.raises(
        ConfigError, match=rf"{key} would not be read: .* text is generated .*--train"
    ):
        validate_recipe(make_recipe(task, {f"data.{key}": named}))
    assert not list(find_conflicts(make_recipe(task, {f"data.{key}": named, **FILES})))


def test_a_share_to_mask_is_for_the_masked_objective() -> None:
    with pytest.raises(ConfigError, match="mask_share is for objective 'masked'"):
        validate_recipe(make_recipe("generate", {"train.mask_share": 0.3}))


def test_what_the_origin_has_is_not_held_against_a_recipe() -> None:
    """A classifier may begin from a translator of any shape."""
    assert not list(
        find_conflicts(make_recipe("classify", {"model.decoder_layers": 3}, **{"from": "mt"}))
    )


@pytest.mark.parametrize("init", [{}, {"from": "models/mine"}])
def test_more_positions_are_advised_only_where_they_can_be_had(init: dict[str, str]) -> None:
    few = {"model.position": "learned", "model.max_positions": 8}
    with pytest.raises(ConfigError, match=r"lower data\.max_length") as refused:
        validate_recipe(make_recipe("translate", few, **init))
    assert ("raise model.max_positions" in str(refused.value)) is not bool(init)


@pytest.mark.parametrize(
    ("values", "known"),
    [
        ({"train.best_metric": "dev/loss"}, True),
        ({"train.best_metric": "dev-clean/loss"}, True),
        ({"train.best_metric": "dev/bleu"}, False),
        ({"train.best_metric": "dev/bleu", "train.evaluate_bleu": True}, True),
        ({"train.best_metric": "dev-clean/bleu", "train.evaluate_bleu": True}, True),
        ({"train.best_metric": "train/bleu", "train.evaluate_bleu": True}, False),
        ({"train.best_metric": "train/loss"}, False),
        ({"train.best_metric": "train/loss", "train.evaluate_train": True}, True),
        ({"train.best_metric": "train-clean/loss", "train.evaluate_train": True}, False),
        ({"train.best_metric": "other/loss"}, False),
        (
            {"train.best_metric": "other/loss", "data.sets": {"other": []}, **FILES},
            True,
        ),
        (
            {"train.best_metric": "a-clean/loss", "data.sets": {"a": []}, **FILES},
            True,
        ),
    ],
)
def test_the_best_is_of_a_set_that_is_scored(values: dict[str, Any], known: bool) -> None:
    said = list(find_conflicts(make_recipe("translate", values)))
    assert len(said) == (not known)
    assert all("best_metric cannot be" in sentence for sentence in said)


@pytest.mark.parametrize(
    ("train", "steps", "todo"),
    [
        ({"steps": 20, "warmup": 20}, 20, "raise train.steps."),
        ({"steps": 20, "warmup": 200}, 20, "raise train.steps."),
        ({"epochs": 2, "warmup": 200}, 60, "raise train.epochs."),
        ({"warmup": 200}, 200, "raise train.epochs."),  # 20 epochs by default
        ({"steps": 90, "epochs": 2, "warmup": 200}, 60, "raise train.epochs."),
        ({"steps": 1, "warmup": 1}, 1, "raise train.steps."),
        ({"steps": 21, "warmup": 20}, 21, None),
        ({"steps": 1, "warmup": 0}, 1, None),
        ({"steps": 1}, 1, None),  # a derived warm-up is a tenth of the steps
    ],
)
def test_a_run_that_ends_within_its_warmup_is_told_what_to_change(
    train: dict[str, Any], steps: int, todo: str | None
) -> None:
    said = find_long_warmup(TrainConfig(**train), steps)
    if todo is None:
        assert said is None
    else:
        assert said is not None
        assert said.startswith(f"[train] warmup {train['warmup']} is not below the run's {steps} ")
        assert said.endswith(f"lower train.warmup, or {todo}")


@pytest.mark.parametrize("name", names())
def test_no_shipped_recipe_ends_within_its_warmup(name: str) -> None:
    train = Recipe.read(find(name)).train
    assert train.steps is None or find_long_warmup(train, train.steps) is None
