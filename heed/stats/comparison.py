"""Comparison of recipes: every pair's difference, interval, p-values and verdict.

One estimator serves every metric that is a function of sums over items. A change of recipe is real
where it stands out from what another seed and another test sample would have done.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from math import isnan, sqrt

import numpy as np

from heed.arrays import Floats, Ints
from heed.stats.distributions import student_t_quantile, student_t_tail
from heed.stats.families import JudgedContrast, best_set, gaps_to_best, judge_family
from heed.stats.intervals import Interval
from heed.stats.permutation import SEED, RandomizationResult, exchange_items, permute_seeds
from heed.stats.power import ENDLESS_SEEDS, design_of, seeds_needed
from heed.stats.variance import Metric, System, Variances, estimate_variances, merge_clusters

ALPHA = 0.05
MIN_SEEDS = 3
"""Fewer runs of a system give no verdict on its recipe."""


@dataclass(frozen=True)
class SumMetric:
    """A metric that is a function of summed counts, and how it is shown."""

    name: str
    function: Metric
    higher_is_better: bool = True
    digits: int = 2
    unit: str = ""
    """What a difference is counted in, where that is not the name: points of accuracy."""

    @property
    def difference_unit(self) -> str:
        """What a difference is counted in."""
        return self.unit or self.name


@dataclass(frozen=True)
class Pair:
    """System `a` compared with system `b`: a difference and everything that is said about it."""

    a: str
    b: str
    mean_a: float
    mean_b: float
    seeds: tuple[int, int]
    difference: float
    """mean_a - mean_b, of the metric as it is shown."""
    interval: Interval
    """Simultaneous over the family, at the level 1 - alpha."""
    equivalence_interval: Interval
    """Of this pair alone at the level 1 - 2 alpha, for the two one-sided tests of equivalence."""
    df: float
    p: float
    """Of this pair alone. Of two single runs it is that of randomization over items."""
    corrected_p: float
    """Corrected for the family: no smaller than p."""
    percent: float | None
    """The difference in percent of mean_b."""
    seed_deviations: float | None
    """The difference in standard deviations over seeds."""
    win_share: float
    """P(A > B): the share of pairs of runs in which a scores better, ties counting half."""
    seed_permutation: RandomizationResult | None
    item_exchange: RandomizationResult | None
    """The test of two single models over items, where either system has one run."""
    smallest_visible: float | None
    """The smallest difference that this design shows in 80% of experiments.

    Not below half of the interval's width, which is what this experiment would have shown.
    """
    seeds_needed: int | None
    """Seeds per system that would show the difference seen; None if 100 would not."""
    needs_items: bool
    """Whether no number of seeds would show it with these test items."""

    @property
    def compares_recipes(self) -> bool:
        """Whether both systems have enough seeds for a verdict on recipes."""
        return min(self.seeds) >= MIN_SEEDS


@dataclass(frozen=True)
class Comparison:
    """The answer to one question: its pairs, and which systems may be best."""

    metric: SumMetric
    pairs: list[Pair]
    best: list[str] | None
    """The best and those not distinguishable from it; None with fewer than three seeds."""
    systems: dict[str, Floats]
    """The metric of every run, by system."""
    items: int
    units: int
    """Clusters where items are clustered, else items."""
    clustered: bool
    paired_seeds: bool
    alpha: float
    variances: Variances = field(repr=False)

    @cached_property
    def best_gaps(self) -> dict[str, Interval]:
        """Each of `best`: its mean minus the best mean of the others, by Hsu's intervals."""
        names = self.variances.names
        members = [names.index(name) for name in self.best or ()]
        gaps = gaps_to_best(
            self.variances,
            members,
            higher_is_better=self.metric.higher_is_better,
            alpha=self.alpha,
        )
        return dict(zip(self.best or (), gaps, strict=True))


def compare_systems(
    systems: Sequence[System],
    metric: SumMetric,
    *,
    baseline: str | None = None,
    clusters: Sequence[int] | Ints | None = None,
    paired_seeds: bool = False,
    alpha: float = ALPHA,
    seed: int | None = SEED,
) -> Comparison:
    """Compare every system with the baseline, or all pairs where none is named.

    All pairs of one call are one family: intervals and corrected p-values hold for all together.
    `seed` draws the exchanges of items, where two single runs are compared; None draws others
    at each call.
    """
    if len({system.name for system in systems}) < len(systems):
        raise ValueError("systems need different names")
    variances = estimate_variances(systems, metric.function, clusters=clusters, paired=paired_seeds)
    chosen = _pairs(variances.names, baseline)
    contrasts = [variances.contrast(a, b) for a, b in chosen]
    judged = judge_family(variances, contrasts, alpha=alpha)
    units = merge_clusters(systems, clusters)
    exchanges = [_exchange_items(units[a], units[b], metric, seed) for a, b in chosen]
    pairs = [
        _describe_pair(variances, metric, a, b, result, exchange, len(chosen) == 1, alpha)
        for (a, b), result, exchange in zip(chosen, judged, exchanges, strict=True)
    ]
    best = None
    if int(variances.seeds_k.min()) >= MIN_SEEDS and len(systems) > 1:
        indices = best_set(variances, higher_is_better=metric.higher_is_better, alpha=alpha)
        best = [variances.names[i] for i in indices]
    return Comparison(
        metric=metric,
        pairs=pairs,
        best=best,
        systems=dict(zip(variances.names, variances.values_ks, strict=True)),
        items=systems[0].counts_snc.shape[1],
        units=variances.units,
        clustered=variances.clustered,
        paired_seeds=paired_seeds,
        alpha=alpha,
        variances=variances,
    )


def _pairs(names: Sequence[str], baseline: str | None) -> list[tuple[int, int]]:
    """Indices (a, b) of the pairs of the family: b is the baseline, or the earlier system."""
    if baseline is None:
        return [(b, a) for a, b in combinations(range(len(names)), 2)]
    if baseline not in names:
        raise ValueError(f"no system is called {baseline!r}")
    base = names.index(baseline)
    return [(i, base) for i in range(len(names)) if i != base]


def _exchange_items(
    a: System, b: System, metric: SumMetric, seed: int | None
) -> RandomizationResult | None:
    """The randomization test of two single runs; None where either system has more."""
    if max(a.seeds, b.seeds) > 1:
        return None
    return exchange_items(a.counts_snc[0], b.counts_snc[0], metric.function, seed=seed)


def _describe_pair(
    variances: Variances,
    metric: SumMetric,
    a: int,
    b: int,
    judged: JudgedContrast,
    exchange: RandomizationResult | None,
    is_alone: bool,
    alpha: float,
) -> Pair:
    values_a, values_b = variances.values_ks[a], variances.values_ks[b]
    mean_a, mean_b = float(variances.means_k[a]), float(variances.means_k[b])
    seeds = (int(variances.seeds_k[a]), int(variances.seeds_k[b]))
    difference, error = judged.difference, judged.standard_error
    permutation = visible = needed = deviations = None
    needs_items = False
    if min(seeds) > 1:
        permutation = permute_seeds(values_a, values_b)
        design = design_of(variances, a, b)
        # The level of one comparison that the family's critical value stands for.
        level = 2 * student_t_tail(judged.critical, judged.df)
        # Where variances are estimated badly, the design alone promises what the interval denies.
        visible = max(design.smallest_visible(level), judged.critical * error)
        needed = seeds_needed(design, difference, alpha=level, least=MIN_SEEDS)
        if needed is None and difference != 0:
            limit = design.with_seeds(ENDLESS_SEEDS).smallest_visible(level)
            needs_items = limit > abs(difference)
        spread = sqrt(float(np.mean([values_a.var(ddof=1), values_b.var(ddof=1)])))
        deviations = difference / spread if spread > 0 else None
    sign = 1 if metric.higher_is_better else -1
    wins = np.sign(sign * (values_a[:, None] - values_b[None, :]))
    if variances.paired:
        wins = np.diag(wins)
    half = student_t_quantile(1 - alpha, judged.df) * error
    corrected_p = judged.corrected_p
    if exchange is not None:  # it assumes no distribution, but knows of no other comparison
        corrected_p = exchange.p if is_alone else max(exchange.p, corrected_p)
    return Pair(
        a=variances.names[a],
        b=variances.names[b],
        mean_a=mean_a,
        mean_b=mean_b,
        seeds=seeds,
        difference=difference,
        interval=Interval.around(difference, judged.critical * error),
        equivalence_interval=Interval.around(difference, half),
        df=judged.df,
        p=judged.p if exchange is None else exchange.p,
        corrected_p=corrected_p,
        percent=None if mean_b == 0 or isnan(mean_b) else 100 * difference / abs(mean_b),
        seed_deviations=deviations,
        win_share=float((wins + 1).mean() / 2),
        seed_permutation=permutation,
        item_exchange=exchange,
        smallest_visible=visible,
        seeds_needed=needed,
        needs_items=needs_items,
    )
