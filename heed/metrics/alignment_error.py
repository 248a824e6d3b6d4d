"""Alignment error rate: how far word alignments are from gold ones."""

from __future__ import annotations

from collections.abc import Collection, Sequence

Links = Collection[tuple[int, int]]
"""(source word, target word)."""


def alignment_error_rate(predicted: Sequence[Links], gold: Sequence[Links]) -> float:
    """Alignment error rate (Och and Ney 2003) with sure gold links only: 1 - F1 over links."""
    shared = sum(len(set(p) & set(g)) for p, g in zip(predicted, gold, strict=True))
    total = sum(len(set(p)) + len(set(g)) for p, g in zip(predicted, gold, strict=True))
    return 1.0 - 2.0 * shared / max(1, total)
