"""Tests between systems of several seeds each, on the same sentences.

A system is as many models as it has seeds. Its score is the mean of their corpus BLEU. Three tests
ask whether two systems differ:

- paired bootstrap (Koehn 2004): sentences are drawn with replacement, each with the translations of
  all models of both systems. Would the difference be there on other sentences?
- paired approximate randomisation (Riezler and Maxwell 2005): the two systems exchange what they
  wrote for a sentence, seed by seed, for half of the sentences. Could it be there by luck? This is
  asked of the seeds that both have.
- Welch's t-test over the seeds' scores. Would it be there with other seeds?

A sentence is drawn or exchanged with all its translations, because they are not independent: to
pool them as if there were three times as many sentences would make everything look surer than it
is. Who says that two systems differ says yes to all three questions, so what counts is the largest
of the three p. With one seed the third question has no answer. What a change does is asked in the
same way of several systems that have it and as many that lack it (`effect`).

Shapes: k seeds, n sentences, c counts (lengths of the system and the reference, then matches and
totals of 1- to 4-grams), t trials.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean, variance

import numpy as np
from numpy.typing import NDArray
from sacrebleu.metrics.bleu import BLEU

Array = NDArray[np.float64]
Seeds = Mapping[int, Array]
"""Counts [n, c] of each seed's model."""
ORDER = 4
RESAMPLES, EXCHANGES = 1000, 10000
"""As many as sacreBLEU draws."""
AT_ONCE = 1000
SEED = 12345
CLOSE = 1e-9
"""Scores nearer than this are the same."""


def counts(hypotheses: Sequence[str], references: Sequence[str]) -> Array:
    """What BLEU counts in each sentence, [n, c]."""
    metric, rows = BLEU(), []
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        score = metric.corpus_score([hypothesis], [[reference]])
        rows.append([score.sys_len, score.ref_len, *score.counts, *score.totals])
    return np.array(rows, dtype=np.float64).reshape(len(rows), 2 + 2 * ORDER)


def bleu(sums_tc: Array) -> Array:
    """sacreBLEU's corpus BLEU from sums of counts, for any number of samples at once.

    BLEU = min(1, e^(1 - r/s)) · (p₁p₂p₃p₄)^¼, where the i-th order without a match counts as
    1/2^i of one ("exp" smoothing).
    """
    written, reference = sums_tc[..., 0], sums_tc[..., 1]
    matches, totals = sums_tc[..., 2 : 2 + ORDER], sums_tc[..., 2 + ORDER :]
    halvings = np.cumsum(matches == 0, axis=-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        precisions = np.where(matches > 0, matches, 0.5**halvings) / totals
        brevity = np.minimum(1.0, np.exp(1.0 - reference / written))
        scores = 100.0 * brevity * np.exp(np.log(precisions).mean(axis=-1))
    nothing = (matches.sum(axis=-1) == 0) | (totals.min(axis=-1) == 0)
    return np.where(nothing, 0.0, scores)


def score(seeds: Seeds) -> float:
    """A system's score: the mean over its seeds."""
    return fmean(each(seeds).values())


def each(seeds: Seeds) -> dict[int, float]:
    """BLEU of every seed's model."""
    return {seed: float(bleu(table.sum(axis=0))) for seed, table in seeds.items()}


def interval(seeds: Seeds) -> tuple[float, float]:
    """The middle 95% of a system's score over bootstrap samples of the sentences."""
    low, high = np.quantile(_samples(seeds), [0.025, 0.975])
    return float(low), float(high)


@dataclass(frozen=True)
class Compared:
    """One system against another."""

    difference: float
    low: float
    high: float
    """The middle 95% of the difference over bootstrap samples of the sentences."""
    p_bootstrap: float
    p_randomisation: float
    p_seeds: float | None
    """None where a system has one seed only."""

    @property
    def p(self) -> float:
        """The largest: to call systems different is to claim all three."""
        return max(self.p_bootstrap, self.p_randomisation, self.p_seeds or 0.0)


def effect(pairs: Sequence[tuple[Seeds, Seeds]], found: float | None = None) -> Compared | None:
    """Test what one change does to several systems, with it and without: its mean difference.

    A sentence is drawn or exchanged for all of them at once. None where a pair shares no seed.
    Where a difference was `found` with further seeds of which there are no counts, sentences are
    asked about that one, by how much they vary in these, and the interval lies around it.
    """
    shared = [
        tuple({seed: side[seed] for seed in sorted(set(one) & set(other))} for side in (one, other))
        for one, other in pairs
    ]
    if not all(one for one, _ in shared):
        return None
    difference = fmean(score(one) - score(other) for one, other in pairs)
    drawn = np.mean([_samples(one) - _samples(other) for one, other in pairs], axis=0)
    further = 0.0 if found is None else found - difference
    low, high = np.quantile(drawn, [0.025, 0.975]) + further
    exchanged = np.mean([_exchanged(one, other) for one, other in shared], axis=0)
    by_seed = [[list(each(side).values()) for side in pair] for pair in pairs]
    several = all(len(scores) > 1 for pair in by_seed for scores in pair)
    paired = fmean(score(one) - score(other) for one, other in shared)
    return Compared(
        difference + further,
        float(low),
        float(high),
        _chance(drawn - drawn.mean(), difference + further),
        _chance(exchanged, paired if found is None else found),
        welch_of_all(by_seed) if several else None,
    )


def _samples(seeds: Seeds) -> Array:
    """A system's score on each bootstrap sample of the sentences."""
    drawn_tn = _drawn(len(next(iter(seeds.values()))))
    return np.mean([bleu(drawn_tn @ table) for table in seeds.values()], axis=0)


@cache
def _drawn(n: int) -> Array:
    """How often each bootstrap sample has each sentence, the same for every system."""
    random = np.random.default_rng(SEED)
    picks = random.integers(n, size=(RESAMPLES, n))
    return np.stack([np.bincount(row, minlength=n) for row in picks]).astype(np.float64)


def _exchanged(mine: Seeds, theirs: Seeds) -> Array:
    """The difference, were for some sentences one system's translations the other's."""
    random = np.random.default_rng(SEED)
    found = []
    for _ in range(0, EXCHANGES, AT_ONCE):
        n = len(next(iter(mine.values())))
        swap_tn = random.integers(2, size=(AT_ONCE, n)).astype(np.float64)
        differences = []
        for seed, table in mine.items():
            moved_tc = swap_tn @ (theirs[seed] - table)
            ours, other = table.sum(axis=0) + moved_tc, theirs[seed].sum(axis=0) - moved_tc
            differences.append(bleu(ours) - bleu(other))
        found.append(np.mean(differences, axis=0))
    return np.concatenate(found)


def _chance(trials: Array, difference: float) -> float:
    """The share of trials with a difference as large; the real one counts as a trial."""
    as_large = int(np.sum(np.abs(trials) >= abs(difference) - CLOSE))
    return (as_large + 1) / (len(trials) + 1)


def welch(first: Sequence[float], second: Sequence[float]) -> float:
    """Welch's t-test (1947): p for means of two samples whose variances may differ."""
    return welch_of_all([(first, second)])


def welch_of_all(pairs: Sequence[Sequence[Sequence[float]]]) -> float:
    """The same for the sum of the differences between two samples each.

    t = Σ(m₁ - m₂) / √Σ(v/n), by Student's distribution with ν = (Σ(v/n))² / Σ(v²/(n²(n-1))).
    """
    samples = [sample for pair in pairs for sample in pair]
    parts = [variance(sample) / len(sample) for sample in samples]
    difference, spread = abs(sum(fmean(one) - fmean(other) for one, other in pairs)), sum(parts)
    if spread < CLOSE**2:
        return 1.0 if difference < CLOSE else 0.0
    sizes = [len(sample) for sample in samples]
    freedom = spread**2 / sum(v**2 / (n - 1) for v, n in zip(parts, sizes, strict=True))
    return student(difference / math.sqrt(spread), freedom)


def student(t: float, freedom: float) -> float:
    """The chance of |T| ≥ t under Student's distribution.

    With T = √ν tan θ the density is proportional to cos^(ν-1) θ on (-π/2, π/2).
    """
    edge, cells = math.atan(t / math.sqrt(freedom)), 20000

    def area(start: float, stop: float) -> float:
        middles = start + (stop - start) * (np.arange(cells) + 0.5) / cells
        return float((np.cos(middles) ** (freedom - 1)).sum() * (stop - start) / cells)

    beyond = area(edge, math.pi / 2)
    return beyond / (area(0.0, edge) + beyond)


def holm(chances: Sequence[float]) -> list[float]:
    """Holm's correction (1979): each p as it counts among so many tests, in the order given."""
    order = sorted(range(len(chances)), key=lambda i: chances[i])
    corrected, largest = [1.0] * len(chances), 0.0
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, chances[i] * (len(chances) - rank)))
        corrected[i] = largest
    return corrected
