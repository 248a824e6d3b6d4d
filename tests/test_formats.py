"""Folders of runs are read as they were meant when they were made."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from rich.console import Console

from heed.config import Recipe
from heed.models.language_model import LanguageModel
from heed.runs.run import FORMAT, Run
from heed.train import run as train_run

QUIET = Console(quiet=True)
SINCE = ("embedding_scale", "position_scale")
"""Keys that runs of the first format have not, or that meant something else when unset."""


def trained(folder: Path, position: str) -> Run:
    """As it was done then: all tokens times w^¾, and positions as they are."""
    recipe = Recipe.of(
        {
            "task": "generate",
            "data": {"synthetic": 40, "synthetic_test": 10},
            "tokenizer": {"kind": "char"},
            "model": {
                "layers": 1,
                "width": 16,
                "heads": 2,
                "position": position,
                "embedding_scale": 16**0.75,
                "position_scale": 1.0,
            },
            "train": {"steps": 2, "batch_size": 4},
        }
    )
    return train_run.start(recipe, folder / position, device="cpu", console=QUIET)


def logits(run: Run) -> torch.Tensor:
    model, _, _ = train_run.load(run.folder, device="cpu")
    assert isinstance(model, LanguageModel)
    with torch.inference_mode():
        return model(torch.arange(5, 17)[None])


@pytest.mark.parametrize("position", ["rope", "sinusoidal", "learned", "t5"])
def test_a_run_of_the_first_format_answers_as_it_did(
    tmp_path: Path, position: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEED_CACHE", str(tmp_path / "cache"))
    run = trained(tmp_path, position)
    assert run.format() == FORMAT
    before = logits(run)
    lines = run.recipe_path.read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines if not line.startswith(SINCE)]
    run.recipe_path.write_text("\n".join(kept) + "\n", encoding="utf-8")
    facts = run.environment() | {"format": 1}
    run.environment_path.write_text(json.dumps(facts), encoding="utf-8")
    assert torch.equal(logits(run), before)
    run.write_environment({})  # as when it is resumed
    assert torch.equal(logits(run), before)
