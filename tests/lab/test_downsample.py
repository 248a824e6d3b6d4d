"""Downsampled curves: extremes and ends survive, and every point was measured."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heed.lab.downsample import choose_points

values = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=300)


@given(curve=values, most=st.integers(10, 60), log_x=st.booleans(), has_band=st.booleans())
def test_extremes_and_ends_survive(
    curve: list[float], most: int, log_x: bool, has_band: bool
) -> None:
    y = np.array(curve)
    x = np.arange(1.0, len(y) + 1) ** 2
    columns = [y, y - np.abs(y[::-1]), y + np.abs(np.roll(y, 3))] if has_band else [y]
    places = choose_points(x, columns, most, log_x=log_x)
    assert places[0] == 0
    assert places[-1] == len(y) - 1
    assert (np.diff(places) > 0).all()
    assert len(places) <= max(most, 2 * len(columns)) + 2
    for column in columns:
        assert column[places].min() == column.min()
        assert column[places].max() == column.max()
    if len(y) <= most:
        assert len(places) == len(y)


@given(curve=values)
def test_every_stretch_has_its_extremes(curve: list[float]) -> None:
    y, x = np.array(curve), np.arange(float(len(curve)))
    places = choose_points(x, [y], 20)
    width = max((len(y) - 1) / 10, 1e-9)
    buckets = np.minimum((x / width).astype(int), 9)
    for bucket in np.unique(buckets):
        here = places[buckets[places] == bucket]
        assert y[here].min() == y[buckets == bucket].min()
        assert y[here].max() == y[buckets == bucket].max()


@pytest.mark.parametrize("x", [np.zeros(100), np.r_[np.arange(50.0), np.arange(40.0, 90.0)]])
def test_an_axis_that_stands_still_or_steps_back(x: np.ndarray) -> None:
    y = np.random.default_rng(0).normal(size=100)
    places = choose_points(x, [y], 20)
    assert y[places].min() == y.min()
    assert y[places].max() == y.max()
    assert len(places) <= 22
