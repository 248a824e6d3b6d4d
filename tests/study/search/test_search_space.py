"""The search space: values inside their ranges, conditions that hold, ranges that widen."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heed.config import SECTIONS, Recipe
from heed.errors import ConfigError
from heed.study.search.search_space import (
    central_setting,
    draw_setting,
    edge_of,
    list_settings,
    list_values,
    value_at,
    widen_range,
)
from heed.study.study_config import SearchRange, StudyConfig
from heed.study.study_systems import check_study

shares = st.floats(0, 1)


@st.composite
def ranges(draw: st.DrawFn) -> SearchRange:
    """Linear or logarithmic ranges of numbers or whole numbers, with and without steps."""
    log = draw(st.booleans())
    if draw(st.booleans()):
        low = draw(st.integers(1, 1000))
        return SearchRange(low=low, high=low + draw(st.integers(1, 10_000)), log=log)
    low_float = draw(st.floats(1e-6, 10))
    factor = draw(st.floats(1.5, 1e4))
    step = draw(st.none() | st.floats(1.1, factor)) if log else None
    return SearchRange(low=low_float, high=low_float * factor, log=log, step=step)


@given(ranges(), shares)
def test_a_value_lies_inside_its_range(one: SearchRange, share: float) -> None:
    value = value_at(one, share)
    low, high = one.bounds
    assert low <= value <= high
    assert isinstance(value, int) == one.is_integer
    if one.step is not None:
        assert value in list_values(one)


@given(ranges(), shares, shares)
def test_values_rise_with_their_share(one: SearchRange, a: float, b: float) -> None:
    assert value_at(one, min(a, b)) <= value_at(one, max(a, b))


@given(ranges(), st.sampled_from(["low", "high"]))
def test_a_wider_range_holds_the_narrow_one(one: SearchRange, edge: str) -> None:
    wider = widen_range(one, edge, "train.lr")
    assert wider.bounds[0] <= one.bounds[0]
    assert wider.bounds[1] >= one.bounds[1]
    assert (wider.bounds[0] == one.bounds[0]) or edge == "low"
    assert wider.is_integer == one.is_integer
    if one.step is not None:  # earlier trials have values of the wider range, too
        for value in list_values(one):
            assert any(value == pytest.approx(other, rel=1e-8) for other in list_values(wider))


@given(st.sampled_from(["low", "high"]), st.integers(1, 6))
@pytest.mark.parametrize(
    ("key", "low", "high"),
    [
        ("model.dropout", 0.1, 0.5),
        ("train.momentum", 0.1, 0.99),
        ("train.weight_decay", 0.01, 0.3),
        ("train.layer_decay", 0.5, 0.9),
        ("train.warmup", 0, 50),
        ("model.layers", 1, 4),
    ],
)
def test_a_range_never_widens_beyond_what_its_key_takes(
    key: str, low: float, high: float, edge: str, times: int
) -> None:
    one = SearchRange(low=low, high=high)
    for _ in range(times):
        one = widen_range(one, edge, key)
    section, _, name = key.partition(".")
    for value in one.bounds:
        SECTIONS[section](**{name: value})


def test_a_range_that_ends_where_its_key_ends_is_not_widened() -> None:
    one = SearchRange(low=0.0, high=0.4)
    assert edge_of(one, 0.0) == "low"
    assert widen_range(one, "low", "model.dropout") == one
    assert widen_range(one, "high", "model.dropout").high == pytest.approx(0.6)


@pytest.mark.parametrize(
    ("value", "edge"),
    [(0.001, "low"), (0.0015, "low"), (0.002, None), (0.05, None), (0.07, "high")],
)
def test_the_edge_of_a_range_is_a_tenth_of_its_scale(value: float, edge: str | None) -> None:
    assert edge_of(SearchRange(low=0.001, high=0.1, log=True), value) == edge


CONDITIONAL = {
    "train.optimizer": SearchRange(choices=["adamw", "sgd", "muon"]),
    "train.momentum": SearchRange(
        low=0.0, high=0.9, step=0.45, when={"train.optimizer": ["sgd", "muon"]}
    ),
    "train.muon_lr": SearchRange(choices=[0.01, 0.1], when={"train.optimizer": "muon"}),
    "model.dropout": SearchRange(choices=[0.0, 0.1], when={"model.norm": "rms"}),
}


@given(st.integers(0, 10**6), st.sampled_from(["rms", "layer"]), st.randoms())
def test_a_conditional_key_is_set_exactly_where_its_condition_holds(
    seed: int, norm: str, random: Any
) -> None:
    keys = list(CONDITIONAL)
    random.shuffle(keys)
    space = {key: CONDITIONAL[key] for key in keys}  # a condition may come before its key
    fixed = {"model.norm": norm}
    settings = list_settings(space, fixed)
    for setting in (draw_setting(space, fixed, np.random.default_rng(seed)), *settings):
        values = {**fixed, **setting}
        assert all((key in setting) == space[key].allows(values) for key in space)
    drawn = draw_setting(space, fixed, np.random.default_rng(seed))
    assert drawn in settings
    assert central_setting(space, fixed) in settings


def test_a_full_grid_has_every_combination_once() -> None:
    settings = list_settings(CONDITIONAL, {"model.norm": "layer"})
    assert len(settings) == 1 + 3 + 3 * 2  # adamw; sgd and momentum; muon, momentum and its rate
    assert all(settings.count(setting) == 1 for setting in settings)


@pytest.mark.parametrize(
    ("search", "message"),
    [
        ({"space": {"train.lr": {"low": 1, "high": 0.1}}}, "low 1 is not below high 0.1"),
        ({"space": {"train.lr": {"low": 0.1}}}, "has low and high, or choices"),
        ({"space": {"train.lr": {"choices": [1e-3, 1e-3]}}}, "0.001 twice"),
        ({"space": {"train.lr": {"low": 0.1, "high": 1, "step": 2.0}}}, "longer than the range"),
        (
            {"space": {"train.lr": {"low": 0.1, "high": 1, "log": True, "step": 0.5}}},
            "no factor above 1",
        ),
        ({"method": "grid", "space": {"train.lr": {"low": 0.1, "high": 1}}}, "or a step"),
        (
            {"space": {"train.lr": {"low": 0.1, "high": 1, "when": {"train.optimizer": "sgd"}}}},
            "which the study does not set",
        ),
        ({"space": {"tokenizer.vocab_size": {"low": 100, "high": 900}}}, "set prune = false"),
        ({"finalist_seeds": 1, "space": {"train.lr": {"low": 0.1, "high": 1}}}, "at least 2"),
        ({"space": {"train.rl": {"low": 0.1, "high": 1}}}, "train.lr"),
    ],
)
def test_a_wrong_search_is_refused_with_what_to_do(search: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_study(
            StudyConfig.of({"name": "s", "recipe": "x", "search": search}),
            lambda _: Recipe.of({"task": "generate", "data": {"synthetic": 100}}).tables(),
        )


def test_seeds_of_choosing_cannot_be_final_seeds() -> None:
    space = {"train.lr": {"low": 0.1, "high": 1}}
    study = {"name": "s", "recipe": "x", "seeds": [0, 1_000_003], "search": {"space": space}}
    with pytest.raises(ConfigError, match="for the trials of a search"):
        check_study(StudyConfig.of(study), lambda _: {})
