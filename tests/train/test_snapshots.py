"""Snapshots: weights that are kept over training, the same however often the run was broken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from evaluating import train_small, write_text
from killing import dies_at
from rich.console import Console

from heed.config import Recipe
from heed.config.checks import find_conflicts
from heed.errors import RunError
from heed.models.weights import read_weights
from heed.runs.load import load_run
from heed.runs.run import Run
from heed.train import checkpoint
from heed.train import run as train_run

QUIET = Console(quiet=True)
SETTINGS = {"steps": 10, "evaluate_every": 5, "checkpoint_every": 3, "snapshot_every": 4}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text(tmp_path_factory.mktemp("text"))


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv("HEED_CACHE", str(tmp_path_factory.getbasetemp() / "snapshot-cache"))


@pytest.fixture(scope="module")
def unbroken(corpus: Path) -> Run:
    return Run(train(corpus, "unbroken", ema=0.9))


def train(corpus: Path, name: str, **settings: Any) -> Path:
    return train_small(corpus, "classify", name, train=SETTINGS | settings)


def contents(run: Run) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(run.snapshots.iterdir())}


def test_the_first_the_last_and_every_so_many_steps_are_kept(unbroken: Run) -> None:
    assert unbroken.weight_files.snapshot_steps() == [0, 4, 8, 10]
    assert unbroken.snapshots.joinpath("step-000000004.safetensors").exists()


@pytest.mark.parametrize("step", [0, 8])
def test_a_resumed_run_has_the_snapshots_of_an_unbroken_one(
    corpus: Path, unbroken: Run, step: int
) -> None:
    """Also where there is a snapshot of later than the checkpoint, of whatever weights."""
    with dies_at(step):
        train(corpus, f"broken-{step}", ema=0.9)
    run = Run(corpus / f"broken-{step}")
    checkpoint.save_weights(run.snapshots, "step-", step + 1, {"a": torch.ones(2)})
    train_run.resume(run.folder, device="cpu", console=QUIET)
    assert contents(run) == contents(unbroken)


def test_snapshots_change_no_number(corpus: Path, unbroken: Run) -> None:
    off = Run(train(corpus, "off", ema=0.9, snapshot_every=None))
    assert not off.snapshots.exists()
    assert off.weights_path.read_bytes() == unbroken.weights_path.read_bytes()


def test_the_moving_average_is_what_is_kept(unbroken: Run) -> None:
    """As in the checkpoint of the same step, which has the trained weights too."""
    tensors, _ = checkpoint.load_newest(unbroken.checkpoints, print)
    last = read_weights(unbroken.snapshots / "step-000000010.safetensors")
    averages = {n.removeprefix("ema."): t for n, t in tensors.items() if n.startswith("ema.")}
    assert averages
    for name, average in averages.items():
        assert torch.equal(last[name], average)
    assert any(not torch.equal(last[name], tensors[f"model.{name}"]) for name in averages)


def test_a_run_that_stops_early_has_its_last_step(corpus: Path) -> None:
    folder = train(corpus, "early", lr=1e-9, patience=1, evaluate_every=1, snapshot_every=5)
    run = Run(folder)
    last = run.metrics()[-1]["step"]
    assert last < SETTINGS["steps"]
    assert run.weight_files.snapshot_steps()[-1] == last


def test_weights_are_named_by_the_step_of_a_snapshot(unbroken: Run) -> None:
    assert [step for step in unbroken.weight_files.by_step() if step in (0, 4, 8)] == [0, 4, 8]
    model, _, _ = load_run(unbroken.folder, device="cpu", weights="4")
    kept = read_weights(unbroken.snapshots / "step-000000004.safetensors")
    assert all(torch.equal(tensor, kept[name]) for name, tensor in model.state_dict().items())
    with pytest.raises(RunError, match=r"no weights '7'.*best, last, 0, 4, 5, 8, .*10\."):
        load_run(unbroken.folder, device="cpu", weights="7")


def test_an_error_names_a_few_of_many_steps(tmp_path: Path) -> None:
    run = Run(tmp_path)
    for step in range(40):
        checkpoint.save_weights(run.snapshots, "step-", step, {"a": torch.ones(1)})
    with pytest.raises(RunError, match="0, 1, 2, 3, 4, 5, 6, 7, …, 32, 33,"):
        run.weights_step("99")
    with pytest.raises(RunError, match="no weights '9999"):
        run.weights_step("9" * 5000)  # more digits than Python converts


def test_adapters_are_refused() -> None:
    tables = {"task": "generate", "init": {"from": "gpt2", "lora": 2}, "data": {"train": ["a"]}}
    recipe = Recipe.of(tables | {"train": {"snapshot_every": 5, "best_metric": "last"}})
    (conflict,) = find_conflicts(recipe)
    assert "snapshot_every and [init] lora cannot be combined" in conflict
