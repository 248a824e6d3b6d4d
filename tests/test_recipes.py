"""Every shipped recipe can be read, and trains on files of the right kind."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from rich.console import Console
from test_cli import heed

from heed.config import Recipe
from heed.errors import ConfigError
from heed.recipes import about, find, names, show
from heed.train import resolve
from heed.train import run as train_run

SMALL = ["model.layers=1", "model.width=24", "model.heads=2", "train.steps=2", "train.warmup=0"]
SMALL += ["tokenizer.vocab_size=300", "train.average_checkpoints=1", "train.evaluate_bleu=false"]
SMALL += ["train.best_metric=dev/loss"]


@pytest.mark.parametrize("name", names())
def test_a_recipe_can_be_read_and_shown(name: str) -> None:
    recipe = Recipe.read(find(name))
    assert f"task = '{recipe.task}'" in show(name).replace('"', "'")


@pytest.mark.parametrize("name", names())
def test_a_recipe_says_in_a_sentence_what_it_is(name: str) -> None:
    found = about(name)
    head = find(name).read_text(encoding="utf-8").partition("task =")[0]
    assert " ".join(head.replace("#", " ").split()).startswith(found)
    assert found.endswith(".")
    assert not found.startswith("--data")


def test_the_list_has_every_recipe_with_its_sentence() -> None:
    answer = heed("recipes")
    assert answer.returncode == 0
    words = " ".join(answer.stdout.split())
    assert [line.split()[0] for line in answer.stdout.splitlines() if line[0] != " "] == names()
    for name in names():
        assert " ".join([name, *about(name).split()[:3]]) in words


@pytest.fixture
def pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files named like the corpus that `ted-en-fr` recipes are for."""
    monkeypatch.setenv("HEED_CACHE", str(tmp_path / "cache"))
    draw = random.Random(0)
    for split, count in (("train", 60), ("dev", 12), ("test", 12)):
        lines = [" ".join(draw.choices("abcdefgh", k=draw.randint(2, 9))) for _ in range(count)]
        for side in ("en", "fr"):
            (tmp_path / f"{split}.{side}").write_text("\n".join(lines))
    return tmp_path


@pytest.mark.parametrize("name", [name for name in names() if name.startswith("ted-en-fr/")])
def test_a_translation_recipe_trains(name: str, pairs: Path) -> None:
    recipe, _ = resolve.resolve_recipe(name, None, None, None, SMALL, None, pairs)
    assert recipe.data.train == [str(pairs / "train.en"), str(pairs / "train.fr")]
    run = train_run.start(recipe, pairs / "run", device="cpu", console=Console(quiet=True))
    assert run.finished


def test_a_run_is_no_recipe_but_has_one(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text('task = "translate"\n', encoding="utf-8")
    with pytest.raises(ConfigError, match="is a run, not a recipe") as error:
        find(str(tmp_path))
    assert f"Its recipe is {tmp_path}/recipe.toml; " in str(error.value)
    assert f"heed resume {tmp_path}" in str(error.value)


# ---------------------------------------------------------------------------- on files of one's own


@pytest.mark.parametrize("name", names())
def test_a_user_s_files_leave_no_file_of_the_recipe(name: str, pairs: Path) -> None:
    """Wherever it is started, a run names no text that its user did not."""
    own = [str(pairs / f"train.{side}") for side in ("en", "fr")]
    changes = ["train.evaluate_test=false"]
    recipe, _ = resolve.resolve_recipe(name, None, own, None, changes, None)
    data = recipe.data
    assert (data.train, data.dev, data.test, data.sets) == (own, [], [], {})
    assert data.synthetic is None
    assert not recipe.tokenizer.text


def test_files_that_a_folder_placed_stay(pairs: Path) -> None:
    own = [str(pairs / f"train.{side}") for side in ("en", "fr")]
    recipe, _ = resolve.resolve_recipe("ted-en-fr/minute", None, own, None, None, None, pairs)
    assert recipe.data.test == [str(pairs / "test.en"), str(pairs / "test.fr")]
    recipe, _ = resolve.resolve_recipe("speeches/generate", None, own[:1], None, None, None, pairs)
    assert recipe.data.sets["obama"] == [str(pairs / "test_LM_obama.txt")]


def test_a_folder_holds_the_files_of_overrides_too(pairs: Path) -> None:
    changes = ['data.sets={ mine = ["test.en", "test.fr"] }', "data.test=[]"]
    recipe, _ = resolve.resolve_recipe("ted-en-fr/best", None, None, None, changes, None, pairs)
    assert recipe.data.sets == {"mine": [str(pairs / "test.en"), str(pairs / "test.fr")]}
    assert recipe.data.test == []
    with pytest.raises(ConfigError, match="sets"):
        resolve.resolve_recipe("ted-en-fr/best", None, None, None, ["data.sets=3"], None, pairs)


def test_a_folder_may_be_in_any_two_languages(pairs: Path) -> None:
    for path in [*pairs.glob("*.fr"), *pairs.glob("dev.en")]:
        new = {"dev": "val"}.get(path.stem, path.stem) + path.suffix.replace("fr", "de")
        path.rename(pairs / new)
    recipe, _ = resolve.resolve_recipe("ted-en-fr/minute", None, None, None, None, None, pairs)
    data = recipe.data
    assert [Path(file).name for file in data.train] == ["train.en", "train.de"]
    assert [Path(file).name for file in data.dev] == ["val.en", "val.de"]
    assert [Path(file).name for file in data.test] == ["test.en", "test.de"]


@pytest.mark.parametrize("train", [None, ["a.en"]])
def test_a_data_file_is_not_a_recipe(
    train: list[str] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "b.fr").write_text("Bonjour à tous.\n")
    command = "heed train --train b.fr" if train is None else "--train a.en --train b.fr"
    with pytest.raises(ConfigError, match=f"not a recipe.*{command}"):
        resolve.resolve_recipe("b.fr", None, train, None, None, None)
    (tmp_path / "broken.toml").write_text("no = = toml")
    with pytest.raises(ConfigError, match="not TOML"):
        resolve.resolve_recipe("broken.toml", None, train, None, None, None)


@pytest.mark.parametrize("name", [name for name in names() if name.startswith("demo-")])
def test_a_user_s_files_replace_the_synthetic_corpus(name: str, pairs: Path) -> None:
    own, dev = (
        [str(pairs / f"{split}.{side}") for side in ("en", "fr")] for split in ("train", "dev")
    )
    recipe, _ = resolve.resolve_recipe(name, None, own, dev, None, None)
    assert (recipe.data.train, recipe.data.dev, recipe.data.synthetic) == (own, dev, None)
    for train in (own, None):
        with pytest.raises(ConfigError, match=r"--data is for .* text of this one is generated"):
            resolve.resolve_recipe(name, None, train, None, None, None, pairs)


def test_a_folder_is_of_no_use_without_a_recipe(pairs: Path) -> None:
    with pytest.raises(ConfigError, match="leave --data out"):
        resolve.resolve_recipe(None, None, [str(pairs / "train.en")], None, None, None, pairs)


@pytest.mark.parametrize("name", [name for name in names() if not name.startswith("demo-")])
def test_a_recipe_whose_files_are_elsewhere_says_how_to_name_their_folder(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="name the folder with --data DIR"):
        resolve.resolve_recipe(name, None, None, None, None, None)
    for file in Recipe.read(find(name)).data.train:
        (tmp_path / file).touch()
    resolve.resolve_recipe(name, None, None, None, None, None)


def test_a_missing_test_set_cannot_be_evaluated(pairs: Path) -> None:
    """Before training, not after it; a synthetic corpus has one."""
    own = [str(pairs / f"train.{side}") for side in ("en", "fr")]
    test = [str(pairs / f"test.{side}") for side in ("en", "fr")]
    with pytest.raises(ConfigError, match="evaluate_test"):
        resolve.resolve_recipe("ted-en-fr/minute", None, own, None, None, None)
    recipe, _ = resolve.resolve_recipe(
        "ted-en-fr/minute", None, own, None, [f"data.test={test}"], None
    )
    assert recipe.data.test == test
    overrides = ["train.evaluate_test=true"]
    assert resolve.resolve_recipe("demo-translate", None, None, None, overrides, None)[
        0
    ].train.evaluate_test


@pytest.mark.parametrize("name", [None, "ted-en-fr/minute", "ted-en-fr/lstm"])
@pytest.mark.parametrize("key", ["batch_size", "batch_tokens"])
def test_a_batch_is_as_large_as_the_command_line_says(
    name: str | None, key: str, pairs: Path
) -> None:
    """However the recipe says it, or what is sensible for a small text."""
    own = [str(pairs / f"train.{side}") for side in ("en", "fr")]
    changes = [f"train.{key}=24", "train.evaluate_test=false"]
    found, _ = resolve.resolve_recipe(name, None, own, None, changes, precision=None)
    sizes = {"batch_size": found.train.batch_size, "batch_tokens": found.train.batch_tokens}
    assert sizes == dict.fromkeys(sizes) | {key: 24}


def test_an_error_in_a_shipped_recipe_names_the_recipe() -> None:
    """The place of the installed file is of no use to its reader."""
    with pytest.raises(ConfigError, match=r"^ted-en-fr/best, changed by model.widht=3: \[model\]"):
        resolve.resolve_recipe("ted-en-fr/best", None, None, None, ["model.widht=3"], None)
