"""Groups of test texts, from a column or from a file, and their place in the item counts."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from evaluating import HELD_OUT, evaluate_small, sides, train_small
from test_cli import heed

from heed.config import Recipe
from heed.data.corpus import open_corpus
from heed.errors import DataError
from heed.evaluate.item_groups import find_groups, read_groups
from heed.runs.item_counts import read_items

pytestmark = pytest.mark.usefixtures("own_cache")


def write(path: Path, lines: list[str]) -> str:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(path)


def test_a_file_names_the_group_of_each_line(tmp_path: Path) -> None:
    """Also of lines that are left out, so that the others stay in place."""
    en = write(tmp_path / "test.en", ["one", "", "two", "three"])
    fr = write(tmp_path / "test.fr", ["un", "rien", "deux", "trois"])
    names = write(tmp_path / "talks", ["first", "second", "second", "first"])
    corpus = open_corpus([en, fr], task="translate")
    records = list(corpus.usable_records())
    assert read_groups(names, corpus, records) == [0, 1, 0]
    short = write(tmp_path / "short", ["first", "second"])
    with pytest.raises(DataError, match="short has 2 lines, the test files 4"):
        read_groups(short, corpus, records)
    unnamed = write(tmp_path / "unnamed", ["first", "second", "", "first"])
    with pytest.raises(DataError, match=r"test\.en:3: this text has no group"):
        read_groups(unnamed, corpus, records)
    with pytest.raises(DataError, match="nowhere: there is no such file"):
        read_groups("nowhere", corpus, records)


def test_files_follow_one_another(tmp_path: Path) -> None:
    paths = [write(tmp_path / name, [name] * 2) for name in ("a.txt", "b.txt")]
    corpus = open_corpus(paths, task="generate")
    names = write(tmp_path / "talks", ["x", "x", "x", "y"])
    assert read_groups(names, corpus, list(corpus.usable_records())) == [0, 0, 0, 1]


@pytest.mark.parametrize("kind", ["tsv", "csv", "jsonl"])
def test_a_column_names_the_group_of_each_row(tmp_path: Path, kind: str) -> None:
    rows = [("no", "a", 7), ("yes", "b", 3), ("no", "", 3), ("yes", "c d", 7)]
    mark = {"tsv": "\t", "csv": ","}.get(kind)
    if mark is None:
        keys = ("label", "text", "talk")
        lines = [json.dumps(dict(zip(keys, row, strict=True))) for row in rows]
    else:
        lines = [mark.join(map(str, row)) for row in [("label", "text", "talk"), *rows]]
    corpus = open_corpus(write(tmp_path / f"test.{kind}", lines), task="classify")
    records = list(corpus.usable_records())
    assert read_groups("talk", corpus, records) == [0, 1, 0]
    recipe = Recipe.of({"task": "classify", "data": {"groups": "talk"}})
    assert find_groups(recipe, None, corpus, records) == [0, 1, 0]
    with pytest.raises(DataError, match="The columns are label, text, talk"):
        read_groups("talks", corpus, records)


def test_the_real_command_keeps_groups_and_counts_looks(text: Path) -> None:
    """On parallel files with a file of talks; swapped sides are an error."""
    run = train_small(text, "translate", "grouped")
    source, target = sides(text, "test")
    names = write(text / "talks", [f"talk {i // 3}" for i in range(HELD_OUT)])
    flags = ["--metric", "bleu", "--bootstrap", "0", "--device", "cpu"]
    files = ["--test", source, "--test", target]
    answer = heed("evaluate", str(run), *files, "--groups", names, *flags, "--json")
    assert answer.returncode == 0, answer.stderr
    result = json.loads(answer.stdout)
    assert (result["groups"], result["looks"]) == (14, 1)
    items = read_items(run, "test")
    assert items is not None
    assert items.groups is not None
    assert np.array_equal(items.groups, np.arange(HELD_OUT) // 3)
    again = evaluate_small(run, test=[source, target], metrics=("chrf",))
    assert again["looks"] == 2
    kept = read_items(run, "test")  # with all that either evaluation knew
    assert kept is not None
    assert kept.signatures.keys() == {"bleu", "chrf"}
    assert np.array_equal(kept.columns["group"], items.columns["group"])
    swapped = heed("evaluate", str(run), "--test", target, "--test", source, *flags)
    assert swapped.returncode == 2
    assert "source and target are swapped" in swapped.stderr
