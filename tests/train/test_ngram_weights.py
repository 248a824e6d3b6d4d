"""What runs of tokens know of the training text: what parts words, and how classes differ."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from killing import dies_at, outcome
from rich.console import Console
from safetensors.torch import load_file

from heed.config import Recipe
from heed.data.tokenizers.tokenizer import Tokenizer
from heed.errors import ConfigError
from heed.models import Classifier
from heed.nn.ngrams import log_count_ratios
from heed.runs.load import load_run
from heed.runs.run import Run
from heed.train import run as train_run
from heed.train.prepare.ngram_weights import count_ngrams, word_boundaries
from heed.train.prepare.setup import prepare

QUIET = Console(quiet=True)
RUNS: dict[str, Any] = {
    "ngrams": 3,
    "ngram_buckets": 501,
    "word_ngrams": 2,
    "ngram_log_count_ratio": 1.0,
}


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HEED_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """A word says which class it is; the others say nothing."""
    lines = [f"{'ab'[i % 2]}\tthe {['good', 'bad'][i % 2]} thing {i % 7}\n" for i in range(60)]
    for name in ("train", "dev"):
        (tmp_path / f"{name}.tsv").write_text("".join(lines), encoding="utf-8")
    return tmp_path


def make_recipe(text: Path, kind: str = "char") -> Recipe:
    train: dict[str, Any] = {"steps": 6, "batch_size": 16, "warmup": 1, "evaluate_every": 3}
    train |= {"checkpoint_every": 2, "precision": "float32", "ema": 0.9}
    data = {"train": [str(text / "train.tsv")], "dev": [str(text / "dev.tsv")]}
    return Recipe.of(
        {
            "task": "classify",
            "data": data,
            "tokenizer": {"kind": kind},
            "model": {"layers": 1, "width": 8, "heads": 2} | RUNS,
            "train": train,
        }
    )


@pytest.mark.parametrize("kind", ["char", "byte"])
@given(words=st.lists(st.text("abcé.-", min_size=1, max_size=5), min_size=1, max_size=5))
def test_words_are_parted_where_a_person_parts_them(kind: str, words: list[str]) -> None:
    line = " ".join(words)
    tokenizer = Tokenizer.train([line, " \t"], kind=kind)
    apart = word_boundaries(tokenizer)
    ids = tokenizer.encode(line)
    assert [bool(apart[i]) for i in ids] == [byte == 32 for byte in _units(kind, line)]
    specials = tokenizer.specials
    assert apart[[specials.pad, specials.bos, specials.eos]].all()
    assert not apart[[specials.unk, specials.mask]].any()


def _units(kind: str, line: str) -> list[int]:
    return list(line.encode()) if kind == "byte" else [ord(sign) for sign in line]


def test_every_text_counts_once_for_its_class(text: Path) -> None:
    recipe, run = make_recipe(text), Run(text / "run")
    run.folder.mkdir()
    parts = prepare(recipe, run, device=torch.device("cpu"), say=lambda _: None)
    assert isinstance(parts.model, Classifier)
    grams = parts.model.ngrams
    assert grams is not None
    assert grams.weight_r is not None
    found: Counter[tuple[int, int]] = Counter()
    plan = parts.train.plan(0)
    for number in range(len(plan)):
        batch = parts.train.batch(plan, number)
        for ids, mask, label in zip(batch.ids, batch.mask, batch.targets.tolist(), strict=True):
            rows, size = grams.rows(ids[None], mask[None])
            found.update((label, row) for row in set(rows[size > 0].tolist()))
    counts = torch.zeros(2, 501)
    for (label, row), count in found.items():
        counts[label, row] = count
    assert torch.equal(count_ngrams(grams, parts.sets["dev"], 2), counts)  # the same lines as train
    assert torch.equal(grams.weight_r, log_count_ratios(counts, 1.0))
    assert grams.weight_r.max() > 2


def test_a_run_keeps_what_it_counted(text: Path) -> None:
    """Killed and resumed it has the same bits, and what is loaded says what was scored."""
    train_run.start(make_recipe(text), text / "whole", device="cpu", console=QUIET)
    with dies_at(3):
        train_run.start(make_recipe(text), text / "broken", device="cpu", console=QUIET)
    train_run.resume(text / "broken", device="cpu", console=QUIET)
    assert outcome(text / "whole") == outcome(text / "broken")
    model, tokenizer, _ = load_run(text / "whole", device="cpu")
    assert isinstance(model, Classifier)
    assert model.ngrams is not None
    assert model.ngrams.between_v is not None
    assert torch.equal(model.ngrams.between_v, word_boundaries(tokenizer))


def test_a_run_that_begins_from_another_has_what_that_one_counted(text: Path) -> None:
    train_run.start(make_recipe(text), text / "one", device="cpu", console=QUIET)
    again = make_recipe(text).tables() | {"init": {"from": str(text / "one")}}
    for name in ("train", "dev"):
        (text / f"{name}.tsv").write_text("a\tnothing\nb\tof this\n" * 9, encoding="utf-8")
    train_run.start(Recipe.of(again), text / "two", device="cpu", console=QUIET)
    before, after = (load_file(text / name / "model.safetensors") for name in ("one", "two"))
    assert before.keys() == after.keys()
    for name in ("ngrams.weight_r", "ngrams.between_v"):
        assert torch.equal(before[name], after[name])


def test_words_are_found_in_smaller_tokens_only(text: Path) -> None:
    with pytest.raises(ConfigError, match=r"word_ngrams.*'word'"):
        train_run.start(make_recipe(text, "word"), text / "run", device="cpu", console=QUIET)
