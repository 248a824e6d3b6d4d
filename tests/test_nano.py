"""The page of `lm/nano` says what its figures say, and a model read in another way is put back."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from nano import report
from nanolm.figures import gather, level, paired, reach
from nanolm.judging import Even, read_as, told
from nanolm.systems import GROUPS, LONG, LONGER, PLAIN, REWEIGHT, SENTENCES, SYSTEMS
from nanolm.training import wanted
from support import VOCAB, Changes, new_language_model
from ted.joined import student

from heed.config import Recipe
from heed.metrics.perplexity import TokenLosses
from heed.nn.merges import Reweight
from heed.recipes import find

losses = st.lists(st.floats(0.1, 12), min_size=1, max_size=8)


# ------------------------------------------------------------------------------------- systems


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_system_is_a_recipe_that_can_be_read_and_built(name: str) -> None:
    recipe = Recipe.read(find(SYSTEMS[name].recipe), SYSTEMS[name].changes)
    assert recipe.model.find_leak(recipe.task) is None


def test_every_run_is_wanted_once() -> None:
    runs = wanted(list(GROUPS), 3)
    assert len(runs) == len(set(runs)) == 3 * len(SYSTEMS)
    assert [seed for _, seed in runs] == sorted(seed for _, seed in runs)


# ------------------------------------------------------------------------------------- readings


@pytest.mark.parametrize("over", ["token", "sequence", "batch"])
def test_a_model_is_read_in_another_way_and_put_back(over: str) -> None:
    changes: Changes = {"merge": "reweight", "reweight_over": over, "leaky": True}
    model = new_language_model(**changes)
    only = new_language_model(**changes, merge_when="training")
    plain = new_language_model()
    ids = torch.randint(VOCAB, (2, 7), generator=torch.Generator().manual_seed(0))
    before = model(ids)
    with read_as(model, "without"):
        torch.testing.assert_close(model(ids), plain(ids))
    with read_as(only, "with"):
        torch.testing.assert_close(only(ids), before)
    with read_as(model, "even"):
        assert not torch.allclose(model(ids), before)
        assert not torch.allclose(model(ids), plain(ids))
    torch.testing.assert_close(model(ids), before)


def test_even_is_reweight_where_all_heads_are_alike() -> None:
    heads = torch.randn(2, 1, 5, 6).expand(-1, 3, -1, -1)
    torch.testing.assert_close(Even()(heads), Reweight(over="token")(heads))


@given(st.lists(losses, min_size=1, max_size=5))
def test_both_perplexities_are_the_definitions(texts: list[list[float]]) -> None:
    found = [
        TokenLosses(np.zeros(len(own), np.int64), np.array(own), np.zeros(len(own), np.bool_))
        for own in texts
    ]
    facts = told(found)
    every = [loss for own in texts for loss in own]
    assert facts["tokens"] == len(every)
    assert facts["loss"] == pytest.approx(sum(every) / len(every))
    means = [math.exp(sum(own) / len(own)) for own in texts]
    assert facts["mean_text_perplexity"] == pytest.approx(sum(means) / len(means))


# ------------------------------------------------------------------------------------ intervals


@pytest.mark.parametrize("freedom", [1, 2, 4, 9])
def test_student_s_interval_leaves_out_a_twentieth(freedom: int) -> None:
    assert student(reach(freedom), freedom) == pytest.approx(0.05, abs=1e-4)


@given(st.lists(st.integers(-500, 500).map(lambda n: n / 100), min_size=2, max_size=6))
def test_an_interval_holds_none_where_the_test_does_not_reject(apart: list[float]) -> None:
    own, p = level(apart), paired(apart)
    assert p is not None
    assert own["low"] <= own["mean"] <= own["high"]
    if abs(p - 0.05) > 1e-3:
        assert (own["low"] <= 0 <= own["high"]) == (p > 0.05)


def test_one_seed_has_no_interval() -> None:
    assert paired([1.0]) is None
    assert level([1.0])["low"] is None


# ---------------------------------------------------------------------------------------- page


def made(folder: Path, name: str, seed: int, loss: float) -> None:
    """A run folder as training and judging leave it."""
    run = folder / f"{name}-{seed}"
    run.mkdir(parents=True)
    own = loss + 0.1 * seed + 0.01 * math.sin(len(name) + 3 * seed)
    few = {"texts": 9, "tokens": 99, "loss": own, "mean_text_perplexity": math.exp(own - 0.2)}
    weighted = "model.merge=reweight" in SYSTEMS[name].changes
    read = {"with": own, "without": own + 4.0, "even": own + 1.0} if weighted else {}
    judged = {
        "vocabulary": 8000,
        "heads": 3,
        "sets": {"train": few, "dev": few},
        "sentences": {key: few | {"texts": 1} for key in SENTENCES},
        "batched": own + (0.5 if "reweight-batch" in name else 0.0),
        "read": read,
        "blind": {"texts": 4, "whole": own, "blind": own + 0.3} if weighted else None,
    }
    facts = {"seconds": {"train": 30.0}, "jobs": 2, "parameters": 7, "weights": str(seed)}
    (run / "benchmark.json").write_text(json.dumps(facts | {"judged": judged}))
    (run / "environment.json").write_text(json.dumps({"bf16": False, "commit": "0" * 40}))


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """Of models of which one is much better, one leaks and one is missing."""
    runs, out = (tmp_path_factory.mktemp(name) for name in ("runs", "told"))
    for name in SYSTEMS:
        if name != "shift":
            for seed in range(3):
                made(runs, name, seed, 5.0 if name == "learned" else 6.0)
    (runs / "plain-9").mkdir()  # one that was never judged
    report(runs, out, out)
    return (out / "nano.md").read_text(encoding="utf-8"), out


def test_the_page_says_what_the_figures_say(page: tuple[str, Path]) -> None:
    text, out = page
    figures = json.loads((out / "nano.json").read_text(encoding="utf-8"))
    assert figures["systems"]["plain"]["seeds"] == [0, 1, 2]
    by_place = {one["on"]: one for one in figures["compared"]["positions"]}
    assert by_place["dev"]["mean"] == pytest.approx(-1.0, abs=0.05)
    assert by_place["dev"]["p_holm"] < 0.05
    assert "| `learned` | `sinusoidal` | dev |" in text
    assert "Batched and alone are farthest apart for `reweight over a batch" in text
    assert "Not trained yet: `shift`." in text
    share = 1 - 1.0 / 4.0
    assert f"`reweight over a token` {share:.0%} of × {math.exp(4.0):.3f}" in text
    worse = text.partition("Worse on dev: ")[2]
    assert "`reweight-token` (without)" in worse
    assert "`learned`" not in worse
    for picture in out.glob("*.png"):
        assert f"]({picture.name})" in text
    for change in LONGER:
        assert change in text


def test_without_runs_there_is_little_to_say(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    report(tmp_path / "runs", tmp_path, tmp_path)
    assert "Not trained yet" in (tmp_path / "nano.md").read_text(encoding="utf-8")


def test_what_is_missing_takes_nothing_else_away(tmp_path: Path) -> None:
    """One seed of a few systems: no interval, no test, and still a page."""
    for system in (PLAIN, REWEIGHT[0], LONG[0]):
        made(tmp_path / "runs", system.name, 0, 6.0)
    assert gather(tmp_path / "runs")["compared"]["merges"][0]["p"] is None
    report(tmp_path / "runs", tmp_path, tmp_path)
    assert "one seed: nothing" in (tmp_path / "nano.md").read_text(encoding="utf-8")
