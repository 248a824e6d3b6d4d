"""Scores of translations: sacreBLEU's, each with its signature and interval; exact match; links.

sacreBLEU (Post 2018) does the counting, so that a figure here is the figure of its command line, to
the last digit. References are a list of texts for each reference file, as sacreBLEU wants them.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER
from sacrebleu.significance import PairedTest, Result

Texts = Sequence[str]


class Remembering:
    """Counts what two sentences share once, however often a metric is asked about them.

    A set's clean part, its lengths and paired tests all ask for the same sentences again, and TER
    takes seconds for a long one.
    """

    plain: ClassVar[Metric]
    """Who does the counting."""

    def _preprocess_segment(self, sent: str) -> str:
        return _prepared(self.plain, sent)

    def _extract_reference_info(self, refs: Sequence[str]) -> dict[str, Any]:
        return {"references": tuple(refs)}

    def _compute_segment_statistics(self, hypothesis: str, ref_kwargs: dict[str, Any]) -> list[Any]:
        return list(_counted(self.plain, hypothesis, ref_kwargs["references"]))


@lru_cache(maxsize=1 << 17)
def _prepared(metric: Metric, sentence: str) -> str:
    return metric._preprocess_segment(sentence)


@lru_cache(maxsize=1 << 16)
def _counted(metric: Metric, hypothesis: str, references: tuple[str, ...]) -> tuple[Any, ...]:
    known = metric._extract_reference_info(references)
    return tuple(metric._compute_segment_statistics(hypothesis, known))


class RememberingBLEU(Remembering, BLEU):
    """BLEU; how its counts become a score may be set, what it counts is as by default."""

    plain = BLEU()


class RememberingCHRF(Remembering, CHRF):
    """chrF."""

    plain = CHRF()


class RememberingTER(Remembering, TER):
    """TER."""

    plain = TER()


METRICS = {"bleu": RememberingBLEU, "chrf": RememberingCHRF, "ter": RememberingTER}
"""By the name that commands and JSON use."""
SEED_VARIABLE = "SACREBLEU_SEED"


@dataclass(frozen=True)
class Interval:
    """95% by bootstrap (Koehn 2004), as sacreBLEU has it: the samples' mean, and half the width of
    the middle 95% of them to either side."""

    mean: float
    half_width: float
    low: float
    high: float

    @classmethod
    def around(cls, mean: float, half_width: float) -> Interval:
        """From the two numbers that sacreBLEU prints."""
        mean, half_width = float(mean), float(half_width)
        return cls(mean, half_width, mean - half_width, mean + half_width)


@dataclass(frozen=True)
class Score:
    """A corpus score, what exactly was computed, and how sure it is."""

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
    """Each metric over the whole corpus; with `resamples`, an interval by bootstrap."""
    texts, against = list(hypotheses), [list(other) for other in references]
    with seeded(seed):
        return {name: _corpus_score(name, texts, against, resamples) for name in metrics}


def _corpus_score(
    name: str, hypotheses: list[str], references: list[list[str]], resamples: int
) -> Score:
    metric = METRICS[name]()
    try:
        score = metric.corpus_score(hypotheses, references, max(1, resamples))
    except TypeError:  # sacreBLEU 2.6 cannot average samples of which one has a chrF of 0
        alone = paired_test("bs", {"": hypotheses}, references, metrics=(name,), trials=resamples)
        return alone[name][0].score
    interval = Interval.around(score._mean, score._ci) if resamples > 1 else None
    return Score(score.score, str(metric.get_signature()), interval)


@dataclass(frozen=True)
class Tested:
    """What one paired test says of one system by one metric; the baseline has no p."""

    score: Score
    p: float | None


def paired_test(
    kind: str,
    systems: Mapping[str, Texts],
    references: Sequence[Texts],
    *,
    metrics: Sequence[str],
    trials: int,
) -> dict[str, list[Tested]]:
    """By metric: each system against the first, by sacreBLEU's test "bs" or "ar"."""
    test = PairedTest(
        [(name, list(texts)) for name, texts in systems.items()],
        {name: METRICS[name]() for name in metrics},
        [list(texts) for texts in references],
        test_type=kind,
        n_samples=trials,
    )
    signatures, results = test()
    found = {}
    # sacreBLEU answers under its own names (chrF2 for chrf), in the order of the metrics.
    for name, (key, signature) in zip(metrics, signatures.items(), strict=True):
        of_all = [result for result in results[key] if isinstance(result, Result)]
        found[name] = [_tested(result, str(signature)) for result in of_all]
    return found


def _tested(result: Result, signature: str) -> Tested:
    interval = None
    if result.mean is not None and result.ci is not None:
        interval = Interval.around(result.mean, result.ci)
    return Tested(Score(float(result.score), signature, interval), result.p_value)


def bleu(hypotheses: Texts, references: Texts) -> Score:
    """Corpus BLEU with sacreBLEU's default tokenization."""
    return corpus_scores(hypotheses, [references], metrics=("bleu",))["bleu"]


def length_ratio(hypotheses: Texts, references: Sequence[Texts]) -> float:
    """Tokens written for each token of the (closest) reference, as BLEU counts both."""
    score = RememberingBLEU().corpus_score(list(hypotheses), [list(texts) for texts in references])
    return float(score.ratio)


@contextmanager
def seeded(seed: int | None) -> Iterator[None]:
    """Give sacreBLEU a seed: it takes one from the environment, and from nowhere else."""
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
    """The share of sentences that equal their reference to the letter."""
    same = sum(h == r for h, r in zip(hypotheses, references, strict=True))
    return same / max(1, len(references))


Links = Collection[tuple[int, int]]


def alignment_error(found: Sequence[Links], gold: Sequence[Links]) -> float:
    """Alignment error rate (Och and Ney 2003) where every gold link is sure: 1 - F1 over links."""
    shared = sum(len(set(f) & set(g)) for f, g in zip(found, gold, strict=True))
    named = sum(len(set(f)) + len(set(g)) for f, g in zip(found, gold, strict=True))
    return 1.0 - 2.0 * shared / max(1, named)
