"""Encoding word by word gives the ids of encoding whole texts."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heed.data.tokenizers import word_cache
from heed.data.tokenizers.tokenizer import KINDS, Tokenizer
from heed.data.tokenizers.word_cache import WordCache

LINES = [
    "The old captain doesn't watch (again!) the lighthouse, 1234 times.",
    "Notre élève n'oublie pas l'été dernier : « jamais »",
    "ΟΔΟΣ ΣΑΣ 雨が降る 😀 ☂ <pad> a_b-c",
]
MARKS = [
    "",
    " ",
    "  ",
    "\t",
    "\n",
    "\u00a0",
    "\u2028",
    "\x1c",
    "\x85",
    "'",
    "'s",
    ",",
    "1",
    "Σ",
    "é",
]
PIECES = st.sampled_from([*MARKS, *" ".join(LINES).split()]) | st.text(max_size=3)
TEXTS = st.lists(PIECES).map("".join) | st.lists(PIECES).map(" ".join)


@cache
def trained(kind: str, lowercase: bool) -> Tokenizer:
    size = 320 if kind in ("bpe", "unigram") else None
    return Tokenizer.train(LINES * 3, kind=kind, vocab_size=size, lowercase=lowercase)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lowercase", [False, True])
@given(batches=st.lists(st.lists(TEXTS, max_size=5), max_size=4))
@settings(max_examples=100)
def test_the_ids_are_those_of_whole_texts(
    kind: str, lowercase: bool, batches: list[list[str]]
) -> None:
    tokenizer = trained(kind, lowercase)
    encoder = WordCache(tokenizer)
    for texts in batches:
        assert encoder.encode_batch(texts) == tokenizer.encode_batch(texts)


def test_few_words_are_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_cache, "MAX_WORDS", 10)
    encoder = WordCache(trained("bpe", False))
    for start in range(0, 300, 3):
        texts = [f"w{start} w{start + 1}", f"w{start + 2} {'long' * 20}", "two  spaces"]
        assert encoder.encode_batch(texts) == encoder.tokenizer.encode_batch(texts)
        assert len(encoder._cache) <= 10 + 4
        assert all(len(word) <= word_cache.MAX_CHARS for word in encoder._cache)
