"""Variance of a metric over seeds and test items, for systems scored on the same items.

A system is a recipe without its seed. Each of its runs is one seed. Every run keeps, for each test
item, the counts whose sum the metric is computed from. Corpus metrics are not means over items, so
the delete-one jackknife (Tukey 1958) linearizes them: pseudo-values per item whose variance is the
metric's. Only variances use pseudo-values; the metric itself is always computed from the sums.

Shapes: k systems, s seeds, n items, m units (clusters of items, or the items), c counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import log

import numpy as np

from heed.arrays import Floats, Ints
from heed.stats.distributions import chi2_tail

Metric = Callable[[Floats], Floats]
"""A metric as a function of summed counts: […, c] -> […]."""

MIN_CLUSTERS = 10
"""From this many clusters on, variance is taken over clusters instead of items."""
MIN_POOLED_SYSTEMS = 3
"""From this many systems on, they share one seed variance."""
MIN_DF = 0.9
"""Estimated degrees of freedom do not fall below those of one pair of runs."""
UNEQUAL_VARIANCE_P = 0.01
"""Seed variances are not pooled where Bartlett's test gives a smaller p-value."""


@dataclass(frozen=True)
class System:
    """The runs of one recipe: item counts [s, n, c], one row per seed."""

    name: str
    counts_snc: Floats

    def __post_init__(self) -> None:
        if self.counts_snc.ndim != 3 or 0 in self.counts_snc.shape[:2]:
            shape = self.counts_snc.shape
            raise ValueError(f"{self.name}: counts must be [seeds, items, counts], not {shape}")

    @property
    def seeds(self) -> int:
        """Number of runs."""
        return len(self.counts_snc)


@dataclass(frozen=True)
class Variances:
    """Variance of every system's mean score: covariance matrices [k, k] over seeds and items.

    The variance of a contrast a (such as +1 for A and -1 for B) is a' (seed + item - residual) a:
    two-way clustering (Cameron, Gelbach and Miller 2011). The residual part, seed by item, is
    contained in both of the others and is subtracted once.
    """

    names: tuple[str, ...]
    seeds_k: Ints
    units: int
    """Items, or clusters of items."""
    clustered: bool
    values_ks: tuple[Floats, ...]
    """The metric of every run, by system."""
    means_k: Floats
    seed_kk: Floats
    item_kk: Floats
    residual_kk: Floats
    paired: bool
    """Whether run i of every system shares its seed, as declared before training."""
    pooled: bool
    """Whether the systems share one estimate of the seed variance."""

    def variance(self, contrast_k: Floats) -> float:
        """V = max(V_seed + V_item - V_residual, V_item) of a contrast of systems."""
        item = float(contrast_k @ self.item_kk @ contrast_k)
        total = float(contrast_k @ self.total_kk @ contrast_k)
        return max(total, item, 0.0)

    def degrees_of_freedom(self, contrast_k: Floats) -> float:
        """ν of a contrast (Satterthwaite 1946), from the seeds' and the items' variances.

        At least `MIN_DF`: what V_residual takes away can leave V far below its parts.
        """
        item = float(contrast_k @ self.item_kk @ contrast_k)
        used = contrast_k != 0
        dof_k = np.maximum(self.seeds_k - 1, 1)
        seed_k = contrast_k**2 * np.diag(self.seed_kk)
        if self.paired:
            shared = float(contrast_k @ self.seed_kk @ contrast_k)
            seeds = shared**2 / dof_k[used].min()
        elif self.pooled:
            seeds = float(seed_k.sum()) ** 2 / float((self.seeds_k - 1).sum())
        else:
            seeds = float((seed_k**2 / dof_k)[used].sum())
        parts = seeds + item**2 / max(self.units - 1, 1)
        variance = self.variance(contrast_k)
        if parts == 0:
            return float(max(self.units - 1, 1))
        return max(variance**2 / parts, MIN_DF)

    @property
    def total_kk(self) -> Floats:
        """Covariance of the systems' mean scores over both seeds and items."""
        return self.seed_kk + self.item_kk - self.residual_kk

    def contrast(self, a: int, b: int) -> Floats:
        """The contrast a - b: +1 for system a, -1 for system b."""
        contrast_k = np.zeros(len(self.names))
        contrast_k[a], contrast_k[b] = 1.0, -1.0
        return contrast_k


def estimate_variances(
    systems: Sequence[System],
    metric: Metric,
    *,
    clusters: Sequence[int] | Ints | None = None,
    paired: bool = False,
) -> Variances:
    """Estimate the variance of every system's mean score over seeds and items.

    `clusters` gives the group of each item (talk, document, speaker). `paired` says that run i of
    every system shares its seed, and must have been declared before training: deciding it by the
    correlation seen would raise the rate of false findings from 5% to about 10%.
    """
    _check_same_items(systems)
    if paired and len({system.seeds for system in systems}) > 1:
        raise ValueError("paired seeds need the same number of runs for every system")
    merged = merge_clusters(systems, clusters)
    scores = [jackknife(np.asarray(one.counts_snc, np.float64), metric) for one in merged]
    values_ks = tuple(values for values, _ in scores)
    pseudo_kms = [pseudo for _, pseudo in scores]
    units = pseudo_kms[0].shape[1]
    seeds_k = np.array([system.seeds for system in systems])
    unit_mean_km = np.stack([pseudo.mean(axis=0) for pseudo in pseudo_kms])
    item_kk = _covariance(unit_mean_km) / units
    if paired and seeds_k[0] > 1:
        values = np.stack(values_ks)
        seed_kk = _covariance(values) / seeds_k[0]
        residuals = np.stack([_residuals(pseudo).ravel() for pseudo in pseudo_kms])
        freedom = (seeds_k[0] - 1) * max(units - 1, 1)
        residual_kk = residuals @ residuals.T / freedom / (seeds_k[0] * units)
        pooled = False
    else:
        seed_variance_k = np.array([_variance(values) for values in values_ks])
        pooled = _pools(seed_variance_k, seeds_k)
        if pooled:
            seed_variance_k[:] = ((seeds_k - 1) @ seed_variance_k) / (seeds_k - 1).sum()
        seed_kk = np.diag(seed_variance_k / seeds_k)
        residual_k = [_residual_variance(pseudo) / pseudo.size for pseudo in pseudo_kms]
        residual_kk = np.diag(residual_k)
    return Variances(
        names=tuple(system.name for system in systems),
        seeds_k=seeds_k,
        units=units,
        clustered=merged[0].counts_snc.shape != systems[0].counts_snc.shape,
        values_ks=values_ks,
        means_k=np.array([values.mean() for values in values_ks]),
        seed_kk=seed_kk,
        item_kk=item_kk,
        residual_kk=residual_kk,
        paired=paired,
        pooled=pooled,
    )


def jackknife(counts_smc: Floats, metric: Metric) -> tuple[Floats, Floats]:
    """The metric of every run [s], and its delete-one pseudo-values [s, m].

    The pseudo-value of unit i is m f(S) - (m - 1) f(S - c_i), for the sum S of all counts.
    """
    units = counts_smc.shape[1]
    total_sc = counts_smc.sum(axis=1)
    values_s = np.asarray(metric(total_sc), dtype=np.float64)
    if units == 1:
        return values_s, values_s[:, None]
    left_out_sm = np.asarray(metric(total_sc[:, None] - counts_smc), dtype=np.float64)
    return values_s, units * values_s[:, None] - (units - 1) * left_out_sm


def bartlett_p(variances: Floats, sizes: Ints) -> float:
    """The p-value of Bartlett's test (1937) that samples of these sizes share one variance."""
    freedom = np.asarray(sizes) - 1
    groups, total = len(freedom), int(freedom.sum())
    pooled = float(freedom @ variances) / total
    if pooled == 0:
        return 1.0
    if (variances == 0).any():
        return 0.0
    statistic = total * log(pooled) - float(freedom @ np.log(variances))
    correction = 1 + (float((1 / freedom).sum()) - 1 / total) / (3 * (groups - 1))
    return chi2_tail(statistic / correction, groups - 1)


def _pools(variance_k: Floats, seeds_k: Ints) -> bool:
    if len(seeds_k) < MIN_POOLED_SYSTEMS or (seeds_k < 2).any():
        return False
    return bartlett_p(variance_k, seeds_k) >= UNEQUAL_VARIANCE_P


def _check_same_items(systems: Sequence[System]) -> None:
    shapes = {system.counts_snc.shape[1:] for system in systems}
    if len(shapes) > 1:
        raise ValueError(f"systems must be scored on the same items with the same counts: {shapes}")


def merge_clusters(
    systems: Sequence[System], clusters: Sequence[int] | Ints | None
) -> list[System]:
    """The systems with the counts of each cluster summed, from `MIN_CLUSTERS` clusters on."""
    if clusters is None:
        return list(systems)
    _, cluster_of = np.unique(np.asarray(clusters), return_inverse=True)
    items = systems[0].counts_snc.shape[1]
    if len(cluster_of) != items:
        raise ValueError(f"{len(cluster_of)} clusters for {items} items: give one per item")
    if cluster_of.max() + 1 < MIN_CLUSTERS:
        return list(systems)
    order = np.argsort(cluster_of, kind="stable")
    starts = np.flatnonzero(np.diff(cluster_of[order], prepend=-1))
    return [
        replace(system, counts_snc=np.add.reduceat(system.counts_snc[:, order], starts, axis=1))
        for system in systems
    ]


def _variance(values: Floats) -> float:
    return float(values.var(ddof=1)) if len(values) > 1 else 0.0


def _covariance(rows_km: Floats) -> Floats:
    if rows_km.shape[1] < 2:
        return np.zeros((len(rows_km), len(rows_km)))
    centered = rows_km - rows_km.mean(axis=1, keepdims=True)
    return centered @ centered.T / (rows_km.shape[1] - 1)


def _residuals(pseudo_sm: Floats) -> Floats:
    """What neither the seed nor the item explains of the pseudo-values."""
    return (
        pseudo_sm
        - pseudo_sm.mean(axis=0, keepdims=True)
        - pseudo_sm.mean(axis=1, keepdims=True)
        + pseudo_sm.mean()
    )


def _residual_variance(pseudo_sm: Floats) -> float:
    seeds, units = pseudo_sm.shape
    if seeds < 2 or units < 2:
        return 0.0
    return float((_residuals(pseudo_sm) ** 2).sum()) / ((seeds - 1) * (units - 1))
