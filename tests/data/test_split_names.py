"""Splits and tasks inferred from a list of files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from heed.data.corpus import infer_splits, infer_task
from heed.data.doctor import check
from heed.errors import DataError


def names(found: dict[str, list[Path]]) -> dict[str, list[str]]:
    return {name: [str(path) for path in paths] for name, paths in found.items()}


@pytest.mark.parametrize(
    ("given_paths", "wanted"),
    [
        (["x_test.tsv", "x_train.tsv"], {"train": ["x_train.tsv"], "test": ["x_test.tsv"]}),
        (["a.csv", "b.csv", "c.csv"], {"train": ["a.csv"], "b": ["b.csv"], "c": ["c.csv"]}),
        (["latest.tsv", "valid.tsv"], {"train": ["latest.tsv"], "dev": ["valid.tsv"]}),
        (["a.en", "a.fr"], {"train": ["a.en", "a.fr"]}),
        (["test.en.gz", "test.fr.gz"], {"test": ["test.en.gz", "test.fr.gz"]}),
        (["train.txt", "test.txt"], {"train": ["train.txt"], "test": ["test.txt"]}),
        (
            ["dev.en", "train.en", "newstest2014.en", "dev.fr", "train.fr", "newstest2014.fr"],
            {
                "train": ["train.en", "train.fr"],
                "dev": ["dev.en", "dev.fr"],
                "test": ["newstest2014.en", "newstest2014.fr"],
            },
        ),
        (
            ["train_a.jsonl", "train_b.jsonl", "test_x.jsonl", "test_y.jsonl"],
            {
                "train": ["train_a.jsonl", "train_b.jsonl"],
                "test_x": ["test_x.jsonl"],
                "test_y": ["test_y.jsonl"],
            },
        ),
        (["x/test.tsv", "y/test.tsv"], {"test": ["x/test.tsv"], "test-2": ["y/test.tsv"]}),
        (["hf:org/name@train"], {"train": ["hf:org/name@train"]}),
    ],
)
def test_a_list_of_files_means(given_paths: Sequence[str], wanted: dict[str, list[str]]) -> None:
    found = names(infer_splits(given_paths))
    assert found == wanted
    assert list(found) == list(wanted), "train and dev come first"


def test_two_texts_to_generate_from_are_no_sides() -> None:
    assert names(infer_splits(["a.txt", "b.txt"], task="generate")) == {
        "train": ["a.txt"],
        "b": ["b.txt"],
    }
    with pytest.raises(DataError, match="cannot be mixed"):
        infer_splits(["a.tsv", "b.txt"])


def test_a_folder_of_tables_and_text_names_the_command_for_its_tables(tmp_path: Path) -> None:
    folder = tmp_path / "two kinds"
    folder.mkdir()
    for name in ("test_LM.txt", "train_CLS.tsv", "test_CLS.tsv"):
        (folder / name).write_text("a\tone\nb\ttwo\n", encoding="utf-8")
    with pytest.raises(DataError, match="cannot be mixed") as error:
        infer_splits([folder])
    assert error.value.todo is not None
    command = error.value.todo.partition("as in: ")[2]
    assert command == f"heed check '{folder}'/*.tsv"
    assert set(infer_splits(sorted(folder.glob("*.tsv")))) == {"train", "test"}


@pytest.mark.parametrize(
    ("name", "content", "task"),
    [
        ("a.tsv", "Hello there.\tBonjour.\nGood night.\tBonne nuit.\n", "translate"),
        ("a.tsv", "en\tfr\nyes\toui\n", "translate"),
        ("a.tsv", "pos\tgood film\n", "classify"),
        ("a.tsv", "a\na\nb\n", "generate"),
        ("a.csv", "review,sentiment\nso good,1\n", "classify"),
        ("a.jsonl", '{"id": "x1", "text": "so good"}\n', "generate"),
        ("a.txt", "one\ttwo\n", "generate"),
    ],
)
def test_the_task_shows(tmp_path: Path, name: str, content: str, task: str) -> None:
    path = tmp_path / name
    path.write_text(content, "utf-8")
    assert infer_task([path]) == task


def test_a_folder_stands_for_its_files_that_name_a_split(tmp_path: Path) -> None:
    for name in ("train.en", "train.fr", "dev.en", "dev.fr", "README.md", ".hidden.en"):
        (tmp_path / name).write_text("a\n")
    splits = infer_splits([tmp_path])
    named = {split: [path.name for path in paths] for split, paths in splits.items()}
    assert named == {"train": ["train.en", "train.fr"], "dev": ["dev.en", "dev.fr"]}


def test_a_folder_without_split_names_is_refused(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("a\n")
    [finding] = check([tmp_path]).errors
    assert "this is a folder" in finding.message
