"""`benchmarks/decoding.py`: the same output as `generate` of transformers, with equal weights."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from heed import Translator
from heed.data import synthetic

ROOT = Path(__file__).resolve().parents[2]


def compare(out: Path, *flags: str) -> list[dict[str, Any]]:
    """The rows that `benchmarks/decoding.py` writes."""
    answer = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks/decoding.py"), *flags, "--out", str(out)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    rows: list[dict[str, Any]] = json.loads((out / "decoding-cpu.json").read_text())["figures"]
    return rows


def test_random_weights(tmp_path: Path) -> None:
    assert [row["same"] for row in compare(tmp_path, "--tiny")] == [1.0, 1.0, 1.0]


@pytest.mark.slow  # 400 training steps
def test_a_trained_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs of different lengths, ended by the model."""
    monkeypatch.setenv("HEED_CACHE", str(tmp_path / "cache"))
    synthetic.write_corpus(tmp_path, train=600, dev=20, test=40, seed=0)
    Translator.train(
        train=[tmp_path / "train.en", tmp_path / "train.fr"],
        dev=[tmp_path / "dev.en", tmp_path / "dev.fr"],
        run=tmp_path / "run",
        device="cpu",
        norm_place="post",
        position="sinusoidal",
        layers=2,
        width=32,
        heads=2,
        steps=400,
        lr=3e-3,
        batch_tokens=512,
    )
    rows = compare(
        tmp_path,
        *("--run", str(tmp_path / "run"), "--source", str(tmp_path / "test.en")),
        *("--beams", "1", "4", "--tokens", "60", "--rounds", "1"),
    )
    assert all(row["same"] >= 0.99 for row in rows), rows
