"""Duplicate detection: repeated records, and overlap between splits.

Two records are the same when their texts are, without the white space around each; case, accents
and inner spaces count. For pairs both texts are compared; the label only where stated. A record is
stored as a digest of 8 bytes (BLAKE2b), sorted in place. Among ten million different records, the
chance that two have the same digest is about 3 in a million.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from itertools import islice

import numpy as np
import numpy.typing as npt

from heed.data.corpus.records import Record

Digests = npt.NDArray[np.uint64]
Indices = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
CHUNK = 1 << 16
"""Digests processed together."""


def hash_texts(texts: Sequence[str]) -> int:
    """64-bit digest of these texts."""
    normal = "\0".join([text.strip() for text in texts])
    return int.from_bytes(blake2b(normal.encode("utf-8", "replace"), digest_size=8).digest())


def as_digests(numbers: array[int]) -> Digests:
    """An array of type "Q" as a numpy array, without a copy."""
    return np.frombuffer(numbers, dtype=np.uint64) if numbers else np.empty(0, np.uint64)


def look_up(ordered: Digests, digests: Digests) -> tuple[Indices, Flags]:
    """Index of each digest among the sorted ones, and whether it is there."""
    if not len(ordered):
        return np.zeros(len(digests), np.int64), np.zeros(len(digests), np.bool_)
    places = np.minimum(np.searchsorted(ordered, digests), len(ordered) - 1)
    return places, ordered[places] == digests


def find_repeats(ordered: Digests) -> tuple[Digests, int]:
    """Of sorted digests, those that occur more than once, and the total number of repeats."""
    repeats, count = [ordered[:0]], 0
    for start in range(1, len(ordered), CHUNK):
        part = ordered[start - 1 : start + CHUNK]
        repeated = part[1:][part[1:] == part[:-1]]
        count += len(repeated)
        repeats.append(np.unique(repeated))
    return np.unique(np.concatenate(repeats)), count


class StreamingSet:
    """Membership of known digests in a stream, matched in chunks."""

    def __init__(self, wanted: Digests) -> None:
        self.wanted = np.unique(wanted)
        self.present = np.zeros(len(self.wanted), np.bool_)
        self._pending: array[int] = array("Q")

    def add(self, number: int) -> None:
        """Add one digest of the stream."""
        self._pending.append(number)
        if len(self._pending) == CHUNK:
            self._match_pending()

    def _match_pending(self) -> None:
        places, here = look_up(self.wanted, as_digests(self._pending))
        self.present[places[here]] = True
        self._pending = array("Q")

    def contains(self, digests: Digests) -> Flags:
        """Whether the stream contained each of these digests, all of which must be wanted ones."""
        self._match_pending()
        return self.present[look_up(self.wanted, digests)[0]]


def find_overlap(
    train: Iterable[Record], other: Iterable[Record], *, source_only: bool = False
) -> list[bool]:
    """For each record of `other`, whether its texts are also in `train`.

    `source_only` compares the first text alone. Both are read once, `other` first; memory does not
    grow with `train`. The records that are False form the clean part for scoring.
    """
    last = 1 if source_only else None
    wanted = as_digests(array("Q", (hash_texts(record.texts[:last]) for record in other)))
    train_set = StreamingSet(wanted)
    for record in train:
        train_set.add(hash_texts(record.texts[:last]))
    return [bool(flag) for flag in train_set.contains(wanted)]


def matching_records(records: Iterable[Record], wanted: Digests) -> Iterator[tuple[Record, int]]:
    """Records whose digest is one of those `wanted`, in order, with its index there."""
    stream = iter(records)
    while chunk := list(islice(stream, 1024)):
        digests = as_digests(array("Q", (hash_texts(record.texts) for record in chunk)))
        places, here = look_up(wanted, digests)
        for i in np.flatnonzero(here):
            yield chunk[i], int(places[i])
