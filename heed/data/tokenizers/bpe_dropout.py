"""BPE dropout (Provilkov et al. 2020): the same word, cut into pieces in many ways.

BPE joins the best pair of a word's pieces, again and again. With dropout each pair is left out of
every such round with some probability, and the best of the others is joined; a word is done when
none is left. A model that meets a word in many cuts learns what its parts mean, and how to spell.

A word is here what no merge reaches across: letters or digits or signs, with the space before
them. Each different word of some texts is cut in a few ways, all words at once, one merge a round;
then every place in the running text takes one of the ways of its word.

Shapes: u different words, v ways, c cells (the pieces of all ways end to end, a wall after each
way), r merges, t places in running text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heed.data.tokenizers.tokenizer import Tokenizer
from heed.data.tokenizers.word_cache import words_of
from heed.errors import DataError

Ints = NDArray[np.signedinteger[Any]]
WAYS = 32
"""Cuts of a word that is met again and again; of a rare one, no more than it has places."""
CELLS = 1 << 17
"""Cells worked on at once: what a cache holds."""
LONGEST, BYTES = 256, 12
"""Bytes of a word that is cut as one: the work is quadratic, and a longer word is none. And how
many bytes a character may have at most, once it is folded: three of four bytes."""
ROOM = 64
"""Slots of the table of merges, for each of them: so nearly all are found at once."""
ODD = np.uint64(0x9E3779B97F4A7C15)
"""Multiplies a key so that its upper bits look like chance (Knuth 1973, Fibonacci hashing)."""
CELL_BITS = 32
SPACE, WALL = "\u0120", "\0"
"""How a space is written as a byte, and the wall, which is none."""


class Merges:
    """Which pairs of pieces are joined, which of them first (its rank), and into what.

    A table by hash: a search takes twice as long, and a square of all pieces does not fit.
    """

    def __init__(self, vocabulary: Mapping[str, int], merges: Sequence[Sequence[str]]) -> None:
        self.wall, self.none = len(vocabulary), len(merges)
        """A piece that nothing is joined with; the rank of a pair that is not joined."""
        pairs = [(vocabulary[a], vocabulary[b]) for a, b in merges]
        self.whole_r = np.array([vocabulary[a + b] for a, b in merges], np.int64)
        pairs_r2 = np.array(pairs, np.int64).reshape(-1, 2)
        self._keys_r = np.append(self._key(pairs_r2[:, 0], pairs_r2[:, 1]), -1)
        bits = (ROOM * len(merges)).bit_length()
        self._shift, self._depth = np.uint64(64 - bits), 1
        self._slots = np.full((1 << bits) + len(merges), self.none)
        for rank, first in enumerate(self._slot(self._keys_r[:-1]).tolist()):
            slot = first
            while self._slots[slot] != self.none:
                slot += 1
            self._slots[slot] = rank
            self._depth = max(self._depth, slot - first + 1)

    def rank(self, left: Ints, right: Ints) -> Ints:
        """The ranks of these pairs."""
        key = self._key(left, right)
        slot, found = self._slot(key), np.full(len(key), self.none)
        for step in range(self._depth):
            rank = self._slots[slot + step]
            np.copyto(found, rank, where=self._keys_r[rank] == key)
        return found

    def _key(self, left: Ints, right: Ints) -> Ints:
        return left * (self.wall + 1) + right

    def _slot(self, key: Ints) -> Ints:
        return ((key.astype(np.uint64) * ODD) >> self._shift).astype(np.int64)


class Cutter:
    """Cuts texts at random, by a generator's draws alone."""

    def __init__(self, tokenizer: Tokenizer, share: float) -> None:
        """`share` of all pairs is left out of each round: 0 cuts as always, 1 into bytes."""
        if tokenizer.kind != "bpe":
            raise DataError(
                f"there are no merges to drop: this tokenizer's kind is {tokenizer.kind!r}.",
                where="tokenizer.dropout",
                todo="Use tokenizer.kind = 'bpe', or no dropout.",
            )
        model = json.loads(tokenizer.core.to_str())["model"]
        self.share, self._core, self._lowercase = share, tokenizer.core, tokenizer.lowercase
        self._merges = Merges(model["vocab"], model["merges"])
        # Bytes are written as characters here.
        bytes_ = {ord(name): number for name, number in model["vocab"].items() if len(name) == 1}
        self._cell_of = np.full(max(bytes_) + 1, self._merges.wall)
        self._cell_of[list(bytes_)] = list(bytes_.values())

    def draws(
        self, texts: Sequence[str], count: int, random: np.random.Generator
    ) -> Iterator[tuple[Ints, Ints]]:
        """`count` times these texts: their ids end to end, and how many each text has."""
        names, word_t, sizes = self._words(texts)
        times_u = np.bincount(word_t, minlength=len(names))
        ways_u = np.minimum(times_u * count, WAYS)
        # What is looked up for every place is kept small: it has to come from far.
        most = sum(len(name) * times for name, times in zip(names, times_u.tolist(), strict=True))
        dtype = np.int32 if most < 2**31 else np.int64
        pieces, start_v, size_v = (x.astype(dtype) for x in self._cut(names, ways_u, random))
        first_t = (np.cumsum(ways_u) - ways_u).astype(dtype)[word_t]
        ways_t = ways_u.astype(np.float32)[word_t]
        ends = np.append(0, np.cumsum(sizes))
        for _ in range(count):
            chance_t = random.random(len(word_t), np.float32)
            way_t = first_t + (chance_t * ways_t).astype(dtype)
            size_t = size_v[way_t]
            lengths = np.diff(np.append(0, np.cumsum(size_t))[ends])
            yield pieces[spans(start_v[way_t], size_t)], lengths

    def _words(self, texts: Sequence[str]) -> tuple[list[str], Ints, Ints]:
        """The different words, which of them stands at each place, and how many a text has."""
        cut = [words_of(text) for text in texts]  # at spaces: a stretch may be several words
        stretches = {name: i for i, name in enumerate(dict.fromkeys(chain.from_iterable(cut)))}
        numbers: dict[str, int] = {}
        inside = [
            [numbers.setdefault(word, len(numbers)) for word in self._inside(stretch)]
            for stretch in stretches
        ]
        many = np.array([len(words) for words in inside], np.int64)
        words = np.fromiter(chain.from_iterable(inside), np.int64, many.sum())
        running = map(stretches.__getitem__, chain.from_iterable(cut))
        stretch_t = np.fromiter(running, np.int64)
        word_t = words[spans((np.cumsum(many) - many)[stretch_t], many[stretch_t])]
        so_far = np.append(0, np.cumsum(many[stretch_t]))
        ends = np.cumsum([0, *map(len, cut)])
        return list(numbers), word_t, np.diff(so_far[ends])

    def _inside(self, stretch: str) -> list[str]:
        """The words of a stretch, bytes written as characters; of one too long, its pieces."""
        short = len(stretch) * BYTES < LONGEST
        if short and stretch.isascii() and stretch.isalpha():  # most are: letters spell themselves
            return [SPACE + (stretch.lower() if self._lowercase else stretch)]
        folded = self._core.normalizer.normalize_str(stretch)
        words = [word for word, _ in self._core.pre_tokenizer.pre_tokenize_str(folded)]
        if short:
            return words
        cut = self._core.model.tokenize
        several = (
            [word] if len(word) < LONGEST else [p.value for p in cut(word)] for word in words
        )
        return list(chain.from_iterable(several))

    def _cut(
        self, names: list[str], ways_u: Ints, random: np.random.Generator
    ) -> tuple[Ints, Ints, Ints]:
        """So many ways of each word: all pieces, where those of each way begin, how many."""
        size_u = np.array([len(name) + 1 for name in names], np.int64)
        characters = "".join(f"{name}{WALL}" for name in names).encode("utf-32-le")
        cells = self._cell_of[np.frombuffer(characters, np.uint32)]
        start_u = np.cumsum(size_u) - size_u
        block_u = np.cumsum(size_u * ways_u) // CELLS
        found: list[tuple[Ints, Ints, Ints]] = []
        end = 0
        for some in np.split(np.arange(len(size_u)), np.flatnonzero(np.diff(block_u)) + 1):
            way = np.repeat(some, ways_u[some])
            ids = cells[spans(start_u[way], size_u[way])]
            pieces, starts, sizes = join(ids, size_u[way], self._merges, self.share, random)
            found.append((pieces, starts + end, sizes))
            end += len(pieces)
        pieces, starts, sizes = (np.concatenate(part) for part in zip(*found, strict=True))
        return pieces, starts, sizes


def join(
    ids_c: Ints, sizes_v: Ints, merges: Merges, share: float, random: np.random.Generator
) -> tuple[Ints, Ints, Ints]:
    """Join pieces of each word until none is left to join: one merge a word and round.

    A word is so many cells, the last a wall. `ids_c` is changed. Returns the pieces of all words,
    the earliest done first, and for each word where its own begin and how many they are.
    """
    starts, counts = np.empty_like(sizes_v), np.empty_like(sizes_v)
    word_v, done, end = np.arange(len(sizes_v)), list[Ints](), 0
    rank_c = merges.rank(ids_c, np.roll(ids_c, -1))
    while len(word_v):
        left_out_c = random.random(len(ids_c), np.float32) < share
        # Rank over cell: the least is a word's best pair, of equal ones the first.
        best_c = np.where(left_out_c, merges.none, rank_c) << CELL_BITS
        best_c += np.arange(len(ids_c))
        best_v = np.minimum.reduceat(best_c, np.cumsum(sizes_v) - sizes_v)
        joins_v = best_v >> CELL_BITS < merges.none
        going_c = np.repeat(joins_v, sizes_v)
        # Words that are done go to the others, without their walls.
        pieces, sizes = ids_c[~going_c], sizes_v[~joins_v] - 1
        done.append(pieces[pieces != merges.wall])
        starts[word_v[~joins_v]], counts[word_v[~joins_v]] = end + np.cumsum(sizes) - sizes, sizes
        end += len(done[-1])
        # A joined pair stands in its left cell, and has new neighbours.
        best = best_v[joins_v]
        cell, whole = best & ((1 << CELL_BITS) - 1), merges.whole_r[best >> CELL_BITS]
        ids_c[cell] = whole
        rank_c[cell] = merges.rank(whole, ids_c[cell + 2])
        rank_c[cell - 1] = merges.rank(ids_c[cell - 1], whole)
        going_c[cell + 1] = False
        ids_c, rank_c = ids_c[going_c], rank_c[going_c]
        word_v, sizes_v = word_v[joins_v], sizes_v[joins_v] - 1
    return np.concatenate(done) if done else ids_c, starts, counts


def spans(starts: Ints, sizes: Ints) -> NDArray[Any]:
    """The numbers start, start + 1, … of each span, so many of each, end to end."""
    ends = np.cumsum(sizes, dtype=starts.dtype)
    total = ends[-1] if len(ends) else 0
    return np.repeat(starts - ends + sizes, sizes) + np.arange(total, dtype=starts.dtype)
