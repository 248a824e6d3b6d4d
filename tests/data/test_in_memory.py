"""Lists of texts as data: what is read back is what was given, and what is wrong is named."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heed.data.corpus import open_corpus
from heed.data.in_memory import encode_texts, names_files
from heed.errors import DataError

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def read_back(folder: Path, data: Any, task: str) -> tuple[list[tuple[str, ...]], list[str | None]]:
    """The texts and labels that a corpus reads from the file of some lists."""
    path = folder / "given.jsonl"
    path.write_bytes(encode_texts(data, task, "train"))
    records = list(open_corpus(path, task=task))
    return [record.texts for record in records], [record.label for record in records]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lists")


@given(rows=st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=5))
def test_any_text_comes_back_as_it_was(folder: Path, rows: list[tuple[str, str]]) -> None:
    """Line breaks, tabs, quotes and emoji included, for each task and form of the lists."""
    sources, targets = map(list, zip(*rows, strict=True))
    labels = [f"label-{i}" for i in range(len(rows))]
    assert read_back(folder, (sources, targets), "translate")[0] == rows
    assert read_back(folder, [sources, tuple(targets)], "translate")[0] == rows
    assert read_back(folder, rows, "translate")[0] == rows
    assert read_back(folder, zip(sources, targets, strict=True), "translate")[0] == rows
    assert read_back(folder, (rows, labels), "classify") == (rows, labels)
    assert read_back(folder, list(zip(sources, labels, strict=True)), "classify") == (
        [(source,) for source in sources],
        labels,
    )
    assert read_back(folder, (targets,), "generate")[0] == [(target,) for target in targets]


def test_arrays_and_series_are_lists(folder: Path) -> None:
    texts, labels = ["One cat.", "Two\ndogs.", "Ünï"], [1, 0, 1]
    expected = ([(text,) for text in texts], ["1", "0", "1"])
    arrays = (np.array(texts), np.array(labels))
    assert read_back(folder, arrays, "classify") == expected
    assert read_back(folder, (texts, labels), "classify") == expected
    assert read_back(folder, np.array(texts), "generate")[0] == expected[0]
    table = np.array([["a b.", "c d."], ["e", "f"], ["g", "h"]])
    assert read_back(folder, table, "translate")[0] == [*map(tuple, table.tolist())]
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"text": texts, "label": labels}, index=[7, 3, 5])
    assert read_back(folder, (frame["text"], frame["label"]), "classify") == expected
    assert read_back(folder, frame["text"], "generate")[0] == expected[0]


def test_files_are_told_from_texts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    (folder / "my text").write_text("a\n")
    for task in ("translate", "classify", "generate"):
        assert names_files("a.en", task)
        assert names_files(["a.en", "a.fr.gz"], task)
        assert names_files(("missing.txt",), task)
        assert names_files([Path("a b c"), "d"], task)
        assert names_files([], task)
    assert names_files(["my text", "hf:corpus"], "generate")
    assert not names_files(["my text", "another text"], "generate")
    assert not names_files(["emma", "olivia"], "generate")
    assert not names_files((["host.org", "example.com"],), "generate")
    assert not names_files((["a.en"], ["a.fr"]), "translate")
    assert not names_files(np.array(["a.en", "a.fr"]), "generate")


@pytest.mark.parametrize(
    ("data", "task", "said"),
    [
        ((["a", "b"], ["c"]), "translate", "train: there are 2 sources and 1 targets."),
        ((["a"], ["b", "c"]), "classify", "there are 1 texts and 2 labels."),
        (([], []), "translate", "train: this list has no text."),
        (np.array([]), "generate", "this list has no text."),
        ((["a", None], ["b", "c"]), "translate", "sources[1] is None, which is not a string."),
        ((["a", "b"], ["c", float("nan")]), "translate", "targets[1] is nan"),
        (([b"a"], ["b"]), "classify", "texts[0] is b'a'"),
        ((["a"], [1.5]), "classify", "labels[0] is 1.5, which is not a string or an integer."),
        (([("a", "b"), "c"], ["x", "y"]), "classify", "texts[1] is 'c', and the texts before"),
        (([("a", 3)], ["x"]), "classify", "texts[0][1] is 3"),
        ((["a\ud800"], ["b"]), "translate", "sources[0] contains a lone surrogate"),
        ([("a", "b"), ("c",)], "translate", "item 1 is ('c',), which is not a pair."),
        ([["a"], ["b"], ["c"]], "translate", "item 0 is ['a'], which is not a pair."),
        ({"en": 1, "fr": 2}, "translate", "Give two lists, (sources, targets)"),
        (3, "generate", "there is 3 where a list of texts belongs."),
        (("a text", ["b"]), "translate", "there is 'a text' where a list of texts belongs."),
        (["a b", 5], "generate", "texts[1] is 5"),
        (["a b", "c" * 2**24], "generate", "texts[1] has more than 16,777,216 characters."),
    ],
)
def test_what_is_wrong_is_named_with_its_index(data: Any, task: str, said: str) -> None:
    assert not names_files(data, task)
    with pytest.raises(DataError, match=re.escape(said)):
        encode_texts(data, task, "train")
