"""Heads are paired by the best assignment, whatever their order."""

from __future__ import annotations

from itertools import permutations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from heed.arrays import Floats
from heed.probe.head_matching import assign

tables = st.tuples(st.integers(0, 5), st.integers(0, 5)).flatmap(
    lambda shape: arrays(np.float64, shape, elements=st.floats(-1, 1, width=16))
)


def best_sum(table: Floats) -> float:
    """The largest sum, by trying all assignments."""
    if table.shape[0] > table.shape[1]:
        table = table.T
    rows = range(table.shape[0])
    return max(
        sum(table[row, column] for row, column in zip(rows, columns, strict=True))
        for columns in permutations(range(table.shape[1]), len(rows))
    )


@given(tables)
def test_the_assignment_is_the_best_of_all(table: Floats) -> None:
    pairs = assign(table)
    assert len(pairs) == min(table.shape)
    assert len({row for row, _ in pairs}) == len({column for _, column in pairs}) == len(pairs)
    assert abs(sum(table[pair] for pair in pairs) - best_sum(table)) <= 1e-9


def test_a_permutation_is_recovered() -> None:
    draw = np.random.default_rng(0)
    order = draw.permutation(96)
    table = draw.random((96, 96)) * 0.9
    table[np.arange(96), order] = 1.0
    assert assign(table) == [(i, int(j)) for i, j in enumerate(order)]
