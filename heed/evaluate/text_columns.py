"""Columns that describe each test text in numbers: its length, and how rare its words are in train.

They tell why some texts are harder than others, without the texts:

    text.words        words and punctuation marks of the source, or of the text
    text.unseen       of these, words that the training text does not have
    text.surprisal    Σ -ln p(word) in thousandths, by the word frequencies of the training text
    text.tokens       tokens of the run's tokenizer
    text.unknown      of these, unknown tokens

The columns about train are left out where it cannot be read, and those of tokens where items are
blocks of texts.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from math import ceil, log

import numpy as np

from heed.arrays import Floats
from heed.data.tokenizers.tokenizer import Tokenizer

WORD = re.compile(r"\w+(?:['’]\w+)*|[^\w\s]")
"""A word with its apostrophes, or a punctuation mark."""
MAX_TEXTS = 500_000
"""Training texts whose words are counted, the first ones: more hardly change frequencies."""
PER_NAT = 1000
"""Surprisal is stored in thousandths of a nat, so that a table of integers stays one."""


@dataclass(frozen=True)
class WordFrequencies:
    """How often each word occurs in a training text, in lower case."""

    counts: Counter[str]
    total: int

    @classmethod
    def of(cls, texts: Iterable[str]) -> WordFrequencies:
        """The frequencies of the words of these texts."""
        counts: Counter[str] = Counter()
        for text in islice(texts, MAX_TEXTS):
            counts.update(WORD.findall(text.lower()))
        return cls(counts, counts.total())

    def surprisal(self, word: str) -> float:
        """-ln p of a word in lower case, with one count more for every word and for all unseen."""
        return log((self.total + len(self.counts) + 1) / (self.counts.get(word, 0) + 1))


def word_columns(
    texts: Sequence[str], blocks: Sequence[int], train: WordFrequencies | None
) -> dict[str, Floats]:
    """The columns about words; text i is one item, or `blocks[i]` of equal length.

    A word belongs to the block in which it ends, as tokens do.
    """
    starts = np.concatenate([[0], np.cumsum(blocks)]).astype(int)
    words, unseen, surprisal = np.zeros((3, int(starts[-1])))
    for text, count, start in zip(texts, blocks, starts.tolist(), strict=False):
        lowered = text.lower()
        for match in WORD.finditer(lowered):
            item = start + ceil(match.end() / len(lowered) * count) - 1
            words[item] += 1
            if train is not None:
                unseen[item] += match.group() not in train.counts
                surprisal[item] += train.surprisal(match.group())
    columns = {"text.words": words}
    if train is not None:
        columns |= {"text.unseen": unseen, "text.surprisal": np.round(PER_NAT * surprisal)}
    return columns


def token_columns(texts: Sequence[str], tokenizer: Tokenizer) -> dict[str, Floats]:
    """The columns about tokens, where each text is one item."""
    ids, unknown = tokenizer.encode_batch(texts), tokenizer.specials.unk
    return {
        "text.tokens": np.array([len(one) for one in ids], dtype=np.float64),
        "text.unknown": np.array([sum(i == unknown for i in one) for one in ids], np.float64),
    }
