"""Loaded models: shared, evicted, loaded again for newer weights, used by one thread at a time."""

from __future__ import annotations

import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from lab_runs import write_run

from heed.errors import RunError
from heed.lab.loaded_models import LoadedModels, weights_version
from heed.runs.run import Run

pytestmark = pytest.mark.slow


@pytest.fixture
def folder(tiny_runs: Path, tmp_path: Path) -> Path:
    """A copy of the tiny translator, to change."""
    return Path(shutil.copytree(tiny_runs / "tiny-translate", tmp_path / "run"))


def test_a_model_is_loaded_once_and_again_for_newer_weights(folder: Path) -> None:
    models = LoadedModels(device="cpu")
    with models.use(folder) as first, models.use(folder) as second:
        assert first is second
    weights = folder / "model.safetensors"
    os.utime(weights, ns=(0, weights.stat().st_mtime_ns + 1))
    with models.use(folder) as third:
        assert third is not first
    with models.use(folder, "last") as last:
        assert last is not third
    assert len(models) == 2


def test_the_least_recently_used_is_evicted(tiny_runs: Path) -> None:
    models = LoadedModels(capacity=2, device="cpu")
    with models.use(tiny_runs / "tiny-translate") as first:
        pass
    for name in ("tiny-classify", "tiny-translate", "tiny-generate"):
        with models.use(tiny_runs / name):
            pass
    with models.use(tiny_runs / "tiny-translate") as again:
        assert again is first
    assert len(models) == 2


def test_one_thread_at_a_time_has_a_model(tiny_runs: Path) -> None:
    models, inside, most = LoadedModels(device="cpu"), 0, 0

    def use(_: int) -> None:
        nonlocal inside, most
        with models.use(tiny_runs / "tiny-classify"):
            inside += 1
            most = max(most, inside)
            time.sleep(0.01)
            inside -= 1

    with ThreadPoolExecutor(8) as executor:
        list(executor.map(use, range(16)))
    assert most == 1


def test_a_run_without_weights_says_so(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no weights yet"):
        weights_version(write_run(tmp_path / "new"))


def test_a_finished_run_whose_weights_were_deleted_says_so(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    with pytest.raises(RunError, match="its study did not keep its weights"):
        weights_version(Run(folder))
