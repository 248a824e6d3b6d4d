"""`heed resume --set`: a run trains on for longer, and says so; other keys stay as they are."""

from __future__ import annotations

import io
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor

from heed.config import Recipe
from heed.errors import ConfigError, RunError
from heed.runs.run import Run
from heed.train import checkpoint, recipe_change
from heed.train import run as train_run

QUIET = Console(quiet=True)


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HEED_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path, draw = tmp_path / "train.txt", random.Random(0)
    path.write_text("\n".join(" ".join(draw.choices("abcdefgh", k=7)) for _ in range(60)))
    return path


def make_recipe(text: Path, **train: Any) -> Recipe:
    settings = {"batch_size": 16, "warmup": 2, "schedule": "constant", "evaluate_every": 3}
    return Recipe.of(
        {
            "task": "generate",
            "data": {"train": [str(text)]},
            "tokenizer": {"kind": "word"},
            "model": {"layers": 1, "width": 16, "heads": 2, "dropout": 0.2},
            "train": settings | train,
        }
    )


def started(text: Path, name: str, **train: Any) -> Run:
    folder = text.parent / name
    return train_run.start(make_recipe(text, **train), folder, device="cpu", console=QUIET)


def resumed(run: Run, *overrides: str) -> Run:
    return train_run.resume(run.folder, overrides=overrides, device="cpu", console=QUIET)


def last_state(run: Run) -> dict[str, Tensor]:
    """Weights, optimizer and generators of the newest checkpoint."""
    tensors, _ = checkpoint.load_newest(run.checkpoints, print)
    return {name: t for name, t in tensors.items() if not name.startswith("counters.")}


def contents(run: Run) -> dict[str, bytes]:
    files = (p for p in run.folder.rglob("*") if p.is_file() and p.name != ".lock")
    return {str(p.relative_to(run.folder)): p.read_bytes() for p in files}


def test_a_finished_run_trains_on(text: Path) -> None:
    """To the weights of a run that had as many steps from the start, and the run records it."""
    run, whole = started(text, "run", steps=6), started(text, "whole", steps=12)
    run = resumed(run, "train.steps=12")
    assert run.finished
    assert run.recipe().train.steps == 12
    changes = run.environment()["recipe_changes"]
    assert changes == [{"step": 6, "keys": {"train.steps": [6, 12]}}]
    state, expected = last_state(run), last_state(whole)
    assert state.keys() == expected.keys()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in state.items())
    steps = [line["step"] for line in run.metrics() if line["event"] == "evaluate"]
    assert steps == [3, 6, 9, 12]
    resumed(run, "train.steps=15")
    assert [change["step"] for change in run.environment()["recipe_changes"]] == [6, 12]


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("model.width=32", "cannot change 'model.width': it changes train.steps, train.epochs"),
        ("train.lr=1.0", r"cannot change 'train.lr'.*split_on_oom\. For anything else"),
        ("train.step=12", "Did you mean 'train.steps'"),
        ("train.steps=6", r"has trained 6 steps, and with this change it ends at 6\."),
        ("train.steps=0", "steps cannot be 0"),
        ("train.log_every=5", "Raise train.steps"),
    ],
)
def test_what_makes_no_sense_changes_nothing(text: Path, override: str, says: str) -> None:
    run = started(text, "run", steps=6)
    before = contents(run)
    with pytest.raises(ConfigError, match=says):
        resumed(run, override)
    assert contents(run) == before


def test_a_calibration_goes_with_its_weights_and_that_is_told(text: Path) -> None:
    run, console = started(text, "run", steps=6), Console(file=io.StringIO(), width=200)
    run.calibration_path.write_text("{}")
    train_run.resume(run.folder, overrides=["train.steps=8"], device="cpu", console=console)
    assert not run.calibration_path.exists()
    assert isinstance(console.file, io.StringIO)
    assert f"calibrate again with heed evaluate {run.folder}" in console.file.getvalue()


def test_without_a_checkpoint_a_finished_run_stays_as_it_is(text: Path) -> None:
    run = started(text, "run", steps=3)
    for folder in run.checkpoints.glob("step-*"):
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()
    before = run.weights_path.read_bytes()
    with pytest.raises(RunError, match="no checkpoint to train on from"):
        resumed(run, "train.steps=12")
    assert run.weights_path.read_bytes() == before


def test_killed_while_it_changes_a_run_finishes_as_before(
    text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = started(text, "run", steps=6)
    weights = run.weights_path.read_bytes()

    def dies(*arguments: object) -> None:
        raise OSError("killed here")

    with monkeypatch.context() as patch:
        patch.setattr(Run, "write_recipe", dies)
        with pytest.raises(OSError, match="killed here"):
            resumed(run, "train.steps=12")
    assert run.recipe().train.steps == 6
    assert not run.finished
    resumed(run)
    assert run.weights_path.read_bytes() == weights


def test_a_derived_warmup_stays(text: Path) -> None:
    """A tenth of the steps at the start; with more steps it would bend the past rates."""
    recipe = Recipe.of(
        {"data": {"train": [str(text)]}, "train": {"steps": 100, "schedule": "inverse_sqrt"}}
    )
    run = Run.create(text.parent / "run", recipe)
    run.write_environment({"steps_per_epoch": 7})
    change = recipe_change.change_recipe(run, recipe, ["train.steps=1000"])
    assert change.recipe.train.warmup == 10
    assert change.describe(run, 100, 1000) == "Training on from step 100 to 1000."


def test_the_rate_of_a_falling_schedule_is_said(text: Path) -> None:
    recipe = make_recipe(text, steps=100, schedule="linear", warmup=0, lr=0.1)
    run = Run.create(text.parent / "run", recipe)
    change = recipe_change.change_recipe(run, recipe, ["train.steps=200"])
    assert "The linear schedule now spans 200 steps" in change.describe(run, 100, 200)
    assert "continues at 0.05" in change.describe(run, 100, 200)


# ---------------------------------------------------------------------------------- without dev


def test_without_dev_all_texts_are_trained_and_the_last_weights_kept(text: Path) -> None:
    tables = make_recipe(text, steps=6).tables()
    del tables["train"]["best_metric"]
    tables["data"]["dev_share"] = 0.0
    recipe = Recipe.of(tables)
    assert recipe.train.best_metric == "last"
    out = Console(file=io.StringIO(), record=True)
    run = train_run.start(recipe, text.parent / "run", device="cpu", console=out)
    said = out.export_text()
    assert "dev: none, because data.dev_share is 0." in said
    assert run.weight_files.best_path is not None
    assert run.weight_files.best_path.name.startswith("best-000000006")
    assert [name for name in run.metrics()[-1] if name == "dev"] == []
    assert (run.figures / "loss.png").stat().st_size


def test_a_metric_of_dev_needs_one(text: Path) -> None:
    tables = make_recipe(text, steps=6, best_metric="dev/loss").tables()
    tables["data"]["dev_share"] = 0.0
    with pytest.raises(ConfigError, match="best_metric cannot be 'dev/loss': it is one of last"):
        train_run.start(Recipe.of(tables), text.parent / "run", device="cpu", console=QUIET)


def test_what_is_set_aside_is_said(text: Path) -> None:
    out = Console(file=io.StringIO(), record=True, width=200)
    train_run.start(make_recipe(text, steps=3), text.parent / "run", device="cpu", console=out)
    said = out.export_text()
    assert "dev: 4 of the 60 texts of train, set aside" in said
    assert "data.dev_share=0" in said
    assert "Model: transformer, 1 layer, width 16, 2 heads, position rope, merge concat; " in said
