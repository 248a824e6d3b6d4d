"""Groups of runs by recipe: seeds fall together, and names say what differs."""

from __future__ import annotations

import json
from itertools import product
from pathlib import PurePath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heed.config import Recipe
from heed.runs.groups import MAX_KEYS, group_runs, shorten_paths

values = st.one_of(
    st.sampled_from(["rope", "alibi", "1", "true", "unset", "a, b=c", "x/a.en", "y/a.en", ""]),
    st.sampled_from([0, 1, 2, True, False, 0.5, 1.0, 1e-5]),
    st.lists(st.sampled_from(["x/a.en", "y/a.en", "a"]), max_size=2),
)
sections = st.dictionaries(st.sampled_from(["layers", "lr", "position"]), values, max_size=3)
tables = st.fixed_dictionaries(
    {"seed": st.integers(0, 2), "model": sections, "train": sections},
    optional={"task": st.sampled_from(["translate", "generate"])},
)
names = st.text("ab/", min_size=1, max_size=5).map(lambda text: str(PurePath(text)))


def without_seed(recipe: dict[str, Any]) -> str:
    """A recipe as text that is equal for equal recipes."""
    rest = {key: value for key, value in recipe.items() if key != "seed" and value != {}}
    return json.dumps(rest, sort_keys=True).replace("1.0", "1")


@given(recipes=st.dictionaries(names, tables, max_size=6))
def test_runs_are_together_exactly_if_only_their_seeds_differ(recipes: dict[str, Any]) -> None:
    groups = group_runs(recipes)
    group_of = {run: i for i, group in enumerate(groups) for run in group.runs}
    assert sum(len(group.runs) for group in groups) == len(recipes) == len(group_of)
    for one, other in product(recipes, recipes):
        equal = without_seed(recipes[one]) == without_seed(recipes[other])
        assert (group_of[one] == group_of[other]) == equal
    firsts = [group.runs[0] for group in groups]
    assert firsts == sorted(firsts, key=list(recipes).index)
    for group in groups:
        assert group.seeds == tuple(recipes[run]["seed"] for run in group.runs)


@given(recipes=st.dictionaries(names, tables, min_size=1, max_size=6))
def test_every_group_has_a_name_of_its_own(recipes: dict[str, Any]) -> None:
    groups = group_runs(recipes)
    assert len({group.name for group in groups}) == len(groups)
    assert all(group.name for group in groups)
    keys = [*groups[0].differing]
    assert all([*group.differing] == keys for group in groups)
    if len(groups) > 1:
        assert keys  # two groups differ somewhere
        assert len({json.dumps(list(group.differing.values())) for group in groups}) == len(groups)
    for group in groups:
        if 1 <= len(keys) <= MAX_KEYS:
            assert group.name.count("=") >= len(keys)
        else:
            assert group.runs[0].endswith(
                group.name.removesuffix(f" and {len(group.runs) - 1} more")
            )


@given(recipes=st.dictionaries(names, tables, max_size=6), seed=st.integers(0, 9))
def test_seeds_and_the_order_of_keys_change_no_name(recipes: dict[str, Any], seed: int) -> None:
    def reordered(recipe: dict[str, Any]) -> dict[str, Any]:
        return dict(reversed(recipe.items())) | {"seed": seed}

    other = group_runs({run: reordered(recipe) for run, recipe in recipes.items()})
    assert [group.runs for group in other] == [group.runs for group in group_runs(recipes)]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ([{"position": "rope"}, {"position": "alibi"}], ["position=rope", "position=alibi"]),
        (
            [{"layers": 6}, {"layers": 3}],
            ["layers=6", "layers=3"],
        ),
        (
            [{"position": "rope", "layers": 4}, {"position": "alibi", "layers": 2}],
            ["layers=4, position=rope", "layers=2, position=alibi"],
        ),
        ([{"position": "rope"}], ["0"]),
    ],
)
def test_a_group_is_named_after_the_keys_that_differ(
    changes: list[dict[str, Any]], expected: list[str]
) -> None:
    recipes = {
        f"runs/{i}": Recipe.of({"task": "translate", "model": change})
        for i, change in enumerate(changes)
    }
    assert [group.name for group in group_runs(recipes)] == expected
    twice = recipes | {f"{run}-again": recipe for run, recipe in recipes.items()}
    if len(changes) > 1:
        assert [group.name for group in group_runs(twice)] == expected
    else:
        assert [group.name for group in group_runs(twice)] == ["0 and 1 more"]


def test_a_key_has_its_section_where_another_section_has_the_same_key() -> None:
    first = {"model": {"dropout": 0.1}, "train": {"dropout": 0.0}}
    second = {"model": {"dropout": 0.3}, "train": {"dropout": 0}}
    assert [group.name for group in group_runs({"a": first, "b": second})] == [
        "model.dropout=0.1",
        "model.dropout=0.3",
    ]


def test_files_are_named_without_their_folders_where_that_is_enough() -> None:
    def trained_on(*files: str) -> dict[str, Any]:
        return {"data": {"train": list(files)}}

    apart = {"a": trained_on("/x/a.en", "/x/a.fr"), "b": trained_on("/x/b.en", "/x/b.fr")}
    assert [group.name for group in group_runs(apart)] == ["train=a.en+a.fr", "train=b.en+b.fr"]
    alike = {"a": trained_on("/x/a.en"), "b": trained_on("/y/a.en")}
    assert [group.name for group in group_runs(alike)] == ['train=["/x/a.en"]', 'train=["/y/a.en"]']


@given(paths=st.lists(names, unique=True, max_size=6))
def test_short_paths_are_different_endings(paths: list[str]) -> None:
    short = shorten_paths(paths)
    assert len(set(short)) == len(paths)
    assert all(path.endswith(one) for path, one in zip(paths, short, strict=True))
    assert shorten_paths(["runs/rope/0", "runs/alibi/0", "runs/x"]) == ["rope/0", "alibi/0", "x"]
