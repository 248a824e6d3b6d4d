"""Correction of p-values for several tests."""

from __future__ import annotations

from collections.abc import Sequence


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's correction (1979): the probability of any false positive stays at the level.

    The smallest of m p-values is multiplied by m, the next by m - 1, and so on; none is below an
    earlier one, and none above 1.
    """
    corrected, largest = [1.0] * len(p_values), 0.0
    for rank, i in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[i]))
        corrected[i] = largest
    return corrected
