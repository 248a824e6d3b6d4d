"""Training from Python: a recipe made of keyword arguments, on files or on lists of texts."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from heed.config import SECTIONS, Recipe
from heed.data.corpus import file_names
from heed.data.in_memory import Data, encode_texts, names_files
from heed.errors import ConfigError, DataError, nearest
from heed.terminal import PlainConsole
from heed.train import run as train_run
from heed.train.resolve import free_folder

TRAINING_SECTIONS = ("model", "train", "tokenizer", "data", "decode")
"""The recipe sections in which a keyword argument is looked up, in this order."""


def train_from_arguments(
    task: str,
    train: Data,
    dev: Data,
    run: str | Path | None,
    seed: int,
    device: str,
    settings: Mapping[str, Any],
) -> Path:
    """Train a run with these recipe keys; returns its folder.

    Texts that are given as lists are written into the `data/` of the run.
    """
    folder = Path(run) if run is not None else free_folder(task)
    own_files: dict[str, bytes] = {}

    def to_files(data: Data, name: str) -> list[str]:
        if names_files(data, task):
            return file_names(data)
        own_files[f"{name}.jsonl"] = encode_texts(data, task, name)
        return [str(folder / "data" / f"{name}.jsonl")]

    splits = {"train": to_files(train, "train"), "dev": to_files(dev, "dev")}
    if not splits["train"]:
        what = "there is no training text."
        raise DataError(what, where="train", todo="Name files, or give lists of texts.")
    tables: dict[str, Any] = {"task": task, "seed": seed, "data": splits}
    for key, value in settings.items():
        if key == "test":
            value = to_files(value, key)
        elif key == "sets" and isinstance(value, Mapping):
            value = {name: to_files(data, str(name)) for name, data in value.items()}
        elif key == "text":
            value = file_names(value)
        tables.setdefault(section_of(key), {})[key] = value
    console = PlainConsole(file=sys.stderr, force_jupyter=False)
    train_run.start(Recipe.of(tables), folder, device=device, console=console, files=own_files)
    return folder


def section_of(key: str) -> str:
    """The recipe section that has this key."""
    keys = {name: kind.keys() for name, kind in SECTIONS.items() if name in TRAINING_SECTIONS}
    for section in TRAINING_SECTIONS:
        if key in keys[section]:
            return section
    every_key = [name for names in keys.values() for name in names]
    raise ConfigError([f"There is no key {key!r}.{nearest(key, every_key)}"])
