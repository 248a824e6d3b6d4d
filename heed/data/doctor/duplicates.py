"""Which records are the same: repeats, and overlap between splits.

Two records are the same when their texts are, each without the white space around it; case,
accents and inner spaces count. The pair is compared for two texts; the label never is, unless
said. What is kept of a record is a digest of 8 bytes (BLAKE2b), sorted where it lies. Two different
ones among ten million are taken for the same with a chance of about 3 in a million.
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
"""Digests looked at together."""


def digest(texts: Sequence[str]) -> int:
    """A number of 64 bits that stands for these texts."""
    normal = "\0".join([text.strip() for text in texts])
    return int.from_bytes(blake2b(normal.encode("utf-8", "replace"), digest_size=8).digest())


def as_digests(numbers: array[int]) -> Digests:
    """An array of type "Q" as numpy sees it, without a copy."""
    return np.frombuffer(numbers, dtype=np.uint64) if numbers else np.empty(0, np.uint64)


def places_in(ordered: Digests, digests: Digests) -> tuple[Indices, Flags]:
    """Where each digest would stand among those in order; and whether it does."""
    if not len(ordered):
        return np.zeros(len(digests), np.int64), np.zeros(len(digests), np.bool_)
    places = np.minimum(np.searchsorted(ordered, digests), len(ordered) - 1)
    return places, ordered[places] == digests


def repeated(ordered: Digests) -> tuple[Digests, int]:
    """Of digests in order, those that stand there twice or more; and how many are repeats."""
    found, count = [ordered[:0]], 0
    for start in range(1, len(ordered), CHUNK):
        part = ordered[start - 1 : start + CHUNK]
        again = part[1:][part[1:] == part[:-1]]
        count += len(again)
        found.append(np.unique(again))
    return np.unique(np.concatenate(found)), count


class StreamingSet:
    """Digests to look out for among others that pass by, a few at a time."""

    def __init__(self, wanted: Digests) -> None:
        self.wanted = np.unique(wanted)
        self.met = np.zeros(len(self.wanted), np.bool_)
        self._passing: array[int] = array("Q")

    def pass_by(self, number: int) -> None:
        """One more that passes."""
        self._passing.append(number)
        if len(self._passing) == CHUNK:
            self._look()

    def _look(self) -> None:
        places, here = places_in(self.wanted, as_digests(self._passing))
        self.met[places[here]] = True
        self._passing = array("Q")

    def seen(self, digests: Digests) -> Flags:
        """For each of these, which were all looked out for, whether it has passed."""
        self._look()
        return self.met[places_in(self.wanted, digests)[0]]


def overlap(
    train: Iterable[Record], other: Iterable[Record], *, source_only: bool = False
) -> list[bool]:
    """For each record of `other`, whether its texts are also in `train`.

    `source_only` compares the first text alone. Both are read once, `other` first; `train` may be
    as large as it likes. Scores on the records that are False are the clean part.
    """
    last = 1 if source_only else None
    wanted = as_digests(array("Q", (digest(record.texts[:last]) for record in other)))
    lookout = StreamingSet(wanted)
    for record in train:
        lookout.pass_by(digest(record.texts[:last]))
    return [bool(flag) for flag in lookout.seen(wanted)]


def among(records: Iterable[Record], wanted: Digests) -> Iterator[tuple[Record, int]]:
    """The records whose digest is one of those `wanted`, in order, with its number there."""
    stream = iter(records)
    while some := list(islice(stream, 1024)):
        numbers = as_digests(array("Q", (digest(record.texts) for record in some)))
        places, here = places_in(wanted, numbers)
        for i in np.flatnonzero(here):
            yield some[i], int(places[i])
