"""A model's section of a recipe: strict, and all complaints at once, each a sentence."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from heed.config import POSITIONS, DataConfig, ModelConfig, Recipe, apply_overrides
from heed.errors import ConfigError, HeedError

KEYS = sorted(ModelConfig.model_fields)


def complaints(**values: Any) -> list[str]:
    """What is said of these values; nothing where they make a model."""
    try:
        ModelConfig(**values)
    except ConfigError as error:
        return error.complaints
    return []


def assert_one(values: dict[str, Any], *words: str) -> None:
    """One complaint, one sentence or two, with these words in it."""
    said = complaints(**values)
    assert len(said) == 1, said
    assert all(word in said[0] for word in words), said[0]
    assert said[0].endswith((".", "?"))
    assert "\n" not in said[0]


# --------------------------------------------------------------------------- one thing is wrong


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("widht", "width"),
        ("layer", "layers"),
        ("drop_out", "dropout"),
        ("kv_head", "kv_heads"),
        ("max_position", "max_positions"),
        ("norm_palce", "norm_place"),
    ],
)
def test_an_unknown_key_names_the_nearest(key: str, meant: str) -> None:
    assert_one({key: 3}, f"no key {key!r}", f"mean {meant!r}?")


@pytest.mark.parametrize("key", ["colour", "zzz", "", "model_config", "rules", "self", "a.b"])
def test_an_unknown_key_like_no_other_is_named_alone(key: str) -> None:
    assert_one({key: 3}, f"no key {key!r}")


def test_one_file_where_a_list_belongs_is_shown_as_a_list() -> None:
    with pytest.raises(ConfigError) as error:
        Recipe.of({"data": {"train": "a.txt", "sets": {"obama": "b.txt"}}})
    first, second = sorted(error.value.complaints)
    with pytest.raises(ConfigError, match=r"it is a list\.$"):
        Recipe.of({"train": {"betas": "0.9"}})
    assert first.endswith("""sets.obama cannot be 'b.txt': it is a list, as ["b.txt"].""")
    assert second.endswith("""train cannot be 'a.txt': it is a list, as ["a.txt"].""")


@pytest.mark.parametrize(
    ("word", "meant"),
    [("rop", "rope"), ("sinusoid", "sinusoidal"), ("alibi2", "alibi"), ("T5", "t5")],
)
def test_an_unknown_position_names_the_nearest(word: str, meant: str) -> None:
    near = [] if word == "T5" else [f"mean {meant!r}?"]
    assert_one({"position": word}, f"position cannot be {word!r}", *near, *POSITIONS.names())


@pytest.mark.parametrize(
    ("key", "word", "meant"),
    [
        ("merge", "shufle", "shuffle"),
        ("family", "transformers", "transformer"),
        ("norm_place", "prenorm", "pre"),
        ("activation", "swish_glu", "swiglu"),
        ("pooling", "men", "mean"),
        ("reweight_over", "tokens", "token"),
    ],
)
def test_an_unknown_choice_names_the_nearest(key: str, word: str, meant: str) -> None:
    assert_one({key: word}, f"{key} cannot be {word!r}", f"mean {meant!r}?")


@pytest.mark.parametrize(
    "values",
    [
        {"width": -16},
        {"layers": 0},
        {"heads": -1},
        {"kv_heads": 0},
        {"max_positions": -5},
        {"dropout": 1.0},
        {"dropout": -0.1},
        {"dropout": float("nan")},
        {"rope_base": float("inf")},
        {"norm_eps": 0.0},
        {"rope_base": 1.0},
        {"scale": 0.0},
        {"width": 16.5},
        {"width": "16"},
        {"heads": True},
        {"bias": 1},
        {"position": 3},
        {"position": None},
    ],
    ids=str,
)
def test_a_wrong_value_is_named_with_its_key(values: dict[str, Any]) -> None:
    ((key, value),) = values.items()
    assert_one(values, f"{key} cannot be {value!r}")


@pytest.mark.parametrize("name", ["train", "dev", "step", "seen", "x-clean", "a/b", ""])
def test_a_set_has_a_name_of_its_own(name: str) -> None:
    """Else it would take the place of what is learnt from, or of a figure."""
    with pytest.raises(ConfigError, match="sets cannot have a set") as caught:
        DataConfig(train=["a"], sets={"fine": ["b"], name: ["c"]})
    assert len(caught.value.complaints) == 1


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"width": 30, "heads": 4}, ("width 30", "heads 4", "head_width")),
        ({"heads": 6, "width": 24, "kv_heads": 4}, ("heads 6", "kv_heads 4")),
        ({"heads": 2, "kv_heads": 4}, ("heads 2", "kv_heads 4")),
        ({"family": "lstm", "merge": "shuffle"}, ("'shuffle'", "'lstm'", "'concat'")),
        ({"merge": "shift", "reweight_over": "sequence"}, ("'sequence'", "'reweight'", "'shift'")),
        ({"embedding_width": 8}, ("embedding_width", "'lstm'")),
        ({"family": "lstm", "embedding_width": 8}, ("embedding_width 8", "tie_embeddings")),
    ],
    ids=lambda value: "-".join(map(str, value)),
)
def test_keys_that_do_not_go_together_are_named(
    values: dict[str, Any], words: tuple[str, ...]
) -> None:
    assert_one(values, *words)


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"width": 30, "heads": 4, "head_width": 8},
        {"family": "lstm", "width": 30, "heads": 4},
        {"family": "lstm", "embedding_width": 8, "tie_embeddings": False},
        {"embedding_width": 256},
        {"merge": "reweight", "reweight_over": "batch"},
        {"heads": 8, "kv_heads": 2},
        {"dropout": 0},
    ],
    ids=str,
)
def test_what_makes_sense_is_taken(values: dict[str, Any]) -> None:
    config = ModelConfig(**values)
    assert {key: getattr(config, key) for key in values} == values


# ---------------------------------------------------------------------------- much is wrong


def test_all_complaints_come_at_once() -> None:
    said = complaints(widht=3, heads=-1, layers=0, merge="shufle")
    assert len(said) == 4
    for words in ("'width'", "heads cannot be -1", "layers cannot be 0", "'shuffle'"):
        assert sum(words in sentence for sentence in said) == 1


def test_rules_that_join_keys_speak_beside_wrong_values() -> None:
    said = complaints(
        width=30, heads=4, layers=0, position="rop", merge="shift", reweight_over="batch"
    )
    assert len(said) == 4


def test_a_rule_is_silent_on_a_key_that_is_wrong_itself() -> None:
    assert len(complaints(width=30, heads=-1)) == 1
    assert len(complaints(width="30", heads=4)) == 1


def test_the_error_is_one_a_person_can_mend() -> None:
    wrong: dict[str, Any] = {"widht": 3, "layers": 0}
    with pytest.raises(ConfigError) as caught:
        ModelConfig(**wrong)
    assert isinstance(caught.value, HeedError)
    assert isinstance(caught.value, ValueError)
    assert str(caught.value).splitlines() == caught.value.complaints


def test_a_config_does_not_change() -> None:
    config = ModelConfig()
    with pytest.raises(ValidationError, match="frozen"):
        setattr(config, KEYS[0], 3)


@pytest.mark.parametrize("key", KEYS)
def test_every_key_has_a_help_text_and_a_default(key: str) -> None:
    field = ModelConfig.model_fields[key]
    assert not field.is_required()
    assert field.description
    assert field.description.endswith(".")


anything = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 70),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["rope", "lstm", "reweight", "shuffle", "sequence", "transformer"]),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
    st.binary(max_size=3),
)
keys = st.one_of(st.sampled_from(KEYS), st.text(max_size=8))


@settings(max_examples=300)
@given(st.dictionaries(keys, anything, max_size=6))
def test_nothing_but_a_config_error_is_ever_raised(values: dict[str, Any]) -> None:
    """Whatever a file holds, it makes a config or a list of sentences."""
    said = complaints(**values)
    assert all(sentence and sentence.endswith((".", "?")) for sentence in said)
    if not said:
        assert set(values) <= set(KEYS)
    for unknown in set(values) - set(KEYS):
        assert any(repr(unknown) in sentence for sentence in said)


# ------------------------------------------------------------------------------------- leaks


@pytest.mark.parametrize("over", ["sequence", "batch"])
@pytest.mark.parametrize("task", ["generate", "translate"])
def test_a_leak_is_reported_for_causal_tasks(task: str, over: str) -> None:
    changes: dict[str, Any] = {"merge": "reweight", "reweight_over": over}
    config = ModelConfig(**changes)
    leak = config.find_leak(task)
    assert leak is not None
    assert over in leak
    assert "leaky = true" in leak
    assert config.find_leak("classify") is None
    assert ModelConfig(**changes, leaky=True).find_leak(task) is None


@pytest.mark.parametrize("task", ["generate", "translate", "classify"])
def test_a_token_leaks_nothing(task: str) -> None:
    assert ModelConfig(merge="reweight").find_leak(task) is None


def test_recipes_are_read_without_torch() -> None:
    """Help and complaints must come at once, and importing torch takes seconds."""
    script = "import sys, heed.config as c; c.ModelConfig(); print('torch' in sys.modules)"
    found = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "False"


def test_a_pattern_must_be_one() -> None:
    with pytest.raises(ConfigError, match="drop_pattern is not a regular expression"):
        Recipe.of({"task": "translate", "data": {"drop_pattern": "(("}})


def test_a_preset_sets_its_keys_and_is_resolved() -> None:
    model = ModelConfig(preset="marian", width=32)
    assert (model.preset, model.position, model.norm_place) == (None, "sinusoidal", "post")
    assert model == ModelConfig(position="sinusoidal", norm_place="post", width=32)
    assert ModelConfig(preset="marian", position="sinusoidal").position == "sinusoidal"


def test_a_preset_and_a_key_that_contradicts_it() -> None:
    with pytest.raises(ConfigError, match="preset 'gpt2' has position = 'learned': leave position"):
        ModelConfig(preset="gpt2", position="rope")
    with pytest.raises(ConfigError, match="preset 'marian' is not for task 'generate': use gpt2"):
        Recipe.of({"task": "generate", "model": {"preset": "marian"}})
    with pytest.raises(ConfigError, match="preset cannot be 'bart'"):
        Recipe.of({"model": {"preset": "bart"}})
    with pytest.raises(ConfigError, match="preset cannot be"):
        Recipe.of({"model": {"preset": ["marian"]}})


@pytest.mark.parametrize("override", ["task.kind=x", "seed.foo=1"])
def test_an_override_within_a_key_is_refused(override: str) -> None:
    with pytest.raises(ConfigError, match="is a key, not a section"):
        apply_overrides({"task": "classify", "seed": 3}, [override])


def test_an_override_of_the_preset_replaces_the_keys_of_the_recipe() -> None:
    tables = {"model": {"position": "rope", "layers": 3}}
    model = Recipe.of(apply_overrides(tables, ["model.preset=marian"])).model
    assert (model.position, model.norm_place, model.layers) == ("sinusoidal", "post", 3)
    with pytest.raises(ConfigError, match="preset 'marian' has position"):
        Recipe.of(apply_overrides(tables, ["model.preset=marian", "model.position=rope"]))
