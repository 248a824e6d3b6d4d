"""Sentence by sentence: BLEU of each, by source length, as a table in a file, as courses do it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from heed.data.corpus.text_files import escaped
from heed.metrics.corpus_bleu import RememberingBLEU, Texts

ORDER = 4
LENGTHS = (5, 10, 15, 20, 30, 40, 60)
"""The most words in each group but the last."""
FEWEST = 30
"""Sentences a group must have; a smaller one joins its neighbour, for BLEU of a few is noise."""


def sentence_bleu(hypotheses: Texts, references: Sequence[Texts]) -> list[float]:
    """sacreBLEU's of each sentence, 0 to 100: smoothed, of no more orders than it has words."""
    metric = RememberingBLEU(effective_order=True)
    return [
        float(metric.sentence_score(hypothesis, list(all_of_them)).score)
        for hypothesis, *all_of_them in zip(hypotheses, *references, strict=True)
    ]


def extremes(scores: Sequence[float], count: int) -> tuple[list[int], list[int]]:
    """The best and the worst, no sentence in both; of equals, the earlier first."""
    order = sorted(range(len(scores)), key=lambda i: -scores[i])
    count = min(count, len(scores) // 2) or len(scores)
    worst = sorted(order[count:], key=lambda i: scores[i])[:count]
    return order[:count], worst


def plain_bleu(hypothesis: str, references: Sequence[str]) -> float:
    """BLEU of one sentence as Papineni et al. 2002 write it and NLTK has it by default, 0 to 1.

    Tokens lie between white space. BLEU = min(1, e^(1 - r/c)) · exp(1/4 Σ log p_n), n from 1 to 4,
    p_n the share of n-grams that a reference has too, each as often as it stands there at most.
    Nothing is smoothed: without a match of some order the score is 0, also for a perfect sentence
    of three words. (NLTK writes a number below 10^-76 there.)
    """
    words, others = hypothesis.split(), [reference.split() for reference in references]
    logarithms = []
    for n in range(1, ORDER + 1):
        counts = _ngrams(words, n)
        most: Counter[tuple[str, ...]] = Counter()
        for other in others:
            most |= _ngrams(other, n)
        matches = (counts & most).total()
        if not matches:
            return 0.0
        logarithms.append(math.log(matches / counts.total()))
    length = len(words)
    closest = min(map(len, others), key=lambda other: (abs(other - length), other))
    brevity = 1.0 if length > closest else math.exp(1 - closest / length)
    return brevity * math.exp(math.fsum(logarithms) / ORDER)


def mean_plain_bleu(hypotheses: Texts, references: Sequence[Texts]) -> float:
    """The mean of `plain_bleu`, 0 to 1: what many course reports call BLEU. Not a corpus score."""
    scores = [plain_bleu(h, r) for h, *r in zip(hypotheses, *references, strict=True)]
    return math.fsum(scores) / max(1, len(scores))


def _ngrams(words: Sequence[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(zip(*(words[i:] for i in range(n)), strict=False))


@dataclass(frozen=True)
class Group:
    """Sentences whose sources are of like length, in words between white space."""

    shortest: int
    longest: int
    rows: tuple[int, ...]


def words_in(texts: Texts) -> list[int]:
    """How many words each has."""
    return [len(text.split()) for text in texts]


def length_groups(lengths: Sequence[int]) -> list[Group]:
    """Sentences by their length, every one in one group, none of them tiny if that can be."""
    edges = [-1, *LENGTHS, max([LENGTHS[-1], *lengths])]
    groups: list[list[int]] = []
    for low, high in pairwise(edges):
        rows = [i for i, length in enumerate(lengths) if low < length <= high]
        if groups and len(groups[-1]) < FEWEST:
            groups[-1] += rows
        else:
            groups.append(rows)
    if len(groups) > 1 and len(groups[-1]) < FEWEST:
        last = groups.pop()
        groups[-1] += last
    found = []
    for rows in groups:
        if rows:
            within = [lengths[i] for i in rows]
            found.append(Group(min(within), max(within), tuple(sorted(rows))))
    return found


def table(
    sources: Texts | None,
    references: Sequence[Texts],
    systems: Sequence[tuple[Texts, Sequence[float]]],
) -> str:
    """A TSV: a header, then a row a sentence, in order: source, reference, hypothesis, score.

    A second reference, or a second system, has columns of its own, numbered. A tab, a line break or
    a backslash inside a text is written as in C: \\t, \\n, \\r, \\\\.
    """
    blank = [""] * len(references[0])
    columns: dict[str, Iterable[str]] = {"source": blank if sources is None else sources}
    for number, texts in enumerate(references, 1):
        columns[_numbered("reference", number)] = texts
    for number, (texts, scores) in enumerate(systems, 1):
        columns[_numbered("hypothesis", number)] = texts
        columns[_numbered("score", number)] = [f"{score:.4f}" for score in scores]
    rows = [columns.keys(), *zip(*columns.values(), strict=True)]
    return "".join("\t".join(map(escaped, row)) + "\n" for row in rows)


def _numbered(name: str, number: int) -> str:
    return name if number == 1 else f"{name}_{number}"
