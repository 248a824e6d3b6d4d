"""Batches hold every example once, with little padding, in an order set by seed, epoch and
number."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from heed.config import ModelConfig
from heed.data.batching.batch import IGNORE_INDEX, Batch, pad_rows
from heed.data.batching.bucketed import BucketedBatches
from heed.data.batching.packing import PackedBatches
from heed.data.corpus import open_corpus
from heed.data.token_store import Store, open_store
from heed.data.tokenizers.special_tokens import BOS, EOS, MASK, PAD
from heed.data.tokenizers.tokenizer import Tokenizer
from heed.models import build
from heed.train.objective import loss

WORDS = [f"w{i}" for i in range(30)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A parallel corpus, a labeled one and a plain one of the same random lines."""
    folder = tmp_path_factory.mktemp("corpus")
    random = np.random.default_rng(0)
    lines = [" ".join(random.choice(WORDS, random.integers(1, 40))) for _ in range(200)]
    other = [" ".join(random.choice(WORDS, random.integers(1, 40))) for _ in range(200)]
    (folder / "train.en").write_text("\n".join(lines))
    (folder / "train.fr").write_text("\n".join(other))
    labeled = [f"{'ab'[i % 2]}\t{line}" for i, line in enumerate(lines)]
    (folder / "train.tsv").write_text("\n".join(labeled))
    return folder


def store_of(folder: Path, task: str) -> Store:
    names = {"translate": ["train.en", "train.fr"], "classify": ["train.tsv"]}
    paths = [folder / name for name in names.get(task, ["train.en"])]
    corpus = open_corpus(paths, task=task)
    texts = [text for record in corpus.usable_records() for text in record.texts]
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
    batches = BucketedBatches(store, task, max_length=64, batch_tokens=tokens, batch_size=texts)
    for plan in (batches.plan(0), batches.plan(1), batches.plan_in_order()):
        rows = [row for i in range(len(plan)) for row in batches.batch(plan, i).rows]
        assert sorted(rows) == list(range(200))
    assert list(batches.plan_in_order().order) == list(range(200))


@pytest.mark.parametrize("task", TASKS)
def test_the_order_is_a_function_of_seed_and_epoch(folder: Path, task: str) -> None:
    store = store_of(folder, task)
    one, same, other = (
        BucketedBatches(store, task, max_length=64, batch_tokens=256, seed=seed)
        for seed in (1, 1, 2)
    )
    assert np.array_equal(one.plan(3).order, same.plan(3).order)
    assert not np.array_equal(one.plan(3).order, one.plan(4).order)
    assert not np.array_equal(one.plan(3).order, other.plan(3).order)


@pytest.mark.parametrize("task", TASKS)
@given(limit=st.integers(1, 70), tokens=st.integers(1, 2000), epoch=st.integers(0, 3))
def test_every_batch_has_one_of_the_shapes(
    folder: Path, task: str, limit: int, tokens: int, epoch: int
) -> None:
    batches = BucketedBatches(store_of(folder, task), task, max_length=limit, batch_tokens=tokens)
    plan, smaller = batches.plan(epoch), 0
    full = {(shape.length, shape.source_length): shape.batch_size for shape in batches.shapes()}
    assert len(full) == len(batches.shapes())
    used = set()
    for i in range(len(plan)):
        batch = batches.batch(plan, i)
        lengths = batch.ids.shape[1], None if batch.source is None else batch.source.shape[1]
        used.add(lengths)
        smaller += len(batch.ids) < full[lengths]
        assert len(batch.ids) == 1 or len(batch.ids) * max(filter(None, lengths)) <= tokens
    assert used == set(full)
    assert smaller <= 1


def plain(store: Store, task: str, row: int, start: int, limit: int) -> list[list[int]]:
    """What a row of a batch holds, one token after another: read, said, and the source."""
    text = store.sides[-1][row].tolist()
    if task == "classify":
        assert store.labels is not None
        read = [BOS, *text[: max(0, limit - 2)], EOS][:limit]
        return [read, [int(store.labels[row])]]
    said = [*text, EOS][start : start + limit]
    read = [text[start - 1] if start else BOS, *said[:-1]]
    return [read, said, [*store.sides[0][row].tolist(), EOS][:limit]]


@pytest.mark.parametrize("task", TASKS)
@given(limit=st.integers(1, 50), size=st.integers(1, 60), epoch=st.integers(-1, 3))
def test_a_batch_is_what_a_plain_loop_makes(
    folder: Path, task: str, limit: int, size: int, epoch: int
) -> None:
    store = store_of(folder, task)
    batches = BucketedBatches(store, task, max_length=limit, batch_size=size)
    plan = batches.plan_in_order() if epoch < 0 else batches.plan(epoch)
    for number in (0, len(plan) - 1):
        batch, places = batches.batch(plan, number), plan.items(number)
        starts = [0] * len(places) if batches.starts is None else batches.starts[places].tolist()
        targets = 0
        for i, (row, start) in enumerate(zip(batch.rows, starts, strict=True)):
            read, said, *source = plain(store, task, row, start, limit)
            targets += len(said)
            blank = batch.ids.shape[1] - len(read)
            assert batch.ids[i].tolist() == read + [PAD] * blank
            assert batch.mask[i].tolist() == [True] * len(read) + [False] * blank
            assert batch.targets[i].flatten().tolist() == said + [IGNORE_INDEX] * (
                0 if task == "classify" else blank
            )
            if task == "translate":
                assert batch.source is not None
                assert batch.source_mask is not None
                blank = batch.source.shape[1] - len(source[0])
                assert batch.source[i].tolist() == source[0] + [PAD] * blank
                assert batch.source_mask[i].tolist() == [True] * len(source[0]) + [False] * blank
        assert batch.count == targets
        assert batch.ids.dtype == batch.targets.dtype == torch.int64


@pytest.mark.parametrize("task", [*TASKS, "packed"])
def test_blank_rows_change_neither_loss_nor_gradient(folder: Path, task: str) -> None:
    packed, task = task == "packed", "generate" if task == "packed" else task
    store = store_of(folder, task)
    batches: BucketedBatches | PackedBatches
    if packed:
        batches = PackedBatches(store, max_length=24, batch_size=3)
    else:
        batches = BucketedBatches(store, task, max_length=48, batch_size=3)
    batch = batches.batch(batches.plan(0), 0)
    torch.manual_seed(0)
    config = ModelConfig(layers=1, heads=2, width=16, dropout=0.0)
    model = build(task, config, vocab=store.vocab, classes=2 if task == "classify" else None)

    def learnt(batch: Batch) -> list[torch.Tensor]:
        model.zero_grad()
        part = loss(model, batch)
        part.total.backward()
        gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        return [part.total.detach(), part.correct, *gradients]

    whole = pad_rows(batch, 5)
    assert len(whole.ids) == 5
    assert (whole.count, whole.rows) == (batch.count, batch.rows)
    for one, other in zip(learnt(batch), learnt(whole), strict=True):
        torch.testing.assert_close(one, other)
    assert torch.equal(pad_rows(batch, 3).ids, batch.ids)


def test_translation_reads_what_was_said_before(folder: Path) -> None:
    store = store_of(folder, "translate")
    batch = BucketedBatches(store, "translate", max_length=64, batch_size=5).batch(
        BucketedBatches(store, "translate", max_length=64, batch_size=5).plan_in_order(), 0
    )
    assert batch.source is not None
    assert batch.source_mask is not None
    for i, row in enumerate(batch.rows):
        said = batch.targets[i][batch.targets[i] != IGNORE_INDEX].tolist()
        read = batch.ids[i][batch.mask[i]].tolist()
        assert said == [*store.sides[1][row].tolist(), EOS]
        assert read == [BOS, *said[:-1]]
        source = batch.source[i][batch.source_mask[i]].tolist()
        assert source == [*store.sides[0][row].tolist(), EOS]
    assert batch.count == int((batch.targets != IGNORE_INDEX).sum())


@given(limit=st.integers(1, 50))
def test_windows_ask_for_every_token_once(folder: Path, limit: int) -> None:
    store = store_of(folder, "generate")
    batches = BucketedBatches(store, "generate", max_length=limit, batch_size=9)
    plan, predicted = batches.plan_in_order(), []
    for i in range(len(plan)):
        batch = batches.batch(plan, i)
        assert batch.ids.shape[1] <= max(limit, 1)
        for row, read, said in zip(batch.rows, batch.ids, batch.targets, strict=True):
            real = said[said != IGNORE_INDEX].tolist()
            predicted += [(row, token) for token in real]
            assert read[1 : len(real)].tolist() == real[:-1]
    wanted = [(row, token) for row in range(200) for token in [*store.sides[0][row].tolist(), EOS]]
    assert predicted == wanted


def test_long_texts_are_cut_and_counted(folder: Path) -> None:
    store = store_of(folder, "translate")
    longest = np.maximum(*(side.lengths(np.arange(len(store))) for side in store.sides)) + 1
    batches = BucketedBatches(store, "translate", max_length=10, batch_size=200)
    assert batches.truncated == int((longest > 10).sum()) > 0
    batch = batches.batch(batches.plan_in_order(), 0)
    assert batch.ids.shape[1] == 10


@given(limit=st.integers(1, 50))
def test_masked_windows_hold_every_token(folder: Path, limit: int) -> None:
    store = store_of(folder, "generate")
    batches = BucketedBatches(store, "generate", max_length=limit, batch_size=9, mask_share=0.2)
    plan = batches.plan(0)
    made = [batches.batch(plan, i) for i in range(len(plan))]
    texts, tokens = len(store), len(store.sides[0].ids)
    assert sum(int(batch.mask.sum()) for batch in made) == tokens + 2 * texts
    for batch in made:
        ids = torch.where(batch.targets == IGNORE_INDEX, batch.ids, batch.targets)
        specials = (ids == BOS) | (ids == EOS)
        predicted, words = batch.targets != IGNORE_INDEX, batch.mask & ~specials
        assert not (predicted & ~words).any()
        assert torch.equal(predicted.any(dim=1), words.any(dim=1))


def test_masked_tokens_are_the_ones_predicted(folder: Path) -> None:
    store = store_of(folder, "generate")
    batches = BucketedBatches(store, "generate", max_length=64, batch_size=200, mask_share=0.3)
    plan = batches.plan_in_order()
    batch, again = batches.batch(plan, 0), batches.batch(plan, 0)
    assert torch.equal(batch.ids, again.ids)
    predicted = batch.targets != IGNORE_INDEX
    assert bool(predicted.any(dim=1).all())
    untouched = ~predicted & batch.mask
    for i, row in enumerate(batch.rows):
        text = torch.tensor([BOS, *store.sides[0][row].tolist(), EOS])
        kept = untouched[i][: len(text)]
        assert torch.equal(batch.ids[i][: len(text)][kept], text[kept])
        assert torch.equal(batch.targets[i][: len(text)][~kept], text[~kept])
        assert not predicted[i][len(text) :].any()
    share = predicted.sum() / batch.mask.sum()
    assert 0.25 < share < 0.4
    hidden = (batch.ids[predicted] == MASK).float().mean()
    assert 0.7 < hidden < 0.9
