"""Item counts of an evaluation: what every metric is computed from, for each test item, no text.

They are kept in the run folder as `evaluations/SET.tsv.gz`, so that runs can be compared by any
metric without their models. The first line is `# ` and a JSON object (task, hash of the texts,
metric signatures); then follow the names of the columns and one row per item:

    translate   bleu.* (10 integers: lengths, matching and total n-grams of order 1 to 4),
                chrf.* (18: hypothesis, reference and matching n-grams of order 1 to 6), ter.* (2)
    classify    label, predicted (class indices), log_probability (of the label)
    generate    loss (sum, natural logarithm), tokens, words, bytes, correct
    all         in_train: 1 if the text also occurs in train, 0 if not, -1 if that is unknown;
                group: the number of its talk or document, where groups are known;
                text.*: its words and tokens, and how rare its words are in train
"""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heed.arrays import Floats, Ints
from heed.errors import RunError
from heed.files import read_regular, write_atomic

FORMAT = 1
MAX_DIGITS = 15
"""Digits of an integer that a float64 holds exactly."""
MAX_BYTES = 1 << 28
"""Bytes of a decompressed file: about a million sentences."""
FOLDER = "evaluations"
SUFFIX = ".tsv.gz"
IN_TRAIN, GROUP = "in_train", "group"
SAME_KEYS = ("task", "set_name", "text_hash", "classes", "unit", "checkpoint", "settings")
"""Item counts with equal values here are of the same text and the same model."""
TEXT, BLOCK = "text", "block"
"""What an item is: a text, or a block of consecutive tokens where there are few texts."""


@dataclass(frozen=True)
class ItemCounts:
    """The counts of every item of one evaluation, by column, and what they belong to."""

    task: str
    set_name: str
    text_hash: str
    """Of the sources and references, so that runs are compared on the same text only."""
    columns: dict[str, Floats]
    signatures: dict[str, str] = field(default_factory=dict)
    """How each metric is computed: two scores with different signatures do not compare."""
    classes: tuple[str, ...] = ()
    unit: str = TEXT
    checkpoint: dict[str, Any] | None = None
    """The weights that were scored: their step, and how they were chosen."""
    settings: dict[str, Any] = field(default_factory=dict)
    """How answers were made: the decoding of a translator, the window of a language model."""

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    @property
    def groups(self) -> Ints | None:
        """The number of each item's group (talk, document); None where groups are not known."""
        return self.columns[GROUP].astype(np.int64) if GROUP in self.columns else None

    @property
    def clean_rows(self) -> NDArray[np.bool_] | None:
        """Items that do not occur in train; None where that is unknown."""
        in_train = self.columns[IN_TRAIN]
        return None if (in_train < 0).any() else in_train == 0


def hash_texts(texts: Sequence[Sequence[str]]) -> str:
    """A hash of the texts of all items: sources, references and labels, in order."""
    digest = sha256()
    for item in texts:
        digest.update(json.dumps(list(item)).encode())
        digest.update(b"\n")
    return digest.hexdigest()[:32]


def item_path(folder: Path, set_name: str) -> Path:
    """The file of a set's item counts in a run folder."""
    return folder / FOLDER / f"{set_name}{SUFFIX}"


def write_items(folder: Path, items: ItemCounts) -> None:
    """Write the item counts of one evaluation into the run folder.

    Columns that an earlier evaluation of the same text and model had, and this one has not, stay.
    """
    path = item_path(folder, items.set_name)
    path.parent.mkdir(exist_ok=True)
    with suppress(RunError):  # damaged: written anew
        if (old := read_items(folder, items.set_name)) is not None:
            items = merge_items(old, items)
    write_atomic(path, encode_items(items))


def merge_items(old: ItemCounts, new: ItemCounts) -> ItemCounts:
    """Both with all columns, if text and model are the same; else the new item counts."""
    if any(getattr(old, key) != getattr(new, key) for key in SAME_KEYS) or len(old) != len(new):
        return new
    columns = {**old.columns, **new.columns}
    return replace(new, columns=columns, signatures={**old.signatures, **new.signatures})


def encode_items(items: ItemCounts) -> bytes:
    """The content of the file; the same items always give the same bytes."""
    info = {key: value for key, value in asdict(items).items() if key != "columns"}
    lines = [f"# {json.dumps({'format': FORMAT, **info})}"]
    lines.append("\t".join(items.columns))
    cells = [[_format(value) for value in values.tolist()] for values in items.columns.values()]
    lines += ["\t".join(row) for row in zip(*cells, strict=True)]
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", compresslevel=9, mtime=0) as file:
        file.write(("\n".join(lines) + "\n").encode())
    return buffer.getvalue()


def read_items(folder: Path, set_name: str) -> ItemCounts | None:
    """The item counts of a set, or None where the run has none."""
    path = item_path(folder, set_name)
    return decode_items(read_regular(path), str(path)) if path.is_file() else None


def decode_items(data: bytes, where: str) -> ItemCounts:
    """Item counts from the content of their file; damage is an error, found by gzip's checksum."""
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise ValueError("too large")
        head, header, body = content.split(b"\n", 2)
        info = json.loads(head.removeprefix(b"# "))
        if info.pop("format") != FORMAT:
            raise ValueError("another format")
        names = header.decode().split("\t")
        table = parse_numbers(body).reshape(-1, len(names))
        columns = dict(zip(names, table.T, strict=True))
        info["classes"] = tuple(info["classes"])
        return ItemCounts(columns=columns, **info)
    except (OSError, EOFError, ValueError, KeyError, TypeError, zlib.error) as error:
        raise RunError(
            "the item counts of this evaluation cannot be read.",
            where=where,
            todo="Move this file away, and evaluate again.",
        ) from error


def parse_numbers(body: bytes) -> Floats:
    """The numbers of a text, separated by single tabs and line feeds, the last one ended by one.

    Integers, nearly all numbers of a file, are added up digit by digit, all at once.
    """
    characters = np.frombuffer(body, dtype=np.uint8)
    ends = np.flatnonzero(characters <= ord("\n"))
    starts = np.concatenate([[0], ends[:-1] + 1])
    is_digit = (characters >= ord("0")) & (characters <= ord("9"))
    lengths = ends - starts
    digits = int(lengths.max(initial=0))
    if len(ends) + int(is_digit.sum()) < len(body) or digits > MAX_DIGITS:
        return np.fromstring(body.decode(), dtype=np.float64, sep=" ")
    if lengths.min(initial=1) < 1:
        raise ValueError("a cell is empty")
    numbers = np.zeros(len(ends), dtype=np.int64)
    for place in range(digits):
        rows = np.flatnonzero(lengths > place)
        numbers[rows] += (characters[ends[rows] - 1 - place] - ord("0")).astype(
            np.int64
        ) * 10**place
    return numbers.astype(np.float64)


def set_names(folder: Path) -> list[str]:
    """The sets whose item counts a run has."""
    names = [path.name.removesuffix(SUFFIX) for path in (folder / FOLDER).glob(f"*{SUFFIX}")]
    return sorted(name for name in names if not name.startswith("."))


def in_train_column(seen: Sequence[bool] | None, items: int) -> Floats:
    """The column `in_train` from what is known of each text."""
    if seen is None:
        return np.full(items, -1.0)
    return np.array(seen, dtype=np.float64)


def to_columns(rows: Mapping[str, Sequence[float] | NDArray[Any]]) -> dict[str, Floats]:
    """Columns as arrays."""
    return {name: np.asarray(values, dtype=np.float64) for name, values in rows.items()}


def _format(value: float) -> str:
    """An integer as such, another number with 9 digits."""
    return str(int(value)) if value == int(value) else f"{value:.9g}"
