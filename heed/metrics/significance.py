"""Significance tests of translation systems by sacreBLEU, on the same sentences.

The paired bootstrap (Koehn 2004) resamples sentences with replacement. Paired approximate
randomization (Riezler and Maxwell 2005) exchanges the two systems' outputs at random, sentence by
sentence. Both estimate how often a difference as large arises by chance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from heed.metrics.corpus_bleu import (
    METRICS,
    PairedTestResult,
    Score,
    Texts,
    paired_test,
    sacrebleu_seed,
)
from heed.stats.bootstrap import RESAMPLES
from heed.stats.paired_tests import smallest_p

EXCHANGES_PER_RESAMPLE = 10
"""sacreBLEU's defaults are 1,000 resamples and 10,000 exchanges; other numbers keep the ratio."""


@dataclass(frozen=True)
class PairedScore:
    """One system compared with the baseline by one metric."""

    difference: float
    p_bootstrap: float
    p_randomization: float
    differing: int
    """Number of texts that the two systems translate differently."""
    smallest_p: float
    """The smallest p-value that an exact test can give with so many differing texts."""


@dataclass(frozen=True)
class ComparedSystem:
    """One system's scores and paired tests by metric. The baseline has no tests."""

    scores: dict[str, Score]
    paired: dict[str, PairedScore]


@dataclass(frozen=True)
class Comparison:
    """Every system compared with the first."""

    systems: dict[str, ComparedSystem]
    signatures: dict[str, dict[str, str]]
    """Signatures of the tests `bootstrap` and `randomization`, by metric."""


def compare_systems(
    systems: Mapping[str, Texts],
    references: Sequence[Texts],
    *,
    metrics: Sequence[str] = tuple(METRICS),
    resamples: int = RESAMPLES,
    seed: int | None = None,
) -> Comparison:
    """Compare each system with the first by both tests and every metric."""
    exchanges = resamples * EXCHANGES_PER_RESAMPLE
    with sacrebleu_seed(seed):
        bootstrap = paired_test("bs", systems, references, metrics=metrics, trials=resamples)
        randomization = paired_test("ar", systems, references, metrics=metrics, trials=exchanges)
    compared = {}
    baseline, *_ = systems.values()
    for i, (name, texts) in enumerate(systems.items()):
        differing = sum(a != b for a, b in zip(baseline, texts, strict=True))
        scores = {metric: bootstrap[metric][i].score for metric in metrics}
        paired = {
            metric: PairedScore(
                scores[metric].score - bootstrap[metric][0].score.score,
                _p_value(bootstrap[metric], i, resamples),
                _p_value(randomization[metric], i, exchanges),
                differing,
                smallest_p(differing),
            )
            for metric in metrics
            if i
        }
        compared[name] = ComparedSystem(scores, paired)
    tests = {"bootstrap": bootstrap, "randomization": randomization}
    signatures = {
        test: {metric: results[metric][0].score.signature for metric in metrics}
        for test, results in tests.items()
    }
    return Comparison(compared, signatures)


def _p_value(results: Sequence[PairedTestResult], i: int, trials: int) -> float:
    """sacreBLEU's p-value of system i, but 1 where no trial found a difference.

    sacreBLEU counts the trials whose difference is larger than the observed one. If all differences
    are zero it counts none, and reports that a system differs significantly from itself.
    """
    p = results[i].p or 0.0
    never_larger = p <= 1 / (trials + 1)
    return 1.0 if never_larger and results[i].score.score == results[0].score.score else p
