"""The text of a run is tokenized while training imports torch, by a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import heed
from heed.config import Recipe
from heed.data.splits import open_splits
from heed.train.prepare import text_cache, tokenize_ahead
from heed.train.prepare.text_cache import cached_tokenizer, open_stores

ROOT = Path(heed.__file__).parents[1]
SETTINGS = {
    "model": {"layers": 1, "width": 16, "heads": 2},
    "train": {"steps": 1, "batch_size": 4},
    "tokenizer": {"kind": "bpe", "vocab_size": 300},
}


def silent(text: str) -> None:
    """Print nothing."""


@pytest.fixture(autouse=True)
def no_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No text is too small; a process that a test leaves is waited for."""
    monkeypatch.setattr(tokenize_ahead, "MIN_BYTES", 1)
    yield
    tokenize_ahead.wait(silent)


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a small text of each task; the cache is in it."""
    monkeypatch.setenv("HEED_CACHE", str(tmp_path / "cache"))
    lines = [f"the cat number {number} sees a dog" for number in range(40)]
    for name in ("train.en", "train.fr", "train.txt"):
        (tmp_path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    rows = [f"{line}\t{'ab'[number % 2]}" for number, line in enumerate(lines)]
    (tmp_path / "train.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return tmp_path


def recipe(folder: Path, task: str, *names: str) -> Recipe:
    return Recipe.of(
        SETTINGS | {"task": task, "data": {"train": [str(folder / name) for name in names]}}
    )


FILES = {
    "translate": ("train.en", "train.fr"),
    "classify": ("train.tsv",),
    "generate": ("train.txt",),
}


@pytest.mark.parametrize("task", FILES)
def test_training_finds_tokenizer_and_stores_in_the_cache(
    text: Path, monkeypatch: pytest.MonkeyPatch, task: str
) -> None:
    made = recipe(text, task, *FILES[task])
    tokenize_ahead.start(made)
    tokenize_ahead.wait(silent)

    def nothing_left(*_: object, **__: object) -> None:
        raise AssertionError("this is made already")

    monkeypatch.setattr(text_cache, "_train", nothing_left)
    monkeypatch.setattr("heed.data.token_store._build", nothing_left)
    corpora = open_splits(made)
    tokenizer = cached_tokenizer(made, corpora, silent)
    classes = corpora["train"].labels() if task == "classify" else ()
    assert len(open_stores(made, corpora, tokenizer, classes)["train"]) == 40


def test_it_leaves_the_bytes_that_training_itself_makes(
    text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = recipe(text, "translate", *FILES["translate"])
    tokenize_ahead.start(made)
    tokenize_ahead.wait(silent)
    monkeypatch.setenv("HEED_CACHE", str(text / "other"))
    corpora = open_splits(made)
    open_stores(made, corpora, cached_tokenizer(made, corpora, silent), ())
    ahead, here = (
        {
            path.relative_to(text / name): path.read_bytes()
            for path in (text / name).rglob("*")
            if path.is_file()
        }
        for name in ("cache", "other")
    )
    assert ahead
    assert ahead == here


def test_text_that_cannot_be_read_is_left_to_training(
    text: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (text / "train.fr").write_bytes(b"\xff\xfe\n" * 40)
    tokenize_ahead.start(recipe(text, "translate", *FILES["translate"]))
    tokenize_ahead.wait(silent)
    assert capfd.readouterr() == ("", "")
    assert not list((text / "cache").rglob("*.json"))


@pytest.mark.parametrize(
    "why", ["little text", "no such file", "another rank", "a pretrained model"]
)
def test_nothing_is_started_without_need(
    text: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    made = recipe(text, "translate", *FILES["translate"])
    if why == "little text":
        monkeypatch.setattr(tokenize_ahead, "MIN_BYTES", 1 << 20)
    elif why == "no such file":
        made = recipe(text, "translate", "none.en", "none.fr")
    elif why == "another rank":
        monkeypatch.setenv("RANK", "1")
    else:
        made = Recipe.of(made.tables() | {"init": {"from": "runs/pretrained"}})
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("a process"))
    tokenize_ahead.start(made)


KILLED = """
import os, signal, sys, time
from pathlib import Path
from heed.config import Recipe
from heed.train.prepare import tokenize_ahead
tokenize_ahead.MIN_BYTES = 1
tokenize_ahead.start(Recipe.of({"task": "generate", "data": {"train": [sys.argv[1]]}}))
print(tokenize_ahead._process.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="Linux lists processes in /proc")
def test_the_process_ends_with_training(text: Path) -> None:
    # Long enough for the process to be at work when its parent is killed.
    words = (f"word{number}-{number * 7919 % 10007}" for number in range(3_000_000))
    (text / "long.txt").write_text("\n".join(words), encoding="utf-8")
    parent = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(text / "long.txt")],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert parent.stdout is not None
    with parent:
        process = Path("/proc") / parent.stdout.readline().decode().strip() / "cmdline"
        time.sleep(1.0)
        assert b"tokenize_ahead" in process.read_bytes()
        parent.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 10
    while process.exists() and process.read_bytes() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not (process.exists() and process.read_bytes())
    assert not list((text / "cache").glob("tokenizers/*.json"))
