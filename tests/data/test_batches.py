"""Batches hold every text once, waste little, and depend on nothing but seed, epoch and number."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from heed.data.batches import IGNORED, LADDER, Batches, rung
from heed.data.corpus import open_corpus
from heed.data.store import Store, open_store
from heed.data.tokenizer import BOS, EOS, MASK, PAD, Tokenizer

WORDS = [f"w{i}" for i in range(30)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A parallel corpus, a labelled one and a plain one of the same random lines."""
    folder = tmp_path_factory.mktemp("corpus")
    random = np.random.default_rng(0)
    lines = [" ".join(random.choice(WORDS, random.integers(1, 40))) for _ in range(200)]
    other = [" ".join(random.choice(WORDS, random.integers(1, 40))) for _ in range(200)]
    (folder / "train.en").write_text("\n".join(lines))
    (folder / "train.fr").write_text("\n".join(other))
    labelled = [f"{'ab'[i % 2]}\t{line}" for i, line in enumerate(lines)]
    (folder / "train.tsv").write_text("\n".join(labelled))
    return folder


def store_of(folder: Path, task: str) -> Store:
    names = {"translate": ["train.en", "train.fr"], "classify": ["train.tsv"]}
    paths = [folder / name for name in names.get(task, ["train.en"])]
    corpus = open_corpus(paths, task=task)
    texts = [text for record in corpus.kept() for text in record.texts]
    tokenizer = Tokenizer.train(texts, kind="word")
    classes = corpus.labels() if task == "classify" else ()
    return open_store(corpus, tokenizer, classes=classes, root=folder / "cache")


TASKS = ["translate", "classify", "generate"]


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(("tokens", "texts"), [(256, None), (None, 7)])
def test_an_epoch_holds_every_text_once(
    folder: Path, task: str, tokens: int | None, texts: int | None
) -> None:
    store = store_of(folder, task)
    batches = Batches(store, task, max_length=64, batch_tokens=tokens, batch_size=texts)
    for plan in (batches.plan(0), batches.plan(1), batches.in_order()):
        rows = [row for i in range(len(plan)) for row in batches.batch(plan, i).rows]
        assert sorted(rows) == list(range(200))
    assert list(batches.in_order().order) == list(range(200))


@pytest.mark.parametrize("task", TASKS)
def test_the_order_is_a_function_of_seed_and_epoch(folder: Path, task: str) -> None:
    store = store_of(folder, task)
    one, same, other = (
        Batches(store, task, max_length=64, batch_tokens=256, seed=seed) for seed in (1, 1, 2)
    )
    assert np.array_equal(one.plan(3).order, same.plan(3).order)
    assert not np.array_equal(one.plan(3).order, one.plan(4).order)
    assert not np.array_equal(one.plan(3).order, other.plan(3).order)


def test_shapes_are_few_and_within_budget(folder: Path) -> None:
    batches = Batches(store_of(folder, "translate"), "translate", max_length=64, batch_tokens=256)
    plan = batches.plan(0)
    for i in range(len(plan)):
        batch = batches.batch(plan, i)
        assert batch.ids.shape[1] in LADDER
        assert batch.ids.numel() <= 256
        assert batch.source is not None
        assert batch.source.shape == batch.ids.shape


def test_translation_reads_what_was_said_before(folder: Path) -> None:
    store = store_of(folder, "translate")
    batch = Batches(store, "translate", max_length=64, batch_size=5).batch(
        Batches(store, "translate", max_length=64, batch_size=5).in_order(), 0
    )
    assert batch.source is not None
    assert batch.source_mask is not None
    for i, row in enumerate(batch.rows):
        said = batch.targets[i][batch.targets[i] != IGNORED].tolist()
        read = batch.ids[i][batch.mask[i]].tolist()
        assert said == [*store.sides[1][row].tolist(), EOS]
        assert read == [BOS, *said[:-1]]
        source = batch.source[i][batch.source_mask[i]].tolist()
        assert source == [*store.sides[0][row].tolist(), EOS]
    assert batch.count == int((batch.targets != IGNORED).sum())


@given(limit=st.integers(1, 50))
def test_windows_ask_for_every_token_once(folder: Path, limit: int) -> None:
    store = store_of(folder, "generate")
    batches = Batches(store, "generate", max_length=limit, batch_size=9)
    plan, asked = batches.in_order(), []
    for i in range(len(plan)):
        batch = batches.batch(plan, i)
        assert batch.ids.shape[1] <= max(limit, 1)
        for row, read, said in zip(batch.rows, batch.ids, batch.targets, strict=True):
            real = said[said != IGNORED].tolist()
            asked += [(row, token) for token in real]
            assert read[1 : len(real)].tolist() == real[:-1]
    wanted = [(row, token) for row in range(200) for token in [*store.sides[0][row].tolist(), EOS]]
    assert asked == wanted


def test_long_texts_are_cut_and_counted(folder: Path) -> None:
    store = store_of(folder, "translate")
    longest = np.maximum(store.sides[0].lengths(), store.sides[1].lengths()) + 1
    batches = Batches(store, "translate", max_length=10, batch_size=200)
    assert batches.cut == int((longest > 10).sum()) > 0
    batch = batches.batch(batches.in_order(), 0)
    assert batch.ids.shape[1] == 10


def test_masked_tokens_are_the_ones_asked_for(folder: Path) -> None:
    store = store_of(folder, "generate")
    batches = Batches(store, "generate", max_length=64, batch_size=200, masked=0.3)
    plan = batches.in_order()
    batch, again = batches.batch(plan, 0), batches.batch(plan, 0)
    assert torch.equal(batch.ids, again.ids)
    asked = batch.targets != IGNORED
    assert bool(asked.any(dim=1).all())
    untouched = ~asked & batch.mask
    for i, row in enumerate(batch.rows):
        text = torch.from_numpy(store.sides[0][row].astype(np.int64))
        kept = untouched[i][: len(text)]
        assert torch.equal(batch.ids[i][: len(text)][kept], text[kept])
        assert torch.equal(batch.targets[i][: len(text)][~kept], text[~kept])
    share = asked.sum() / batch.mask.sum()
    assert 0.25 < share < 0.4
    hidden = (batch.ids[asked] == MASK).float().mean()
    assert 0.7 < hidden < 0.9


@given(length=st.integers(1, 100_000))
def test_the_ladder_holds_every_length_with_little_waste(length: int) -> None:
    step = rung(length)
    assert step >= length
    assert step <= max(8, 2 * length)
    assert PAD == 0
