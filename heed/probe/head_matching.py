"""Heads of two models matched by what they attend to, not by their numbers.

Heads have no order: two models trained from other seeds put the same job into other heads, often of
other layers. So every head of one model is compared with every head of the other on the same text,
and heads are paired such that the sum of similarities is largest (the assignment problem).

Shapes: n queries, m keys; h and k heads of the two models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from heed.arrays import Floats
from heed.probe.attention_maps import AttentionMap
from heed.probe.patch import Head


@dataclass(frozen=True)
class HeadMatch:
    """A head of the first model and the head of the second that it is paired with."""

    first: Head
    second: Head
    similarity: float
    """The mean over queries of the weight that both put on the same keys: 0 to 1."""


@dataclass(frozen=True)
class HeadMatching:
    """The pairing of all heads of one kind, and what other pairings would have."""

    matches: list[HeadMatch]
    """The most similar pair first."""
    similarity: float
    """The mean over the pairs. An assignment seeks similar heads, so it is high also by chance."""
    by_number: float | None
    """The mean if heads of equal layer and number were paired; None where the models' heads have
    different numbers."""
    any_pair: float
    """The mean over all pairs of heads: what heads paired at random would have."""


def match_heads(first: Sequence[AttentionMap], second: Sequence[AttentionMap]) -> HeadMatching:
    """Pair the heads of two models by their attention over the same texts, of one kind."""
    heads, others = list_map_heads(first[0]), list_map_heads(second[0])
    table_hk = mean_overlaps(first, second)
    pairs = assign(table_hk)
    matches = [HeadMatch(heads[i], others[j], float(table_hk[i, j])) for i, j in pairs]
    same = [table_hk[i, others.index(head)] for i, head in enumerate(heads) if head in others]
    return HeadMatching(
        sorted(matches, key=lambda match: -match.similarity),
        float(np.mean([match.similarity for match in matches])),
        float(np.mean(same)) if len(same) == len(heads) == len(others) else None,
        float(table_hk.mean()),
    )


def mean_overlaps(first: Sequence[AttentionMap], second: Sequence[AttentionMap]) -> Floats:
    """The similarity of every head of the first model with every head of the second, [h, k].

    It is the weight that both put on the same keys, Σ min(a, b) over the keys of a query: 1 less
    the total variation distance. The mean is over all queries that see more than one key.
    """
    total: Floats = np.zeros((len(list_map_heads(first[0])), len(list_map_heads(second[0]))))
    queries = 0
    for one, other in zip(first, second, strict=True):
        rows = (one.visible & other.visible).sum(axis=1) > 1
        a_hnm, b_knm = (stack_heads(each, rows) for each in (one, other))
        for i, a_nm in enumerate(a_hnm):  # one head at a time: [h, k, n, m] may not fit in memory
            total[i] += np.minimum(a_nm, b_knm).sum(axis=(1, 2))
        queries += int(rows.sum())
    return total / max(1, queries)


def stack_heads(attention: AttentionMap, rows: NDArray[np.bool_]) -> Floats:
    """The weights of all heads in the order of `list_map_heads`, over these queries, [h, n, m]."""
    return np.concatenate([layer[:, rows] for layer in attention.weights]).astype(np.float64)


def assign(similarity_hk: Floats) -> list[tuple[int, int]]:
    """Pairs (row, column), each used once, with the largest sum of similarities.

    The Hungarian method with shortest augmenting paths (Kuhn 1955; Jonker and Volgenant 1987). Of a
    table that is not square, rows or columns are left over.
    """
    if similarity_hk.shape[0] > similarity_hk.shape[1]:
        return sorted((row, column) for column, row in assign(similarity_hk.T))
    rows, columns = similarity_hk.shape
    cost = np.pad(-similarity_hk.astype(np.float64), ((1, 0), (1, 0)))
    # Row and column 0 are artificial: a row enters by column 0.
    row_price, column_price = np.zeros(rows + 1), np.zeros(columns + 1)
    row_of = np.zeros(columns + 1, dtype=np.int64)
    for row in range(1, rows + 1):
        row_of[0], column = row, 0
        distance = np.full(columns + 1, np.inf)
        before = np.zeros(columns + 1, dtype=np.int64)
        done = np.zeros(columns + 1, dtype=bool)
        while row_of[column] != 0:
            done[column] = True
            reduced = cost[row_of[column]] - row_price[row_of[column]] - column_price
            closer = ~done & (reduced < distance)
            distance[closer], before[closer] = reduced[closer], column
            next_column = int(np.where(done, np.inf, distance).argmin())
            step = distance[next_column]
            row_price[row_of[done]] += step
            column_price[done] -= step
            distance[~done] -= step
            column = next_column
        while column:
            row_of[column] = row_of[before[column]]
            column = int(before[column])
    return sorted((int(row) - 1, column - 1) for column, row in enumerate(row_of) if column and row)


def list_map_heads(attention: AttentionMap) -> list[Head]:
    """The heads of a map in the order of its layers."""
    return [
        Head(attention.kind, layer, head)
        for layer, weights_hnm in zip(attention.layers, attention.weights, strict=True)
        for head in range(len(weights_hnm))
    ]
