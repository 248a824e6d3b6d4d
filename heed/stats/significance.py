"""Is one system really different from another? Paired tests by sacreBLEU, on the same sentences.

Paired bootstrap (Koehn 2004) draws sentences with replacement and asks how often the difference
would be as large by luck. Paired approximate randomisation (Riezler and Maxwell 2005) exchanges
the two systems' outputs at random, sentence by sentence, and asks the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from heed.metrics.corpus_bleu import METRICS, Score, Tested, Texts, paired_test, seeded
from heed.stats.bootstrap import RESAMPLES

EXCHANGES_A_RESAMPLE = 10
"""sacreBLEU's defaults are 1,000 resamples and 10,000 exchanges; fewer keep that proportion."""


@dataclass(frozen=True)
class Paired:
    """One system against the baseline, by one metric."""

    difference: float
    p_bootstrap: float
    p_randomisation: float
    differ: int
    """Texts that the two translate differently."""
    least_p: float
    """What no p can honestly be below where so many texts differ."""


@dataclass(frozen=True)
class Compared:
    """One system: its scores, and what the tests say. The baseline has no tests."""

    scores: dict[str, Score]
    paired: dict[str, Paired]


@dataclass(frozen=True)
class Comparison:
    """Every system against the first."""

    systems: dict[str, Compared]
    signatures: dict[str, dict[str, str]]
    """Of `bootstrap` and `randomisation`, by metric."""


def compare(
    systems: Mapping[str, Texts],
    references: Sequence[Texts],
    *,
    metrics: Sequence[str] = tuple(METRICS),
    resamples: int = RESAMPLES,
    seed: int | None = None,
) -> Comparison:
    """Test each system against the first one, both ways, by every metric."""
    exchanges = resamples * EXCHANGES_A_RESAMPLE
    with seeded(seed):
        bootstrap = paired_test("bs", systems, references, metrics=metrics, trials=resamples)
        randomised = paired_test("ar", systems, references, metrics=metrics, trials=exchanges)
    compared = {}
    first, *_ = systems.values()
    for i, (name, texts) in enumerate(systems.items()):
        differ = sum(a != b for a, b in zip(first, texts, strict=True))
        scores = {metric: bootstrap[metric][i].score for metric in metrics}
        paired = {
            metric: Paired(
                scores[metric].score - bootstrap[metric][0].score.score,
                _chance(bootstrap[metric], i, resamples),
                _chance(randomised[metric], i, exchanges),
                differ,
                least_p(differ),
            )
            for metric in metrics
            if i
        }
        compared[name] = Compared(scores, paired)
    tests = {"bootstrap": bootstrap, "randomisation": randomised}
    signatures = {
        test: {metric: found[metric][0].score.signature for metric in metrics}
        for test, found in tests.items()
    }
    return Comparison(compared, signatures)


def _chance(found: Sequence[Tested], i: int, trials: int) -> float:
    """sacreBLEU's p-value, but 1 for systems between which no trial found a difference.

    sacreBLEU counts the trials whose difference is larger than the real one. Where all are zero it
    counts none, and calls a system significantly different from itself.
    """
    p = found[i].p or 0.0
    never_larger = p <= 1 / (trials + 1)
    return 1.0 if never_larger and found[i].score.score == found[0].score.score else p


def least_p(differ: int) -> float:
    """The least that an exact randomisation test can say of systems that differ in so many texts.

    Of the 2^n exchanges of n texts two always give a difference as large as the real one: that of
    none and that of all. sacreBLEU counts larger ones alone, and calls one other text significant.
    """
    return min(1.0, 2.0 ** (1 - differ))
