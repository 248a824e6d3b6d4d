"""Corpus scores of translations by sacreBLEU (BLEU, chrF, TER), and exact match.

sacreBLEU (Post 2018) counts, so every score equals that of its command line to the last digit.
References are one list of texts per reference file, as in sacreBLEU.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.base import Score as SacrebleuScore
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER
from sacrebleu.significance import estimate_ci

from heed.stats.intervals import Interval

Texts = Sequence[str]


class CachedStatistics:
    """Mixin for a sacreBLEU metric: caches the statistics of each sentence and its references.

    The clean part of a set, groups of lengths and item counts all score the same sentences again,
    and TER takes seconds for a long one.
    """

    plain: ClassVar[Metric]
    """The metric that computes the statistics."""

    def _preprocess_segment(self, sent: str) -> str:
        return _preprocess(self.plain, sent)

    def _extract_reference_info(self, refs: Sequence[str]) -> dict[str, Any]:
        return {"references": tuple(refs)}

    def _compute_segment_statistics(self, hypothesis: str, ref_kwargs: dict[str, Any]) -> list[Any]:
        return list(_segment_statistics(self.plain, hypothesis, ref_kwargs["references"]))


@lru_cache(maxsize=1 << 17)
def _preprocess(metric: Metric, sentence: str) -> str:
    return metric._preprocess_segment(sentence)


@lru_cache(maxsize=1 << 16)
def _segment_statistics(
    metric: Metric, hypothesis: str, references: tuple[str, ...]
) -> tuple[Any, ...]:
    reference_info = metric._extract_reference_info(references)
    return tuple(metric._compute_segment_statistics(hypothesis, reference_info))


class CachedBLEU(CachedStatistics, BLEU):
    """BLEU. Options that affect how counts become a score may be set; counting is the default."""

    plain = BLEU()


class CachedCHRF(CachedStatistics, CHRF):
    """chrF."""

    plain = CHRF()


class CachedTER(CachedStatistics, TER):
    """TER."""

    plain = TER()


METRICS = {"bleu": CachedBLEU, "chrf": CachedCHRF, "ter": CachedTER}
"""Metrics by the name that commands and JSON use."""
SEED_VARIABLE, DEFAULT_SEED = "SACREBLEU_SEED", "12345"


@dataclass(frozen=True)
class Score:
    """A corpus score with its sacreBLEU signature and 95% bootstrap interval (Koehn 2004).

    The interval is sacreBLEU's: the mean of the samples, plus and minus half the width of their
    middle 95%.
    """

    score: float
    signature: str
    interval: Interval | None = None


def corpus_scores(
    hypotheses: Texts,
    references: Sequence[Texts],
    *,
    metrics: Sequence[str] = tuple(METRICS),
    resamples: int = 0,
    seed: int | None = None,
) -> dict[str, Score]:
    """The corpus score of each metric; with `resamples`, also its bootstrap interval."""
    texts, reference_lists = list(hypotheses), [list(other) for other in references]
    with sacrebleu_seed(seed):
        return {name: _corpus_score(name, texts, reference_lists, resamples) for name in metrics}


def _corpus_score(
    name: str, hypotheses: list[str], references: list[list[str]], resamples: int
) -> Score:
    metric = METRICS[name]()
    if resamples < 2:
        score = metric.corpus_score(hypotheses, references).score
        return Score(score, str(metric.get_signature()))
    metric._check_corpus_score_args(hypotheses, references)
    statistics = metric._extract_corpus_statistics(hypotheses, references)
    seed = current_seed()
    metric.n_bootstrap, metric.seed = resamples, "none" if seed is None else str(seed)
    score = metric._aggregate_and_compute(statistics)
    samples = _bootstrap_scores(metric, statistics, resamples, seed)
    try:
        score.estimate_ci(samples)
        mean, half_width = score._mean, score._ci
    except TypeError:  # sacreBLEU 2.6 cannot average samples of which one has a chrF of 0
        mean, half_width = estimate_ci(np.array([float(sample.score) for sample in samples]))
    return Score(score.score, str(metric.get_signature()), Interval.around(mean, half_width))


def _bootstrap_scores(
    metric: Metric, statistics: Sequence[Any], resamples: int, seed: int | None
) -> list[SacrebleuScore]:
    """The scores of sacreBLEU's bootstrap samples, one sample in memory at a time.

    sacreBLEU draws all at once, which takes tens of kilobytes for each sentence. Its generator
    gives the same numbers in rows, and sums of rows are the same.
    """
    random = np.random.default_rng(seed)
    rows = np.array(statistics, dtype="float32")
    scores = []
    for _ in range(resamples):
        sample = rows[random.choice(len(rows), size=len(rows), replace=True)]
        scores.append(metric._compute_score_from_stats(sample.sum(0)))
    return scores


def bleu(hypotheses: Texts, references: Texts) -> Score:
    """Corpus BLEU with sacreBLEU's default tokenization."""
    return corpus_scores(hypotheses, [references], metrics=("bleu",))["bleu"]


def length_ratio(hypotheses: Texts, references: Sequence[Texts]) -> float:
    """Hypothesis length over (closest) reference length, in BLEU's tokens."""
    score = CachedBLEU().corpus_score(list(hypotheses), [list(texts) for texts in references])
    return float(score.ratio)


def current_seed() -> int | None:
    """sacreBLEU's seed; None where its environment variable asks for another at each call."""
    seed = os.environ.get(SEED_VARIABLE, DEFAULT_SEED).lower()
    return None if seed == "none" else int(seed)


@contextmanager
def sacrebleu_seed(seed: int | None) -> Iterator[None]:
    """Set sacreBLEU's seed in this block; it can only be set by an environment variable."""
    before = os.environ.get(SEED_VARIABLE)
    if seed is not None:
        os.environ[SEED_VARIABLE] = str(seed)
    try:
        yield
    finally:
        if before is not None:
            os.environ[SEED_VARIABLE] = before
        else:
            os.environ.pop(SEED_VARIABLE, None)


def exact_match(hypotheses: Texts, references: Texts) -> float:
    """The share of sentences that equal their reference exactly."""
    matches = sum(h == r for h, r in zip(hypotheses, references, strict=True))
    return matches / max(1, len(references))
