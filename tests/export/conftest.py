"""One small translator for all of these tests, trained by the real thing."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from heed import Translator
from heed.data import synthetic


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Text, and a run that learnt from it."""
    folder = tmp_path_factory.mktemp("export")
    synthetic.write_corpus(folder, train=600, dev=100, test=20, seed=0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEED_CACHE", str(folder / "cache"))
        Translator.train(
            train=[folder / "train.en", folder / "train.fr"],
            dev=[folder / "dev.en", folder / "dev.fr"],
            run=folder / "run",
            device="cpu",
            vocab_size=400,
            max_length=64,
            layers=1,
            width=48,
            heads=4,
            kv_heads=2,
            steps=300,
            lr=5e-3,
            batch_tokens=512,
        )
    return folder


@pytest.fixture(scope="session")
def sentences(place: Path) -> list[str]:
    """What the run did not learn from."""
    return (place / "dev.en").read_text(encoding="utf-8").splitlines()


@pytest.fixture
def as_documented(tmp_path: Path) -> Callable[[int, Path], str]:
    """What the n-th program of docs/export.md says, with this folder as the one it names."""
    page = Path(__file__).parents[2] / "docs" / "export.md"

    def run(number: int, folder: Path) -> str:
        programs = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
        (tmp_path / "models").mkdir()
        (named,) = {*re.findall(r"models/(\w+)", programs[number])}
        (tmp_path / "models" / named).symlink_to(folder)
        answer = subprocess.run(
            [sys.executable, "-c", programs[number]],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert answer.returncode == 0, answer.stderr
        return answer.stdout.strip()

    return run
