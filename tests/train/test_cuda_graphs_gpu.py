"""On a GPU: captured steps equal eager ones, and deterministic runs repeat their bits."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from killing import dies_at, outcome
from rich.console import Console
from safetensors.torch import load_file

from heed.config import Recipe
from heed.data.batching.batch import Batch
from heed.errors import HeedError
from heed.runs.run import Run
from heed.train import run as train_run
from heed.train.build_loop import build_loop
from heed.train.execution.cuda_graphs import GraphStep
from heed.train.objective import Objective
from heed.train.prepare.setup import prepare

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
QUIET = Console(quiet=True)


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("HEED_CACHE", str(tmp_path / "cache"))
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Pairs of many lengths; the target is the source reversed."""
    draw = random.Random(0)
    lines = [" ".join(draw.choices("abcdefgh", k=draw.randint(2, 40))) for _ in range(600)]
    (tmp_path / "a.en").write_text("\n".join(lines))
    (tmp_path / "a.fr").write_text("\n".join(" ".join(reversed(line.split())) for line in lines))
    return tmp_path


def recipe(corpus: Path, *, model: dict[str, Any] | None = None, **train: Any) -> Recipe:
    model_settings = {"layers": 2, "width": 64, "heads": 4, "dropout": 0.0} | (model or {})
    settings = {"steps": 30, "batch_tokens": 1024, "warmup": 4, "log_every": 5, "lr": 1e-3}
    return Recipe.of(
        {
            "task": "translate",
            "data": {"train": [str(corpus / "a.en"), str(corpus / "a.fr")]},
            "tokenizer": {"kind": "word"},
            "model": model_settings,
            "train": settings | {"evaluate_every": 20, "checkpoint_every": 10} | train,
        }
    )


def trained(settings: Recipe, folder: Path) -> Run:
    return train_run.start(settings, folder, device="cuda", console=QUIET)


def weights(run: Run) -> torch.Tensor:
    return torch.cat([weight.flatten() for weight in load_file(run.weights_path).values()])


@pytest.mark.parametrize("optimizer", ["adamw", "adam", "sgd", "adagrad", "lion", "muon"])
def test_captured_is_eager(corpus: Path, optimizer: str) -> None:
    overrides: dict[str, Any] = {"optimizer": optimizer, "precision": "float32", "ema": 0.9}
    overrides |= {"accumulate": 2, "lr": 1e-4 if optimizer == "lion" else 1e-3}
    runs = [
        trained(recipe(corpus, execution=mode, **overrides), corpus / mode)
        for mode in ("eager", "graphs")
    ]
    a, b = map(weights, runs)
    assert (a - b).norm() / a.norm() < 1e-3
    for one, other in zip(*(run.metrics() for run in runs), strict=True):
        if one["event"] == "train":
            assert abs(one["loss"] - other["loss"]) < 1e-3


@pytest.mark.parametrize("position", ["rope", "t5", "shaw", "learned"])
@pytest.mark.parametrize("bf16", [True, False])
def test_captured_is_eager_for_positions(corpus: Path, position: str, bf16: bool) -> None:
    precision = "bf16" if bf16 else "float32"
    model = {"position": position, "max_positions": 256}
    runs = [
        trained(recipe(corpus, model=model, execution=mode, precision=precision), corpus / mode)
        for mode in ("eager", "graphs")
    ]
    a, b = (run.metrics()[-1] for run in runs)
    assert abs(a["dev"]["loss"] - b["dev"]["loss"]) < (0.05 if bf16 else 2e-3)


def test_capture_changes_no_state(corpus: Path) -> None:
    config = recipe(corpus, model={"dropout": 0.1}, execution="graphs", ema=0.5)
    run = Run.create(corpus / "run", config)
    parts = prepare(config, run, device=torch.device("cuda"), say=print)
    before = {name: weight.clone() for name, weight in parts.model.state_dict().items()}
    random_before = torch.cuda.get_rng_state()
    loop = build_loop(parts, run, say=print)
    assert isinstance(loop.step, GraphStep)
    assert all(torch.equal(w, before[name]) for name, w in parts.model.state_dict().items())
    assert torch.equal(torch.cuda.get_rng_state(), random_before)
    assert not loop.state.counters.sums.any()
    assert loop.state.counters.counts.tolist() == [0, 0, 0, -1]
    for kept in loop.state.optimizer.state.values():
        assert not any(bool(value.any()) for value in kept.values())
    assert not any(bool(grad.any()) for grad in loop.step.gradients())


def test_every_batch_has_a_captured_shape(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = recipe(corpus, execution="graphs")
    run = Run.create(corpus / "run", config)
    parts = prepare(config, run, device=torch.device("cuda"), say=print)
    loop = build_loop(parts, run, say=print)

    def refused(self: Objective, batch: Batch) -> None:
        raise AssertionError(f"{batch.ids.shape} was not captured")

    monkeypatch.setattr(Objective, "forward", refused)
    for batches in loop.loader.iterate(0, loop.loader.steps_per_epoch):
        loop.update(batches)


@pytest.mark.parametrize("mode", ["eager", "graphs"])
def test_what_is_not_finite_is_skipped_on_the_device(
    corpus: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    true = Objective.forward

    def poisoned(self: Objective, batch: Batch) -> Any:
        """A loss that is not finite for batches with rows of more than 32 tokens."""
        total, right = true(self, batch)
        return total * (torch.nan if batch.ids.shape[1] > 32 else 1.0), right

    monkeypatch.setattr(Objective, "forward", poisoned)
    run = trained(recipe(corpus, execution=mode, max_skipped_steps=100), corpus / "run")
    lines = [line for line in run.metrics() if line["event"] == "train"]
    assert 0 < lines[-1]["skipped"] < 30
    assert weights(run).isfinite().all()
    monkeypatch.setattr(
        Objective, "forward", lambda self, b: (true(self, b)[0] / 0, true(self, b)[1])
    )
    with pytest.raises(HeedError, match="not finite in"):
        trained(recipe(corpus, execution=mode, max_skipped_steps=3), corpus / "stopped")


@pytest.mark.parametrize("mode", ["eager", "graphs"])
@pytest.mark.parametrize("bf16", [True, False])
def test_deterministic_runs_are_the_same_interrupted_or_not(
    corpus: Path, mode: str, bf16: bool
) -> None:
    config = recipe(
        corpus,
        model={"dropout": 0.1},
        execution=mode,
        deterministic=True,
        ema=0.9,
        precision="bf16" if bf16 else "float32",
    )
    whole = outcome(trained(config, corpus / "whole"))
    assert outcome(trained(config, corpus / "again")) == whole
    with dies_at(17):
        trained(config, corpus / "broken")
    assert outcome(train_run.resume(corpus / "broken", device="cuda", console=QUIET)) == whole


def test_a_batch_that_does_not_fit_is_captured_in_parts(
    corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    true = Objective.forward

    def small(self: Objective, batch: Batch) -> Any:
        if self.training and batch.ids.numel() > 512:
            raise torch.OutOfMemoryError("no memory left")
        return true(self, batch)

    whole = trained(recipe(corpus, execution="graphs", precision="float32"), corpus / "whole")
    monkeypatch.setattr(Objective, "forward", small)
    config = recipe(corpus, execution="graphs", precision="float32", split_on_oom=True)
    parts = trained(config, corpus / "parts")
    assert (weights(whole) - weights(parts)).norm() / weights(whole).norm() < 1e-3
    shutil.rmtree(corpus / "parts")
