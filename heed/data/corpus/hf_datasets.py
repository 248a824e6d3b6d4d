"""Hugging Face datasets: folders written by `save_to_disk`, and names on the hub.

A name on the hub is written `hf:NAME`, `hf:NAME:CONFIG` or either with `@SPLIT`, so that a mistyped
file is never looked up on the network. The `datasets` package is imported only here, and only when
needed.
"""

from __future__ import annotations

import hashlib
import importlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from heed.data.raw_files import HUB_PREFIX, SAVED_SPLITS, hash_files, is_hub_name
from heed.errors import DataError, describe_hub_error, install_hint, make_printable


class HubName(NamedTuple):
    name: str
    config: str | None
    split: str | None


def parse_hub_name(path: str) -> HubName:
    whole, _, split = path.removeprefix(HUB_PREFIX).partition("@")
    name, _, config = whole.partition(":")
    if not name:
        raise DataError(
            "this does not name a dataset.",
            where=make_printable(path),
            todo="Write hf:NAME, hf:NAME:CONFIG or hf:NAME@SPLIT.",
        )
    return HubName(name, config or None, split or None)


def split_paths(path: str) -> dict[str, str]:
    """The splits of a dataset by name, each as a path for `read_dataset`."""
    if is_hub_name(path):
        hub_name = parse_hub_name(path)
        if hub_name.split:
            return {hub_name.split: path}
        names = _call_loader(path, "get_dataset_split_names", hub_name.name, hub_name.config)
        return {name: f"{path}@{name}" for name in names}
    split_list = Path(path) / SAVED_SPLITS
    if not split_list.is_file():
        return {Path(path).name: path}
    try:
        names = json.loads(split_list.read_text("utf-8"))["splits"]
        return {str(name): str(Path(path) / str(name)) for name in names}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            "this file with the list of splits cannot be read.",
            where=make_printable(str(split_list)),
            todo="Save the dataset again with save_to_disk.",
        ) from error


def read_dataset(path: str) -> Iterator[Mapping[str, object]]:
    """Each row as a mapping, with class numbers replaced by class names if there are any."""
    table = _load_split(path)
    names = {
        column: feature.names
        for column, feature in (table.features or {}).items()
        if isinstance(getattr(feature, "names", None), list)
    }
    for row in table:
        for column, class_names in names.items():
            number = row[column]
            # A hidden label is -1 on the hub and has no name.
            if isinstance(number, int) and 0 <= number < len(class_names):
                row[column] = class_names[number]
        yield row


def hash_dataset(path: str) -> str:
    """Hash of the files of a saved folder, or of the rows of a dataset on the hub."""
    if not is_hub_name(path):
        files = sorted(str(file) for file in Path(path).rglob("*") if file.is_file())
        return hash_files(files)
    total = hashlib.blake2b(digest_size=16)
    for row in read_dataset(path):
        total.update(repr(sorted(row.items())).encode("utf-8", "backslashreplace"))
    return total.hexdigest()


def _load_split(path: str) -> Any:
    splits = split_paths(path)
    if len(splits) != 1 or (Path(path) / SAVED_SPLITS).is_file():
        raise DataError(
            f"this dataset has the splits {', '.join(splits)}.",
            where=make_printable(path),
            todo=f"Name one, such as {next(iter(splits.values()), path)}.",
        )
    if not is_hub_name(path):
        return _call_loader(path, "load_from_disk", path)
    hub_name = parse_hub_name(path)
    return _call_loader(
        path, "load_dataset", hub_name.name, hub_name.config, split=next(iter(splits))
    )


def _call_loader(path: str, function: str, *args: str | None, **options: str) -> Any:
    """Call a loader of `datasets`; any exception becomes an error about this dataset."""
    datasets = _import_datasets(path)
    try:
        return getattr(datasets, function)(*args, **options)
    except Exception as error:
        reason, todo = describe_hub_error(error)
        what = f"this dataset cannot be loaded: {make_printable(reason)}"
        raise DataError(what, where=make_printable(path), todo=todo) from error


def _import_datasets(path: str) -> ModuleType:
    try:
        return importlib.import_module("datasets")
    except ImportError as error:
        raise DataError(
            "reading this needs the `datasets` package.",
            where=make_printable(path),
            todo=install_hint("hf"),
        ) from error
