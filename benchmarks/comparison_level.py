"""Level and power of the comparison: simulated experiments with known variances.

A run's value on an item is the item's difficulty, the system's effect on that item, the seed's
effect on the whole run, and a residual. Systems are drawn alike, so every finding is false unless
an effect is planted.
"""

from __future__ import annotations

from argparse import ArgumentParser
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from itertools import combinations, product
from typing import Any

import numpy as np
from common import keep, table

from heed.arrays import Floats
from heed.stats.families import best_set, judge_family
from heed.stats.power import Design
from heed.stats.variance import System, estimate_variances

CELLS = [
    (0.0, 0.0, 1.0),
    (1.0, 1.0, 1.0),
    (1.0, 1.0, 0.0),
    (0.2, 0.2, 1.0),
    (5.0, 0.5, 0.5),
    (0.2, 1.0, 0.2),
]
"""Variances of the seed, of system × item and of the residual.

The seed's is that of a run's mean times the number of items, so that seeds and items matter about
equally whatever the number of items is.
"""


@dataclass(frozen=True)
class Experiment:
    """One cell of the simulation."""

    seeds: int
    items: int
    variances: tuple[float, float, float]
    kind: str = "normal"
    systems: int = 2

    def draw(self, random: np.random.Generator, effects: tuple[float, ...] = ()) -> list[System]:
        """Draw all systems once; `effects` are added to the systems in order."""
        seed, interaction, residual = self.variances
        effects = effects or (0.0,) * self.systems
        item_n = random.standard_normal(self.items)
        systems = []
        for index, effect in enumerate(effects):
            value_sn = (
                item_n
                + np.sqrt(interaction) * self._noise(random, 1, self.items)
                + np.sqrt(residual) * self._noise(random, self.seeds, self.items)
                + np.sqrt(seed / self.items) * self._noise(random, self.seeds, 1)
            )
            if self.kind == "bernoulli":
                value_sn = (value_sn > 0).astype(np.float64)
            value_sn = value_sn + effect
            counts = np.stack([value_sn, np.ones_like(value_sn)], axis=-1)
            systems.append(System(f"system {index}", counts))
        return systems

    def _noise(self, random: np.random.Generator, seeds: int, items: int) -> Floats:
        if self.kind == "t3":  # three degrees of freedom, scaled to variance 1
            return random.standard_t(3, (seeds, items)) / np.sqrt(3)
        return random.standard_normal((seeds, items))

    def true_variance(self) -> float:
        """The variance of the difference of two systems' means (not for Bernoulli items)."""
        seed, interaction, residual = self.variances
        return 2 * (seed / self.seeds + interaction + residual / self.seeds) / self.items


def mean_value(counts: Floats) -> Floats:
    """The mean over items, as a function of sums."""
    return np.asarray(counts[..., 0] / counts[..., 1])


def binomial_bound(trials: int, rate: float, deviations: float = 3.3) -> float:
    """A count that a true rate exceeds about once in 2,000 tests."""
    return float(trials * rate + deviations * np.sqrt(trials * rate * (1 - rate)))


SEEDS = (2, 3, 5, 10)
ITEMS = (100, 500, 2000)
KINDS = ("normal", "bernoulli", "t3")
MAX_FALSE_POSITIVES = 0.065
FAMILYWISE_LEVEL = 0.055


def false_positives(experiment: Experiment, trials: int, random: np.random.Generator) -> float:
    """The share of experiments that find a difference between two systems drawn alike.

    One minus it is the coverage of the interval: a planted effect shifts both alike.
    """
    found = 0
    for _ in range(trials):
        variances = estimate_variances(experiment.draw(random), mean_value)
        [result] = judge_family(variances, [variances.contrast(1, 0)])
        found += result.p < 0.05
    return found / trials


def found_planted(experiment: Experiment, trials: int, random: np.random.Generator) -> float:
    """The share of experiments that find an effect of the smallest visible size."""
    seed, interaction, residual = experiment.variances
    design = Design(
        (seed / experiment.items,) * 2,
        2 * interaction,
        (residual,) * 2,
        (experiment.seeds,) * 2,
        experiment.items,
    )
    effect, found = design.smallest_visible(), 0
    for _ in range(trials):
        variances = estimate_variances(experiment.draw(random, (0.0, effect)), mean_value)
        [result] = judge_family(variances, [variances.contrast(1, 0)])
        found += result.p < 0.05
    return found / trials


def familywise_error(trials: int, random: np.random.Generator) -> tuple[float, float]:
    """All pairs of seven systems: the share with any finding, and with the best left out."""
    found = missed = 0
    alike, best = Experiment(3, 100, (1.0, 1.0, 1.0), systems=7), (0.0, 0, 0, 0.3, 0.3, 0.5, 0.6)
    for _ in range(trials):
        variances = estimate_variances(alike.draw(random), mean_value)
        pairs = [variances.contrast(b, a) for a, b in combinations(range(7), 2)]
        found += any(r.corrected_p < 0.05 for r in judge_family(variances, pairs, draws=10_000))
        variances = estimate_variances(alike.draw(random, best), mean_value)
        missed += 6 not in best_set(variances, higher_is_better=True, draws=10_000)
    return found / trials, missed / trials


def run_cell(experiment: Experiment, trials: int, seed: int) -> dict[str, Any]:
    """One row of the table."""
    random = np.random.default_rng(seed)
    rate = false_positives(experiment, trials, random)
    power = None if experiment.kind == "bernoulli" else found_planted(experiment, trials, random)
    return {**asdict(experiment), "trials": trials, "false_positives": rate, "power": power}


def main() -> None:
    """Run every cell and write the table."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=2000)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    cells = [Experiment(*cell) for cell in product(SEEDS, ITEMS, CELLS, KINDS)]
    with ProcessPoolExecutor(options.jobs) as pool:
        families = [
            pool.submit(familywise_error, options.trials // 4, np.random.default_rng(seed))
            for seed in range(8)
        ]
        futures = [
            pool.submit(run_cell, cell, options.trials, seed) for seed, cell in enumerate(cells)
        ]
        rows = [future.result() for future in futures]
        error, missed = np.mean([future.result() for future in families], axis=0).tolist()
    worst = max(rows, key=lambda row: row["false_positives"])
    powers = [row["power"] for row in rows if row["power"] is not None]
    result = {
        "cells": rows,
        "worst_false_positives": worst["false_positives"],
        "cells_over_the_bar": sum(row["false_positives"] > MAX_FALSE_POSITIVES for row in rows),
        "power": [min(powers), max(powers)],
        "familywise_error": error,
        "familywise_trials": 8 * (options.trials // 4),
        "best_left_out": missed,
    }
    keep("comparison-level", _table(rows, result), result, device="cpu")


def _table(rows: list[dict[str, Any]], result: dict[str, Any]) -> str:
    title = (
        f"False positives: at most {result['worst_false_positives']:.3f} over {len(rows)} cells "
        f"(bar {MAX_FALSE_POSITIVES}), {result['cells_over_the_bar']} cells above the bar.\n"
        f"All pairs of seven systems: {result['familywise_error']:.3f} find anything "
        f"(bar {FAMILYWISE_LEVEL}); Hsu's set leaves out the best in "
        f"{result['best_left_out']:.3f} (bar 0.05), {result['familywise_trials']} trials.\n"
        f"An effect of the smallest visible size is found in {result['power'][0]:.3f} to "
        f"{result['power'][1]:.3f} of experiments.\n"
    )
    columns = ["items' kind", "seeds", "items", "seed, system x item, residual", "false positives"]
    columns += ["smallest visible effect found", "trials"]
    cells = [
        [
            row["kind"],
            str(row["seeds"]),
            str(row["items"]),
            ", ".join(f"{v:g}" for v in row["variances"]),
            f"{row['false_positives']:.3f}",
            "" if row["power"] is None else f"{row['power']:.3f}",
            str(row["trials"]),
        ]
        for row in rows
    ]
    return table(title, columns, cells)


if __name__ == "__main__":
    main()
