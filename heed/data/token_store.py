"""Token store: a tokenized corpus on disk, memory-mapped, built once and then free to open.

A store is a folder named by the hash of its text and its tokenizer. For each side of the corpus it
holds all ids end to end and the start of each example; and the labels, where there are any. Opening
one verifies the checksum of each file, and builds a damaged store again. Rows are read from disk on
demand, so ten million pairs take no more memory than ten.

With BPE dropout a store also holds several sampled segmentations of the same text. So the lengths
of each are known, and every epoch is planned in the same way.
"""

from __future__ import annotations

import json
import warnings
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

from heed import checksums
from heed.checksums import DamagedError
from heed.data.corpus import Corpus, Record
from heed.data.tokenizers.bpe_dropout import BpeDropout
from heed.data.tokenizers.special_tokens import DEFAULT_SPECIALS, SpecialTokens
from heed.data.tokenizers.tokenizer import Tokenizer
from heed.data.tokenizers.word_cache import WordCache
from heed.errors import DataError, HeedWarning, nearest
from heed.files import cache_root, publish, temporary_folder

FORMAT = 4
INFO = "store.json"
"""The file that describes a store, with the checksums of the others."""
CHUNK, DROPOUT_CHUNK = 1 << 13, 1 << 15
"""Texts tokenized at once: enough to keep every core busy, few enough to fit in memory. More with
dropout, since each word is segmented again for every chunk."""
CHUNK_CHARS = 512
"""Mean characters per text of a full chunk; a chunk of longer texts, such as documents, has
fewer."""
SEGMENTATIONS = 16
"""Segmentations that a store with dropout holds; epochs cycle through them."""


@dataclass(frozen=True)
class Side:
    """The examples of one side, as ids."""

    ids: NDArray[np.unsignedinteger[Any]]
    starts: NDArray[np.uint64]
    """Start of each example in `ids`, and the end of the last."""
    specials: SpecialTokens = DEFAULT_SPECIALS

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, row: int) -> NDArray[np.unsignedinteger[Any]]:
        return self.ids[int(self.starts[row]) : int(self.starts[row + 1])]

    def lengths(self, rows: NDArray[Any]) -> NDArray[np.int64]:
        """Tokens of each of these rows."""
        return (self.starts[rows + 1] - self.starts[rows]).astype(np.int64)

    def tokens(self, rows: NDArray[Any], first: NDArray[Any], width: int) -> NDArray[np.int64]:
        """[rows, width]: tokens of each row from `first` on; arbitrary past its end."""
        begin = self.starts[rows].astype(np.int64) + first
        places = begin[:, None] + np.arange(width)
        return np.take(self.ids, places, mode="clip").astype(np.int64)


@dataclass(frozen=True)
class Store:
    """One tokenized split."""

    folder: Path
    sides: tuple[Side, ...]
    labels: NDArray[np.int32] | None
    classes: tuple[str, ...]
    dropped: dict[str, int]
    """Records left out, by reason."""
    vocab: int
    """All ids are below this."""
    segmentations: tuple[tuple[Side, ...], ...] = ()
    """The sides again in each sampled segmentation (BPE dropout); empty without dropout."""

    def __len__(self) -> int:
        return len(self.sides[0])

    def without_segmentations(self) -> Store:
        """This store without its sampled segmentations."""
        return replace(self, segmentations=())


def open_store(
    corpus: Corpus,
    tokenizer: Tokenizer,
    *,
    classes: Sequence[str] = (),
    root: Path | None = None,
    dropout: float = 0.0,
    seed: int = 0,
) -> Store:
    """Open the store of this corpus under this tokenizer, building it if there is none yet.

    With `dropout`, the share of merges dropped, it also holds segmentations sampled with `seed`.
    """
    dropout_seed = (dropout, seed) if dropout else None
    name = store_key(corpus, tokenizer, classes, dropout_seed)
    folder = (root or cache_root()) / "store" / name
    if folder.exists():
        try:
            return _open(folder)
        except (DamagedError, OSError) as error:
            warnings.warn(f"the cached token ids are built again: {error}", HeedWarning, 2)
            _delete(folder)
    _build(folder, corpus, tokenizer, list(classes), dropout_seed)
    return _open(folder)


DropoutSeed = tuple[float, int]
"""Dropout and seed."""


def store_key(
    corpus: Corpus,
    tokenizer: Tokenizer,
    classes: Sequence[str],
    dropout_seed: DropoutSeed | None = None,
) -> str:
    """Name of a store: a hash of all that its content depends on."""
    content: list[Any] = [FORMAT, *corpus.identity(), tokenizer.fingerprint(), list(classes)]
    content += [] if dropout_seed is None else [SEGMENTATIONS, *dropout_seed]
    return blake2b(json.dumps(content).encode(), digest_size=16).hexdigest()


def _open(folder: Path) -> Store:
    """Open a store after verifying its files: damaged ones would be read as other text."""
    todo = "Delete this folder."
    info = checksums.read_json(folder / INFO, todo=todo)
    for name, checksum in info["files"].items():
        if checksums.hash_file(folder / name) != checksum:
            raise checksums.damage(str(folder / name), todo)
    return _map_files(folder, info)


def _delete(folder: Path) -> None:
    """Delete a damaged store. It is renamed first: another process may build it at this time."""
    with temporary_folder(folder) as draft:
        folder.rename(draft / folder.name)


def _map_files(folder: Path, info: dict[str, Any]) -> Store:

    def sides(segmentation: int | None) -> tuple[Side, ...]:
        paths = [folder / _file_stem(i, segmentation) for i in range(info["sides"])]
        return tuple(
            Side(
                _map_array(path.with_suffix(".ids"), info["dtype"]),
                _map_array(path.with_suffix(".starts"), "uint64"),
                SpecialTokens(**info.get("specials", {})),
            )
            for path in paths
        )

    labels = _map_array(folder / "labels", "int32") if info["classes"] else None
    described = (tuple(info["classes"]), info["dropped"], info["vocab"])
    segmentations = tuple(
        sides(segmentation) for segmentation in range(info.get("segmentations", 0))
    )
    return Store(folder, sides(None), labels, *described, segmentations)


def _file_stem(side: int, segmentation: int | None) -> str:
    """File name, without suffix, of one side in one segmentation."""
    return f"{side}" if segmentation is None else f"{side}-{segmentation}"


def _map_array(path: Path, dtype: str) -> NDArray[Any]:
    if path.stat().st_size == 0:
        return np.empty(0, dtype)
    return np.asarray(np.memmap(path, dtype, mode="r"))


def _build(
    folder: Path,
    corpus: Corpus,
    tokenizer: Tokenizer,
    classes: list[str],
    dropout_seed: DropoutSeed | None,
) -> None:
    """Write to a folder beside, then rename: a store is complete or absent."""
    with temporary_folder(folder) as draft:
        _write(draft, corpus, tokenizer, classes, dropout_seed)
        corpus.check_unchanged()  # or the store would hold other text than its name says
        try:
            publish(draft, folder)
        except OSError:  # another process was faster, and its store is the same
            if not (folder / INFO).exists():
                raise


def _write(
    draft: Path,
    corpus: Corpus,
    tokenizer: Tokenizer,
    classes: list[str],
    dropout_seed: DropoutSeed | None,
) -> None:
    dtype = np.dtype(np.uint16 if tokenizer.vocab_size <= 2**16 else np.uint32)
    dropped: Counter[str] = Counter()
    sides = 2 if corpus.task == "translate" else 1
    class_indices = {name: i for i, name in enumerate(classes)}
    with ExitStack() as files:
        writers = [
            files.enter_context(_SideWriter(draft, i, dtype, tokenizer, dropout_seed))
            for i in range(sides)
        ]
        labels = files.enter_context((draft / "labels").open("wb"))
        pool = files.enter_context(ThreadPoolExecutor(sides))
        for chunk in _chunks(
            corpus.usable_records(dropped), DROPOUT_CHUNK if dropout_seed else CHUNK
        ):
            rows = [[_side_texts(record, i, sides) for record in chunk] for i in range(sides)]
            list(pool.map(_SideWriter.add, writers, rows))
            if classes:
                indices = [class_index(record, class_indices) for record in chunk]
                labels.write(np.array(indices, np.int32).tobytes())
    info = {"sides": sides, "dtype": dtype.name, "classes": classes, "dropped": dict(dropped)}
    info |= {"vocab": tokenizer.vocab_size, "segmentations": SEGMENTATIONS if dropout_seed else 0}
    info["specials"] = asdict(tokenizer.specials)
    info["files"] = {path.name: checksums.hash_file(path) for path in sorted(draft.iterdir())}
    checksums.write_json(draft / INFO, info)


def _side_texts(record: Record, side: int, sides: int) -> tuple[str, ...]:
    """The texts of one side of a record; all of them where there is a single side."""
    return record.texts[side : side + 1] if sides == 2 else record.texts


def join_pair(parts: Sequence[list[int]], specials: SpecialTokens = DEFAULT_SPECIALS) -> list[int]:
    """Join the ids of a text or text pair to classify into one row, with EOS between the two."""
    first, *others = parts
    return list(chain(first, *([specials.eos, *other] for other in others)))


def class_index(record: Record, indices: Mapping[str, int]) -> int:
    """Index of a record's class; an unknown label is an error."""
    label = record.label or ""
    if label not in indices:
        known = list(indices)
        raise DataError(
            f"label {label!r} is not one of {', '.join(known)}.{nearest(label, known)}",
            where=str(record.place),
            todo="Correct the label, or train on a file that has it.",
        )
    return indices[label]


def _chunks(records: Iterable[Record], size: int) -> Iterator[list[Record]]:
    chunk: list[Record] = []
    chars = 0
    for record in records:
        chunk.append(record)
        chars += sum(map(len, record.texts))
        if len(chunk) == size or chars >= size * CHUNK_CHARS:
            yield chunk
            chunk, chars = [], 0
    if chunk:
        yield chunk


class _SideWriter:
    """Writer of one side: the plain segmentation and, with dropout, the sampled ones."""

    def __init__(
        self,
        folder: Path,
        side: int,
        dtype: np.dtype[Any],
        tokenizer: Tokenizer,
        dropout_seed: DropoutSeed | None,
    ) -> None:
        self.encoder, self.side, self.chunks = WordCache(tokenizer), side, 0
        separator = tokenizer.specials.eos
        self.plain = _RowWriter(folder / _file_stem(side, None), dtype, separator)
        self.segmentations: list[_RowWriter] = []
        if dropout_seed is not None:
            dropout, self.seed = dropout_seed
            self.bpe_dropout = BpeDropout(tokenizer, dropout)
            paths = [
                folder / _file_stem(side, segmentation) for segmentation in range(SEGMENTATIONS)
            ]
            self.segmentations = [_RowWriter(path, dtype, separator) for path in paths]

    def add(self, rows: list[tuple[str, ...]]) -> None:
        """Append rows of one or more texts each."""
        texts, parts = list(chain.from_iterable(rows)), np.array([len(row) for row in rows])
        ids = self.encoder.encode_batch(texts)
        lengths = np.array([len(text) for text in ids], np.int64)
        self.plain.add(
            np.fromiter(chain.from_iterable(ids), np.int64, lengths.sum()), lengths, parts
        )
        if self.segmentations:
            random = np.random.Generator(np.random.PCG64([self.seed, self.side, self.chunks]))
            sampled = self.bpe_dropout.segmentations(texts, len(self.segmentations), random)
            for writer, (token_ids, sizes) in zip(self.segmentations, sampled, strict=True):
                writer.add(token_ids, sizes, parts)
        self.chunks += 1

    def __enter__(self) -> _SideWriter:
        return self

    def __exit__(self, *exception: object) -> None:
        for writer in (self.plain, *self.segmentations):
            writer.close()


class _RowWriter:
    """Writer of the ids and starts of rows."""

    def __init__(self, path: Path, dtype: np.dtype[Any], separator: int) -> None:
        self.dtype, self.separator, self.end = dtype, separator, 0
        self.ids: BinaryIO = path.with_suffix(".ids").open("wb")
        self.starts: BinaryIO = path.with_suffix(".starts").open("wb")
        self.starts.write(np.zeros(1, np.uint64).tobytes())

    def add(self, ids: NDArray[Any], lengths: NDArray[Any], parts: NDArray[np.int64]) -> None:
        """Append texts as ids end to end; `parts` is the number of texts per row, joined by EOS."""
        last = np.cumsum(parts) - 1
        if len(parts) < len(lengths):
            inner = np.setdiff1d(np.arange(len(lengths)), last)
            ids = np.insert(ids, np.cumsum(lengths)[inner], self.separator)
            lengths[inner] += 1
        self.starts.write((self.end + np.cumsum(lengths)[last]).astype(np.uint64).tobytes())
        self.ids.write(ids.astype(self.dtype).tobytes())
        self.end += len(ids)

    def close(self) -> None:
        """Close both files."""
        self.ids.close()
        self.starts.close()
