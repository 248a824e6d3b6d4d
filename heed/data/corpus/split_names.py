"""Infer from file names which files are train, dev and test, and which are two sides of a corpus.

Rules, in order. A table (TSV, CSV, JSONL) or a saved dataset is a split by itself. Plain files pair
up as sides where each two share a name but for the last suffix (`train.en`, `train.fr`), or where
exactly two are given whose names do not name different splits; otherwise each is a split by itself.
A folder stands for those of its files that name a split.
A split is named after its file (see `NAMES`). Where no name says train, the first file that names
no split is train. A file without a split name, or with one that is taken, uses its stem; but
several train files are read one after another.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from heed.data.corpus import hf_datasets
from heed.data.corpus.columns import LANGUAGE
from heed.data.corpus.rows import detect_format
from heed.data.raw_files import COMPRESSED, is_dataset
from heed.errors import DataError, make_printable

NAMES = {
    "train": "train",
    "training": "train",
    "dev": "dev",
    "newsdev": "dev",
    "valid": "dev",
    "validation": "dev",
    "val": "dev",
    "test": "test",
    "newstest": "test",
}


def infer_splits(
    paths: Sequence[str | Path], *, task: str | None = None, file_format: str | None = None
) -> dict[str, list[Path]]:
    """Split names and their files in order, train and dev first.

    `task`: "generate" never takes two plain files for two sides. `file_format`: as for
    `open_corpus`.
    """
    if not paths:
        raise DataError("no file is named.", todo="Name at least one file.")
    groups: list[tuple[str, list[str]]] = []  # a file name that may name the split, and its files
    files = list(dict.fromkeys(file for path in paths for file in _list_files(str(path))))
    plain = [path for path in files if (file_format or detect_format(path)) == "text"]
    if plain and task != "classify":
        if len(plain) < len(files):
            table = next(path for path in files if path not in plain)
            raise DataError(
                "tables and plain text cannot be mixed in one corpus.",
                where=make_printable(table),
                todo=_name_tables(paths, table),
            )
        sides = [] if task == "generate" else _pair_sides(plain)
        if task is None and not sides:
            refuse_missing_sides(plain)
        groups = [(pair[0], pair) for pair in sides] or [(path, [path]) for path in plain]
    else:
        for path in files:
            parts = hf_datasets.split_paths(path) if is_dataset(path) else {path: path}
            groups.extend((name, [part]) for name, part in parts.items())
    return _name_splits(groups)


def _name_tables(paths: Sequence[str | Path], table: str) -> str:
    """The advice for tables mixed with plain text: for a folder, the command for its tables."""
    pattern = f"*{Path(table).suffix}"
    folder = next((path for path in map(str, paths) if table in _list_files(path)), table)
    if folder == table:
        return "Check one kind at a time."
    command = f"heed check {shlex.quote(folder)}/{pattern}"
    return f"Check one kind at a time, as in: {command}"


def _list_files(path: str) -> list[str]:
    """The files that a path stands for: itself, or those of a folder."""
    if is_dataset(path) or not Path(path).is_dir():
        return [path]
    files = (file for file in sorted(Path(path).iterdir()) if file.is_file())
    names = [str(file) for file in files if split_name(file.name) and file.name[0] != "."]
    return names or [path]  # which is refused as a folder


def _pair_sides(plain: Sequence[str]) -> list[list[str]]:
    """Plain files in pairs, or nothing where they do not pair up."""
    if len(plain) == 2:
        split_names = {split_name(path) for path in plain} - {None}
        return [list(plain)] if len(split_names) < 2 else []
    groups: dict[str, list[str]] = {}
    for path in plain:
        name = without_compression(path)
        groups.setdefault(str(name.parent / name.stem), []).append(path)
    all_pairs = all(
        len(group) == 2
        and without_compression(group[0]).suffix != without_compression(group[1]).suffix
        for group in groups.values()
    )
    return list(groups.values()) if all_pairs else []


def refuse_missing_sides(plain: Sequence[str]) -> None:
    """Refuse plain files of two languages or more that do not pair up, where no task is named."""
    by_split: dict[str, dict[str, str]] = {}  # file by language, by split
    for path in plain:
        if language := file_language(path):
            by_split.setdefault(without_compression(path).stem, {})[language] = path
    languages = sorted({language for files in by_split.values() for language in files})
    missing = [
        f"{stem}.{language}"
        for stem, files in by_split.items()
        for language in languages
        if language not in files
    ]
    if len(languages) > 1 and missing:
        raise DataError(
            f"these files are in {len(languages)} languages ({', '.join(languages)}), "
            f"but do not pair up: {' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} "
            "not named.",
            where=make_printable(", ".join(plain)),
            todo="Name both sides of every split, or set --task generate to read each by itself.",
        )


def file_language(path: str) -> str | None:
    """The language code that a file name ends in, such as en for `train.en.gz`, else None."""
    match = LANGUAGE.fullmatch(without_compression(path).suffix.lower().removeprefix("."))
    return match[1] if match else None


def split_name(path: str) -> str | None:
    """train, dev or test where a word of the file name says so, else None."""
    words = re.split("[^a-z]+", Path(path).name.lower())
    return next((NAMES[word] for word in words if word in NAMES), None)


def _name_splits(groups: Sequence[tuple[str, list[str]]]) -> dict[str, list[Path]]:
    split_names = [split_name(name) for name, _ in groups]
    if "train" not in split_names and None in split_names:
        split_names[split_names.index(None)] = "train"
    counts = {name: split_names.count(name) for name in split_names}
    named: dict[str, list[Path]] = {}
    for (path, files), name in zip(groups, split_names, strict=True):
        unique = name is not None and (name == "train" or counts[name] == 1)
        key = (
            name
            if unique and name is not None
            else _unused_name(without_compression(path).stem, named)
        )
        split_files = named.setdefault(key, [])
        if split_files and len(files) == 2:
            raise DataError(
                "this is a second train set of two sides.",
                where=make_printable(path),
                todo="Concatenate the files of each side.",
            )
        split_files.extend(map(Path, files))
    order = ("train", "dev")
    first = [name for name in order if name in named]
    return {name: named[name] for name in first + [name for name in named if name not in order]}


def _unused_name(stem: str, taken: dict[str, list[Path]]) -> str:
    """The stem, numbered where another split has that name."""
    name, number = stem, 2
    while name in taken:
        name, number = f"{stem}-{number}", number + 1
    return name


def without_compression(path: str) -> Path:
    """The path without the suffix of a compressed file."""
    name = Path(path)
    return name.with_suffix("") if name.suffix.lower() in COMPRESSED else name
