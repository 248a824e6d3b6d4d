"""Sentence-level BLEU: sacreBLEU's and NLTK's, groups by source length, and a table as TSV."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from heed.data.corpus.lines import format_tsv
from heed.metrics.corpus_bleu import CachedBLEU, Texts

ORDER = 4
LENGTHS = (5, 10, 15, 20, 30, 40, 60)
"""The largest number of words in each group but the last."""
MIN_GROUP = 30
"""Sentences in a group; a smaller one joins its neighbor, because BLEU of a few is noise."""


def sentence_bleu(hypotheses: Texts, references: Sequence[Texts]) -> list[float]:
    """sacreBLEU's sentence BLEU, 0 to 100: smoothed, with no more orders than words."""
    metric = CachedBLEU(effective_order=True)
    return [
        float(metric.sentence_score(hypothesis, list(sentence_references)).score)
        for hypothesis, *sentence_references in zip(hypotheses, *references, strict=True)
    ]


def best_and_worst(scores: Sequence[float], count: int) -> tuple[list[int], list[int]]:
    """Indices of the best and of the worst scores, none in both; ties in order of appearance."""
    order = sorted(range(len(scores)), key=lambda i: -scores[i])
    count = min(count, len(scores) // 2) or len(scores)
    worst = sorted(order[count:], key=lambda i: scores[i])[:count]
    return order[:count], worst


def nltk_bleu(hypothesis: str, references: Sequence[str]) -> float:
    """BLEU of one sentence as in Papineni et al. 2002 and NLTK's default, 0 to 1.

    Tokens are separated by white space. BLEU = min(1, e^(1 - r/c)) · exp(1/4 Σ log p_n), n from 1
    to 4, with p_n the clipped n-gram precision. There is no smoothing: without a match of some
    order the score is 0, even for a perfect sentence of three words. (NLTK gives a number below
    10^-76 there.)
    """
    words, other_words = hypothesis.split(), [reference.split() for reference in references]
    log_precisions = []
    for n in range(1, ORDER + 1):
        counts = _ngrams(words, n)
        clip: Counter[tuple[str, ...]] = Counter()
        for other in other_words:
            clip |= _ngrams(other, n)
        matches = (counts & clip).total()
        if not matches:
            return 0.0
        log_precisions.append(math.log(matches / counts.total()))
    length = len(words)
    closest = min(map(len, other_words), key=lambda other: (abs(other - length), other))
    brevity = 1.0 if length > closest else math.exp(1 - closest / length)
    return brevity * math.exp(math.fsum(log_precisions) / ORDER)


def mean_nltk_bleu(hypotheses: Texts, references: Sequence[Texts]) -> float:
    """The mean of `nltk_bleu` over sentences, 0 to 1, as many course reports compute BLEU."""
    scores = [nltk_bleu(h, r) for h, *r in zip(hypotheses, *references, strict=True)]
    return math.fsum(scores) / max(1, len(scores))


def _ngrams(words: Sequence[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(zip(*(words[i:] for i in range(n)), strict=False))


@dataclass(frozen=True)
class LengthGroup:
    """Sentences of similar source length, in words between white space."""

    shortest: int
    longest: int
    rows: tuple[int, ...]


def word_counts(texts: Texts) -> list[int]:
    """The number of words of each text."""
    return [len(text.split()) for text in texts]


def length_groups(lengths: Sequence[int]) -> list[LengthGroup]:
    """Sentences grouped by length; each is in one group, and groups are not tiny if possible."""
    edges = [-1, *LENGTHS, max([LENGTHS[-1], *lengths])]
    groups: list[list[int]] = []
    for low, high in pairwise(edges):
        rows = [i for i, length in enumerate(lengths) if low < length <= high]
        if groups and len(groups[-1]) < MIN_GROUP:
            groups[-1] += rows
        else:
            groups.append(rows)
    if len(groups) > 1 and len(groups[-1]) < MIN_GROUP:
        last = groups.pop()
        groups[-1] += last
    described = []
    for rows in groups:
        if rows:
            within = [lengths[i] for i in rows]
            described.append(LengthGroup(min(within), max(within), tuple(sorted(rows))))
    return described


def sentence_tsv(
    sources: Texts | None,
    references: Sequence[Texts],
    systems: Sequence[tuple[Texts, Sequence[float]]],
) -> str:
    """A TSV with a header and one row per sentence: source, reference, hypothesis, score.

    Further references and systems have their own, numbered columns. Tabs, line breaks and
    backslashes inside a text are escaped as in C: \\t, \\n, \\r, \\\\.
    """
    blank = [""] * len(references[0])
    columns: dict[str, Iterable[str]] = {"source": blank if sources is None else sources}
    for number, texts in enumerate(references, 1):
        columns[_numbered("reference", number)] = texts
    for number, (texts, scores) in enumerate(systems, 1):
        columns[_numbered("hypothesis", number)] = texts
        columns[_numbered("score", number)] = [f"{score:.4f}" for score in scores]
    return format_tsv([columns.keys(), *zip(*columns.values(), strict=True)])


def _numbered(name: str, number: int) -> str:
    return name if number == 1 else f"{name}_{number}"
