"""BPE dropout changes segmentations, never the text, and drops the given share of merges."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heed.config import Recipe
from heed.data.batching.bucketed import BucketedBatches
from heed.data.corpus import Corpus, open_corpus
from heed.data.token_store import SEGMENTATIONS, Store, open_store
from heed.data.tokenizers import bpe_dropout
from heed.data.tokenizers.bpe_dropout import BpeDropout, MergeTable, apply_merges
from heed.data.tokenizers.tokenizer import KINDS, Tokenizer
from heed.errors import ConfigError, DataError
from heed.train.prepare.setup import validate_recipe

LINES = [
    "The old captain doesn't watch (again!) the lighthouse, 1234 times.",
    "Notre élève n'oublie pas l'été dernier : « jamais »",
    "ΟΔΟΣ ΣΑΣ 雨が降る 😀 ☂ <pad> a_b-c",
]
PIECES = st.sampled_from(["", " ", "  ", "\t", "\n", "'s", *" ".join(LINES).split()])
TEXTS = st.lists(PIECES | st.text(max_size=3)).map("".join) | st.lists(PIECES).map(" ".join)
SHARES = st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0])


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(seed))


@cache
def trained(lowercase: bool = False, size: int = 340) -> Tokenizer:
    return Tokenizer.train(LINES * 3, kind="bpe", vocab_size=size, lowercase=lowercase)


@cache
def cutter(share: float, lowercase: bool = False) -> BpeDropout:
    return BpeDropout(trained(lowercase), share)


def drawn(
    one: BpeDropout, texts: list[str], count: int = 1, seed: int = 0
) -> list[list[list[int]]]:
    """Draws as lists of ids, a text each."""
    found = []
    for ids, lengths in one.segmentations(texts, count, generator(seed)):
        assert lengths.sum() == len(ids)
        found.append([part.tolist() for part in np.split(ids, np.cumsum(lengths)[:-1])])
    return found


@given(st.lists(TEXTS, min_size=1, max_size=6), st.booleans())
@settings(max_examples=150)
def test_without_dropout_the_cut_is_the_tokenizers(texts: list[str], lowercase: bool) -> None:
    [found] = drawn(cutter(0.0, lowercase), texts)
    assert found == trained(lowercase).encode_batch(texts)


@given(st.lists(TEXTS, min_size=1, max_size=6), SHARES, st.booleans(), st.integers(0, 99))
@settings(max_examples=150)
def test_the_text_is_always_the_same(
    texts: list[str], share: float, lowercase: bool, seed: int
) -> None:
    tokenizer = trained(lowercase)
    plain = tokenizer.decode_batch(tokenizer.encode_batch(texts))
    for found in drawn(cutter(share, lowercase), texts, 3, seed):
        assert tokenizer.decode_batch(found) == plain


@given(st.lists(TEXTS, min_size=1, max_size=6))
def test_with_all_merges_dropped_every_byte_is_alone(texts: list[str]) -> None:
    [found] = drawn(cutter(1.0), texts)
    ids = [byte for text in found for byte in text]
    assert all(len(trained().core.id_to_token(byte) or "") == 1 for byte in ids)
    # Words begin with the space before them, so a text has one more byte than it is long.
    assert [len(text) for text in found] == [
        len(f" {text}".encode()) if text else 0 for text in texts
    ]


def test_words_of_any_length_are_segmented_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bpe_dropout, "MAX_WORD_BYTES", 20)
    texts = ["captain" * 40, "雨が降る" * 30, "a b", "lighthouse" * 3 + " " + "1234" * 50]
    tokenizer = trained()
    assert drawn(BpeDropout(tokenizer, 0.0), texts) == [tokenizer.encode_batch(texts)]
    [found] = drawn(BpeDropout(tokenizer, 0.3), texts)
    assert tokenizer.decode_batch(found) == texts
    assert sum(map(len, found)) > sum(map(len, tokenizer.encode_batch(texts)))


@given(SHARES, st.integers(0, 9), st.integers(0, 9))
def test_segmentations_are_a_function_of_the_generator(share: float, seed: int, other: int) -> None:
    texts = [*LINES, "once  more", ""]
    one = drawn(cutter(share), texts, 4, seed)
    assert one == drawn(cutter(share), texts, 4, seed)
    if 0.0 < share < 1.0 and seed != other:
        assert one != drawn(cutter(share), texts, 4, other)


def test_segmentations_differ_by_epoch_and_by_place() -> None:
    found = drawn(cutter(0.5), ["captain captain captain captain captain captain"], 8)
    assert len({tuple(draw[0]) for draw in found}) == 8
    words = {tuple(draw) for draw in drawn(cutter(0.5), ["captain"] * 60)[0]}
    assert 5 < len(words) <= bpe_dropout.MAX_SEGMENTATIONS


def test_blocks_are_not_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bpe_dropout, "CELLS", 50)
    one = BpeDropout(trained(), 0.0)
    for line in [*LINES, *LINES[::-1]]:
        assert drawn(one, [line, line]) == [trained().encode_batch([line, line])]


@pytest.mark.parametrize("share", [0.1, 0.5, 0.8])
def test_the_share_of_merges_dropped_is_as_given(share: float) -> None:
    """Of words that one merge makes whole, this share stays in two parts."""
    count = 40_000
    merges = MergeTable({"a": 0, "b": 1, "ab": 2}, [("a", "b")])
    ids = np.tile(np.array([0, 1, merges.boundary]), count)
    _, _, sizes = apply_merges(ids, np.full(count, 3), merges, share, generator())
    apart = float((sizes == 2).mean())
    assert apart == pytest.approx(share, abs=4 * (share * (1 - share) / count) ** 0.5)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.8])
def test_every_round_drops_anew(share: float) -> None:
    """Of three a's, either pair is joined first; what is over is not joined: merges know no aaa.

    The first pair is best unless dropped, then the second; both are dropped with share².
    """
    count = 40_000
    merges = MergeTable({"a": 0, "aa": 1}, [("a", "a")])
    ids = np.tile(np.array([0, 0, 0, merges.boundary]), count)
    merged, starts, sizes = apply_merges(ids, np.full(count, 4), merges, share, generator())
    first = merged[starts]
    chances = {
        "left": (1 - share, (sizes == 2) & (first == 1)),
        "right": (share * (1 - share), (sizes == 2) & (first == 0)),
        "none": (share**2, sizes == 3),
    }
    for chance, found in chances.values():
        assert float(found.mean()) == pytest.approx(chance, abs=4 * (0.25 / count) ** 0.5)


@given(st.integers(0, 60), st.integers(0, 99))
def test_ranks_are_found_where_they_are(count: int, seed: int) -> None:
    """Of pairs that are joined and of pairs that are not, whatever shares a slot."""
    random = np.random.default_rng(seed)
    names = [chr(97 + i) for i in range(26)]
    pairs = list({(a, b) for a, b in random.choice(names, (count, 2))})
    vocabulary = {name: i for i, name in enumerate([*names, *(a + b for a, b in pairs)])}
    merges = MergeTable(vocabulary, pairs)
    left, right = (x.ravel() for x in np.meshgrid(np.arange(27), np.arange(27)))
    known = {(vocabulary[a], vocabulary[b]): rank for rank, (a, b) in enumerate(pairs)}
    wanted = [
        known.get((a, b), len(pairs)) for a, b in zip(left.tolist(), right.tolist(), strict=True)
    ]
    assert merges.rank(left, right).tolist() == wanted


# ----------------------------------------------------------------------------------- in a store


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Corpus]:
    """Texts of many lengths, one corpus for each task."""
    folder, random = tmp_path_factory.mktemp("text"), np.random.default_rng(0)
    words = " ".join(LINES).split()
    lines = [" ".join(random.choice(words, random.integers(1, 30))) for _ in range(120)]
    for name, side in (("a.en", lines), ("a.fr", lines[::-1])):
        (folder / name).write_text("\n".join(side))
    labeled = [f"{'ab'[i % 2]}\t{line}" for i, line in enumerate(lines)]
    (folder / "a.tsv").write_text("\n".join(labeled))
    files = {"translate": ["a.en", "a.fr"], "classify": ["a.tsv"], "generate": ["a.en"]}
    return {
        task: open_corpus([folder / name for name in names], task=task)
        for task, names in files.items()
    }


def store_of(corpora: dict[str, Corpus], task: str, root: Path, **options: float | int) -> Store:
    classes = corpora[task].labels() if task == "classify" else ()
    seed = int(options.pop("seed", 0))
    return open_store(corpora[task], trained(), classes=classes, root=root, seed=seed, **options)


TASKS = ["translate", "classify", "generate"]


@pytest.mark.parametrize("task", TASKS)
def test_a_store_holds_every_text_in_every_segmentation(
    corpora: dict[str, Corpus], task: str, tmp_path: Path
) -> None:
    store = store_of(corpora, task, tmp_path, dropout=0.3)
    assert len(store.segmentations) == SEGMENTATIONS
    assert not store.without_segmentations().segmentations
    for draw in store.segmentations:
        for side, plain in zip(draw, store.sides, strict=True):
            assert len(side) == len(plain)
            for row in range(0, len(side), 7):
                texts = [side[row].tolist(), plain[row].tolist()]
                assert len({*trained().decode_batch(texts)}) == 1
    lengths = {len(side.ids) for draw in store.segmentations for side in draw}
    assert len(lengths) > SEGMENTATIONS // 2


def test_a_store_hangs_on_dropout_and_seed(corpora: dict[str, Corpus], tmp_path: Path) -> None:
    settings = [(0.0, 0), (0.1, 0), (0.1, 1), (0.2, 0)]
    stores = [store_of(corpora, "generate", tmp_path, dropout=d, seed=s) for d, s in settings]
    assert len({store.folder for store in stores}) == 4
    again = store_of(corpora, "generate", tmp_path / "elsewhere", dropout=0.1, seed=1)
    assert all(
        np.array_equal(a[0].ids, b[0].ids)
        for a, b in zip(again.segmentations, stores[2].segmentations, strict=True)
    )
    # Without dropout a seed changes nothing.
    assert store_of(corpora, "generate", tmp_path, seed=5).folder == stores[0].folder


# ------------------------------------------------------------------------------------ in batches


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("tokens", [60, 400, 5000])
def test_epochs_read_one_segmentation_after_another(
    corpora: dict[str, Corpus], task: str, tokens: int, tmp_path: Path
) -> None:
    """Each epoch holds every text once, in as many batches of the same shapes as any other."""
    store = store_of(corpora, task, tmp_path, dropout=0.3)
    batches = BucketedBatches(store, task, max_length=300, batch_tokens=tokens)
    shapes = {(shape.length, shape.source_length): shape.batch_size for shape in batches.shapes()}
    count = len(batches.plan(0))
    for epoch in (0, 1, SEGMENTATIONS - 1, SEGMENTATIONS + 1):
        plan, seen = batches.plan(epoch), list[int]()
        assert len(plan) == count
        side = store.segmentations[epoch % SEGMENTATIONS][-1]
        for number in range(count):
            batch = batches.batch(plan, number)
            lengths = batch.ids.shape[1], None if batch.source is None else batch.source.shape[1]
            assert len(batch.ids) <= shapes[lengths]
            sizes = batch.mask.sum(dim=1) - (2 if task == "classify" else 1)
            assert sizes.tolist() == [len(side[row]) for row in batch.rows]
            seen += batch.rows
        assert sorted(seen) == list(range(120))


@pytest.mark.parametrize("task", TASKS)
def test_in_order_texts_have_no_dropout(
    corpora: dict[str, Corpus], task: str, tmp_path: Path
) -> None:
    store = store_of(corpora, task, tmp_path, dropout=0.3)
    batches, plain = (
        BucketedBatches(one, task, max_length=300, batch_size=7)
        for one in (store, store.without_segmentations())
    )
    for number in range(len(plain.plan_in_order())):
        one, other = (b.batch(b.plan_in_order(), number) for b in (batches, plain))
        assert one.ids.tolist() == other.ids.tolist()


@given(limit=st.integers(2, 60), epoch=st.integers(0, 20))
def test_windows_hold_every_token_of_a_segmentation_once(
    corpora: dict[str, Corpus], tmp_path_factory: pytest.TempPathFactory, limit: int, epoch: int
) -> None:
    store = store_of(corpora, "generate", tmp_path_factory.getbasetemp(), dropout=0.3)
    batches = BucketedBatches(store, "generate", max_length=limit, batch_size=9)
    plan = batches.plan(epoch)
    made = [batches.batch(plan, number) for number in range(len(plan))]
    side = store.segmentations[epoch % SEGMENTATIONS][0]
    assert sum(batch.count for batch in made) == len(side.ids) + len(side)
    assert sum(int(batch.mask.sum()) for batch in made) == len(side.ids) + len(side)


# ----------------------------------------------------------------------------------------- rules


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "bpe"])
def test_only_bpe_has_merges_to_drop(kind: str) -> None:
    with pytest.raises(ConfigError, match="use kind = 'bpe'"):
        Recipe.of({"tokenizer": {"kind": kind, "dropout": 0.1}})
    size = 320 if kind == "unigram" else None
    with pytest.raises(DataError, match=f"kind is '{kind}'"):
        BpeDropout(Tokenizer.train(LINES, kind=kind, vocab_size=size), 0.1)


@pytest.mark.parametrize("key", [{"pack": True}, {"windows": "random"}])
def test_packed_rows_have_no_dropout(key: dict[str, object]) -> None:
    tables = {"task": "generate", "data": {"synthetic": 9, **key}, "tokenizer": {"dropout": 0.1}}
    with pytest.raises(ConfigError, match="cannot be combined"):
        validate_recipe(Recipe.of(tables))
