"""The shape of each schedule: how it rises, joins, falls and ends."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heed.config.train import SCHEDULES
from heed.errors import ConfigError
from heed.train.optimizers.schedules import schedule

ENDING = ("cosine", "linear", "wsd")
names = st.sampled_from(SCHEDULES)
floors = st.floats(0.0, 1.0)
shares = st.floats(0.01, 1.0)


@st.composite
def lengths(draw: st.DrawFn) -> tuple[int, int]:
    """A warm-up and a number of steps that holds it."""
    steps = draw(st.integers(1, 2000))
    return draw(st.integers(0, steps)), steps


@given(names, lengths(), floors, shares, st.integers(0, 5000))
def test_a_factor_is_a_share_of_the_peak(
    name: str, length: tuple[int, int], floor: float, share: float, step: int
) -> None:
    factor = schedule(name, warmup=length[0], steps=length[1], floor=floor, decay_share=share)
    assert 0.0 <= factor(step) <= 1.0
    assert factor(step) == factor(step)


@given(names, lengths(), floors)
def test_the_warm_up_is_a_straight_line_to_the_peak(
    name: str, length: tuple[int, int], floor: float
) -> None:
    warmup, steps = length
    factor = schedule(name, warmup=warmup, steps=steps, floor=floor)
    rise = [factor(step) for step in range(warmup)]
    assert rise == [(step + 1) / warmup for step in range(warmup)]
    if warmup < steps and name != "inverse_sqrt":
        assert factor(warmup) == pytest.approx(1.0)  # the joint: no jump


@given(names, lengths(), floors, shares)
def test_nothing_rises_after_the_warm_up(
    name: str, length: tuple[int, int], floor: float, share: float
) -> None:
    warmup, steps = length
    factor = schedule(name, warmup=warmup, steps=steps, floor=floor, decay_share=share)
    fall = [factor(step) for step in range(warmup, steps + 10)]
    assert all(later <= earlier + 1e-12 for earlier, later in pairwise(fall))


@given(st.sampled_from(ENDING), lengths(), floors, shares, st.integers(0, 100))
def test_the_falling_ones_end_at_the_floor_and_stay(
    name: str, length: tuple[int, int], floor: float, share: float, beyond: int
) -> None:
    warmup, steps = length
    factor = schedule(name, warmup=warmup, steps=steps, floor=floor, decay_share=share)
    assert factor(steps + beyond) == floor


@given(st.sampled_from(ENDING), lengths())
def test_no_update_is_made_at_a_rate_of_nothing(name: str, length: tuple[int, int]) -> None:
    warmup, steps = length
    factor = schedule(name, warmup=warmup, steps=steps, floor=0.0)
    assert all(factor(step) > 0.0 for step in range(steps))


@given(st.sampled_from(ENDING), st.integers(0, 500), st.integers(1000, 2000), shares)
def test_the_fall_has_no_jump_at_its_end(name: str, warmup: int, steps: int, share: float) -> None:
    factor = schedule(name, warmup=warmup, steps=steps, decay_share=share)
    length = steps - warmup if name != "wsd" else max(1, round(share * steps))
    assert factor(steps - 1) - factor(steps) <= 1.0 / min(length, steps - warmup) + 1e-12


@given(st.integers(0, 500), st.integers(0, 100_000))
def test_inverse_sqrt_falls_as_one_over_the_root(warmup: int, later: int) -> None:
    factor = schedule("inverse_sqrt", warmup=warmup, steps=500)
    step = max(1, warmup) + later
    assert factor(step) * math.sqrt(step + 1) == pytest.approx(math.sqrt(max(1, warmup)))
    assert factor(4 * step + 3) == pytest.approx(factor(step) / 2)  # four times the count: half


def test_inverse_sqrt_stops_at_its_floor() -> None:
    factor = schedule("inverse_sqrt", warmup=1, steps=100, floor=0.25)
    assert factor(14) > 0.25
    assert factor(16) == factor(10_000) == 0.25


@given(lengths(), floors, st.integers(0, 5000))
def test_constant_is_flat(length: tuple[int, int], floor: float, step: int) -> None:
    warmup, steps = length
    assert schedule("constant", warmup=warmup, steps=steps, floor=floor)(warmup + step) == 1.0


@given(st.integers(0, 100), st.integers(1, 400), st.floats(0.0, 0.9))
def test_half_way_cosine_and_linear_are_half_way_down(warmup: int, half: int, floor: float) -> None:
    for name in ("cosine", "linear"):
        factor = schedule(name, warmup=warmup, steps=warmup + 2 * half, floor=floor)
        assert factor(warmup + half) == pytest.approx((1.0 + floor) / 2)


def test_wsd_is_flat_until_its_last_share() -> None:
    factor = schedule("wsd", warmup=10, steps=100, decay_share=0.2)
    assert all(factor(step) == 1.0 for step in range(9, 81))
    assert all(factor(step) > factor(step + 1) for step in range(80, 100))
    assert factor(85) == pytest.approx(0.5)  # a quarter of the way: 1 - √¼


def test_wsd_never_falls_during_the_warm_up() -> None:
    factor = schedule("wsd", warmup=90, steps=100, decay_share=0.5)
    assert factor(89) == factor(90) == 1.0


def test_an_unknown_name_brings_the_nearest() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'cosine'"):
        schedule("cosin", warmup=0, steps=10)


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"steps": 0}, "steps must be at least 1"),
        ({"warmup": -1}, "warmup must be 0 or more"),
        ({"warmup": 11}, "warmup is 11 steps, more than the 10"),
        ({"floor": -0.1}, "floor must be"),
        ({"floor": float("nan")}, "floor must be"),
        ({"decay_share": 0.0}, "decay_share must be"),
    ],
)
def test_each_bad_number_gets_one_sentence(wrong: dict[str, float], complaint: str) -> None:
    numbers = {"warmup": 0, "steps": 10, "floor": 0.0, "decay_share": 0.2} | wrong
    with pytest.raises(ConfigError, match=complaint) as caught:
        schedule(
            "wsd",
            warmup=int(numbers["warmup"]),
            steps=int(numbers["steps"]),
            floor=numbers["floor"],
            decay_share=numbers["decay_share"],
        )
    assert len(caught.value.complaints) == 1
