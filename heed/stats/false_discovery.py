"""The false discovery rate: many exploratory questions, asked after the answers could be seen.

Of the findings that Benjamini and Hochberg's method (1995) selects at 5%, at most 5% are false on
average. That is weaker than the familywise level of a declared question, so what it selects is
worth a declared study, and is never called shown.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from heed.arrays import Floats


def benjamini_hochberg(p_values: Sequence[float] | Floats) -> Floats:
    """Adjusted p-values: those at or below q are selected at the false discovery rate q."""
    p = np.asarray(p_values, dtype=np.float64)
    if p.size == 0:
        return p
    if not ((p >= 0) & (p <= 1)).all():
        raise ValueError("p-values must lie between 0 and 1")
    order = np.argsort(p)
    scaled = p[order] * len(p) / np.arange(1, len(p) + 1)
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum.accumulate(scaled[::-1])[::-1]
    return np.minimum(adjusted, 1.0)
