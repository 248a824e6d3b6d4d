"""The shipped studies: each asks one question, and its quick form needs no corpus."""

from __future__ import annotations

import pytest

from heed import recipes
from heed.config import Recipe, read_tables
from heed.config.checks import find_long_warmup
from heed.models import build
from heed.study import studies
from heed.study.study_config import StudyConfig
from heed.study.study_file import read_study
from heed.study.study_systems import change_tables, expand_systems

NAMES = studies.names()


def system_recipes(config: StudyConfig) -> dict[str, Recipe]:
    return {
        one.name: Recipe.of(change_tables(read_tables(recipes.find(one.recipe)), one.changes))
        for one in expand_systems(config)
    }


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("quick", [False, True])
def test_a_shipped_study_is_a_question_with_seeds_and_a_metric(name: str, quick: bool) -> None:
    config = read_study(name, quick=quick)
    assert config.question
    assert config.question.endswith("?")
    assert studies.about(name).endswith("?")
    assert config.metric
    assert config.sets
    assert len(config.seeds) >= 3
    assert config.is_quick == quick


@pytest.mark.parametrize("name", NAMES)
def test_a_quick_study_asks_the_same_of_the_same_systems_on_generated_text(name: str) -> None:
    full, quick = read_study(name), read_study(name, quick=True)
    assert [one.name for one in expand_systems(quick)] == [one.name for one in expand_systems(full)]
    assert (quick.baseline, quick.metric) == (full.baseline, full.metric)
    for recipe in system_recipes(quick).values():
        assert recipe.data.synthetic is not None
        assert not [*recipe.data.train, *recipe.data.dev, *recipe.data.sets]
        assert (recipe.train.steps or 0) <= 300


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("quick", [False, True])
def test_no_shipped_study_ends_within_its_warmup(name: str, quick: bool) -> None:
    for recipe in system_recipes(read_study(name, quick=quick)).values():
        if recipe.train.steps is not None:
            assert find_long_warmup(recipe.train, recipe.train.steps) is None


def test_the_lstm_and_its_transformer_are_as_large() -> None:
    for quick in (False, True):
        sizes = []
        for recipe in system_recipes(read_study("architectures", quick=quick)).values():
            model = build("translate", recipe.model, vocab=recipe.tokenizer.vocab_size or 0)
            sizes.append(sum(parameter.numel() for parameter in model.parameters()))
        assert max(sizes) < 1.05 * min(sizes)


@pytest.mark.parametrize("name", ["optimizers", "optimizers-lm", "architectures"])
def test_what_is_tuned_is_the_same_for_all_systems(name: str) -> None:
    config = read_study(name)
    assert config.search is not None
    scientific = {key for one in config.systems for key in one.set}
    assert "train.lr" in config.search.space
    assert not scientific & config.search.space.keys()
