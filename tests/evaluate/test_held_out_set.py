"""Sets named by `--test`: their names, their headers, and the order of their sides."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heed.config import Recipe
from heed.data import synthetic
from heed.data.corpus import open_corpus
from heed.errors import ConfigError, DataError
from heed.evaluate.held_out_set import MAX_NAMED, HeldOutSet, TrainingText, _name_files, find_set

RECIPES = {task: Recipe.of({"task": task}) for task in ("translate", "classify", "generate")}


def write(path: Path, lines: list[str]) -> str:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(path)


@given(st.lists(st.from_regex(r"[a-z]{1,5}", fullmatch=True), min_size=1, max_size=6))
def test_a_set_is_named_after_all_of_its_files(stems: list[str]) -> None:
    files = [f"data/{stem}.txt" for stem in stems]
    name = _name_files(files, "generate")
    distinct = list(dict.fromkeys(stems))
    assert name.split("+")[:MAX_NAMED] == distinct[:MAX_NAMED]
    assert ("-more" in name) == (len(distinct) > MAX_NAMED)
    assert _name_files(files, "translate") == stems[0]


def test_a_table_without_a_header_is_read_on_request(tmp_path: Path) -> None:
    rows = ["a sentence here.,no", "another one here.,yes", "and one more.,no"]
    file, train = write(tmp_path / "test.csv", rows), TrainingText(None)

    def texts(header: bool | None = None) -> list[str]:
        held_out = find_set(RECIPES["classify"], train, test=[file], header=header)
        return [record.texts[0] for record in held_out.corpus.usable_records()]

    with pytest.raises(DataError, match="--no-header"):
        texts()
    assert texts(header=False)[0] == "a sentence here."
    with pytest.raises(ConfigError, match="--no-header is about the files of --test"):
        find_set(RECIPES["classify"], train, split="test", header=False)


@pytest.mark.parametrize("named", [True, False], ids=["by-name", "by-words"])
def test_swapped_sides_are_refused(tmp_path: Path, named: bool) -> None:
    suffixes = ("en", "fr") if named else ("txt", "text")
    files: dict[str, list[str]] = {}
    for split, count in (("train", 400), ("test", 60)):
        sentences = list(synthetic.generate_sentences(split, count, seed=1))
        sides = ([s.english for s in sentences], [s.french for s in sentences])
        files[split] = [
            write(tmp_path / f"{split}-{i}.{suffix}", lines)
            for i, (suffix, lines) in enumerate(zip(suffixes, sides, strict=True))
        ]
    train = TrainingText(open_corpus(files["train"], task="translate"))
    held_out = find_set(RECIPES["translate"], train, test=files["test"])
    assert isinstance(held_out, HeldOutSet)
    with pytest.raises(DataError, match="source and target are swapped"):
        find_set(RECIPES["translate"], train, test=files["test"][::-1])
