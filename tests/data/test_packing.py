"""Packed rows hold every token of every sequence once, in order, with its segment."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from heed.data.batching.batch import IGNORE_INDEX
from heed.data.batching.packing import PackedBatches
from heed.data.corpus import open_corpus
from heed.data.token_store import Store, open_store
from heed.data.tokenizers.special_tokens import BOS, EOS
from heed.data.tokenizers.tokenizer import Tokenizer

WORDS = [f"w{i}" for i in range(20)]


def store_of(folder: Path, lengths: list[int]) -> Store:
    random = np.random.default_rng(len(lengths))
    lines = [" ".join(random.choice(WORDS, length)) for length in lengths]
    (folder / "a.txt").write_text("\n".join(lines))
    corpus = open_corpus([folder / "a.txt"], task="generate")
    return open_store(corpus, Tokenizer.train(WORDS, kind="word"), root=folder / "cache")


@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=12),
    size=st.integers(1, 20),
    batch=st.integers(1, 4),
    epoch=st.integers(0, 3),
)
def test_every_token_is_a_target_once(
    lengths: list[int], size: int, batch: int, epoch: int
) -> None:
    with TemporaryDirectory() as folder:
        _check(store_of(Path(folder), lengths), size, batch, epoch)


def _check(store: Store, size: int, batch: int, epoch: int) -> None:
    batches = PackedBatches(store, max_length=size, batch_size=batch, seed=3)
    plan = batches.plan(epoch)
    [shape] = batches.shapes()
    assert (shape.length, shape.source_length) == (size, None)
    assert [len(batches.batch(plan, i).ids) for i in range(len(plan) - 1)] == [shape.batch_size] * (
        len(plan) - 1
    )
    assert len(batches.batch(plan, len(plan) - 1).ids) <= shape.batch_size
    predicted: dict[int, list[tuple[int, int, int]]] = {row: [] for row in range(len(store))}
    for number in range(len(plan)):
        made = batches.batch(plan, number)
        assert made.segments is not None
        for item, read, said, segments, positions in zip(
            plan.items(number), made.ids, made.targets, made.segments, made.positions, strict=True
        ):
            for column in np.flatnonzero(segments.numpy() >= 0):
                row = made.rows[int(segments[column])]
                place = int(item) * size + int(column)
                predicted[row].append((place, int(read[column]), int(said[column])))
                new = column == 0 or segments[column] != segments[column - 1]
                assert int(positions[column]) == (0 if new else int(positions[column - 1]) + 1)
            assert bool((said[segments < 0] == IGNORE_INDEX).all())
    for row, tokens in predicted.items():
        text = store.sides[0][row].tolist()
        tokens.sort()
        assert [said for _, _, said in tokens] == [*text, EOS]
        assert [read for _, read, _ in tokens] == [BOS, *text]
