"""Hugging Face datasets: folders that `save_to_disk` wrote, and names on the hub.

A name on the hub is written `hf:NAME`, `hf:NAME:CONFIG` or either with `@SPLIT`, so that a
mistyped file is never looked up on the network. The `datasets` package is imported only here
and only when asked for.
"""

from __future__ import annotations

import hashlib
import importlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from heed.data.corpus.text_files import fingerprint, printable
from heed.errors import DataError

PREFIX = "hf:"
SAVED_SPLITS = "dataset_dict.json"  # written for a dataset with named splits
SAVED_ONE = "state.json"  # written for each split


class HubName(NamedTuple):
    name: str
    config: str | None
    split: str | None


def on_hub(path: str) -> bool:
    return path.startswith(PREFIX)


def is_dataset(path: str) -> bool:
    """Whether this names a dataset rather than a file."""
    if on_hub(path):
        return True
    folder = Path(path)
    return any((folder / name).is_file() for name in (SAVED_SPLITS, SAVED_ONE))


def parse(path: str) -> HubName:
    whole, _, split = path.removeprefix(PREFIX).partition("@")
    name, _, config = whole.partition(":")
    if not name:
        raise DataError(
            "this names no dataset.",
            where=printable(path),
            todo="Write hf:NAME, hf:NAME:CONFIG or hf:NAME@SPLIT.",
        )
    return HubName(name, config or None, split or None)


def split_paths(path: str) -> dict[str, str]:
    """The splits of a dataset by name, each as a path that `rows` reads."""
    if on_hub(path):
        asked = parse(path)
        if asked.split:
            return {asked.split: path}
        names = _load(path, "get_dataset_split_names", asked.name, asked.config)
        return {name: f"{path}@{name}" for name in names}
    listed = Path(path) / SAVED_SPLITS
    if not listed.is_file():
        return {Path(path).name: path}
    try:
        names = json.loads(listed.read_text("utf-8"))["splits"]
        return {str(name): str(Path(path) / str(name)) for name in names}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            "this list of splits cannot be read.",
            where=printable(str(listed)),
            todo="Save the dataset again with save_to_disk.",
        ) from error


def rows(path: str) -> Iterator[Mapping[str, object]]:
    """Each row as a mapping, class numbers replaced by their names where the dataset has them."""
    table = _table(path)
    names = {
        column: feature.names
        for column, feature in (table.features or {}).items()
        if isinstance(getattr(feature, "names", None), list)
    }
    for row in table:
        for column, known in names.items():
            number = row[column]
            # A hidden label is -1 on the hub: no name stands for it.
            if isinstance(number, int) and 0 <= number < len(known):
                row[column] = known[number]
        yield row


def hashed(path: str) -> str:
    """A saved folder by the bytes of its files; a dataset on the hub by its rows."""
    if not on_hub(path):
        files = sorted(str(file) for file in Path(path).rglob("*") if file.is_file())
        return fingerprint(files)
    whole = hashlib.blake2b(digest_size=16)
    for row in rows(path):
        whole.update(repr(sorted(row.items())).encode("utf-8", "backslashreplace"))
    return whole.hexdigest()


def _table(path: str) -> Any:
    splits = split_paths(path)
    if len(splits) != 1 or (Path(path) / SAVED_SPLITS).is_file():
        raise DataError(
            f"this dataset has the splits {', '.join(splits)}.",
            where=printable(path),
            todo=f"Name one, such as {next(iter(splits.values()), path)}.",
        )
    if not on_hub(path):
        return _load(path, "load_from_disk", path)
    asked = parse(path)
    return _load(path, "load_dataset", asked.name, asked.config, split=next(iter(splits)))


def _load(path: str, function: str, *args: str | None, **options: str) -> Any:
    """Call one of the package's loaders; whatever goes wrong in it is about this dataset."""
    package = _datasets(path)
    try:
        return getattr(package, function)(*args, **options)
    except Exception as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(
            f"this dataset cannot be loaded: {printable(first)}",
            where=printable(path),
            todo="Check its name, its splits and the network.",
        ) from error


def _datasets(path: str) -> ModuleType:
    try:
        return importlib.import_module("datasets")
    except ImportError as error:
        raise DataError(
            "reading this needs the `datasets` package.",
            where=printable(path),
            todo="Run `pip install 'heed[hf]'`.",
        ) from error
