"""A tokenized corpus on disk, mapped into memory: made once, then free to open.

A store is a folder named by the hash of its text and its tokenizer. It holds, for each side of the
corpus, all ids end to end and where each text begins; and the labels, where there are any. Opening
one reads nothing, and rows come off the disk as they are asked for, so ten million pairs cost no
more memory than ten.

With BPE dropout a store holds the same texts again and again, each time cut into other pieces:
draws. So every draw has its lengths, and an epoch that reads one is planned like any other.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from heed.data.corpus import Corpus, Record
from heed.data.tokenizers.bpe_dropout import Cutter
from heed.data.tokenizers.special_tokens import OWN, Specials
from heed.data.tokenizers.tokenizer import Tokenizer
from heed.data.tokenizers.word_cache import Wordwise
from heed.errors import DataError, nearest
from heed.files import temporary_folder

FORMAT = 2
CHUNK, DRAWN_CHUNK = 1 << 13, 1 << 15
"""Texts tokenized at once: enough to keep every core busy, few enough to hold. With dropout more,
for each word is cut anew for every chunk."""
LETTERS = 512
"""Characters a text, on average, of a full chunk: of longer texts, documents say, it has fewer."""
DRAWS = 16
"""How often a store with dropout holds every text; then they come round again."""


@dataclass(frozen=True)
class Side:
    """Texts of one side, as ids."""

    ids: NDArray[np.unsignedinteger[Any]]
    starts: NDArray[np.uint64]
    """Where text i begins; one more than there are texts."""
    specials: Specials = OWN

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, row: int) -> NDArray[np.unsignedinteger[Any]]:
        return self.ids[int(self.starts[row]) : int(self.starts[row + 1])]

    def holds(self, texts: int) -> bool:
        """Whether all ids of so many texts are there."""
        return len(self) == texts and self.starts[-1:].tolist() == [len(self.ids)]

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
    draws: tuple[tuple[Side, ...], ...] = ()
    """The sides again, cut with dropout, as often as they are there."""

    def __len__(self) -> int:
        return len(self.sides[0])

    def plain(self) -> Store:
        """The same without draws."""
        return replace(self, draws=())


def cache_root() -> Path:
    """Where stores are kept: $HEED_CACHE, else the user's cache folder."""
    if told := os.environ.get("HEED_CACHE"):
        return Path(told)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "heed"


def open_store(
    corpus: Corpus,
    tokenizer: Tokenizer,
    *,
    classes: Sequence[str] = (),
    root: Path | None = None,
    dropout: float = 0.0,
    seed: int = 0,
) -> Store:
    """The store of this corpus under this tokenizer, made now if there is none yet.

    With `dropout`, the share of merges left out, it has draws too, which `seed` decides.
    """
    drawn = (dropout, seed) if dropout else None
    name = store_key(corpus, tokenizer, classes, drawn)
    folder = (root or cache_root()) / "store" / name
    if not (folder / "store.json").exists():
        _build(folder, corpus, tokenizer, list(classes), drawn)
    return _open(folder)


Drawn = tuple[float, int]
"""Dropout and seed."""


def store_key(
    corpus: Corpus, tokenizer: Tokenizer, classes: Sequence[str], drawn: Drawn | None = None
) -> str:
    """What a store's content hangs on, as a name."""
    facts: list[Any] = [FORMAT, *corpus.identity(), tokenizer.fingerprint(), list(classes)]
    facts += [] if drawn is None else [DRAWS, *drawn]
    return blake2b(json.dumps(facts).encode(), digest_size=16).hexdigest()


def _open(folder: Path) -> Store:
    """A store, unless something has cut its files short: ids would be read that no text has."""
    try:
        store = _mapped(folder)
        sides = chain(store.sides, *store.draws)
        whole = all(side.holds(len(store)) for side in sides)
        whole &= store.labels is None or len(store.labels) == len(store)
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        whole = False
    if not whole:
        raise DataError(
            "this store of tokenized text is damaged.",
            where=str(folder),
            todo="Delete this folder; it will be made again.",
        )
    return store


def _mapped(folder: Path) -> Store:
    facts = json.loads((folder / "store.json").read_text(encoding="utf-8"))

    def sides(draw: int | None) -> tuple[Side, ...]:
        paths = [folder / _name(i, draw) for i in range(facts["sides"])]
        return tuple(
            Side(
                _map(path.with_suffix(".ids"), facts["dtype"]),
                _map(path.with_suffix(".starts"), "uint64"),
                Specials(**facts.get("specials", {})),
            )
            for path in paths
        )

    labels = _map(folder / "labels", "int32") if facts["classes"] else None
    named = (tuple(facts["classes"]), facts["dropped"], facts["vocab"])
    draws = tuple(sides(draw) for draw in range(facts.get("draws", 0)))
    return Store(folder, sides(None), labels, *named, draws)


def _name(side: int, draw: int | None) -> str:
    """What a side's files are called."""
    return f"{side}" if draw is None else f"{side}-{draw}"


def _map(path: Path, dtype: str) -> NDArray[Any]:
    if path.stat().st_size == 0:
        return np.empty(0, dtype)
    return np.asarray(np.memmap(path, dtype, mode="r"))


def _build(
    folder: Path, corpus: Corpus, tokenizer: Tokenizer, classes: list[str], drawn: Drawn | None
) -> None:
    """Write to a folder beside, then rename: a store is there whole or not at all."""
    with temporary_folder(folder) as draft:
        _write(draft, corpus, tokenizer, classes, drawn)
        corpus.refuse_changes()  # or other text would stand under this name for good
        try:
            draft.rename(folder)
        except OSError:  # another process was faster; what it made is the same
            if not (folder / "store.json").exists():
                raise


def _write(
    draft: Path, corpus: Corpus, tokenizer: Tokenizer, classes: list[str], drawn: Drawn | None
) -> None:
    dtype = np.dtype(np.uint16 if tokenizer.vocab_size <= 2**16 else np.uint32)
    dropped: Counter[str] = Counter()
    sides = 2 if corpus.task == "translate" else 1
    numbers = {name: i for i, name in enumerate(classes)}
    with ExitStack() as files:
        writers = [
            files.enter_context(_SideWriter(draft, i, dtype, tokenizer, drawn))
            for i in range(sides)
        ]
        labels = files.enter_context((draft / "labels").open("wb"))
        pool = files.enter_context(ThreadPoolExecutor(sides))
        for chunk in _chunks(corpus.kept(dropped), DRAWN_CHUNK if drawn else CHUNK):
            several = [[_texts(record, i, sides) for record in chunk] for i in range(sides)]
            list(pool.map(_SideWriter.add, writers, several))
            if classes:
                own = [class_number(record, numbers) for record in chunk]
                labels.write(np.array(own, np.int32).tobytes())
    facts = {"sides": sides, "dtype": dtype.name, "classes": classes, "dropped": dict(dropped)}
    facts |= {"vocab": tokenizer.vocab_size, "draws": DRAWS if drawn else 0}
    facts["specials"] = asdict(tokenizer.specials)
    (draft / "store.json").write_text(json.dumps(facts) + "\n", encoding="utf-8")


def _texts(record: Record, side: int, sides: int) -> tuple[str, ...]:
    """One side of a record; where there is but one, all of its texts are in it."""
    return record.texts[side : side + 1] if sides == 2 else record.texts


def joined(parts: Sequence[list[int]], specials: Specials = OWN) -> list[int]:
    """A text to classify as one row of ids: of a pair, EOS parts the two."""
    first, *others = parts
    return list(chain(first, *([specials.eos, *other] for other in others)))


def class_number(record: Record, numbers: Mapping[str, int]) -> int:
    """The number of a text's class; a label that no class has is refused."""
    label = record.label or ""
    if label not in numbers:
        known = list(numbers)
        raise DataError(
            f"label {label!r} is not one of {', '.join(known)}.{nearest(label, known)}",
            where=str(record.place),
            todo="Mend the label, or train on a file that has it.",
        )
    return numbers[label]


def _chunks(records: Iterable[Record], size: int) -> Iterator[list[Record]]:
    chunk: list[Record] = []
    letters = 0
    for record in records:
        chunk.append(record)
        letters += sum(map(len, record.texts))
        if len(chunk) == size or letters >= size * LETTERS:
            yield chunk
            chunk, letters = [], 0
    if chunk:
        yield chunk


class _SideWriter:
    """One side's texts: as they are, and with dropout, as often as they are drawn."""

    def __init__(
        self,
        folder: Path,
        side: int,
        dtype: np.dtype[Any],
        tokenizer: Tokenizer,
        drawn: Drawn | None,
    ) -> None:
        self.encoder, self.side, self.chunks = Wordwise(tokenizer), side, 0
        between = tokenizer.specials.eos
        self.plain = _RowWriter(folder / _name(side, None), dtype, between)
        self.draws: list[_RowWriter] = []
        if drawn is not None:
            dropout, self.seed = drawn
            self.cutter = Cutter(tokenizer, dropout)
            paths = [folder / _name(side, draw) for draw in range(DRAWS)]
            self.draws = [_RowWriter(path, dtype, between) for path in paths]

    def add(self, rows: list[tuple[str, ...]]) -> None:
        """Append rows, each of one text or more."""
        texts, parts = list(chain.from_iterable(rows)), np.array([len(row) for row in rows])
        ids = self.encoder.encode_batch(texts)
        lengths = np.array([len(text) for text in ids], np.int64)
        self.plain.add(
            np.fromiter(chain.from_iterable(ids), np.int64, lengths.sum()), lengths, parts
        )
        if self.draws:
            random = np.random.Generator(np.random.PCG64([self.seed, self.side, self.chunks]))
            drawn = self.cutter.draws(texts, len(self.draws), random)
            for writer, (pieces, sizes) in zip(self.draws, drawn, strict=True):
                writer.add(pieces, sizes, parts)
        self.chunks += 1

    def __enter__(self) -> _SideWriter:
        return self

    def __exit__(self, *exception: object) -> None:
        for writer in (self.plain, *self.draws):
            writer.close()


class _RowWriter:
    """Ids and starts of rows, appended as they come."""

    def __init__(self, path: Path, dtype: np.dtype[Any], between: int) -> None:
        self.dtype, self.between, self.end = dtype, between, 0
        self.ids: BinaryIO = path.with_suffix(".ids").open("wb")
        self.starts: BinaryIO = path.with_suffix(".starts").open("wb")
        self.starts.write(np.zeros(1, np.uint64).tobytes())

    def add(self, ids: NDArray[Any], lengths: NDArray[Any], parts: NDArray[np.int64]) -> None:
        """Append texts, their ids end to end; so many `parts` are a row, EOS between two."""
        last = np.cumsum(parts) - 1
        if len(parts) < len(lengths):
            inner = np.setdiff1d(np.arange(len(lengths)), last)
            ids = np.insert(ids, np.cumsum(lengths)[inner], self.between)
            lengths[inner] += 1
        self.starts.write((self.end + np.cumsum(lengths)[last]).astype(np.uint64).tobytes())
        self.ids.write(ids.astype(self.dtype).tobytes())
        self.end += len(ids)

    def close(self) -> None:
        """Nothing more comes."""
        self.ids.close()
        self.starts.close()
