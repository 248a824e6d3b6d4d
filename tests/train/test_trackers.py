"""Metrics sent elsewhere are those of metrics.jsonl; a tracker is tried where it is installed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path

import pytest
import torch
from killing import dies_at
from rich.console import Console

from heed.config import Recipe
from heed.errors import ConfigError
from heed.runs.run import Run
from heed.train import estimate
from heed.train import run as train_run
from heed.train.build_loop import build_loop
from heed.train.prepare import setup


def recipe(tracker: str) -> Recipe:
    return Recipe.of(
        {
            "task": "classify",
            "data": {"synthetic": 60, "synthetic_test": 10},
            "model": {"layers": 1, "width": 16, "heads": 2},
            "train": {"steps": 4, "log_every": 2, "batch_size": 8, "track": [tracker]},
        }
    )


def trained(folder: Path, tracker: str) -> Run:
    return train_run.start(
        recipe(tracker), folder / "run", device="cpu", console=Console(quiet=True)
    )


def written(run: Run, event: str, path: str) -> list[tuple[int, float]]:
    """What metrics.jsonl says of one metric: steps and values."""
    return [(row["step"], row[path]) for row in run.history if row["event"] == event]


@pytest.fixture(autouse=True)
def apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HEED_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def test_tensorboard_has_every_point(tmp_path: Path) -> None:
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run = trained(tmp_path, "tensorboard")
    events = reader.EventAccumulator(str(run.folder / "tensorboard"))
    events.Reload()
    for event, path in (("train", "train/loss"), ("evaluate", "dev/accuracy")):
        points = [(point.step, point.value) for point in events.Scalars(path)]
        assert points == [(s, pytest.approx(v, rel=1e-6)) for s, v in written(run, event, path)]


@pytest.mark.filterwarnings("ignore")  # what MLflow imports warns of itself
def test_mlflow_has_every_point(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path / 'mlflow.db'}")
    run = trained(tmp_path, "mlflow")
    kept = mlflow.search_runs(search_all_experiments=True).iloc[0]
    points = mlflow.MlflowClient().get_metric_history(kept.run_id, "train.loss")
    assert [(p.step, p.value) for p in points] == written(run, "train", "train/loss")


@pytest.mark.filterwarnings("ignore")  # likewise
def test_wandb_keeps_a_run_beside_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    run = trained(tmp_path, "wandb")
    assert list((run.folder / "wandb").glob("offline-run-*/*.wandb"))


def test_a_tracker_that_is_not_there_is_named(tmp_path: Path) -> None:
    missing = [n for n in ("wandb", "mlflow", "tensorboard") if not _installed(n)]
    if not missing:
        pytest.skip("all trackers are installed")
    with pytest.raises(ConfigError, match=f"pip install {missing[0]}"):
        trained(tmp_path, missing[0])
    assert not (tmp_path / "run").exists()


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A tracker that only records its calls."""
    (tmp_path / "wandb.py").write_text(
        "calls = []\n"
        "def init(**kwargs): calls.append('open'); return Run()\n"
        "class Run:\n"
        "    def log(self, values, step): calls.append('log')\n"
        "    def finish(self): calls.append('close')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    theirs = sys.modules.pop("wandb", None)
    yield import_module("wandb").calls
    del sys.modules["wandb"]
    if theirs is not None:
        sys.modules["wandb"] = theirs


@pytest.mark.parametrize("step", [None, 0, 3])
def test_a_tracker_is_closed_however_training_ends(
    calls: list[str], tmp_path: Path, step: int | None
) -> None:
    with nullcontext() if step is None else dies_at(step):
        trained(tmp_path, "wandb")
    lines = len(Run(tmp_path / "run").metrics())
    assert calls == ["open", *["log"] * lines, "close"]


def test_what_only_tries_a_recipe_opens_no_tracker(calls: list[str]) -> None:
    estimate.dry_run(recipe("wandb"), device="cpu", console=Console(quiet=True))
    bench(recipe("wandb"))
    assert calls == []


def bench(recipe: Recipe) -> None:
    """What `heed bench` times of a recipe, made."""
    run = Run.create(Path("bench"), recipe)
    parts = setup.prepare(recipe, run, device=torch.device("cpu"), say=print)
    build_loop(parts, run, say=print)


def _installed(name: str) -> bool:
    from importlib.util import find_spec

    return find_spec(name) is not None
