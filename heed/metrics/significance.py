"""Significance tests of translation systems by sacreBLEU, on the same sentences.

The paired bootstrap (Koehn 2004) resamples sentences with replacement. Paired approximate
randomization (Riezler and Maxwell 2005) exchanges the two systems' outputs at random, sentence by
sentence. Both estimate how often a difference as large arises by chance.

sacreBLEU's bootstrap counts differences to one side alone: of two equal systems its p is below 0.05
in 10% of comparisons. So the p that counts is that of randomization, which is two-sided.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from heed.metrics.corpus_bleu import (
    METRICS,
    PairedTestResult,
    Score,
    Texts,
    paired_test,
    sacrebleu_seed,
)
from heed.stats.bootstrap import RESAMPLES
from heed.stats.correction import holm
from heed.stats.paired_tests import smallest_p

EXCHANGES_PER_RESAMPLE = 10
"""sacreBLEU's defaults are 1,000 resamples and 10,000 exchanges; other numbers keep the ratio."""


@dataclass(frozen=True)
class PairedScore:
    """One system compared with the baseline by one metric."""

    difference: float
    p: float
    """The two-sided p-value: `p_randomization`, but at least `smallest_p`."""
    p_corrected: float
    """`p` after Holm's correction for all comparisons of the table."""
    p_randomization: float
    """sacreBLEU's p-value of paired approximate randomization."""
    p_bootstrap_one_sided: float
    """sacreBLEU's p-value of the paired bootstrap, which is one-sided."""
    p_resolution: float
    """The smallest p-value that the number of random exchanges can show."""
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
        paired = {}
        for metric in metrics if i else ():
            p_randomization = _p_value(randomization[metric], i, exchanges)
            p = max(p_randomization, smallest_p(differing))
            paired[metric] = PairedScore(
                difference=scores[metric].score - bootstrap[metric][0].score.score,
                p=p,
                p_corrected=p,
                p_randomization=p_randomization,
                p_bootstrap_one_sided=_p_value(bootstrap[metric], i, resamples),
                p_resolution=1 / (exchanges + 1),
                differing=differing,
                smallest_p=smallest_p(differing),
            )
        compared[name] = ComparedSystem(scores, paired)
    tests = {"bootstrap": bootstrap, "randomization": randomization}
    signatures = {
        test: {metric: results[metric][0].score.signature for metric in metrics}
        for test, results in tests.items()
    }
    return correct_family([Comparison(compared, signatures)])[0]


def correct_family(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """The comparisons with p-values corrected together: of all systems in all of them, by metric.

    Metrics are not corrected for each other: they are views of the same difference.
    """
    tests = [
        (i, name, metric, paired)
        for i, comparison in enumerate(comparisons)
        for name, system in comparison.systems.items()
        for metric, paired in system.paired.items()
    ]
    corrected: dict[tuple[int, str, str], PairedScore] = {}
    for one in {metric for _, _, metric, _ in tests}:
        family = [test for test in tests if test[2] == one]
        p_values = holm([paired.p for _, _, _, paired in family])
        for (i, name, metric, paired), p in zip(family, p_values, strict=True):
            corrected[i, name, metric] = replace(paired, p_corrected=p)
    return [
        replace(
            comparison,
            systems={
                name: replace(
                    system, paired={metric: corrected[i, name, metric] for metric in system.paired}
                )
                for name, system in comparison.systems.items()
            },
        )
        for i, comparison in enumerate(comparisons)
    ]


def _p_value(results: Sequence[PairedTestResult], i: int, trials: int) -> float:
    """sacreBLEU's p-value of system i, but 1 where no trial found a difference.

    sacreBLEU counts the trials whose difference is larger than the observed one. If all differences
    are zero it counts none, and reports that a system differs significantly from itself.
    """
    p = results[i].p or 0.0
    never_larger = p <= 1 / (trials + 1)
    return 1.0 if never_larger and results[i].score.score == results[0].score.score else p
