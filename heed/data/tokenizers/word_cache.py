"""Encoding much text fast: each word once, however often it stands there.

No piece of `bpe` or `unigram` reaches across a space, so the ids of a text are those of its words
in a row, where single spaces are its only white space. Any other text is taken whole, as one word
would be. A corpus has few words beside its running ones, and looking one up is many times faster
than cutting it into pieces.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from heed.data.tokenizers.tokenizer import Tokenizer

KINDS = ("bpe", "unigram")
"""Tokenizers that are slow enough."""
MOST = 1 << 16
"""Words remembered; with more, all are forgotten, and soon the frequent ones are back."""
LONGEST = 32
"""Characters of a word worth remembering."""


class Wordwise:
    """A tokenizer that remembers words."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._known: dict[str, list[int]] = {}

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The same ids as the tokenizer's own `encode_batch`."""
        if self.tokenizer.kind not in KINDS:
            return self.tokenizer.encode_batch(texts)
        cut = [words_of(text) for text in texts]
        here = {word: self._known.get(word) for word in chain.from_iterable(cut)}
        new = [word for word, ids in here.items() if ids is None]
        found = dict(zip(new, self.tokenizer.encode_batch(new), strict=True))
        if len(self._known) > MOST:
            self._known = {}
        self._known |= {word: ids for word, ids in found.items() if len(word) <= LONGEST}
        here |= found
        return [list(chain.from_iterable(here[word] or () for word in words)) for words in cut]


def words_of(text: str) -> list[str]:
    """The words that can be encoded apart; the whole text where that cannot be."""
    words = text.split()
    return words if " ".join(words) == text else [text]
