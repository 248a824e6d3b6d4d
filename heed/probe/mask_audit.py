"""The mask of attention, audited on one text: hidden weights, row sums, and a changed future.

A weight on a hidden key is a leak, whatever its size. A leak may also go around the mask, through a
norm over the whole sequence. So later tokens are changed, and earlier rows must stay as they are.

Shapes: h heads, n queries, m keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor

from heed.errors import ConfigError, DataError
from heed.models import Model
from heed.probe.attention_maps import AttentionMap
from heed.probe.mask_checks import OUTPUT_LIMIT, SUM_LIMIT, change_later_tokens, is_causal
from heed.probe.patch import Head
from heed.probe.text_trace import InputTokens, trace_batch


@dataclass(frozen=True)
class MaskAudit:
    """One kind of attention over one text: what the mask hides, and what rows sum to."""

    kind: str
    hidden: int
    """Cells that the mask hides, of one head."""
    largest_hidden: float
    """The largest weight on a hidden key, over all layers and heads: 0 in a sound model."""
    place: tuple[Head, int, int] | None
    """Its head, query and key; None where it is 0."""
    smallest_sum: float
    largest_sum: float

    @property
    def passed(self) -> bool:
        """Whether no hidden key has weight, and every row sums to one but for rounding."""
        off = max(1 - self.smallest_sum, self.largest_sum - 1)
        return self.largest_hidden == 0 and off <= SUM_LIMIT

    def to_dict(self) -> dict[str, Any]:
        """The audit for JSON; layers and heads count from 0."""
        place = None
        if self.place is not None:
            head, query, key = self.place
            place = {"layer": head.layer, "head": head.head, "query": query, "key": key}
        return asdict(self) | {"place": place, "passed": self.passed, "sum_limit": SUM_LIMIT}


def audit_map(attention: AttentionMap) -> MaskAudit:
    """Audit the weights of all layers and heads of one kind."""
    hidden_nm = ~attention.visible
    largest, place, sums = 0.0, None, list[float]()
    for layer, weights_hnm in zip(attention.layers, attention.weights, strict=True):
        if not weights_hnm.size:
            continue
        sums_hn = weights_hnm.sum(axis=2, dtype=np.float64)
        sums += [float(sums_hn.min()), float(sums_hn.max())]
        forbidden_hnm = np.abs(weights_hnm) * hidden_nm
        if forbidden_hnm.max() > largest:
            largest = float(forbidden_hnm.max())
            at = np.unravel_index(int(forbidden_hnm.argmax()), forbidden_hnm.shape)
            head, query, key = map(int, at)
            place = Head(attention.kind, layer, head), query, key
    count = int(hidden_nm.sum())
    return MaskAudit(attention.kind, count, largest, place, min(sums), max(sums))


@dataclass(frozen=True)
class FutureChange:
    """How far each row moved when all tokens from a place on were changed."""

    place: int
    """The first token that was changed: rows before it may not move."""
    ids: list[int]
    """The changed text, as the model read it."""
    weights: dict[str, list[float]]
    """By kind, for each row the largest change of a weight over all layers and heads."""
    outputs: list[float]
    """For each row the largest change of a logit, as a share of the largest logit."""

    @property
    def earlier_weights(self) -> float:
        """The largest change of a weight in a row before the place: 0 but for rounding."""
        return max((max(rows[: self.place]) for rows in self.weights.values()), default=0.0)

    @property
    def earlier_outputs(self) -> float:
        """The largest change of an output before the place."""
        return max(self.outputs[: self.place])

    @property
    def passed(self) -> bool:
        """Whether nothing before the place moved, but for rounding."""
        return self.earlier_weights <= SUM_LIMIT and self.earlier_outputs <= OUTPUT_LIMIT

    def to_dict(self) -> dict[str, Any]:
        """The change for JSON."""
        return asdict(self) | {
            "earlier_weights": self.earlier_weights,
            "earlier_outputs": self.earlier_outputs,
            "weight_limit": SUM_LIMIT,
            "output_limit": OUTPUT_LIMIT,
            "passed": self.passed,
        }


def change_future(
    model: Model, read: InputTokens, source: InputTokens | None, place: int, *, vocab: int
) -> FutureChange:
    """Replace every token from `place` on by another one, and measure how far each row moves."""
    if not is_causal(model):
        raise ConfigError(
            ["This model reads a text in both directions: no token of it is hidden as future."]
        )
    if not 1 <= place < len(read.ids):
        raise DataError(
            f"the future cannot begin at token {place + read.labels.start}.",
            todo="Choose a later token than the first; a text needs two.",
        )
    ids = change_later_tokens(read.ids, place, vocab)
    sources = [] if source is None else [source]
    before = trace_batch(model, [read], sources)
    after = trace_batch(model, [replace(read, ids=ids)], sources)
    moved = {
        kind: _largest_by_row(getattr(before, kind), getattr(after, kind))
        for kind in ("decoder", "cross")
        if any(layer.shape[1] for layer in getattr(before, kind))
    }
    difference_nv = (after.logits - before.logits)[0].double().abs()
    scale = max(float(before.logits.abs().max()), 1e-30)
    return FutureChange(
        place,
        ids,
        moved,
        (difference_nv.amax(dim=-1) / scale).tolist(),
    )


def _largest_by_row(before: Sequence[Tensor], after: Sequence[Tensor]) -> list[float]:
    """[n]: the largest change of a weight of each query, over layers, heads and keys."""
    rows = [
        (b_bhnm - a_bhnm)[0].double().abs().amax(dim=(0, 2))
        for a_bhnm, b_bhnm in zip(before, after, strict=True)
        if a_bhnm.shape[1]
    ]
    return [float(max(values)) for values in zip(*(row.tolist() for row in rows), strict=True)]
