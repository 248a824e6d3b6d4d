"""Out of memory on a CPU: a real limit on a child process, through the real command."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from heed.runs.run import Run
from heed.train import checkpoint

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's")

CHILD = """
import resource, sys
from pathlib import Path
import matplotlib.figure, numpy
import torch
from heed.cli.main import main
from heed.train import run, resolve

# OpenBLAS takes its buffers before the limit, or it would exit later. Small products take none
# where the CPU has AVX-512, so these are large.
numpy.linalg.inv(numpy.ones((600, 600)) @ numpy.ones((600, 600)) + numpy.eye(600))
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
limit = used + int(sys.argv.pop(1)) * 2**20
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
main()
"""
ONE_OF_EACH = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MALLOC_ARENA_MAX")
SMALL = {
    "task": "generate",
    "tokenizer.kind": "byte",
    "model.width": 16,
    "model.heads": 2,
    "model.layers": 1,
    "model.feed_forward": 4096,
    "train.steps": 1,
    "train.precision": "float32",
    "train.evaluate_batches": 1,
}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "train.txt"
    draw = random.Random(0)
    path.write_text("\n".join("".join(draw.choices("abcdef ", k=60)) for _ in range(500)))
    return path


def train_within(
    megabytes: int, text: Path, run: Path, *changes: str
) -> subprocess.CompletedProcess[str]:
    """`heed train` in a process that may allocate this much beyond its imports.

    One thread and one arena: each further one reserves 64 MB of addresses, which count.
    """
    settings = [f"--set={key}={value}" for key, value in SMALL.items() if key != "task"]
    settings += [f"--set={change}" for change in changes]
    arguments = ["train", "--task", "generate", "--train", str(text), "--run", str(run)]
    return subprocess.run(
        [sys.executable, "-c", CHILD, str(megabytes), *arguments, *settings],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | dict.fromkeys(ONE_OF_EACH, "1"),
    )


def test_a_batch_too_large_for_memory(text: Path, tmp_path: Path) -> None:
    """One sentence, and nothing is in the way of a second attempt, which splits the batches."""
    run = tmp_path / "run"
    large = ("train.batch_tokens=25000",)
    failed = train_within(400, text, run, *large)
    assert failed.returncode == 2, failed.stderr
    assert "Traceback" not in failed.stderr
    assert "memory ran out with train.batch_tokens = 25000" in failed.stderr
    assert not run.exists()
    second = train_within(400, text, run, *large, "train.split_on_oom=true")
    assert second.returncode == 0, second.stderr
    _, numbers = checkpoint.load_newest(Run(run).checkpoints, print)
    assert numbers["batch_splits"] > 1


def test_a_model_too_large_for_memory(text: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    failed = train_within(500, text, run, "model.width=8192")
    assert failed.returncode == 2, failed.stderr
    assert "memory ran out while the text and the model were prepared" in failed.stderr
    assert not run.exists()
