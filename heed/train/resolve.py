"""From a recipe and command-line flags to the recipe that is trained, and its run folder.

Free of torch, so that what needs the recipe alone can begin while torch is imported.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from heed.config import Recipe, apply_overrides, error_location, read_tables
from heed.config.recipe import EXCLUSIVE
from heed.data.corpus import file_language, find_in_folder, infer_task, refuse_missing_sides
from heed.errors import ConfigError, HeedError
from heed.recipes import FOLDER as SHIPPED
from heed.recipes import find
from heed.runs.run import Run
from heed.train.distributed.torchrun import rank0_error_only

SMALL_TEXT = 2**21
"""Bytes of training text up to which the default model has two layers."""
SPLITS = ("train", "dev", "test")
FILE_KEYS = (*(f"data.{key}" for key in (*SPLITS, "sets")), "tokenizer.text")
"""Keys whose values are files."""
MAX_THREADS = 64
"""CPU threads that may be asked for where there are fewer cores. Thousands end the process."""
NO_TEST = (
    "[train] evaluate_test scores the test set, and there is none: name its files with "
    "--test FILE, or leave it out with --set train.evaluate_test=false."
)


@rank0_error_only()
def resolve_recipe(
    name: str | None,
    task: str | None,
    train: Sequence[str] | None,
    dev: Sequence[str] | None,
    overrides: Sequence[str] | None,
    precision: str | None,
    folder: Path | None = None,
    *,
    test: Sequence[str] | None = None,
) -> tuple[Recipe, str]:
    """The recipe of this name, or an empty one, with the flags applied; and a name for its run.

    Training files replace all files that the recipe names, unless `folder` holds those: a test set
    of another corpus may be in another language, or missing. Test files are scored after training.
    """
    tables: dict[str, Any] = {}
    where = None
    changes = [*(overrides or ()), *([f"train.precision={precision}"] if precision else [])]
    if name is not None:
        path, tables = _read_recipe(name, train)
        shipped = path.is_relative_to(SHIPPED)
        where = error_location(Path(name) if shipped else path, changes)
    elif train:
        tables = _default_tables(train, pretrained="init.from" in _overridden_keys(overrides))
    data = dict(tables.get("data", {}))
    if folder is not None:
        tables, changes = _place_files(folder, tables, changes, train=train, dev=dev)
        data = dict(tables.get("data", {}))
    elif train:
        data = {key: value for key, value in data.items() if key not in ("test", "sets")}
        if tokenizer := tables.get("tokenizer"):
            tables["tokenizer"] = {key: v for key, v in tokenizer.items() if key != "text"}
    if train:
        data.pop("synthetic", None)
        data |= {"train": list(train), "dev": list(dev or ())}
    elif dev:
        data |= {"dev": list(dev)}
    if test:
        if "synthetic" in data:
            what = "--test names files, and the test set of this recipe is generated"
            raise ConfigError([f"{what} (data.synthetic): leave --test out, or name --train."])
        data["test"] = list(test)
        tables["train"] = tables.get("train", {}) | {"evaluate_test": True}
    if task or (train and "task" not in tables):
        if not task:
            refuse_missing_sides([*(train or ()), *(dev or ()), *(test or ())])
        tables["task"] = task or infer_task(list(train or ()))
    resolved = _build_recipe(tables | {"data": data}, changes, where)
    if name is not None and folder is None and not train:
        _refuse_missing_files(name, data.get("train", ()), resolved.data.train)
    return resolved, Path(name).stem if name else resolved.task


def resolve_tables(
    tables: Mapping[str, Any],
    overrides: Sequence[str],
    folder: Path | None = None,
    *,
    where: str | None = None,
) -> Recipe:
    """The recipe of these tables with overrides, as `heed train --set` and `--data` have it."""
    changed, changes = dict(tables), [*overrides]
    if folder is not None:
        changed, changes = _place_files(folder, changed, changes, train=None, dev=None)
    return _build_recipe(changed, changes, where)


def _build_recipe(tables: dict[str, Any], changes: Sequence[str], where: str | None) -> Recipe:
    """The recipe of tables with overrides; an error with everything that is wrong with it."""
    settings = _without_replaced(tables.get("train", {}), _overridden_keys(changes))
    resolved = Recipe.of(apply_overrides(tables | {"train": settings}, changes), where=where)
    if resolved.train.evaluate_test and not resolved.data.test and resolved.data.synthetic is None:
        raise ConfigError([NO_TEST])
    return resolved


def _read_recipe(name: str, train: Sequence[str] | None) -> tuple[Path, dict[str, Any]]:
    """The path and tables of a recipe; the error for a data file says how to train on it."""
    path = Path(name)
    is_data = path.suffix != ".toml" and (path.is_file() or (train and path.suffix))
    try:
        recipe = find(name)
        return recipe, read_tables(recipe)
    except ConfigError as error:
        if not is_data:
            raise
        files = [*(train or ()), name]
        flags = shlex.join(part for file in files for part in ("--train", file))
        once = " with the option repeated for each file" if len(files) > 1 else ""
        what = f"{name!r} is not a recipe. To train on text, name it{once}: heed train {flags}"
        raise ConfigError([what]) from error


def _overridden_keys(overrides: Sequence[str] | None) -> set[str]:
    return {override.partition("=")[0].strip() for override in overrides or ()}


def _without_replaced(train: dict[str, Any], overridden: set[str]) -> dict[str, Any]:
    """The [train] table without keys that an overridden one excludes."""
    replaced = {other for key, other in EXCLUSIVE.items() if f"train.{key}" in overridden}
    return {key: value for key, value in train.items() if key not in replaced}


def _default_tables(files: Sequence[str], *, pretrained: bool) -> dict[str, Any]:
    """Settings for files without a recipe: early stopping, and a small model for a small text.

    A pretrained model has its own shape, and a low learning rate.
    """
    if pretrained:
        return {"train": {"patience": 3, "batch_size": 32, "lr": 5e-5, "schedule": "linear"}}
    sizes = [Path(name).stat().st_size for name in files if Path(name).is_file()]
    if len(sizes) < len(files) or sum(sizes) > SMALL_TEXT:
        return {"train": {"patience": 3}}
    train = {"batch_tokens": 2048, "lr": 2e-3, "patience": 3}
    return {"model": {"layers": 2, "width": 128}, "train": train}


def _place_files(
    folder: Path,
    tables: dict[str, Any],
    changes: Sequence[str],
    *,
    train: Sequence[str] | None,
    dev: Sequence[str] | None,
) -> tuple[dict[str, Any], list[str]]:
    """The tables with the files of `folder`, and the overrides that do not name files.

    Files of the recipe are looked up in the folder, in whatever languages it has. Files named by an
    override may also be elsewhere.
    """
    file_changes = [one for one in changes if one.partition("=")[0].strip() in FILE_KEYS]
    other_changes = [one for one in changes if one not in file_changes]
    named = apply_overrides({}, file_changes)
    tables = apply_overrides(tables, file_changes)
    _refuse_unused_folder(tables)
    data = dict(tables.get("data", {}))
    in_recipe = {
        key: data[key]
        for key in SPLITS
        if data.get(key)
        and key not in named.get("data", {})
        and not (key == "train" and train)
        and not (key == "dev" and (train or dev))
    }
    data |= find_in_folder(folder, in_recipe, _flag_languages(train))
    for key in SPLITS:
        if key in named.get("data", {}):
            data[key] = _place(folder, data[key])
    if isinstance(sets := data.get("sets"), Mapping):
        data["sets"] = {name: _place(folder, paths) for name, paths in sets.items()}
    if files := tables.get("tokenizer", {}).get("text"):
        tables["tokenizer"] = tables["tokenizer"] | {"text": _place(folder, files)}
    return tables | {"data": data}, other_changes


def _flag_languages(train: Sequence[str] | None) -> tuple[str, str] | None:
    """The two languages of the files of --train, where their names say them."""
    source, target = map(file_language, train) if train and len(train) == 2 else (None, None)
    return None if source is None or target is None else (source, target)


def _place(folder: Path, names: Any) -> Any:
    """File names in the folder; one that is only elsewhere stays. Other values are left as is."""
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return names
    return [
        name if Path(name).exists() and not (folder / name).exists() else str(folder / name)
        for name in names
    ]


def _refuse_unused_folder(tables: dict[str, Any]) -> None:
    """Refuse --data for a recipe that names no files."""
    data, tokenizer = tables.get("data", {}), tables.get("tokenizer", {})
    if not (tokenizer.get("text") or any(data.get(k) for k in ("train", "dev", "test", "sets"))):
        generated = "synthetic" in data
        why = "the text of this one is generated (data.synthetic)" if generated else "here are none"
        todo = "name files with --train, or leave --data out."
        raise ConfigError([f"--data is for the files that a recipe names; {why}: {todo}"])


def _refuse_missing_files(name: str, recipe_files: Sequence[str], files: Sequence[str]) -> None:
    """Refuse a shipped recipe whose own files are not here."""
    missing = [file for file in files if file in recipe_files and not Path(file).exists()]
    if missing and find(name).is_relative_to(SHIPPED):
        what = f"{name} is trained on {' and '.join(missing)}, and there is no such file here"
        raise ConfigError([f"{what}: name the folder with --data DIR, or files with --train."])


def describe_files(recipe: Recipe) -> str:
    """The files that --data found, by split."""
    files = {"train": recipe.data.train, "dev": recipe.data.dev, "test": recipe.data.test}
    return "\n".join(f"{split}: {', '.join(paths)}" for split, paths in files.items() if paths)


def free_folder(name: str) -> Path:
    """The first of runs/NAME, runs/NAME-2, … that does not exist."""
    folder, number = Path("runs") / name, 1
    while folder.exists():
        number += 1
        folder = Path("runs") / f"{name}-{number}"
    return folder


def next_steps(folder: Path, recipe: Recipe) -> str:
    """Where the model is, and the command that uses it."""
    name = shlex.quote(str(folder))
    generates = recipe.task == "generate" and recipe.train.objective == "causal"
    commands = {
        "translate": f'heed translate {name} "…"',
        "classify": f'heed classify {name} "…"',
        "generate": f'heed generate {name} --prompt "…"' if generates else f"heed evaluate {name}",
    }
    return f"The model is in {folder}. Next: {commands[recipe.task]}"


@rank0_error_only()
def set_threads(threads: int | None) -> None:
    """Set the number of CPU threads that torch uses."""
    if threads is None:
        return
    if not 1 <= threads <= _most_threads():
        raise ConfigError([f"threads cannot be {threads}: use 1 to {_most_threads()}."])
    import torch

    torch.set_num_threads(threads)


def recorded_threads(folder: Path) -> int | None:
    """The CPU threads that a run has trained with; None where that is not known.

    A resumed run needs as many for the same bits: threads decide in which order sums are added.
    """
    try:
        threads = Run.open(folder).environment().get("cpu_threads")
    except HeedError:
        return None  # resuming says what is wrong
    return threads if isinstance(threads, int) and 1 <= threads <= _most_threads() else None


def _most_threads() -> int:
    return max(MAX_THREADS, os.cpu_count() or 1)
