"""The splits of a recipe: which seeds draw the generated text, and which do not."""

from __future__ import annotations

from pathlib import Path

import pytest

from heed.config import Recipe
from heed.data.splits import open_splits, synthetic_files
from heed.data.synthetic import generate_sentences


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HEED_CACHE", str(tmp_path))


def generated_text(seed: int, world_seed: int, task: str = "translate") -> dict[str, list[str]]:
    data = {"synthetic": 30, "synthetic_test": 12, "world_seed": world_seed}
    recipe = Recipe.of({"task": task, "seed": seed, "data": data})
    files = synthetic_files(recipe)
    return {split: [Path(path).read_text() for path in paths] for split, paths in files.items()}


@pytest.mark.parametrize("task", ["translate", "classify", "generate"])
def test_seeds_of_one_recipe_read_the_same_text(task: str) -> None:
    """Train, dev and test: runs that differ by `seed` alone are compared on one test set."""
    assert generated_text(0, 0, task) == generated_text(5, 0, task)
    world, other = generated_text(0, 0, task), generated_text(0, 1, task)
    assert all(world[split] != other[split] for split in world)


def test_the_default_world_is_that_of_seed_zero() -> None:
    recipe = Recipe.of({"task": "translate", "seed": 3, "data": {"synthetic": 30}})
    corpora = open_splits(recipe)
    pairs = [record.texts for record in corpora["train"].usable_records()]
    assert pairs == [(s.english, s.french) for s in generate_sentences("train", 30, seed=0)]
