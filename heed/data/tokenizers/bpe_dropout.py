"""BPE dropout (Provilkov et al. 2020): several sampled segmentations of the same word.

BPE merges the best pair of a word's subwords, again and again. With dropout, each pair is left out
of every round with some probability and the best of the others is merged; a word is finished when
no pair is left. A model trained on many segmentations of a word learns what its subwords mean and
which characters they have.

A word is here what no merge crosses: letters or digits or punctuation, with the space before them.
Each distinct word of some texts is segmented in a few ways, all words at once, one merge per round.
Then every occurrence of the word takes one of its segmentations at random.

Segmentations are sampled when the token store is built (`heed.data.token_store`). Epoch e reads
segmentation e modulo their number (`heed.data.batching.bucketed`).

Shapes: u distinct words, s segmented words, c cells (the tokens of all segmented words end to end,
a boundary after each), r merges, t word occurrences.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heed.data.tokenizers.tokenizer import Tokenizer
from heed.data.tokenizers.word_cache import split_words
from heed.errors import DataError

Ints = NDArray[np.signedinteger[Any]]
MAX_SEGMENTATIONS = 32
"""Segmentations of a frequent word; a rare one has no more than its occurrences."""
CELLS = 1 << 17
"""Cells processed at once: what fits in the CPU cache."""
MAX_WORD_BYTES, BYTES_PER_CHAR = 256, 12
"""Longest word, in bytes, that is segmented as one: the work is quadratic, and longer ones are not
words. And the most bytes per character after normalization: three of four bytes."""
SLOTS_PER_MERGE = 64
"""Hash table slots per merge: so many that nearly all are found at the first probe."""
HASH_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
"""Multiplies a key so that its upper bits look random (Knuth 1973, Fibonacci hashing)."""
CELL_BITS = 32
SPACE, BOUNDARY = "\u0120", "\0"
"""The byte symbol of a space, and the word boundary, which is no byte symbol."""


class MergeTable:
    """Which pairs of tokens are merged, in which order (their rank), and into which token.

    A hash table: binary search takes twice as long, and a matrix over all pairs does not fit in
    memory.
    """

    def __init__(self, vocabulary: Mapping[str, int], merges: Sequence[Sequence[str]]) -> None:
        self.boundary, self.none = len(vocabulary), len(merges)
        """The boundary, which nothing merges with; the rank of a pair that has no merge."""
        pairs = [(vocabulary[a], vocabulary[b]) for a, b in merges]
        self.merged_r = np.array([vocabulary[a + b] for a, b in merges], np.int64)
        pairs_r2 = np.array(pairs, np.int64).reshape(-1, 2)
        self._keys_r = np.append(self._key(pairs_r2[:, 0], pairs_r2[:, 1]), -1)
        bits = (SLOTS_PER_MERGE * len(merges)).bit_length()
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
        slot, ranks = self._slot(key), np.full(len(key), self.none)
        for step in range(self._depth):
            rank = self._slots[slot + step]
            np.copyto(ranks, rank, where=self._keys_r[rank] == key)
        return ranks

    def _key(self, left: Ints, right: Ints) -> Ints:
        return left * (self.boundary + 1) + right

    def _slot(self, key: Ints) -> Ints:
        return ((key.astype(np.uint64) * HASH_MULTIPLIER) >> self._shift).astype(np.int64)


class BpeDropout:
    """Sampler of segmentations; all randomness comes from the generator it is given."""

    def __init__(self, tokenizer: Tokenizer, share: float) -> None:
        """`share` of all pairs is dropped in each round: 0 gives plain BPE, 1 single bytes."""
        if tokenizer.kind != "bpe":
            raise DataError(
                f"BPE dropout needs merges, but this tokenizer's kind is {tokenizer.kind!r}.",
                where="tokenizer.dropout",
                todo="Set tokenizer.kind = 'bpe', or leave dropout out.",
            )
        model = json.loads(tokenizer.core.to_str())["model"]
        self.share, self._core, self._lowercase = share, tokenizer.core, tokenizer.lowercase
        self._merges = MergeTable(model["vocab"], model["merges"])
        # The vocabulary writes each byte as one character.
        byte_ids = {
            ord(symbol): number for symbol, number in model["vocab"].items() if len(symbol) == 1
        }
        self._cell_of = np.full(max(byte_ids) + 1, self._merges.boundary)
        self._cell_of[list(byte_ids)] = list(byte_ids.values())

    def segmentations(
        self, texts: Sequence[str], count: int, random: np.random.Generator
    ) -> Iterator[tuple[Ints, Ints]]:
        """`count` segmentations of these texts: ids end to end, and the tokens of each text."""
        words, word_t, sizes = self._distinct_words(texts)
        times_u = np.bincount(word_t, minlength=len(words))
        segmentations_u = np.minimum(times_u * count, MAX_SEGMENTATIONS)
        # Narrow integers: these arrays are gathered at every place, which is memory-bound.
        most = sum(len(word) * times for word, times in zip(words, times_u.tolist(), strict=True))
        dtype = np.int32 if most < 2**31 else np.int64
        segmented = self._segment_words(words, segmentations_u, random)
        tokens, start_s, size_s = (x.astype(dtype) for x in segmented)
        first_t = (np.cumsum(segmentations_u) - segmentations_u).astype(dtype)[word_t]
        segmentations_t = segmentations_u.astype(np.float32)[word_t]
        ends = np.append(0, np.cumsum(sizes))
        for _ in range(count):
            chance_t = random.random(len(word_t), np.float32)
            segmentation_t = first_t + (chance_t * segmentations_t).astype(dtype)
            size_t = size_s[segmentation_t]
            lengths = np.diff(np.append(0, np.cumsum(size_t))[ends])
            yield tokens[span_indices(start_s[segmentation_t], size_t)], lengths

    def _distinct_words(self, texts: Sequence[str]) -> tuple[list[str], Ints, Ints]:
        """The distinct words, the word at each occurrence, and the number of words of each text."""
        # Split at spaces: a chunk may still be several words.
        chunks_of_text = [split_words(text) for text in texts]
        distinct = dict.fromkeys(chain.from_iterable(chunks_of_text))
        chunks = {chunk: i for i, chunk in enumerate(distinct)}
        numbers: dict[str, int] = {}
        words_of_chunk = [
            [numbers.setdefault(word, len(numbers)) for word in self._pre_tokenize(chunk)]
            for chunk in chunks
        ]
        word_counts = np.array([len(word_ids) for word_ids in words_of_chunk], np.int64)
        word_ids = np.fromiter(chain.from_iterable(words_of_chunk), np.int64, word_counts.sum())
        chunk_ids = map(chunks.__getitem__, chain.from_iterable(chunks_of_text))
        chunk_t = np.fromiter(chunk_ids, np.int64)
        first_word = np.cumsum(word_counts) - word_counts
        word_t = word_ids[span_indices(first_word[chunk_t], word_counts[chunk_t])]
        words_before = np.append(0, np.cumsum(word_counts[chunk_t]))
        ends = np.cumsum([0, *map(len, chunks_of_text)])
        return list(numbers), word_t, np.diff(words_before[ends])

    def _pre_tokenize(self, chunk: str) -> list[str]:
        """The words of a chunk in byte symbols; of one too long, its subwords."""
        short = len(chunk) * BYTES_PER_CHAR < MAX_WORD_BYTES
        # The common case: ASCII letters are their own byte symbols.
        if short and chunk.isascii() and chunk.isalpha():
            return [SPACE + (chunk.lower() if self._lowercase else chunk)]
        normalized = self._core.normalizer.normalize_str(chunk)
        words = [word for word, _ in self._core.pre_tokenizer.pre_tokenize_str(normalized)]
        if short:
            return words
        tokenize = self._core.model.tokenize
        parts = (
            [word] if len(word) < MAX_WORD_BYTES else [p.value for p in tokenize(word)]
            for word in words
        )
        return list(chain.from_iterable(parts))

    def _segment_words(
        self, words: list[str], segmentations_u: Ints, random: np.random.Generator
    ) -> tuple[Ints, Ints, Ints]:
        """Segment each word as often as `segmentations_u` says: tokens, starts and lengths."""
        size_u = np.array([len(word) + 1 for word in words], np.int64)
        characters = "".join(f"{word}{BOUNDARY}" for word in words).encode("utf-32-le")
        cells = self._cell_of[np.frombuffer(characters, np.uint32)]
        start_u = np.cumsum(size_u) - size_u
        block_u = np.cumsum(size_u * segmentations_u) // CELLS
        results: list[tuple[Ints, Ints, Ints]] = []
        end = 0
        for block in np.split(np.arange(len(size_u)), np.flatnonzero(np.diff(block_u)) + 1):
            word_s = np.repeat(block, segmentations_u[block])
            ids = cells[span_indices(start_u[word_s], size_u[word_s])]
            tokens, starts, sizes = apply_merges(
                ids, size_u[word_s], self._merges, self.share, random
            )
            results.append((tokens, starts + end, sizes))
            end += len(tokens)
        tokens, starts, sizes = (np.concatenate(part) for part in zip(*results, strict=True))
        return tokens, starts, sizes


def apply_merges(
    ids_c: Ints, sizes_s: Ints, merges: MergeTable, share: float, random: np.random.Generator
) -> tuple[Ints, Ints, Ints]:
    """Merge token pairs of each word until none is left: one merge per word and round.

    A word is a number of cells, the last a boundary. `ids_c` is modified. Returns the tokens of all
    words, those finished first leading, and start and length of each word among them.
    """
    starts, counts = np.empty_like(sizes_s), np.empty_like(sizes_s)
    word_s, done, end = np.arange(len(sizes_s)), list[Ints](), 0
    rank_c = merges.rank(ids_c, np.roll(ids_c, -1))
    while len(word_s):
        dropped_c = random.random(len(ids_c), np.float32) < share
        # Rank above cell number: the minimum is a word's best pair, the first among equals.
        best_c = np.where(dropped_c, merges.none, rank_c) << CELL_BITS
        best_c += np.arange(len(ids_c))
        best_s = np.minimum.reduceat(best_c, np.cumsum(sizes_s) - sizes_s)
        merges_s = best_s >> CELL_BITS < merges.none
        active_c = np.repeat(merges_s, sizes_s)
        # Words without a merge left are finished; their boundaries are dropped.
        tokens, sizes = ids_c[~active_c], sizes_s[~merges_s] - 1
        done.append(tokens[tokens != merges.boundary])
        starts[word_s[~merges_s]], counts[word_s[~merges_s]] = end + np.cumsum(sizes) - sizes, sizes
        end += len(done[-1])
        # The merged token takes the left cell, and its pairs with both neighbors are ranked again.
        best = best_s[merges_s]
        cell, merged = best & ((1 << CELL_BITS) - 1), merges.merged_r[best >> CELL_BITS]
        ids_c[cell] = merged
        rank_c[cell] = merges.rank(merged, ids_c[cell + 2])
        rank_c[cell - 1] = merges.rank(ids_c[cell - 1], merged)
        active_c[cell + 1] = False
        ids_c, rank_c = ids_c[active_c], rank_c[active_c]
        word_s, sizes_s = word_s[merges_s], sizes_s[merges_s] - 1
    return np.concatenate(done) if done else ids_c, starts, counts


def span_indices(starts: Ints, sizes: Ints) -> NDArray[Any]:
    """The indices start, start + 1, … of each span, end to end."""
    ends = np.cumsum(sizes, dtype=starts.dtype)
    total = ends[-1] if len(ends) else 0
    return np.repeat(starts - ends + sizes, sizes) + np.arange(total, dtype=starts.dtype)
