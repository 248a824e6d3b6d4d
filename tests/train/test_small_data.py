"""With every key for small corpora, a run is exact: the same bits again, and killed and resumed."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from killing import dies_at, outcome
from rich.console import Console

from heed.config import Recipe
from heed.runs.run import Run
from heed.train import run

QUIET = Console(quiet=True)
TASKS = ["translate", "classify", "generate"]


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HEED_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Words of a few syllables, and the same backwards."""
    folder, draw = tmp_path_factory.mktemp("text"), random.Random(0)
    words = ["".join(draw.choices(["ba", "du", "ki", "lo", "me"], k=3)) for _ in range(30)]
    lines = [" ".join(draw.choices(words, k=draw.randint(2, 9))) for _ in range(90)]
    (folder / "a.en").write_text("\n".join(lines))
    (folder / "a.fr").write_text("\n".join(line[::-1] for line in lines))
    labeled = (f"{'ab'[i % 2]}\t{line}" for i, line in enumerate(lines))
    (folder / "a.tsv").write_text("\n".join(labeled))
    return folder


def make_recipe(corpus: Path, task: str = "translate") -> Recipe:
    """Some three epochs in nine updates, so that draws change on the way."""
    files = {"translate": ["a.en", "a.fr"], "classify": ["a.tsv"], "generate": ["a.en"]}[task]
    data: dict[str, Any] = {"train": [str(corpus / name) for name in files], "max_length": 64}
    train = {"steps": 9, "batch_size": 40, "warmup": 2, "log_every": 2, "rdrop": 2.0}
    train |= {"evaluate_every": 4, "checkpoint_every": 3, "label_smoothing": 0.1}
    if task == "translate":
        data |= {"bidirectional": True, "denoise": 0.3}
        train |= {"source_token_dropout": 0.1, "batch_size": 100}
    return Recipe.of(
        {
            "task": task,
            "data": data,
            "tokenizer": {"kind": "bpe", "vocab_size": 300, "dropout": 0.2},
            "model": {"layers": 1, "width": 16, "heads": 2, "dropout": 0.2},
            "train": train,
        }
    )


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_resumed_equals_unbroken(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str
) -> None:
    recipe = make_recipe(corpus, task)
    run.start(recipe, tmp_path / "whole", device="cpu", console=QUIET)
    with dies_at(5):
        run.start(recipe, tmp_path / "broken", device="cpu", console=QUIET)
    # Another machine has no store yet: it draws the same again.
    monkeypatch.setenv("HEED_CACHE", str(tmp_path / "elsewhere"))
    run.resume(tmp_path / "broken", device="cpu", console=QUIET)
    weights, lines = outcome(tmp_path / "whole")
    assert (weights, lines) == outcome(tmp_path / "broken")
    assert lines[-1]["epoch"] >= 2


def test_evaluation_is_as_always(corpus: Path, tmp_path: Path) -> None:
    """Of the same weights, by the same sets, whatever the training settings."""
    recipe = make_recipe(corpus)
    run.start(recipe, tmp_path / "run", device="cpu", console=QUIET)
    tables = recipe.tables()
    for section, key in (("data", "bidirectional"), ("data", "denoise"), ("tokenizer", "dropout")):
        del tables[section][key]
    for key in ("source_token_dropout", "rdrop", "label_smoothing"):
        del tables["train"][key]
    tables["train"] |= {"steps": 1, "lr": 1e-30, "warmup": 0, "weight_decay": 0.0}
    tables["init"] = {"from": str(tmp_path / "run")}
    run.start(Recipe.of(tables), tmp_path / "plain", device="cpu", console=QUIET)
    one, other = (
        [line["dev"]["loss"] for line in Run(tmp_path / name).metrics() if "dev" in line]
        for name in ("run", "plain")
    )
    assert other[-1] == pytest.approx(min(one), rel=1e-6)
