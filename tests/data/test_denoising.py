"""Pairs to denoise: chosen in turn, with bounded noise, the output unchanged."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from heed.config import Recipe
from heed.data.batching import denoising
from heed.data.batching.batch import IGNORE_INDEX, Batch
from heed.data.batching.bucketed import BucketedBatches
from heed.data.batching.denoising import add_noise
from heed.data.batching.directions import Directions
from heed.data.corpus import open_corpus
from heed.data.token_store import SEGMENTATIONS, Store, open_store
from heed.data.tokenizers.special_tokens import BOS, EOS, MASK, PAD
from heed.data.tokenizers.tokenizer import Tokenizer
from heed.errors import ConfigError
from heed.train.prepare.setup import validate_recipe

WORDS = [f"w{i}" for i in range(30)]
TEXTS = 120


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(seed))


def distinct(sizes: list[int], length: int) -> Batch:
    """Sources of so many different tokens each, and an end."""
    source = torch.full((len(sizes), length), PAD)
    for row, size in zip(source, sizes, strict=True):
        row[:size] = torch.arange(10, 10 + size)
        row[size] = EOS
    real = source != PAD
    return Batch(source, source, real, torch.arange(length)[None], 1, (), None, source, real)


def read(batch: Batch) -> list[list[int]]:
    assert batch.source is not None
    assert batch.source_mask is not None
    assert (batch.source[~batch.source_mask] == PAD).all()
    return [row[real].tolist() for row, real in zip(batch.source, batch.source_mask, strict=True)]


SIZES = st.lists(st.integers(1, 30), min_size=1, max_size=8)


@given(SIZES, st.integers(0, 99))
def test_noisy_tokens_are_of_the_text_and_near_their_place(sizes: list[int], seed: int) -> None:
    batch = distinct(sizes, 34)
    found = read(add_noise(batch, generator(seed)))
    for size, row in zip(sizes, found, strict=True):
        assert row[-1] == EOS
        assert 1 <= len(row) - 1 <= size
        kept = [token for token in row[:-1] if token != MASK]
        assert len({*kept}) == len(kept)
        assert {*kept} <= {*range(10, 10 + size)}
        # A token is at most MAX_SHIFT places later than before, and no earlier than the dropped
        # tokens allow.
        for place, token in enumerate(row[:-1]):
            if token != MASK:
                gone = size - (len(row) - 1)
                assert -denoising.MAX_SHIFT - gone <= place - (token - 10) <= denoising.MAX_SHIFT
    assert read(batch) == read(distinct(sizes, 34))


@given(SIZES, st.integers(0, 99))
def test_no_token_moves_far(sizes: list[int], seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(denoising, "DROP_SHARE", 0.0)
        patch.setattr(denoising, "MASK_SHARE", 0.0)
        found = read(add_noise(distinct(sizes, 34), generator(seed)))
    for size, row in zip(sizes, found, strict=True):
        assert sorted(row[:-1]) == list(range(10, 10 + size))
        assert all(
            abs(token - 10 - place) <= denoising.MAX_SHIFT for place, token in enumerate(row[:-1])
        )


def test_shares_dropped_and_masked_are_as_given() -> None:
    found = read(add_noise(distinct([30] * 2000, 34), generator()))
    left = np.array([len(row) - 1 for row in found])
    masked = np.array([row.count(MASK) for row in found])
    assert 1 - left.mean() / 30 == pytest.approx(denoising.DROP_SHARE, abs=0.01)
    assert masked.sum() / left.sum() == pytest.approx(denoising.MASK_SHARE, abs=0.01)
    moved = [row[:-1] != sorted(row[:-1]) for row in found]
    assert np.mean(moved) > 0.9


@given(
    texts=st.integers(1, 50),
    share=st.floats(0.01, 1.0),
    both=st.booleans(),
    epoch=st.integers(0, 40),
)
def test_each_pair_has_its_turn(texts: int, share: float, both: bool, epoch: int) -> None:
    directions = Directions(texts, bidirectional=both, denoise=share)
    found: Counter[int] = Counter()
    epochs = -(-texts // directions.denoised)
    for each_epoch in range(epoch, epoch + epochs):
        way, text = directions.locate(slice(0, len(directions)), each_epoch)
        for number, one in enumerate(directions.entries):
            own = text[way == number].tolist()
            assert len({*own}) == len(own) == (directions.denoised if one.is_denoising else texts)
            if one.is_denoising and one.output_side == 1:
                found.update(own)
    assert {*found} == {*range(texts)}
    assert len(directions.entries) == (4 if both else 2)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    folder, random = tmp_path_factory.mktemp("pairs"), np.random.default_rng(0)
    for name in ("a.en", "a.fr"):
        lines = [" ".join(random.choice(WORDS, random.integers(1, 40))) for _ in range(TEXTS)]
        (folder / name).write_text("\n".join(lines))
    corpus = open_corpus([folder / "a.en", folder / "a.fr"], task="translate")
    return open_store(corpus, Tokenizer.train(WORDS, kind="word"), root=folder / "cache")


def batches_of(
    store: Store, *, bidirectional: bool = False, denoise: float = 0.25, seed: int = 0
) -> BucketedBatches:
    return BucketedBatches(
        store,
        "translate",
        max_length=64,
        batch_tokens=500,
        bidirectional=bidirectional,
        denoise=denoise,
        seed=seed,
    )


def rows(
    batches: BucketedBatches, epoch: int
) -> list[tuple[int, int, tuple[int, ...], tuple[int, ...]]]:
    """Of every row of an epoch: its text, what it begins with, what is read, what is said."""
    plan, found = batches.plan(epoch), []
    for number in range(len(plan)):
        batch = batches.batch(plan, number)
        for i, source in enumerate(read(batch)):
            said = batch.targets[i][batch.targets[i] != IGNORE_INDEX].tolist()
            found.append((batch.rows[i], int(batch.ids[i, 0]), tuple(source), tuple(said)))
    return found


@pytest.mark.parametrize("both", [False, True])
def test_an_epoch_has_all_translations_and_some_to_denoise(store: Store, both: bool) -> None:
    batches = batches_of(store, bidirectional=both)
    shapes = {(shape.length, shape.source_length) for shape in batches.shapes()}
    counts = set()
    for epoch in (0, 1, SEGMENTATIONS + 1):
        plan = batches.plan(epoch)
        counts.add(len(plan))
        made = [batches.batch(plan, number) for number in range(len(plan))]
        assert {(b.ids.shape[1], b.source.shape[1]) for b in made if b.source is not None} <= shapes
        plain = Counter(rows(batches_of(store, bidirectional=both, denoise=0.0), epoch))
        extra = Counter(rows(batches, epoch)) - plain
        assert extra.total() == len(batches.directions) - plain.total() == 30 * (1 + both)
        for row, first, source, said in extra:
            side = store.sides[1 if first == BOS else 0]
            assert said == (*side[row].tolist(), EOS)
            assert {*source} <= {*said, MASK}
            assert len(source) <= len(said)
        assert {first for _, first, _, _ in extra} == ({BOS, EOS} if both else {BOS})
    assert len(counts) == 1


def test_noise_hangs_on_seed_epoch_and_number(store: Store) -> None:
    assert rows(batches_of(store), 2) == rows(batches_of(store), 2)
    # After all turns the same texts come again, with other noise.
    one, other = (Counter(rows(batches_of(store), epoch)) for epoch in (2, 2 + SEGMENTATIONS))
    assert {row[0] for row in one} == {row[0] for row in other}
    assert one != other
    assert rows(batches_of(store, seed=1), 2) != rows(batches_of(store), 2)


def test_in_order_nothing_is_denoised(store: Store) -> None:
    batches, plain = batches_of(store, bidirectional=True), batches_of(store, denoise=0.0)
    assert len(batches.plan_in_order()) == len(plain.plan_in_order())
    for number in range(len(plain.plan_in_order())):
        one, other = (b.batch(b.plan_in_order(), number) for b in (batches, plain))
        assert read(one) == read(other)
        assert one.rows == other.rows


@pytest.mark.parametrize("task", ["classify", "generate"])
def test_only_a_translation_has_two_sides(task: str) -> None:
    tables = {"task": task, "data": {"synthetic": 9, "denoise": 0.5}}
    with pytest.raises(ConfigError, match="denoise is for task 'translate'"):
        validate_recipe(Recipe.of(tables))
