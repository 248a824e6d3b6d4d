"""Which records are the same: duplicates, contradictions, and overlap between splits.

Two records are the same when their texts are, each without the white space around it; case,
accents and inner spaces count. The pair is compared for two texts; the label never is, unless
said. What is kept of a record is a digest of 8 bytes (BLAKE2b), so ten million records cost
80 MB, and three times that while sorting. Two different ones among them are taken for the same
with a chance of about 3 in a million.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from heed.data.corpus.records import Record

Digests = npt.NDArray[np.uint64]
Indices = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


def digest(texts: Sequence[str]) -> int:
    """A number of 64 bits that stands for these texts."""
    normal = "\0".join([text.strip() for text in texts])
    return int.from_bytes(blake2b(normal.encode("utf-8", "replace"), digest_size=8).digest())


def as_digests(numbers: array[int]) -> Digests:
    """An array of type "Q" as numpy sees it, without a copy."""
    return np.frombuffer(numbers, dtype=np.uint64) if numbers else np.empty(0, np.uint64)


def repeats(digests: Digests) -> Indices:
    """Where a record stands that has stood before, in order."""
    order = np.argsort(digests, kind="stable")
    same = digests[order[1:]] == digests[order[:-1]]
    return np.sort(order[1:][same]).astype(np.int64)


def contradictions(texts: Digests, labelled: Digests) -> Indices:
    """Where a text stands that has more than one label, every time it stands there."""
    order = np.lexsort((labelled, texts))
    text, both = texts[order], labelled[order]
    differs = (text[1:] == text[:-1]) & (both[1:] != both[:-1])
    return np.flatnonzero(known(text[1:][differs], texts)).astype(np.int64)


def known(train: Digests, other: Digests) -> Flags:
    """For each record of `other`, whether `train` has it."""
    if not len(train):
        return np.zeros(len(other), dtype=np.bool_)
    ordered = np.sort(train)
    nearest = np.minimum(np.searchsorted(ordered, other), len(ordered) - 1)
    found: Flags = ordered[nearest] == other
    return found


def overlap(
    train: Iterable[Record], other: Iterable[Record], *, source_only: bool = False
) -> list[bool]:
    """For each record of `other`, whether its texts are also in `train`.

    `source_only` compares the first text alone. Both are read once; `train` costs 8 bytes a
    record. Scores on the records that are False are the clean part.
    """

    def digests(records: Iterable[Record]) -> Digests:
        last = 1 if source_only else None
        return as_digests(array("Q", (digest(record.texts[:last]) for record in records)))

    return [bool(flag) for flag in known(digests(train), digests(other))]
