"""Reuse of finished runs: one with the same recipe and the same text need not be trained again."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from heed.config import Recipe
from heed.data.splits import open_splits
from heed.errors import HeedError
from heed.files import publish, temporary_folder
from heed.runs.discovery import runs_below
from heed.runs.groups import comparable_recipes
from heed.runs.run import LOCK, Run


def find_finished_run(recipe: Recipe, folders: Sequence[Path]) -> Run | None:
    """A finished run of this recipe, seed included, on the same text; None if there is none."""
    hashes: dict[str, str] | None = None
    for run in (run for folder in folders for run in runs_below(folder)):
        try:
            if not run.finished or not _is_same_recipe(recipe, run.recipe()):
                continue
            environment = run.environment()
        except HeedError:  # a run that cannot be read is none to reuse
            continue
        if hashes is None:
            splits = open_splits(recipe)
            hashes = {name: corpus.fingerprint() for name, corpus in splits.items()}
        if environment.get("data") == hashes and not environment.get("recipe_changes"):
            return run
    return None


def copy_run(run: Run, folder: Path) -> None:
    """Copy a run into a new folder, which is there as a whole or not at all."""
    with temporary_folder(folder) as draft:
        shutil.copytree(
            run.folder, draft, dirs_exist_ok=True, ignore=shutil.ignore_patterns(LOCK, ".draft-*")
        )
        publish(draft, folder)


def _is_same_recipe(recipe: Recipe, other: Recipe) -> bool:
    """Whether two recipes are the same but for the places of their files."""
    return _without_places(recipe) == _without_places(other)


def _without_places(recipe: Recipe) -> dict[str, Any]:
    same = dict.fromkeys(("train", "dev"), "same")  # their hashes are compared instead
    tables = dict(comparable_recipes({"": (recipe.tables(), same)})[""])
    tokenizer = {key: one for key, one in tables["tokenizer"].items() if key != "text"}
    return tables | {"tokenizer": tokenizer}
