"""A store gives back what the tokenizer produced, is built once, and is complete or absent."""

from __future__ import annotations

from pathlib import Path

import pytest

from heed.data import token_store as stores
from heed.data.corpus import open_corpus
from heed.data.token_store import open_store
from heed.data.tokenizers.tokenizer import Tokenizer
from heed.errors import DataError, HeedWarning

LINES = ["the cat sees", "a dog", "", "the dog sees the cat", "  ", "cat"]


def test_texts_come_back_as_their_ids(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\n".join(LINES))
    corpus = open_corpus([tmp_path / "a.txt"], task="generate")
    tokenizer = Tokenizer.train(LINES, kind="word")
    store = open_store(corpus, tokenizer, root=tmp_path / "cache")
    kept = [line for line in LINES if line.strip()]
    assert [store.sides[0][i].tolist() for i in range(len(store))] == tokenizer.encode_batch(kept)
    assert store.dropped == {"empty": 2}


def test_the_second_opening_writes_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\n".join(LINES))
    corpus = open_corpus([tmp_path / "a.txt"], task="generate")
    tokenizer = Tokenizer.train(LINES, kind="word")
    first = open_store(corpus, tokenizer, root=tmp_path / "cache")
    before = {p: p.stat().st_mtime_ns for p in first.folder.iterdir()}
    second = open_store(corpus, tokenizer, root=tmp_path / "cache")
    assert second.folder == first.folder
    assert {p: p.stat().st_mtime_ns for p in second.folder.iterdir()} == before


def test_other_text_or_another_tokenizer_is_another_store(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\n".join(LINES))
    (tmp_path / "b.txt").write_text("\n".join([*LINES, "more"]))
    word, byte = (Tokenizer.train(LINES, kind=kind) for kind in ("word", "byte"))
    folders = {
        open_store(
            open_corpus([tmp_path / name], task="generate"), tokenizer, root=tmp_path / "cache"
        ).folder
        for name in ("a.txt", "b.txt")
        for tokenizer in (word, byte)
    }
    assert len(folders) == 4


def test_an_unknown_label_names_its_line_and_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("good\tone\nbad\ttwo\ngood\tthree\ngod\tfour\n")
    corpus = open_corpus([tmp_path / "a.tsv"], task="classify")
    tokenizer = Tokenizer.train(LINES, kind="word")
    with pytest.raises(DataError, match=r"a\.tsv:4.*Did you mean 'good'"):
        open_store(corpus, tokenizer, classes=("bad", "good"), root=tmp_path / "cache")
    assert list((tmp_path / "cache" / "store").iterdir()) == []


def test_the_same_bytes_in_another_format_are_another_store(tmp_path: Path) -> None:
    tokenizer, texts = Tokenizer.train(LINES, kind="byte"), {}
    for name in ("a.tsv", "a.csv"):
        (tmp_path / name).write_text('label\ttext\n1\t"a cat"\n0\t"a ""b"" c"\n')
        corpus = open_corpus([tmp_path / name], task="classify")
        store = open_store(corpus, tokenizer, classes=("0", "1"), root=tmp_path / "cache")
        texts[name] = [tokenizer.decode(store.sides[0][i].tolist()) for i in range(len(store))]
    assert texts == {"a.tsv": ['"a cat"', '"a ""b"" c"'], "a.csv": ["a cat", 'a "b" c']}


def test_text_that_changes_while_it_is_read_is_not_kept(tmp_path: Path) -> None:
    path, tokenizer = tmp_path / "a.txt", Tokenizer.train(LINES, kind="byte")
    path.write_text("one\ntwo\n")
    corpus = open_corpus([path], task="generate")
    corpus.fingerprint()
    path.write_text("three\nfour\nfive\n")
    with pytest.raises(DataError, match=r"a\.txt: .* changed"):
        open_store(corpus, tokenizer, root=tmp_path / "cache")
    assert list((tmp_path / "cache" / "store").iterdir()) == []


@pytest.mark.parametrize("name", ["0.ids", "0.starts", "labels", "store.json"])
@pytest.mark.parametrize("left", [0, 1, 8, -3, None])
def test_a_damaged_store_is_built_again(tmp_path: Path, name: str, left: int | None) -> None:
    (tmp_path / "a.tsv").write_text("good\tone\nbad\ttwo\ngood\tthree\nbad\tfour\n")
    corpus = open_corpus([tmp_path / "a.tsv"], task="classify")
    tokenizer = Tokenizer.train(LINES, kind="byte")

    def opened() -> stores.Store:
        return open_store(corpus, tokenizer, classes=("bad", "good"), root=tmp_path / "cache")

    damaged = opened().folder / name
    whole = {path.name: path.read_bytes() for path in damaged.parent.iterdir()}
    if left is None:
        damaged.unlink()
    elif left < 0:
        content = bytearray(damaged.read_bytes())
        content[left] ^= 4
        damaged.write_bytes(content)
    else:
        damaged.write_bytes(damaged.read_bytes()[:left])
    with pytest.warns(HeedWarning, match=f"built again: .*{name}"):
        store = opened()
    assert {path.name: path.read_bytes() for path in store.folder.iterdir()} == whole
    assert opened().labels is not None


def test_few_long_texts_are_in_memory_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents = ["\n".join(LINES[:2] * 200)] * 8
    (tmp_path / "a.txt").write_text("\n\n".join(documents))
    corpus = open_corpus([tmp_path / "a.txt"], task="generate", unit="document")
    held: list[int] = []
    add = stores._SideWriter.add

    def watched(writer: stores._SideWriter, rows: list[tuple[str, ...]]) -> None:
        held.append(len(rows))
        add(writer, rows)

    monkeypatch.setattr(stores._SideWriter, "add", watched)
    monkeypatch.setattr(stores, "CHUNK", 2 * len(documents[0]) // stores.CHUNK_CHARS)
    tokenizer = Tokenizer.train(LINES, kind="word")
    store = open_store(corpus, tokenizer, root=tmp_path / "cache")
    assert sum(held) == len(store) == len(documents)
    assert max(held) <= 2
    whole = tokenizer.encode(documents[0])
    assert all(store.sides[0][i].tolist() == whole for i in range(len(store)))
