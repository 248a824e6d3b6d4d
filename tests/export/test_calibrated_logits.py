"""An exported classifier's softmax gives the calibrated probabilities."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from support import new_classifier, new_language_model

from heed.config import Recipe
from heed.export.calibrated_logits import apply_calibration
from heed.runs.labels import Calibration, Classes
from heed.runs.run import Run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    recipe = Recipe.of({"task": "classify", "data": {"train": ["a.tsv"]}})
    run = Run.create(tmp_path / "run", recipe)
    Classes(("no", "yes")).save(run)
    return run


@pytest.mark.parametrize("hidden", [None, 12])
@torch.inference_mode()
def test_logits_are_divided_by_the_temperature(
    run: Run, tmp_path: Path, hidden: int | None
) -> None:
    Calibration(2.5, "dev", 40, "hash").save(run)
    model = new_classifier(layers=1, classifier_hidden=hidden)
    ids = torch.arange(10, 16)[None]
    before = model(ids)
    apply_calibration(run, model, tmp_path / "out")
    assert torch.allclose(model(ids), before / 2.5, atol=1e-6)
    record = json.loads((tmp_path / "out" / "calibration.json").read_text(encoding="utf-8"))
    assert (record["temperature"], record["split"], record["applied_to_logits"]) == (
        2.5,
        "dev",
        True,
    )


@torch.inference_mode()
def test_without_a_calibration_nothing_changes(run: Run, tmp_path: Path) -> None:
    ids = torch.arange(10, 16)[None]
    for model in (new_classifier(layers=1), new_language_model(layers=1)):
        before = model(ids)
        apply_calibration(run, model, tmp_path / "out")
        assert torch.equal(model(ids), before)
    assert not (tmp_path / "out").exists()
