"""Scores of translations: sacreBLEU with its signature, exact match, alignment error."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sacrebleu.metrics.bleu import BLEU


@dataclass(frozen=True)
class Bleu:
    """A corpus score, 0 to 100, and what exactly was computed."""

    score: float
    signature: str


def bleu(hypotheses: Sequence[str], references: Sequence[str]) -> Bleu:
    """Corpus BLEU by sacreBLEU (Post 2018), with its default tokenization."""
    metric = BLEU()
    score = metric.corpus_score(list(hypotheses), [list(references)])
    return Bleu(score.score, str(metric.get_signature()))


def exact_match(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """The share of sentences that equal their reference to the letter."""
    same = sum(h == r for h, r in zip(hypotheses, references, strict=True))
    return same / max(1, len(references))


Links = Collection[tuple[int, int]]


def alignment_error(found: Sequence[Links], gold: Sequence[Links]) -> float:
    """Alignment error rate (Och and Ney 2003) where every gold link is sure: 1 - F1 over links."""
    shared = sum(len(set(f) & set(g)) for f, g in zip(found, gold, strict=True))
    named = sum(len(set(f)) + len(set(g)) for f, g in zip(found, gold, strict=True))
    return 1.0 - 2.0 * shared / max(1, named)
