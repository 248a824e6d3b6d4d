"""What a bare list of files means: which are splits of one corpus, which are two sides.

Rules, in order. A table (TSV, CSV, JSONL) or a saved dataset is a split by itself. Plain files
pair up as sides where each two share a name but for the last suffix (`train.en`, `train.fr`), or
where exactly two are given whose names do not speak of different splits; otherwise each is a
split by itself. A split is named by its file (see `NAMES`). Where no name says train, the first
file without a split's name is train. What has no name, or a name already taken, goes by its
stem; but several files that say train are read one after another.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from heed.data.corpus import hf_datasets
from heed.data.corpus.rows import form_of
from heed.data.corpus.text_files import COMPRESSED, printable
from heed.errors import DataError

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


def splits(
    paths: Sequence[str | Path], *, task: str | None = None, form: str | None = None
) -> dict[str, list[Path]]:
    """The splits by name, train and dev first, each with its files in order.

    `task`: "generate" never takes two plain files for two sides. `form`: as for `open_corpus`.
    """
    if not paths:
        raise DataError("no file is named.", todo="Name at least one.")
    units: list[tuple[str, list[str]]] = []  # a name to look at, and the files of one split
    given = list(dict.fromkeys(str(path) for path in paths))
    plain = [path for path in given if (form or form_of(path)) == "text"]
    if plain and task != "classify":
        if len(plain) < len(given):
            odd = next(path for path in given if path not in plain)
            raise DataError(
                "tables and plain text do not mix in one corpus.",
                where=printable(odd),
                todo="Check one kind at a time.",
            )
        sides = [] if task == "generate" else _sides(plain)
        units = [(pair[0], pair) for pair in sides] or [(path, [path]) for path in plain]
    else:
        for path in given:
            parts = hf_datasets.split_paths(path) if hf_datasets.is_dataset(path) else {path: path}
            units.extend((name, [part]) for name, part in parts.items())
    return _named(units)


def _sides(plain: Sequence[str]) -> list[list[str]]:
    """Plain files in twos, or nothing where they do not pair up."""
    if len(plain) == 2:
        said = {split_name(path) for path in plain} - {None}
        return [list(plain)] if len(said) < 2 else []
    groups: dict[str, list[str]] = {}
    for path in plain:
        name = _bare(path)
        groups.setdefault(str(name.parent / name.stem), []).append(path)
    pairs = all(
        len(group) == 2 and _bare(group[0]).suffix != _bare(group[1]).suffix
        for group in groups.values()
    )
    return list(groups.values()) if pairs else []


def split_name(path: str) -> str | None:
    """train, dev or test where a word of the file's name says so, else None."""
    words = re.split("[^a-z]+", Path(path).name.lower())
    return next((NAMES[word] for word in words if word in NAMES), None)


def _named(units: Sequence[tuple[str, list[str]]]) -> dict[str, list[Path]]:
    said = [split_name(name) for name, _ in units]
    if "train" not in said and None in said:
        said[said.index(None)] = "train"
    counts = {name: said.count(name) for name in said}
    named: dict[str, list[Path]] = {}
    for (path, files), name in zip(units, said, strict=True):
        unique = name is not None and (name == "train" or counts[name] == 1)
        key = name if unique and name is not None else _free(_bare(path).stem, named)
        held = named.setdefault(key, [])
        if held and len(files) == 2:
            raise DataError(
                "this would be a second train set of two sides.",
                where=printable(path),
                todo="Join the files of each side.",
            )
        held.extend(map(Path, files))
    order = ("train", "dev")
    first = [name for name in order if name in named]
    return {name: named[name] for name in first + [name for name in named if name not in order]}


def _free(stem: str, taken: dict[str, list[Path]]) -> str:
    """The stem, numbered where another file has it already."""
    name, number = stem, 2
    while name in taken:
        name, number = f"{stem}-{number}", number + 1
    return name


def _bare(path: str) -> Path:
    """The path without the suffix of a compressed file."""
    name = Path(path)
    return name.with_suffix("") if name.suffix.lower() in COMPRESSED else name
