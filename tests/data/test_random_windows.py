"""Random windows are spans of one stream, the same for a seed and an epoch, all over it."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heed.data.batching.batch import Batch
from heed.data.batching.random_windows import RandomWindows
from heed.data.corpus import open_corpus
from heed.data.token_store import Side, Store, open_store
from heed.data.tokenizers.special_tokens import BOS, EOS
from heed.data.tokenizers.tokenizer import Tokenizer
from heed.errors import DataError

WORDS = [f"w{i}" for i in range(20)]


def store_of(folder: Path, lengths: list[int]) -> Store:
    """A store of texts of so many words."""
    random = np.random.default_rng(len(lengths))
    lines = [" ".join(random.choice(WORDS, length)) for length in lengths]
    (folder / "a.txt").write_text("\n".join(lines))
    corpus = open_corpus([folder / "a.txt"], task="generate")
    return open_store(corpus, Tokenizer.train(WORDS, kind="word"), root=folder / "cache")


def stream(store: Store, rows: list[int]) -> tuple[list[int], list[int]]:
    """All that is read and all that is said, text after text."""
    texts = [store.sides[0][row].tolist() for row in rows]
    read = [token for text in texts for token in [BOS, *text]]
    return read, [token for text in texts for token in [*text, EOS]]


def same(a: Batch, b: Batch) -> bool:
    there = b.tensors()
    return all(bool((tensor == there[name]).all()) for name, tensor in a.tensors().items())


@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=8),
    size=st.integers(1, 40),
    batch=st.integers(1, 4),
    epoch=st.integers(0, 3),
    some=st.booleans(),
)
def test_windows_are_spans_of_the_stream(
    lengths: list[int], size: int, batch: int, epoch: int, some: bool
) -> None:
    with TemporaryDirectory() as folder:
        store = store_of(Path(folder), lengths)
        rows = list(range(0, len(store), 2 if some else 1))
        chosen = np.array(rows, np.uint32) if some else None
        blocks = RandomWindows(store, max_length=size, batch_size=batch, seed=5, rows=chosen)
        read, said = stream(store, rows)
        [shape], plan = blocks.shapes(), blocks.plan(epoch)
        assert len(plan) == -(-len(read) // (size * batch))
        for number in range(len(plan)):
            made = blocks.batch(plan, number)
            assert (
                tuple(made.ids.shape) == (shape.batch_size, shape.length) == (batch, shape.length)
            )
            assert made.count == made.ids.numel()
            for start, own, targets in zip(plan.items(number), made.ids, made.targets, strict=True):
                stop = int(start) + min(size, len(read))
                assert own.tolist() == read[int(start) : stop]
                assert targets.tolist() == said[int(start) : stop]


def test_seed_and_epoch_are_all_that_counts(tmp_path: Path) -> None:
    store = store_of(tmp_path, [20] * 10)

    def made(seed: int, epoch: int) -> Batch:
        blocks = RandomWindows(store, max_length=8, batch_size=4, seed=seed)
        return blocks.batch(blocks.plan(epoch), 2)

    assert same(made(1, 0), made(1, 0))
    assert not same(made(1, 0), made(2, 0))
    assert not same(made(1, 0), made(1, 1))


def test_blocks_begin_everywhere(tmp_path: Path) -> None:
    blocks = RandomWindows(store_of(tmp_path, [12, 7]), max_length=5, batch_size=2)
    starts = [start for epoch in range(200) for start in blocks.plan(epoch).order.tolist()]
    assert set(starts) == set(range(12 + 7 + 2 - 5 + 1))


# ------------------------------------------------------------------- a stream's own dev set


@given(
    count=st.integers(2, 60), share=st.floats(0.01, 0.99), unit=st.sampled_from(["line", "file"])
)
def test_parted_lines_are_all_the_lines(count: int, share: float, unit: str) -> None:
    """The first lines and the rest are the whole, neither is empty, and each has its own hash."""
    with TemporaryDirectory() as folder:
        lines = [f"line {i}" for i in range(count)]
        path = Path(folder) / "a.txt"
        path.write_text("\n".join(lines))
        corpus = open_corpus([path], task="generate", unit=unit)
        first, last = corpus.split_by_share(share)
        parts = [[record.texts[0] for record in part] for part in (first, last)]
        assert all(parts)
        assert "\n".join(text for part in parts for text in part).split("\n") == lines
        assert list(first.remainder()) == list(last)
        assert len({one.fingerprint() for one in (corpus, first, last)}) == 3
        assert next(iter(last)).place.line == 1 + len("\n".join(parts[0]).split("\n"))


def test_a_single_line_cannot_be_parted(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("alone")
    corpus = open_corpus([tmp_path / "a.txt"], task="generate", unit="file")
    with pytest.raises(DataError, match="a single line"):
        list(corpus.split_by_share(0.95)[0])


def test_a_stream_may_be_longer_than_32_bits_can_count() -> None:
    ends = np.array([0, 3 << 30, 6 << 30], np.uint64)
    store = Store(Path(), (Side(np.full(10, 7, np.uint16), ends),), None, (), {}, vocab=8)
    plan = RandomWindows(store, max_length=1 << 20, batch_size=1).plan(0)
    assert plan.order.max() > 1 << 32
    assert plan.order.max() < 6 << 30
