"""A store gives back what the tokenizer made, is made once, and is whole or not there at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from heed.data.corpus import open_corpus
from heed.data.store import open_store
from heed.data.tokenizer import Tokenizer
from heed.errors import DataError

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
