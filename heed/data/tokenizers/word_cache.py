"""Word-level cache for encoding: each distinct word is tokenized once.

No subword of `bpe` or `unigram` crosses a space. So the ids of a text are those of its words in
order, if single spaces are its only white space. Any other text is encoded whole, as if it were one
word. A corpus has few distinct words, and looking one up is many times faster than tokenizing it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from heed.data.tokenizers.tokenizer import Tokenizer

KINDS = ("bpe", "unigram")
"""Tokenizers that are slow enough for a cache to pay."""
MAX_WORDS = 1 << 16
"""Words cached. A fuller cache is cleared, and the frequent words soon return."""
MAX_CHARS = 32
"""Longest word that is cached, in characters."""


class WordCache:
    """A tokenizer with a cache of the ids of words."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._cache: dict[str, list[int]] = {}

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of texts, equal to those of the tokenizer's `encode_batch`."""
        if self.tokenizer.kind not in KINDS:
            return self.tokenizer.encode_batch(texts)
        words_of_text = [split_words(text) for text in texts]
        ids_of = {word: self._cache.get(word) for word in chain.from_iterable(words_of_text)}
        new = [word for word, ids in ids_of.items() if ids is None]
        encoded = dict(zip(new, self.tokenizer.encode_batch(new), strict=True))
        if len(self._cache) > MAX_WORDS:
            self._cache = {}
        self._cache |= {word: ids for word, ids in encoded.items() if len(word) <= MAX_CHARS}
        ids_of |= encoded
        return [
            list(chain.from_iterable(ids_of[word] or () for word in words))
            for words in words_of_text
        ]


def split_words(text: str) -> list[str]:
    """The words that can be encoded separately, or the whole text where that is not possible."""
    words = text.split()
    return words if " ".join(words) == text else [text]
