"""The held-out dev set: the same for every run, and unseen by the tokenizer."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from heed.config import DataConfig, Recipe
from heed.data.held_out import DEV_MAX, hold_out_dev
from heed.runs.run import Run
from heed.train.prepare.setup import TrainingSetup, prepare

LINES = [f"word{i} in line{i} and again word{i}" for i in range(60)]


@given(st.integers(2, 5000), st.integers(0, 9), st.sampled_from([0.01, 0.05, 0.5, 0.99]))
def test_every_text_is_on_one_side(count: int, seed: int, share: float) -> None:
    data = DataConfig(dev_seed=seed, dev_share=share)
    apart, learnt = (rows.tolist() for rows in hold_out_dev(count, data))
    assert sorted(apart + learnt) == list(range(count))
    assert 0 < len(apart) <= min(DEV_MAX, share * count + 1)
    assert learnt
    assert (apart, learnt) == tuple(rows.tolist() for rows in hold_out_dev(count, data))


def prepared(folder: Path, name: str, *, seed: int = 0, dev_seed: int = 0) -> TrainingSetup:
    text = folder / "text.txt"
    text.write_text("\n".join(LINES) + "\n", encoding="utf-8")
    recipe = Recipe.of(
        {
            "task": "generate",
            "seed": seed,
            "data": {"train": [str(text)], "dev_seed": dev_seed, "max_length": 32},
            "tokenizer": {"kind": "word"},
            "model": {"layers": 1, "width": 16, "heads": 2},
            "train": {"steps": 1, "evaluate_train": True},
        }
    )
    run = Run(folder / name)
    run.folder.mkdir()
    return prepare(recipe, run, device=torch.device("cpu"), say=Console(quiet=True).print)


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HEED_CACHE", str(tmp_path / "cache"))


def test_held_out_words_are_unknown_and_all_others_known(tmp_path: Path) -> None:
    parts = prepared(tmp_path, "run")
    apart = set(hold_out_dev(len(LINES), DataConfig())[0].tolist())
    for i, line in enumerate(LINES):
        assert ("<unk>" in parts.tokenizer.tokenize(line)) == (i in apart)


def test_another_seed_has_the_same_dev_set_and_tokenizer(
    tmp_path: Path,
) -> None:
    one, other = (prepared(tmp_path, f"run{seed}", seed=seed) for seed in (0, 7))
    again = prepared(tmp_path, "again", dev_seed=1)
    assert one.tokenizer.core.to_str() == other.tokenizer.core.to_str()
    assert one.tokenizer.core.to_str() != again.tokenizer.core.to_str()
    rows = [{int(row) for row in parts.sets["dev"].rows} for parts in (one, other, again)]
    assert rows[0] == rows[1] != rows[2]
