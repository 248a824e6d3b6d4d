"""A recipe's files in a folder of another corpus: languages and names of dev are found."""

from __future__ import annotations

from pathlib import Path

import pytest

from heed.data.corpus import find_in_folder
from heed.errors import DataError

RECIPE = {"train": ["train.en", "train.fr"], "dev": ["dev.en", "dev.fr"]}


def fill(folder: Path, names: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name in names.split():
        (folder / name).touch()
    return folder


def found(folder: Path, **options: tuple[str, str]) -> str:
    splits = find_in_folder(folder, RECIPE, **options)
    return " ".join(Path(path).name for paths in splits.values() for path in paths)


@pytest.mark.parametrize(
    ("names", "wanted"),
    [
        ("train.en train.fr dev.en dev.fr test.de", "train.en train.fr dev.en dev.fr"),
        ("train.de train.en val.de val.en", "train.en train.de val.en val.de"),
        ("train.fr train.nl valid.fr valid.nl README.md", "train.nl train.fr valid.nl valid.fr"),
        ("train.de.gz train.en.gz dev.de dev.en", "train.en.gz train.de.gz dev.en dev.de"),
        ("train.de train.en train.fr valid.en valid.fr", "train.en train.fr valid.en valid.fr"),
        ("corpus-train.en corpus-train.ja newsdev.en newsdev.ja",
         "corpus-train.en corpus-train.ja newsdev.en newsdev.ja"),
    ],
)  # fmt: skip
def test_files_are_found(names: str, wanted: str, tmp_path: Path) -> None:
    assert found(fill(tmp_path / "mine", names)) == wanted


def test_the_name_of_the_folder_says_the_order(tmp_path: Path) -> None:
    names = "train.de train.nl dev.de dev.nl"
    assert found(fill(tmp_path / "nl-de", names)) == "train.nl train.de dev.nl dev.de"
    assert found(fill(tmp_path / "talks_de_nl", names)) == names
    unclear = fill(tmp_path / "talks", names)
    assert found(unclear, languages=("nl", "de")) == "train.nl train.de dev.nl dev.de"
    with pytest.raises(DataError, match=r"which of de and nl is the source.*It has dev.de, dev.nl"):
        found(unclear)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("", "no training files.*It is empty"),
        ("train.en", "in 1 language, and two.*It has train.en"),
        ("train.en train.de train.nl dev.en", "in 3 languages.*It has dev.en, train.de"),
        ("train.en train.de", "is no dev.en and dev.de. It has train.de, train.en"),
        ("train.en train.de val.en val.de valid.en valid.de", "more than one set of files for dev"),
    ],
)
def test_an_unclear_folder_is_listed(names: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message):
        found(fill(tmp_path / "mine", names))


def test_a_table_under_another_name(tmp_path: Path) -> None:
    folder = fill(tmp_path / "mine", "train.tsv validation.tsv validation.txt")
    splits = find_in_folder(folder, {"train": ["train.tsv"], "dev": ["dev.tsv"]})
    assert splits["dev"] == [str(folder / "validation.tsv")]
    with pytest.raises(DataError, match="no such folder"):
        find_in_folder(tmp_path / "nowhere", RECIPE)
