"""Training curves: what they draw of a run's metrics, and what they say about it."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

import pytest

from heed.config import Recipe
from heed.runs.history import build_history
from heed.runs.run import Run
from heed.train.curves import _training_losses, draw_curves


def train_line(step: int, loss: float) -> dict[str, Any]:
    return {"event": "train", "step": step, "epoch": 1, "loss": loss}


def evaluate_line(step: int, **sets: dict[str, float]) -> dict[str, Any]:
    return {"event": "evaluate", "step": step, "epoch": 1, "seen": {"loss": 4.0}, **sets}


def draw(folder: Path, lines: list[dict[str, Any]], **train: Any) -> str:
    """The text of the loss figure of a run with these metrics."""
    run = Run(folder)
    recipe = Recipe.of({"data": {"train": ["a.en", "a.fr"]}, "train": train})
    run.recipe_path.write_text(recipe.toml(), encoding="utf-8")
    run.write_environment({"steps_per_epoch": 10})
    run.metrics_path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    draw_curves(run)
    svg = (run.figures / "loss.svg").read_text(encoding="utf-8")
    return html.unescape(" ".join(re.findall(r"<text[^>]*>(.*?)</text>", svg, re.DOTALL)))


def test_the_last_point_is_no_mean_of_a_few_steps() -> None:
    """Two steps after the last line of metrics are counted with the ten before."""
    lines = [train_line(10, 5.0), train_line(20, 4.0), train_line(22, 1.0)]
    rows = build_history(lines)
    assert _training_losses(rows) == [(10.0, 5.0), (22.0, pytest.approx(42 / 12))]
    assert _training_losses(rows[:2]) == [(10.0, 5.0), (20.0, 4.0)]
    assert _training_losses(rows[-1:]) == [(22.0, 1.0)]


def test_a_short_run_has_a_curve_too() -> None:
    """Where it ends before the first line of metrics, evaluations say what was seen."""
    lines = [evaluate_line(step, dev={"loss": 2.0}) for step in (5, 10, 15)]
    rows = build_history([*lines, train_line(15, 3.0)])
    assert _training_losses(rows) == [(5.0, 4.0), (10.0, 4.0), (15.0, 4.0)]


def test_the_mark_is_at_the_weights_that_are_kept(tmp_path: Path) -> None:
    """Chosen by BLEU, where the lowest loss is another evaluation's."""
    lines = [
        train_line(10, 5.0),
        evaluate_line(10, dev={"loss": 2.0, "bleu": 3.0}, train={"loss": 1.5}),
        evaluate_line(20, dev={"loss": 2.5, "bleu": 9.0}, train={"loss": 1.0}),
    ]
    settings = {"best_metric": "dev/bleu", "evaluate_bleu": True, "label_smoothing": 0.1}
    text = draw(tmp_path, lines, **settings)
    assert "kept 2.5 at 20" in text
    assert "Kept: the weights of step 20, chosen by dev/bleu." in text
    assert "with dropout, label smoothing" in text
    # Three curves, three names: the loss of training is not that of the training set.
    assert all(text.count(name) >= 1 for name in ("training", "train set", "dev", "epoch"))


def test_averaged_weights_have_no_point(tmp_path: Path) -> None:
    lines = [
        evaluate_line(10, dev={"loss": 2.0}),
        evaluate_line(20, dev={"loss": 1.9}),
        {"event": "average", "kept": True, "step": 20, "epoch": 2, "dev": {"loss": 1.8}},
    ]
    text = draw(tmp_path, lines, average_checkpoints=2)
    assert "kept" not in text
    assert "Kept: the mean of the last 2 weights, chosen by dev/loss." in text
