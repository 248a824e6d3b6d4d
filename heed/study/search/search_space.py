"""The search space of a study: values of nuisance keys, drawn, listed, and widened at an edge.

A key with a condition (`when`) is part of a setting only where the condition holds.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, get_args

import numpy as np

from heed.config import SECTIONS
from heed.study.study_config import SearchRange, StudyConfig

Space = Mapping[str, SearchRange]
Setting = dict[str, Any]
"""A value for every key of a space that is active."""
DIGITS = 4
"""Significant digits of a drawn number: the same on every machine, and short in a table."""
EDGE = 0.1
"""The share of a range at either end that counts as its edge."""
WIDENING = 0.5
"""The share of a range by which it is widened at an edge, on its own scale."""
MAX_HALVINGS = 12
"""How often that share is halved where the recipe key has a bound."""


SEARCH_SEED, FINALIST_SEED = 1_000_000, 2_000_000
"""First seeds of a search and of its finalists. Those of final trials are below: always fresh."""
COMPARABLE = ("accuracy", "macro_f1")
"""Metrics that are the same measure, whatever the tokenizer, at every evaluation in training."""


def check_search(config: StudyConfig) -> Iterator[str]:
    """Errors of a study's search that its keys alone do not show."""
    search = config.search
    if search is None:
        return
    known = {*search.space, *config.set, *config.grid}
    known |= {key for system in config.systems for key in system.set}
    for key, one in search.space.items():
        if search.method == "grid" and not is_listed(one):
            yield f'[search.space] "{key}" is a range, and method "grid" needs choices or a step.'
        for other in (other for other in one.when if other not in known):
            yield f'[search.space] "{key}" depends on {other}, which the study does not set.'
    tokenizer = next((key for key in search.space if key.startswith("tokenizer.")), None)
    if tokenizer and search.prune and config.metric not in COMPARABLE:
        yield (
            f"[search] prune compares losses, and {tokenizer} changes what a loss means: "
            "set prune = false."
        )
    large = next((seed for seed in config.seeds if seed >= SEARCH_SEED), None)
    if large is not None:
        yield f"seeds has {large}: those from {SEARCH_SEED} on are for the trials of a search."


# ----------------------------------------------------------------------------------- settings


def order_keys(space: Space) -> list[str]:
    """The keys of a space, each after those that its condition depends on."""
    ordered: list[str] = []

    def visit(key: str) -> None:
        if key not in ordered:
            for other in space[key].when:
                if other in space:
                    visit(other)
            ordered.append(key)

    for key in space:
        visit(key)
    return ordered


def draw_setting(space: Space, fixed: Mapping[str, Any], generator: np.random.Generator) -> Setting:
    """A random setting: every range uniform on its scale, every choice equally likely.

    `fixed` are the values of keys that are not searched, for conditions.
    """
    shares = {key: float(generator.random()) for key in space}  # the same draws for every system
    setting: Setting = {}
    for key in order_keys(space):
        if space[key].allows({**fixed, **setting}):
            setting[key] = value_at(space[key], shares[key])
    return setting


def central_setting(space: Space, fixed: Mapping[str, Any]) -> Setting:
    """The middle of every range, on its scale, and the first of every key's choices."""
    setting: Setting = {}
    for key in order_keys(space):
        one = space[key]
        if one.allows({**fixed, **setting}):
            setting[key] = one.choices[0] if one.choices else value_at(one, 0.5)
    return setting


def list_settings(space: Space, fixed: Mapping[str, Any]) -> list[Setting]:
    """Every setting of a space of choices and stepped ranges, in order: a full grid."""
    settings: list[Setting] = [{}]
    for key in order_keys(space):
        values = list_values(space[key])
        settings = [
            extended
            for setting in settings
            for extended in (
                [setting | {key: value} for value in values]
                if space[key].allows({**fixed, **setting})
                else [setting]
            )
        ]
    return settings


def read_setting(space: Space, changes: Mapping[str, Any]) -> Setting:
    """The setting of a trial: the searched keys among everything that it changes."""
    return {key: changes[key] for key in space if key in changes}


# ------------------------------------------------------------------------------------- values


def is_listed(one: SearchRange) -> bool:
    """Whether a range has a list of values: choices, or steps from its lowest value."""
    return one.choices is not None or one.step is not None


def list_values(one: SearchRange) -> list[Any]:
    """The values of choices or of a stepped range. A step of a logarithmic range is a factor."""
    if one.choices is not None:
        return list(one.choices)
    low, high = one.bounds
    step = one.step
    if step is None:
        raise ValueError("a range without a step has no list of values")
    if one.log:
        count = math.floor(math.log(high / low) / math.log(step) + 1e-9) + 1
        return [_clean(one, low * step**i, 10) for i in range(count)]
    count = math.floor((high - low) / step + 1e-9) + 1
    return [_clean(one, low + step * i, 10) for i in range(count)]


def value_at(one: SearchRange, share: float) -> Any:
    """The value at a share from 0 to 1 of a range, on its scale, or of a list of values."""
    if is_listed(one):
        values = list_values(one)
        return values[min(int(share * len(values)), len(values) - 1)]
    low, high = one.bounds
    if one.is_integer:  # every whole number has an equal part of the scale
        low, high = low - 0.5, high + 0.5
        low = max(low, 0.5) if one.log else low
    if one.log:
        return _clean(one, math.exp(math.log(low) + share * math.log(high / low)))
    return _clean(one, low + share * (high - low))


def clean_value(one: SearchRange, value: float) -> Any:
    """A number of a range as a setting has it: few digits, a whole one where the range is."""
    return _clean(one, value)


def _clean(one: SearchRange, value: float, digits: int = DIGITS) -> Any:
    low, high = one.bounds
    if one.is_integer:
        return int(min(max(round(value), low), high))
    return float(min(max(float(f"{value:.{digits}g}"), low), high))


# ----------------------------------------------------------------------------------- widening


def edge_of(one: SearchRange, value: Any) -> str | None:
    """`low` or `high` where a value lies at that edge of a range; None inside, and for choices."""
    if one.choices is not None:
        return None
    if one.step is not None:
        values = list_values(one)
        return "low" if value <= values[0] else "high" if value >= values[-1] else None
    low, high, x = _scaled(one, *one.bounds, float(value))
    margin = EDGE * (high - low)
    return "low" if x <= low + margin else "high" if x >= high - margin else None


def widen_range(one: SearchRange, edge: str, key: str) -> SearchRange:
    """The range, longer by half at an edge, or by less where the recipe key has a bound there.

    A range that ends at the bound of its key cannot be widened, and is returned as it is.
    """
    low, high = one.bounds
    scaled_low, scaled_high = _scaled(one, low, high)
    length = WIDENING * (scaled_high - scaled_low)
    if one.step is None:
        distances = [length / 2**i for i in range(MAX_HALVINGS)]
    else:
        step = math.log(one.step) if one.log else one.step
        distances = [step * i for i in range(max(1, round(length / step)), 0, -1)]
    for distance in distances:
        if edge == "low":
            value = _round_bound(one, _unscaled(one, scaled_low - distance), math.floor)
            is_wider = value < low and (value > 0 or not one.log)
        else:
            value = _round_bound(one, _unscaled(one, scaled_high + distance), math.ceil)
            is_wider = value > high
        if is_wider and _is_valid(key, value):
            return one.model_copy(update={edge: value})
    return one


def _round_bound(one: SearchRange, value: float, rounding: Callable[[float], int]) -> float:
    """A new bound with few digits; a whole number where the range has whole numbers."""
    if one.is_integer:
        return rounding(round(value, DIGITS))
    return float(f"{value:.{10 if one.step else DIGITS}g}")


def _scaled(one: SearchRange, *values: float) -> tuple[float, ...]:
    return tuple(math.log(value) for value in values) if one.log else values


def _unscaled(one: SearchRange, value: float) -> float:
    return math.exp(value) if one.log else value


def _is_valid(key: str, value: float) -> bool:
    """Whether a number is within the bounds of a recipe key."""
    compare = {"ge": operator.ge, "gt": operator.gt, "le": operator.le, "lt": operator.lt}
    return all(
        holds(value, getattr(bound, name))
        for bound in _constraints(key)
        for name, holds in compare.items()
        if getattr(bound, name, None) is not None
    )


def _constraints(key: str) -> Iterator[Any]:
    """The constraints of a recipe key's type, also inside `Annotated[…] | None`."""
    section, _, name = key.partition(".")
    if section not in SECTIONS:
        return
    fields = SECTIONS[section].model_fields
    for field_name, field in fields.items():
        if (field.alias or field_name) == name:
            yield from _flatten([*field.metadata, field.annotation])


def _flatten(parts: Sequence[Any]) -> Iterator[Any]:
    for part in parts:
        if any(hasattr(part, name) for name in ("ge", "gt", "le", "lt")):
            yield part
        inner = getattr(part, "metadata", ())  # pydantic's FieldInfo inside Annotated
        yield from _flatten(list(chain(inner, get_args(part))))
        yield from _flatten(list(getattr(part, "__metadata__", ())))
