"""Randomization tests: exact over seeds, approximate over items.

They assume no distribution. Over seeds, the runs of two systems are relabeled in every possible
way. Over items, the answers of two models are exchanged at random (Riezler and Maxwell 2005).

Shapes: s runs, n items, c counts, r trials.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from math import comb

import numpy as np
from numpy.typing import NDArray

from heed.arrays import Floats
from heed.stats.variance import Metric

TRIALS = 10_000
"""sacreBLEU's default number of trials."""
SEED = 12345
"""sacreBLEU's default seed: where no two trials tie, p equals its p to the last digit."""
MAX_RELABELINGS = 200_000
"""With more, a random sample of the relabelings serves."""
BLOCK = 2**22
"""Numbers in memory at once while exchanging items."""
WORD = 32
"""Bits that numpy draws at once: a block of a multiple of it continues one random stream."""


@dataclass(frozen=True)
class RandomizationResult:
    """A two-sided p-value and the smallest one that this test could have given."""

    p: float
    smallest_p: float
    is_bound: bool = False
    """Whether no random trial was as extreme, so that p is only an upper bound."""


def permute_seeds(a_s: Floats, b_s: Floats) -> RandomizationResult:
    """The exact permutation test of two systems' scores over their seeds.

    p is the share of relabelings whose difference of means is at least as large as the observed
    one. With three runs each there are 20, so p cannot fall below 0.10.
    """
    scores = np.concatenate([a_s, b_s])
    size, relabelings = len(a_s), comb(len(scores), len(a_s))
    observed = abs(float(np.mean(a_s) - np.mean(b_s)))
    member_rs = _relabel(len(scores), size)
    sums = member_rs @ scores
    differences = np.abs(sums / size - (scores.sum() - sums) / (len(scores) - size))
    rounding = 1e-12 * max(1.0, float(np.abs(scores).max()))
    p = float((differences >= observed - rounding).mean())
    symmetric = 2 if len(a_s) == len(b_s) else 1
    return RandomizationResult(p, symmetric / min(relabelings, len(member_rs)))


@lru_cache(maxsize=2)
def _relabel(runs: int, size: int) -> Floats:
    """Relabelings [r, s] of runs as 0 and 1, `size` of them 1: all, or a sample of them.

    All pairs of a comparison have the same, so that they are made once.
    """
    if comb(runs, size) <= MAX_RELABELINGS:
        chosen = np.array(list(combinations(range(runs), size)))
    else:
        random = np.random.Generator(np.random.PCG64(SEED))
        shuffled = random.permuted(np.tile(np.arange(runs), (MAX_RELABELINGS, 1)), axis=1)
        chosen = np.concatenate([np.arange(size)[None], shuffled[:, :size]])
    member_rs = np.zeros((len(chosen), runs))
    member_rs[np.arange(len(chosen))[:, None], chosen] = 1.0
    return member_rs


def exchange_items(
    a_nc: Floats, b_nc: Floats, metric: Metric, *, trials: int = TRIALS, seed: int | None = SEED
) -> RandomizationResult:
    """Approximate randomization of two models' answers over items.

    Trials whose difference equals the observed one count as at least as large. sacreBLEU counts
    only larger ones, which gives too small a p where most items have equal counts.
    """
    observed = abs(float(metric(a_nc.sum(axis=0)) - metric(b_nc.sum(axis=0))))
    b_c, total_c = b_nc.sum(axis=0), a_nc.sum(axis=0) + b_nc.sum(axis=0)
    difference_nc = np.asarray(a_nc - b_nc, dtype=np.float64)
    at_least, rounding = 0, 1e-12 * max(1.0, observed)
    for keep_rn in _draw_exchanges(trials, len(a_nc), seed):
        a_rc = b_c + keep_rn.astype(np.float64) @ difference_nc
        differences = np.abs(metric(a_rc) - metric(total_c - a_rc))
        at_least += int((differences >= observed - rounding).sum())
    smallest = smallest_p(int((a_nc != b_nc).any(axis=1).sum()))
    p, resolution = (at_least + 1) / (trials + 1), 1 / (trials + 1)
    is_bound = at_least == 0 and resolution > smallest
    return RandomizationResult(max(p, smallest), max(smallest, resolution), is_bound)


def smallest_p(differing: int) -> float:
    """The smallest p-value that an exact randomization test can give for so many differing items.

    Of the 2^n ways to exchange n items, two always give a difference as large as the observed one:
    exchanging none and exchanging all.
    """
    return min(1.0, 2.0 ** (1 - differing))


def _draw_exchanges(trials: int, items: int, seed: int | None) -> Iterator[NDArray[np.bool_]]:
    """Yield blocks [r, n] that say which items each trial leaves as they are.

    All blocks together are what sacreBLEU draws at once.
    """
    random = np.random.default_rng(seed)
    rows = max(WORD, BLOCK // max(items, 1) // WORD * WORD)
    for first in range(0, trials, rows):
        yield random.integers(2, size=(min(rows, trials - first), items), dtype=bool)
