"""Texts in memory as data: lists are checked, then written as JSON lines that any reader takes.

A translator's data is two lists, `(sources, targets)`, a classifier's `(texts, labels)`; a list of
pairs is the same. A language model's data is one list of texts. pandas Series, numpy arrays and
other iterables count as lists. JSON lines keep a text whole, its line breaks and tabs included.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeGuard

from heed.data.corpus.corpus import Files
from heed.data.corpus.lines import first_invalid_byte
from heed.data.raw_files import HUB_PREFIX, MAX_LINE
from heed.errors import DataError

Data = Files | Iterable[Any]
"""What `train`, `dev` and `test` take in Python: files, or lists of texts."""
COLUMNS = {
    "translate": ("sources", "targets"),
    "classify": ("texts", "labels"),
    "generate": ("texts",),
}
"""The lists of each task, as errors name them."""
KEYS = {"sources": "source", "targets": "target", "texts": "text", "labels": "label"}
"""The key of each list in a JSON line: the names by which a corpus finds its columns."""
PAIR_KEYS = ("sentence1", "sentence2")
"""The keys of a text pair to classify."""
FILE_NAME = re.compile(r"\S*\w\.\w{1,8}(\.(gz|zst))?")
"""A word that ends like a file name."""
MAX_NAME = 255
"""Characters of a file name."""
MAX_SHOWN = 40
"""Characters of a value that an error quotes."""


def names_files(data: Data, task: str) -> TypeGuard[Files]:
    """Whether data are names of files rather than texts.

    A list of strings is texts for a language model, unless all of them look like file names. Texts
    that do, such as host names, are given as `([…],)`.
    """
    if isinstance(data, str | Path):
        return True
    if not isinstance(data, list | tuple):
        return False
    if any(isinstance(part, Path) for part in data):
        return True
    if not all(isinstance(part, str) for part in data):
        return False
    return task != "generate" or all(map(_looks_like_file, data))


def _looks_like_file(text: str) -> bool:
    if text.startswith(HUB_PREFIX) or FILE_NAME.fullmatch(text):
        return True
    return 0 < len(text) <= MAX_NAME and "\n" not in text and Path(text).exists()


def encode_texts(data: Data, task: str, name: str) -> bytes:
    """Lists of texts as the content of a JSON lines file; `name` is what errors call them."""
    labels = COLUMNS[task]
    columns = [_as_list(data, name)] if len(labels) == 1 else _two_columns(data, labels, name)
    if len(columns) == 1 and len(columns[0]) == 1 and not isinstance(columns[0][0], str):
        columns = [_as_list(columns[0][0], name)]  # ([…],), a list that is certainly texts
    sizes = [len(column) for column in columns]
    if len(set(sizes)) > 1:
        counts = " and ".join(
            f"{size:,} {label}" for size, label in zip(sizes, labels, strict=True)
        )
        todo = "The two lists belong together, item by item: give as many of one as of the other."
        raise DataError(f"there are {counts}.", where=name, todo=todo)
    if not sizes[0]:
        raise DataError("this list has no text.", where=name, todo="Give at least one text.")
    pairs = task == "classify" and _is_pair(columns[0][0])
    lines = []
    for i in range(sizes[0]):
        row: dict[str, str] = {}
        for label, column in zip(labels, columns, strict=True):
            row |= _cells(column[i], label, f"{label}[{i}]", name, pairs=pairs)
        line = json.dumps(row, ensure_ascii=False)
        if len(line) >= MAX_LINE:
            what = f"{labels[0]}[{i}] has more than {MAX_LINE:,} characters."
            raise DataError(what, where=name, todo="Split it into several texts.")
        lines.append(f"{line}\n")
    return "".join(lines).encode()


def _as_list(data: Any, name: str) -> list[Any]:
    if isinstance(data, str | bytes) or not isinstance(data, Iterable):
        what = f"there is {_shorten(data)} where a list of texts belongs."
        raise DataError(what, where=name, todo='Give a list: ["…"].')
    return list(data)


def _two_columns(data: Any, labels: Sequence[str], name: str) -> list[list[Any]]:
    """The two lists of a task: given as such, or as a list of pairs."""
    parts = _as_list(data, name)
    listed = isinstance(data, tuple) or not all(isinstance(part, tuple) for part in parts)
    if isinstance(data, list | tuple) and len(parts) == 2 and listed:
        return [_as_list(part, name) for part in parts]
    for i, part in enumerate(parts):
        if isinstance(part, str | bytes) or not hasattr(part, "__len__") or len(part) != 2:
            raise DataError(
                f"item {i} is {_shorten(part)}, which is not a pair.",
                where=name,
                todo=f"Give two lists, ({', '.join(labels)}), or a list of pairs.",
            )
    return [[part[side] for part in parts] for side in range(2)]


def _is_pair(text: Any) -> bool:
    return isinstance(text, tuple | list) and len(text) == 2


def _cells(value: Any, label: str, place: str, name: str, *, pairs: bool) -> dict[str, str]:
    """The cells of one value in a JSON line: one, or two of a text pair."""
    if label == "labels":
        return {KEYS[label]: _check_text(_as_label(value), place, name, "a string or an integer")}
    if pairs and label == "texts":
        if not _is_pair(value):
            what = f"{place} is {_shorten(value)}, and the texts before it are pairs."
            raise DataError(what, where=name, todo="Give pairs only, or single texts only.")
        return {
            key: _check_text(text, f"{place}[{side}]", name)
            for side, (key, text) in enumerate(zip(PAIR_KEYS, value, strict=True))
        }
    return {KEYS[label]: _check_text(value, place, name)}


def _as_label(value: Any) -> Any:
    """A label as a string, if it is a string or an integer, numpy's included."""
    if not isinstance(value, str) and hasattr(value, "item"):
        value = value.item()
    return str(value) if isinstance(value, int) else value


def _check_text(value: Any, place: str, name: str, kind: str = "a string") -> str:
    if not isinstance(value, str):
        what = f"{place} is {_shorten(value)}, which is not {kind}."
        raise DataError(what, where=name, todo='Use "" for a text that is missing.')
    if first_invalid_byte(value):
        what = f"{place} contains a lone surrogate, half of a character."
        raise DataError(what, where=name, todo="Decode it from its bytes again.")
    return str(value)


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"
