"""A tokenized corpus on disk, mapped into memory: made once, then free to open.

A store is a folder named by the hash of its text and its tokenizer. It holds, for each side of the
corpus, all ids end to end and where each text begins; and the labels, where there are any. Opening
one reads nothing, and rows come off the disk as they are asked for, so ten million pairs cost no
more memory than ten.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from heed.data.corpus import Corpus, Record
from heed.data.tokenizer import Tokenizer
from heed.data.wordwise import Wordwise
from heed.errors import DataError, nearest

FORMAT = 1
CHUNK = 8192
"""Texts tokenized at once: enough to keep every core busy, few enough to hold."""


@dataclass(frozen=True)
class Side:
    """Texts of one side, as ids."""

    ids: NDArray[np.unsignedinteger[Any]]
    starts: NDArray[np.uint64]
    """Where text i begins; one more than there are texts."""

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, row: int) -> NDArray[np.unsignedinteger[Any]]:
        return self.ids[int(self.starts[row]) : int(self.starts[row + 1])]

    def lengths(self, rows: NDArray[Any]) -> NDArray[np.int64]:
        """How many tokens each of these texts has."""
        return (self.starts[rows + 1] - self.starts[rows]).astype(np.int64)

    def tokens(self, rows: NDArray[Any], first: NDArray[Any], width: int) -> NDArray[np.int64]:
        """[rows, width]: of each text its tokens `first` …; past its end, anything."""
        begin = self.starts[rows].astype(np.int64) + first
        places = begin[:, None] + np.arange(width)
        return np.take(self.ids, places, mode="clip").astype(np.int64)


@dataclass(frozen=True)
class Store:
    """One split, tokenized."""

    folder: Path
    sides: tuple[Side, ...]
    labels: NDArray[np.int32] | None
    classes: tuple[str, ...]
    dropped: dict[str, int]
    """Texts left out, by reason."""
    vocab: int
    """Ids are below this."""

    def __len__(self) -> int:
        return len(self.sides[0])


def cache_root() -> Path:
    """Where stores are kept: $HEED_CACHE, else the user's cache folder."""
    if "HEED_CACHE" in os.environ:
        return Path(os.environ["HEED_CACHE"])
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "heed"


def open_store(
    corpus: Corpus,
    tokenizer: Tokenizer,
    *,
    classes: Sequence[str] = (),
    root: Path | None = None,
) -> Store:
    """The store of this corpus under this tokenizer, made now if there is none yet."""
    name = store_key(corpus, tokenizer, classes)
    folder = (root or cache_root()) / "store" / name
    if not (folder / "store.json").exists():
        _build(folder, corpus, tokenizer, list(classes))
    return _open(folder)


def store_key(corpus: Corpus, tokenizer: Tokenizer, classes: Sequence[str]) -> str:
    """What a store's content hangs on, as a name."""
    facts = [FORMAT, corpus.fingerprint(), tokenizer.fingerprint(), corpus.task, list(classes)]
    facts += [corpus.unit, repr(corpus.layout), corpus.drop]
    return blake2b(json.dumps(facts).encode(), digest_size=16).hexdigest()


def _open(folder: Path) -> Store:
    facts = json.loads((folder / "store.json").read_text(encoding="utf-8"))
    sides = tuple(
        Side(_map(folder / f"{i}.ids", facts["dtype"]), _map(folder / f"{i}.starts", "uint64"))
        for i in range(facts["sides"])
    )
    labels = _map(folder / "labels", "int32") if facts["classes"] else None
    return Store(folder, sides, labels, tuple(facts["classes"]), facts["dropped"], facts["vocab"])


def _map(path: Path, dtype: str) -> NDArray[Any]:
    if path.stat().st_size == 0:
        return np.empty(0, dtype)
    return np.asarray(np.memmap(path, dtype, mode="r"))


def _build(folder: Path, corpus: Corpus, tokenizer: Tokenizer, classes: list[str]) -> None:
    """Write to a folder beside, then rename: a store is there whole or not at all."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=".draft-", dir=folder.parent))
    try:
        _write(draft, corpus, tokenizer, classes)
        try:
            draft.rename(folder)
        except OSError:  # another process was faster; what it made is the same
            if not (folder / "store.json").exists():
                raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _write(draft: Path, corpus: Corpus, tokenizer: Tokenizer, classes: list[str]) -> None:
    dtype = np.dtype(np.uint16 if tokenizer.vocab_size <= 2**16 else np.uint32)
    dropped: Counter[str] = Counter()
    sides = 2 if corpus.task == "translate" else 1
    numbers = {name: i for i, name in enumerate(classes)}
    with ExitStack() as files:
        writers = [files.enter_context(_SideWriter(draft, i, dtype)) for i in range(sides)]
        labels = files.enter_context((draft / "labels").open("wb"))
        encoder = Wordwise(tokenizer)
        for chunk in _chunks(corpus.kept(dropped)):
            for i, writer in enumerate(writers):
                writer.add(encoder.encode_batch([_side(record, i, sides) for record in chunk]))
            if classes:
                labels.write(np.array([_number(r, numbers) for r in chunk], np.int32).tobytes())
    facts = {"sides": sides, "dtype": dtype.name, "classes": classes, "dropped": dict(dropped)}
    facts["vocab"] = tokenizer.vocab_size
    (draft / "store.json").write_text(json.dumps(facts) + "\n", encoding="utf-8")


def _side(record: Record, side: int, sides: int) -> str:
    # A pair of texts to classify is one text, a line break between its parts.
    return record.texts[side] if sides == 2 else "\n".join(record.texts)


def _number(record: Record, numbers: dict[str, int]) -> int:
    label = record.label or ""
    if label not in numbers:
        known = list(numbers)
        raise DataError(
            f"label {label!r} is not one of {', '.join(known)}.{nearest(label, known)}",
            where=str(record.place),
            todo="Mend the label, or train on a file that has it.",
        )
    return numbers[label]


def _chunks(records: Iterable[Record]) -> Iterator[list[Record]]:
    records = iter(records)
    while chunk := list(islice(records, CHUNK)):
        yield chunk


class _SideWriter:
    """Ids and starts of one side, appended as they come."""

    def __init__(self, folder: Path, side: int, dtype: np.dtype[Any]) -> None:
        self.dtype, self.end = dtype, 0
        self.ids: BinaryIO = (folder / f"{side}.ids").open("wb")
        self.starts: BinaryIO = (folder / f"{side}.starts").open("wb")
        self.starts.write(np.zeros(1, np.uint64).tobytes())

    def add(self, texts: list[list[int]]) -> None:
        """Append texts."""
        ends = self.end + np.cumsum([len(text) for text in texts], dtype=np.uint64)
        self.starts.write(ends.astype(np.uint64).tobytes())
        ids = np.fromiter(chain.from_iterable(texts), self.dtype, int(ends[-1]) - self.end)
        self.ids.write(ids.tobytes())
        self.end = int(ends[-1])

    def __enter__(self) -> _SideWriter:
        return self

    def __exit__(self, *exception: object) -> None:
        self.ids.close()
        self.starts.close()
