"""Buckets are few, hold every example, and leave little padding."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from heed.data.batching.length_buckets import (
    CHUNK,
    LENGTH_MULTIPLE,
    MAX_BUCKETS,
    MAX_GROWTH,
    Array,
    Buckets,
    bucket_lengths,
    chunk_slices,
)

LENGTHS = arrays.arrays(np.int64, st.integers(1, 300), elements=st.integers(1, 100))


def layout_of(sources: Array, lengths: Array, *, tokens: int, paired: bool = True) -> Buckets:
    def measure(part: slice) -> tuple[Array, Array]:
        return sources[part], lengths[part]

    return Buckets(
        measure, len(lengths), longest=100, paired=paired, size=lambda n: max(1, tokens // n)
    )


def speech(seed: int, count: int) -> tuple[Array, Array]:
    """Lengths as sentences and their translations have them."""
    random = np.random.default_rng(seed)
    lengths = np.clip(random.lognormal(3.1, 0.6, count), 2, 100)
    sources = np.clip(lengths * random.normal(0.9, 0.12, count), 2, 100)
    return sources.astype(np.int64), lengths.astype(np.int64)


@given(longest=st.integers(1, 100_000))
def test_bucket_lengths_are_close(longest: int) -> None:
    bounds = bucket_lengths(longest)
    assert bounds[-1] == longest
    assert all(length % LENGTH_MULTIPLE == 0 for length in bounds[:-1])
    steps = np.diff(bounds)
    assert bool((steps > 0).all())
    assert bool((steps <= np.maximum(LENGTH_MULTIPLE, bounds[:-1] / 4)).all())


@given(sources=LENGTHS, lengths=LENGTHS, tokens=st.integers(1, 3000), paired=st.booleans())
def test_every_example_is_once_in_a_bucket_that_holds_it(
    sources: Array, lengths: Array, tokens: int, paired: bool
) -> None:
    count = min(len(sources), len(lengths))
    sources, lengths = sources[:count] * paired, lengths[:count]
    layout = layout_of(sources, lengths, tokens=tokens, paired=paired)
    order, counts, stop = layout.shuffle(np.random.default_rng(0)), layout.counts, 0
    assert sorted(order.tolist()) == list(range(count))
    assert len(layout.shapes) <= MAX_BUCKETS
    for number, (shape, many) in enumerate(zip(layout.shapes, counts, strict=True)):
        texts, stop = order[stop : stop + many], stop + many
        assert bool((lengths[texts] <= shape.length).all())
        assert bool((sources[texts] <= (shape.source_length or 0)).all())
        assert (shape.source_length is not None) == paired
        assert many % shape.batch_size == 0 or many < shape.batch_size or number == len(counts) - 1


def test_sentences_are_padded_by_less_than_a_fifth() -> None:
    sources, lengths = speech(0, 30_000)
    layout = layout_of(sources, lengths, tokens=8192)
    full = zip(layout.shapes, layout.counts, strict=True)
    cells = sum(
        -(-n // s.batch_size) * s.batch_size * (s.length + (s.source_length or 0)) for s, n in full
    )
    assert (sources + lengths).sum() >= 0.8 * cells


def test_texts_of_one_length_have_one_shape() -> None:
    same = np.full(50, 40)
    [shape] = layout_of(same, same, tokens=100).shapes
    assert (shape.length, shape.source_length) == (40, 40)


def test_how_texts_are_ordered_does_not_change_the_shapes() -> None:
    sources, lengths = speech(1, 1000)
    order = np.random.default_rng(2).permutation(1000)
    one = layout_of(sources, lengths, tokens=500)
    assert one.shapes == layout_of(sources[order], lengths[order], tokens=500).shapes


@given(count=st.integers(0, 3 * CHUNK))
def test_chunks_cover_all(count: int) -> None:
    parts = list(chunk_slices(count))
    assert sum(part.stop - part.start for part in parts) == count
    assert all(one.stop == other.start for one, other in pairwise(parts))


@given(count=st.integers(1, 60), seed=st.integers(0, 9))
def test_a_small_corpus_is_not_all_padding(count: int, seed: int) -> None:
    sources, lengths = speech(seed, count)
    layout = layout_of(sources, lengths, tokens=10_000)
    order, stop = layout.shuffle(np.random.default_rng(0)), 0
    sizes = [(shape.source_length or 0, shape.length) for shape in layout.shapes]
    for size, many in zip(sizes, layout.counts, strict=True):
        texts, stop = order[stop : stop + many], stop + many
        for source, length in zip(sources[texts], lengths[texts], strict=True):
            own = min(sum(other) for other in sizes if source <= other[0] and length <= other[1])
            assert sum(size) <= MAX_GROWTH * own
