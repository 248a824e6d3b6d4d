"""Attention by position: what is measured, what the page says of it, and rows of equal words."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from by_position.measure import STATISTICS, measure_run, statistics
from by_position.page import NAME, write_page
from by_position.results import EVEN, compare, describe_pair
from by_position.systems import (
    LENGTH,
    MODELS,
    PADDING,
    POSITIONS,
    SENTENCES,
    RunPlan,
    pad_text,
    plan_runs,
    split_words,
    write_padded_speeches,
)
from common import DOCS, RESULTS
from hypothesis import given
from hypothesis import strategies as st
from support import VOCAB, new_classifier, new_language_model

import heed
from heed.config import Recipe
from heed.recipes import find

WORDS = ("the", "a", "cat", "dog", "sees", "old", "is", ".")


@pytest.fixture(scope="module")
def results() -> dict[str, object]:
    loaded: dict[str, object] = json.loads((RESULTS / f"{NAME}.json").read_text("utf-8"))
    return loaded


@pytest.mark.parametrize("position", POSITIONS)
def test_equal_words_have_equal_rows_only_without_positions(position: str) -> None:
    """In an encoder. A causal mask shows two equal words different pasts, so there rows differ."""
    ids = torch.tensor([[5, 7, 9, 7, 3, 9, 7]])
    assert int(ids.max()) < VOCAB
    encoder = new_classifier(position=position, layers=3)
    causal = new_language_model(position=position, layers=3)
    with torch.no_grad():
        rows = [torch.cat(encoder.trace(ids).encoder), torch.cat(causal.trace(ids).decoder)]
    for weights_lhnn, is_equal in zip(rows, (position == "none", False), strict=True):
        for one, other in ((1, 3), (1, 6), (2, 5)):
            difference = (weights_lhnn[:, :, one] - weights_lhnn[:, :, other]).abs().max()
            assert (float(difference) < 1e-6) == is_equal


@given(st.integers(2, 9), st.integers(0, 3))
def test_statistics_of_plain_patterns_are_known(real: int, padding: int) -> None:
    tokens = ["word"] * real + [PADDING] * padding
    size = real + padding
    at = np.arange(size)
    patterns = {
        "same": np.eye(size),
        "previous": (at[None] == np.maximum(at[:, None] - 1, 0)).astype(float),
        "even": np.full((size, size), 1 / size),
    }
    found = {
        name: dict(zip(STATISTICS, statistics(weights[None, None], tokens)[:, 0, 0], strict=True))
        for name, weights in patterns.items()
    }
    assert found["same"]["same"] == 1
    assert found["same"]["distance"] == found["same"]["padding"] == 0
    assert found["previous"]["previous"] == pytest.approx((real - 1) / real)
    assert found["previous"]["first"] == pytest.approx(min(2, real) / real)
    assert found["even"]["padding"] == pytest.approx(padding / size)
    assert found["even"]["first_three"] == pytest.approx(min(3, size) / size)


def test_every_system_is_a_recipe_and_differs_in_its_position() -> None:
    plans = plan_runs(list(MODELS), 2)
    assert len({plan.name for plan in plans}) == len(plans) == 2 * 7 * 3
    for plan in plans:
        recipe = Recipe.read(find(plan.recipe), plan.changes)
        assert recipe.model.position == plan.position
        assert recipe.seed == plan.seed


def test_padding_fills_a_text_to_the_length_of_the_picture() -> None:
    for text in SENTENCES.values():
        padded = pad_text(text).split()
        assert len(padded) + 2 == LENGTH
        assert [word for word in padded if word != PADDING] == split_words(text)
    assert split_words('He said "no".') == ["He", "said", "``", "no", "''", "."]


def test_a_trained_run_is_measured(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for name, count in (("train_CLS.tsv", 40), ("test_CLS.tsv", 12)):
        lines = [f"{i % 2}\t{' '.join(random.choice(WORDS, 9))}\n" for i in range(count)]
        (tmp_path / name).write_text("".join(lines), encoding="utf-8")
    padded = tmp_path / "padded"
    write_padded_speeches(tmp_path, padded)
    plan = RunPlan("padded", "none", 0)
    heed.Classifier.train(
        train=padded / "train_CLS.tsv",
        run=tmp_path / plan.name,
        device="cpu",
        kind="word",
        position="none",
        layers=2,
        width=8,
        heads=2,
        max_length=LENGTH,
        epochs=1,
    )
    measured = measure_run(tmp_path / plan.name, padded)
    assert measured["position"] == "none"
    assert np.array(measured["by_head"]["distance"]).shape == (2, 2)
    assert measured["sentences"]["long"]["equal_tokens_differ_by"] < 1e-6
    # Padding is 21 of 32 tokens of every text: 9 words, begin and end are not.
    assert measured["uniform"]["padding"][0] == pytest.approx(21 / LENGTH, abs=1e-3)
    assert 0 < measured["by_text"]["padding"][0] < 1


def test_the_page_says_what_the_results_say(results: dict[str, object]) -> None:
    assert (DOCS / f"{NAME}.md").read_text("utf-8") == write_page(results)


def test_a_kept_comparison_is_that_of_the_kept_numbers(results: dict[str, object]) -> None:
    kept = results["encoder"]["comparisons"]["first_three even"]  # type: ignore[index] # JSON
    for position, pair in compare(results, "encoder", "first_three", EVEN).items():
        assert describe_pair(pair) == pytest.approx(kept[position], abs=2e-4)
