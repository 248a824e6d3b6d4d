"""Whether two optimizers differ, by several models of each on the same texts.

Of every text there are two numbers: what is summed (right answers, losses) and what it is divided
by (answers, tokens). An optimizer's figure is the mean over its models of the one sum over the
other. Texts are drawn again with the answers of all models of both (Koehn 2004): would there be a
difference on other texts? Welch's t-test over the models' figures asks: with other seeds? To call
two different is to say yes twice, so the larger p counts.

Shapes: n texts, r draws.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from ted.joined import welch

from descent.systems import Task
from descent.training import TABLES
from heed.arrays import Floats, Ints
from heed.stats.bootstrap import BLOCK, RESAMPLES, SEED, percentile_interval

Table = Floats
"""Two numbers for every text, [n, 2]."""
Seeds = Mapping[int, Table]
"""Of each seed's model."""
CLOSE = 1e-12


def counts(task: Task, folder: Path) -> Table | None:
    """What a run answered on test, [n, 2]; None where it was not asked."""
    path = folder / TABLES[task.name] / "test.tsv"
    if not path.exists():
        return None
    head, *rows = [line.split("\t") for line in path.read_text("utf-8").split("\n") if line]
    at = {name: head.index(name) for name in head}
    if task.name == "classify":
        pairs = [(float(row[at["label"]] == row[at["answer"]]), 1.0) for row in rows]
    else:
        sizes = [(float(row[at["loss"]]), float(row[at["tokens"]])) for row in rows]
        pairs = [(loss * tokens, tokens) for loss, tokens in sizes]
    return np.array(pairs, dtype=np.float64).reshape(-1, 2)


def figure(table: Table) -> float:
    """Of one model."""
    total, by = table.sum(axis=0)
    return float(total / by)


def span(seeds: Seeds) -> tuple[float, float]:
    """The middle 95% of an optimizer's figure over draws of the texts."""
    found = percentile_interval(_drawn(seeds))
    return found.low, found.high


def _drawn(seeds: Seeds) -> Floats:
    """An optimizer's figure on every draw, the same draws for all."""
    tables = list(seeds.values())

    def mean(drawn: Ints) -> Floats:
        sums = (table[drawn].sum(axis=1) for table in tables)
        return np.mean([both[:, 0] / both[:, 1] for both in sums], axis=0)

    random, texts = np.random.Generator(np.random.PCG64(SEED)), len(tables[0])
    rows = max(1, BLOCK // texts)
    sizes = [(min(rows, RESAMPLES - first), texts) for first in range(0, RESAMPLES, rows)]
    return np.concatenate([mean(random.integers(texts, size=size)) for size in sizes])


@dataclass(frozen=True)
class Compared:
    """One optimizer against another; what it gains is above 0."""

    gain: float
    low: float
    high: float
    p_texts: float
    p_seeds: float

    @property
    def p(self) -> float:
        """The larger: to call two different is to claim both."""
        return max(self.p_texts, self.p_seeds)


def against(task: Task, mine: Seeds, theirs: Seeds) -> Compared:
    """Test an optimizer against another one, each with two seeds or more."""
    sign = 1.0 if task.rises else -1.0
    figures = [[figure(table) for table in side.values()] for side in (mine, theirs)]
    gain = sign * float(np.mean(figures[0]) - np.mean(figures[1]))
    drawn = sign * (_drawn(mine) - _drawn(theirs))
    ends = percentile_interval(drawn)
    as_large = int(np.sum(np.abs(drawn - drawn.mean()) >= abs(gain) - CLOSE))
    chance = (as_large + 1) / (len(drawn) + 1)
    return Compared(gain, ends.low, ends.high, chance, welch(*figures))
