"""Pairs in both directions: each twice per epoch, sides swapped, marked by the first token."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heed.config import Recipe
from heed.data.batching.batch import IGNORE_INDEX, Batch
from heed.data.batching.bucketed import BucketedBatches
from heed.data.batching.directions import Directions
from heed.data.corpus import open_corpus
from heed.data.token_store import Store, open_store
from heed.data.tokenizers.special_tokens import BOS, EOS, SpecialTokens
from heed.data.tokenizers.tokenizer import Tokenizer
from heed.errors import ConfigError, DataError
from heed.train.prepare.setup import validate_recipe

WORDS = [f"w{i}" for i in range(30)]
TEXTS = 150


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    folder, random = tmp_path_factory.mktemp("pairs"), np.random.default_rng(0)
    for name in ("a.en", "a.fr"):
        lines = [" ".join(random.choice(WORDS, random.integers(1, 40))) for _ in range(TEXTS)]
        (folder / name).write_text("\n".join(lines))
    corpus = open_corpus([folder / "a.en", folder / "a.fr"], task="translate")
    return open_store(corpus, Tokenizer.train(WORDS, kind="word"), root=folder / "cache")


def pairs(batch: Batch) -> list[tuple[int, int, list[int], list[int]]]:
    """Of each row: which text, what it begins with, what is read, what is said."""
    assert batch.source is not None
    assert batch.source_mask is not None
    found = []
    for i, row in enumerate(batch.rows):
        said = batch.targets[i][batch.targets[i] != IGNORE_INDEX].tolist()
        read = batch.source[i][batch.source_mask[i]].tolist()
        shifted = batch.ids[i][batch.mask[i]].tolist()
        assert shifted[1:] == said[:-1]
        found.append((row, shifted[0], read, said))
    return found


@given(tokens=st.integers(60, 4000), epoch=st.integers(0, 3))
def test_an_epoch_has_every_pair_in_both_directions(store: Store, tokens: int, epoch: int) -> None:
    batches = BucketedBatches(
        store, "translate", max_length=64, batch_tokens=tokens, bidirectional=True
    )
    plan, shapes = (
        batches.plan(epoch),
        {(s.length, s.source_length): s.batch_size for s in batches.shapes()},
    )
    found = []
    for number in range(len(plan)):
        batch = batches.batch(plan, number)
        assert batch.source is not None
        assert len(batch.ids) <= shapes[batch.ids.shape[1], batch.source.shape[1]]
        assert batch.count == int((batch.targets != IGNORE_INDEX).sum())
        found += pairs(batch)
    source, target = ([[*side[row].tolist(), EOS] for row in range(TEXTS)] for side in store.sides)
    wanted = [(row, BOS, source[row], target[row]) for row in range(TEXTS)]
    wanted += [(row, EOS, target[row], source[row]) for row in range(TEXTS)]
    assert sorted(found) == sorted(wanted)


def test_directions_are_mixed_in_a_batch(store: Store) -> None:
    batches = BucketedBatches(store, "translate", max_length=64, batch_size=40, bidirectional=True)
    plan = batches.plan(0)
    firsts = [{first for _, first, _, _ in pairs(batches.batch(plan, i))} for i in range(len(plan))]
    assert sum(first == {BOS, EOS} for first in firsts) >= len(firsts) - 1


@pytest.mark.parametrize("rows", [None, np.array([3, 1, 77], np.uint32)])
def test_in_order_is_one_direction(
    store: Store, rows: np.ndarray[tuple[int], np.dtype[np.uint32]] | None
) -> None:
    one, both = (
        BucketedBatches(
            store, "translate", max_length=64, batch_size=20, rows=rows, bidirectional=both
        )
        for both in (False, True)
    )
    assert len(one.plan_in_order()) == len(both.plan_in_order())
    for number in range(len(one.plan_in_order())):
        plain, other = (b.batch(b.plan_in_order(), number) for b in (one, both))
        assert pairs(plain) == pairs(other)
    assert sorted(one.subset(np.array([5, 9])).plan_in_order().order) == [0, 1]


def test_some_rows_come_in_both_directions_too(store: Store) -> None:
    rows = np.array([3, 1, 77], np.uint32)
    batches = BucketedBatches(
        store, "translate", max_length=64, batch_size=2, rows=rows, bidirectional=True
    )
    plan = batches.plan(0)
    found = [pair for i in range(len(plan)) for pair in pairs(batches.batch(plan, i))]
    assert sorted((row, first) for row, first, _, _ in found) == [
        (row, first) for row in (1, 3, 77) for first in (BOS, EOS)
    ]


def test_one_token_for_begin_and_end_cannot_distinguish_languages() -> None:
    with pytest.raises(DataError, match="BOS and EOS are the same token"):
        Directions(3, SpecialTokens(bos=3, eos=3), bidirectional=True)
    assert len(Directions(3, SpecialTokens(bos=3, eos=3))) == 3


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        ({"task": "generate"}, "bidirectional is for task 'translate'"),
        ({"task": "classify"}, "bidirectional is for task 'translate'"),
        ({"model": {"tie_embeddings": False}}, "share one embedding table"),
    ],
)
def test_bidirectional_is_for_translators_with_one_embedding_table(
    tables: dict[str, object], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        validate_recipe(Recipe.of({"data": {"synthetic": 9, "bidirectional": True}, **tables}))
