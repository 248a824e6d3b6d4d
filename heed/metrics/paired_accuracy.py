"""The accuracy of a classifier compared with others on the same texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from heed.metrics.classification import Predictions
from heed.metrics.item_metrics import ACCURACY
from heed.stats.comparison import compare_systems
from heed.stats.intervals import Interval
from heed.stats.variance import System


@dataclass(frozen=True)
class PairedAccuracy:
    """The accuracies of two classifiers on the same texts, as shares, compared over the texts."""

    difference: float
    """Our accuracy minus theirs."""
    interval: Interval
    """Simultaneous over all classifiers that ours is compared with."""
    only_ours: int
    """Texts that only our classifier predicts correctly."""
    only_theirs: int
    """Texts that only the other classifier predicts correctly."""
    p: float
    """Of approximate randomization, this comparison alone."""
    p_corrected: float
    """Corrected for all comparisons, by max-t."""
    p_is_bound: bool
    """Whether no random trial was as extreme, so that p is only an upper bound."""


def compare_accuracy(ours: Predictions, others: Sequence[Predictions]) -> list[PairedAccuracy]:
    """Our accuracy compared with that of each other classifier, as one family."""
    if any(not np.array_equal(ours.labels, other.labels) for other in others):
        raise ValueError("A comparison needs the predictions of all systems for the same texts.")
    systems = [
        System(str(i), np.stack([one.correct, np.ones(len(one))], axis=-1)[None].astype(float))
        for i, one in enumerate([ours, *others])
    ]
    results = []
    for other, pair in zip(
        others, compare_systems(systems, ACCURACY, baseline="0").pairs, strict=True
    ):
        results.append(
            PairedAccuracy(
                difference=-pair.difference / 100,
                interval=Interval(-pair.interval.high / 100, -pair.interval.low / 100),
                only_ours=int((ours.correct & ~other.correct).sum()),
                only_theirs=int((other.correct & ~ours.correct).sum()),
                p=pair.p,
                p_corrected=pair.corrected_p,
                p_is_bound=pair.item_exchange is not None and pair.item_exchange.is_bound,
            )
        )
    return results
