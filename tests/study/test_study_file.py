"""The study file: every error in one sentence, resolved once, the same when it is read again."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heed.config import SECTIONS
from heed.errors import ConfigError, HeedError, RunError
from heed.study.plan import plan_trials
from heed.study.recipe_copies import copy_path, copy_recipes, find_copy, verify_copies
from heed.study.study_config import StudyConfig
from heed.study.study_file import StudyFlags, declare_study, merge_tables, read_study, split_values
from heed.study.study_folder import create_study_folder, extend_study, read_additions
from heed.study.study_systems import expand_systems

STUDY = """
question = "Which position encoding translates best?"
recipe = "demo-translate"
baseline = "rope"
seeds = 2
[set]
"train.steps" = 20
[grid]
"model.position" = ["rope", "t5"]
[quick]
seeds = [7]
[quick.set]
"model.layers" = 1
[quick.grid]
"model.position" = ["rope", "none"]
"""


def write(folder: Path, text: str = STUDY) -> Path:
    path = folder / "positions.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_study_is_resolved_and_written_as_it_is_read(tmp_path: Path) -> None:
    config = read_study(write(tmp_path))
    assert (config.name, config.metric, config.sets) == ("positions", "bleu", ["test"])
    assert config.seeds == [0, 1]
    create_study_folder(tmp_path / "out", config)
    assert read_study(tmp_path / "out") == config
    assert StudyConfig.of(tomllib.loads(config.toml())) == config


def test_quick_is_merged_deeply(tmp_path: Path) -> None:
    quick = read_study(write(tmp_path), quick=True)
    assert quick.seeds == [7]
    assert quick.set == {"train.steps": 20, "model.layers": 1}
    assert [system.name for system in expand_systems(quick)] == ["rope", "none"]
    assert quick.is_quick


def test_a_range_that_quick_changes_is_replaced_as_a_whole() -> None:
    base = {"search": {"trials": 9, "space": {"train.lr": {"low": 1, "high": 2}}}}
    quick = {"search": {"space": {"train.lr": {"choices": [1]}}}}
    merged = merge_tables(base, quick)
    assert merged == {"search": {"trials": 9, "space": {"train.lr": {"choices": [1]}}}}


def test_systems_times_grid_are_named_and_planned_seed_by_seed(tmp_path: Path) -> None:
    text = """
recipe = "demo-translate"
seeds = 2
[[systems]]
name = "small"
set = { "model.layers" = 1 }
[[systems]]
name = "large"
[grid]
"model.position" = ["rope", "t5"]
"train.lr" = [0.001, 0.01]
"""
    trials = plan_trials(read_study(write(tmp_path, text)))
    assert len(trials) == 16
    assert [trial.number for trial in trials] == [*range(16)]
    assert [trial.seed for trial in trials] == [0] * 8 + [1] * 8
    assert trials[0].name == "small-rope-lr0.001-seed0"
    assert trials[0].changes == {"model.layers": 1, "model.position": "rope", "train.lr": 0.001}


def test_a_study_of_a_recipe_is_built_from_flags() -> None:
    flags = StudyFlags(["model.position=rope,t5"], "3", ["train.steps=5"])
    config = declare_study("demo-translate", flags)
    assert config.grid == {"model.position": ["rope", "t5"]}
    assert (config.seeds, config.set) == ([0, 1, 2], {"train.steps": 5})


SPACE = """
recipe = "demo-translate"
[search]
{0}
[search.space]
{1}
"""
BAD: dict[str, tuple[str, str]] = {
    "unknown key": ('recipe = "demo-translate"\nseed = 3', "There is no key 'seed'"),
    "unknown recipe key": (STUDY.replace("train.steps", "train.stepz"), "mean 'train.steps'?"),
    "key without section": (STUDY.replace("train.steps", "steps"), "mean 'train.steps'?"),
    "seed as key": (STUDY.replace("train.steps", "seed"), "its key seeds"),
    "empty grid": (STUDY.replace('["rope", "t5"]', "[]"), "has no values"),
    "no grid": ('recipe = "demo-translate"\n[grid]', "[grid] is empty"),
    "value twice": (STUDY.replace('"t5"', '"rope"', 1), "'rope' twice"),
    "bad value": (STUDY.replace('"t5"', '"t6"', 1), "position cannot be 't6'"),
    "bad fixed value": (STUDY.replace("= 20", "= -1"), "train] steps cannot be -1"),
    "baseline": (STUDY.replace('baseline = "rope"', 'baseline = "rop"'), "mean 'rope'?"),
    "metric": (f'metric = "accuracy"{STUDY}', "scored by bleu, chrf, ter"),
    "set": (f'sets = ["tset"]{STUDY}', "Did you mean 'test'?"),
    "no recipe": ('[grid]\n"model.position" = ["t5"]', "no recipe for the study"),
    "recipe": ('recipe = "demo-translat"', "There is no recipe 'demo-translat'"),
    "seeds": (STUDY.replace("seeds = 2", "seeds = 0"), "seeds cannot be 0"),
    "seed twice": (STUDY.replace("seeds = 2", "seeds = [1, 1]"), "seeds has 1 twice"),
    "name twice": (
        'recipe = "demo-translate"\n[[systems]]\nname = "a"\n[[systems]]\nname = "a"\n'
        'set = { "model.layers" = 1 }',
        "'a' stands for 2 systems",
    ),
    "same recipe": (
        'recipe = "demo-translate"\n[[systems]]\nname = "a"\n[[systems]]\nname = "b"',
        "'a' and 'b' have the same recipe",
    ),
    "tasks": (
        'recipe = "demo-translate"\n[[systems]]\nname = "a"\n[[systems]]\nname = "b"\n'
        'recipe = "demo-classify"',
        "different tasks (classify, translate)",
    ),
    "fixed and varied": (STUDY.replace("train.steps", "model.position"), "not both"),
    "range": (SPACE.format("", '"train.lr" = { low = 2, high = 1 }'), "not below"),
    "log": (SPACE.format("", '"train.lr" = { low = 0, high = 1, log = true }'), "above 0"),
    "half a range": (SPACE.format("", '"train.lr" = { low = 1 }'), "low and high, or choices"),
    "no space": ('recipe = "demo-translate"\n[search]\ntrials = 3', "[search.space] is empty"),
    "grid of ranges": (
        SPACE.format('method = "grid"', '"train.lr" = { low = 0.1, high = 1 }'),
        "needs choices",
    ),
    "value of the space": (
        SPACE.format("", '"model.layers" = { low = 0, high = 3 }'),
        "layers cannot be 0",
    ),
    "condition": (
        SPACE.format(
            "",
            '"train.optimizer" = { choices = ["adamw", "sgd"] }\n'
            '"train.momentum" = { low = 0.1, high = 0.9, when = { "train.optimizer" = "lion" } }',
        ),
        "none of the choices there",
    ),
    "circle": (
        SPACE.format(
            "",
            '"train.optimizer" = { choices = ["sgd"], when = { "train.schedule" = "linear" } }\n'
            '"train.schedule" = { choices = ["linear"], when = { "train.optimizer" = "sgd" } }',
        ),
        "depends on itself",
    ),
    "search key": (SPACE.format("trails = 3", '"train.lr" = { choices = [1] }'), "mean 'trials'?"),
    "pretrained, undeclared": (
        'recipe = "demo-classify"\n[set]\n"init.from" = "pretrained"',
        "declare it in [pretrain]",
    ),
    "pretraining unused": (
        'recipe = "demo-classify"\n[pretrain]\nrecipe = "demo-generate"',
        "No system begins from the run of [pretrain]",
    ),
    "pretraining": (
        'recipe = "sst2/finetune-small"\n[set]\n"init.from" = "pretrained"\n'
        '[pretrain]\nrecipe = "demo-generate"\nset = { "train.stepz" = 3 }',
        "mean 'train.steps'?",
    ),
    "window of a translator": (f'sets = ["test@window-9"]{STUDY}', "are for language models"),
    "looks": (f"looks = [5, 3]{STUDY}", "rising order"),
    "not TOML": ("recipe = ", "This is not TOML"),
    "a margin below 0": (
        'recipe = "demo-translate"\nmargin = -1',
        "margin cannot be -1: it is above",
    ),
    "minutes below 0": (
        'recipe = "demo-translate"\n[budget]\nminutes = -3',
        "[budget] minutes cannot be -3: it is above 0.",
    ),
    "seeds that are no whole number": (
        'recipe = "demo-translate"\nseeds = 1.5',
        "seeds cannot be 1.5: it is a whole number or a list of them",
    ),
    "a grid of one value": (
        'recipe = "demo-translate"\n[grid]\n"model.position" = "rope"',
        """grid.model.position cannot be 'rope': it is a list, as ["rope"].""",
    ),
    "only a recipe": ('task = "translate"\n[model]\nlayers = 2', "is a recipe"),
}


@pytest.mark.parametrize("case", BAD)
def test_an_error_says_what_is_wrong(case: str, tmp_path: Path) -> None:
    text, message = BAD[case]
    with pytest.raises(ConfigError) as error:
        read_study(write(tmp_path, text))
    assert message in str(error.value)
    assert "positions.toml" in str(error.value)


def test_every_error_is_reported_at_once(tmp_path: Path) -> None:
    text = 'recipe = "demo-translate"\nfoo = 1\n[budget]\ntrials = 0\n[grid]\n"model.position" = []'
    with pytest.raises(ConfigError) as error:
        read_study(write(tmp_path, text))
    assert len(error.value.complaints) == 3
    text = 'recipe = "demo-translate"\nbaseline = "t5"\n[grid]\n"model.position" = ["rope"]\n'
    with pytest.raises(ConfigError) as error:
        read_study(write(tmp_path, f'{text}"model.foo" = [1]'))
    unknown, baseline = error.value.complaints
    assert "'model.foo'" in unknown
    assert "t5" in baseline


def test_a_name_that_is_nothing_is_refused_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="There is no study or recipe 'demo-translat'") as error:
        read_study("demo-translat")
    assert "Did you mean 'demo-translate'?" in str(error.value)
    assert "Studies: " in str(error.value)
    with pytest.raises(RunError, match=r"study\.toml is missing"):
        read_study(tmp_path)


def test_conditional_keys_are_searched_where_their_condition_holds(tmp_path: Path) -> None:
    space = """"train.optimizer" = { choices = ["adamw", "sgd", "lion"] }
"train.momentum" = { low = 0.1, high = 0.9, when = { "train.optimizer" = ["sgd", "lion"] } }"""
    config = read_study(write(tmp_path, SPACE.format("", space)))
    assert config.search is not None
    momentum = config.search.space["train.momentum"]
    assert momentum.allows({"train.optimizer": "sgd"})
    assert not momentum.allows({"train.optimizer": "adamw"})
    assert not momentum.is_integer


# ----------------------------------------------------------------------------------- additions


def test_added_seeds_and_systems_are_recorded_and_their_trials_marked(tmp_path: Path) -> None:
    folder, study = tmp_path / "out", write(tmp_path)
    declared = read_study(study)
    create_study_folder(folder, declared)
    before = plan_trials(declared)
    text = (folder / "study.toml").read_bytes()
    extended = extend_study(folder, declare_study(study, StudyFlags(seeds="3")))
    assert extended.seeds == [0, 1, 2]
    extended = extend_study(folder, declare_study(folder, StudyFlags(["model.position=alibi"])))
    additions = read_additions(folder)
    assert (additions.seeds, additions.systems) == ((2,), ("alibi",))
    trials = plan_trials(extended, additions)
    assert trials[: len(before)] == before
    assert [trial.number for trial in trials] == [*range(9)]
    assert all(trial.added == (trial.number >= 4) for trial in trials)
    assert (folder / "study.toml").read_bytes() == text
    assert read_study(folder) == extended
    assert extend_study(folder, declared) == extended


@pytest.mark.parametrize(
    "flags",
    [
        StudyFlags(changes=["train.steps=21"]),
        StudyFlags(changes=["model.layers=1"]),
        StudyFlags(quick=True),
        StudyFlags(data="elsewhere"),
    ],
)
def test_another_study_in_the_folder_is_refused(flags: StudyFlags, tmp_path: Path) -> None:
    study = write(tmp_path)
    create_study_folder(tmp_path / "out", read_study(study))
    with pytest.raises(RunError, match="another study has begun in this folder"):
        extend_study(tmp_path / "out", declare_study(study, flags))


def test_a_study_file_that_was_changed_is_noticed(tmp_path: Path) -> None:
    create_study_folder(tmp_path, read_study(write(tmp_path)))
    path = tmp_path / "study.toml"
    path.write_bytes(path.read_bytes().replace(b"bleu", b"chrf"))
    with pytest.raises(RunError, match="does not match its checksum"):
        read_study(tmp_path)


@pytest.mark.parametrize("content", [b"", b"\n", b"# che", b'title = "a"\n', b"\xff"])
def test_a_study_file_without_its_content_is_named_with_what_to_do(
    content: bytes, tmp_path: Path
) -> None:
    create_study_folder(tmp_path, read_study(write(tmp_path)))
    (tmp_path / "study.toml").write_bytes(content)
    with pytest.raises(HeedError) as error:
        read_study(tmp_path)
    assert str(error.value).startswith(str(tmp_path / "study.toml"))
    todo = "recipe = …" if content.startswith(b"title") else "begin anew in another folder (--out)"
    assert todo in str(error.value)


@pytest.mark.parametrize("damage", ["changed", "cut off", "missing"])
def test_a_copy_of_a_recipe_that_is_damaged_is_named(damage: str, tmp_path: Path) -> None:
    study = write(tmp_path)
    declared = read_study(study)
    folder = tmp_path / "out"
    create_study_folder(folder, declared)
    (copy,) = (folder / "recipes").glob("*.toml")
    content = copy.read_bytes()
    copy.write_bytes(content[:-9] if damage == "cut off" else content.replace(b"=", b" =", 1))
    if damage == "missing":
        copy.unlink()
    for read in (
        lambda: extend_study(folder, declared),
        lambda: declare_study(folder, StudyFlags(seeds="3")),
        lambda: find_copy(folder, str(declared.recipe)),
    ):
        with pytest.raises(RunError, match=r"copy of the study, or from the recipe") as error:
            read()
        assert str(error.value).startswith(str(copy))
    copy.write_bytes(content)
    assert extend_study(folder, declare_study(study, StudyFlags(seeds="3"))).seeds == [0, 1, 2]


def test_copies_are_sealed_when_a_study_is_extended(tmp_path: Path) -> None:
    """A study of an earlier version has no checksums; one killed before them copies anew."""
    study = write(tmp_path)
    folder = tmp_path / "out"
    create_study_folder(folder, read_study(study))
    (folder / "recipes/checksums.json").unlink()
    assert find_copy(folder, str(read_study(study).recipe)) is not None
    extend_study(folder, declare_study(study, StudyFlags(seeds="3")))
    assert (folder / "recipes/checksums.json").exists()
    copy_path(folder, "demo-classify").write_text("half", encoding="utf-8")
    copy_recipes(folder, ["demo-classify"])
    assert find_copy(folder, "demo-classify") is not None
    verify_copies(folder)


# ----------------------------------------------------------------------------------- properties

KEYS = [f"{name}.{key}" for name, kind in SECTIONS.items() for key in sorted(kind.keys())]
WORDS = st.text(
    st.characters(blacklist_categories=("Cs", "Cc")), min_size=1, max_size=12
) | st.sampled_from(["rope", "a b", 'x"y', "é"])
SCALARS: st.SearchStrategy[Any] = (
    st.integers(-(2**62), 2**62)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.booleans()
    | WORDS
)
CHANGES = st.dictionaries(st.sampled_from(KEYS), SCALARS, max_size=3)


@given(
    st.lists(WORDS.filter(str.strip), max_size=3, unique=True),
    st.dictionaries(
        st.sampled_from(KEYS), st.lists(SCALARS, min_size=1, max_size=3, unique_by=repr)
    ),
    CHANGES,
    st.lists(st.integers(0, 99), min_size=1, max_size=4, unique=True),
)
def test_written_and_read_again_a_study_is_the_same(
    names: list[str], grid: dict[str, list[Any]], changes: dict[str, Any], seeds: list[int]
) -> None:
    values: dict[str, Any] = {"seeds": seeds, "set": changes, "title": "a \x7f 'title'"}
    values["systems"] = [{"name": name, "set": changes} for name in names]
    grid = {key: [v for i, v in enumerate(vs) if v not in vs[:i]] for key, vs in grid.items()}
    values |= {"grid": grid} if grid else {}
    config = StudyConfig.of(values)
    assert StudyConfig.of(tomllib.loads(config.toml())) == config


@given(st.lists(st.sampled_from(["a", "1e-3", "[1,2]", '"x,y"', "{a=[1,2],b=3}"]), min_size=1))
def test_values_are_split_outside_brackets_and_quotes(values: list[str]) -> None:
    assert split_values(",".join(values)) == values
    assert split_values(",".join(["", *values, "", ""])) == ["", *values, "", ""]
