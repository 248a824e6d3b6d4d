"""Small runs that tests of heads share, trained once."""

from __future__ import annotations

from pathlib import Path

import pytest
from evaluating import train_small, write_text
from typer.testing import CliRunner

from heed.cli.main import app


@pytest.fixture(scope="session")
def small_runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A translator of the generated world, and a classifier and a language model of text files."""
    cache = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEED_CACHE", str(cache))
        text = write_text(tmp_path_factory.mktemp("text"))
        folders = {
            task: train_small(text, task, task, train={"steps": 4, "evaluate_every": 4})
            for task in ("classify", "generate")
        }
        command = ["train", "demo-translate", "--run", str(text / "translate"), "--device", "cpu"]
        for change in (
            *("data.synthetic=80", "data.synthetic_test=30", "model.width=16", "model.heads=2"),
            *("train.steps=4", "train.warmup=0", "train.batch_tokens=256"),
            *("data.max_length=128", "model.layers=1", "model.feed_forward=32"),
            "tokenizer.vocab_size=300",
        ):
            command += ["--set", change]
        assert CliRunner().invoke(app, command, catch_exceptions=False).exit_code == 0
    return folders | {"translate": text / "translate", "text": text, "cache": cache}


@pytest.fixture
def runs(small_runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """These runs, with the cache that holds their text."""
    monkeypatch.setenv("HEED_CACHE", str(small_runs["cache"]))
    return small_runs
