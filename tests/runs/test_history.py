"""The history of a run: flat rows of metrics.jsonl, also while the run trains."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from killing import dies_at
from rich.console import Console

from heed.checksums import DamagedError
from heed.config import Recipe
from heed.runs.history import build_history
from heed.runs.run import Run
from heed.train import run as train_run

RECIPE: dict[str, Any] = {
    "task": "translate",
    "data": {"synthetic": 60, "synthetic_test": 10},
    "model": {"layers": 1, "width": 16, "heads": 2},
    "train": {"steps": 6, "log_every": 2, "evaluate_every": 3, "batch_size": 8},
}


def with_clock(line: dict[str, Any], unix: float, seconds: float) -> dict[str, Any]:
    return line | {"time": {"unix": unix, "seconds": seconds, "tokens_per_second": 5.0}}


def trained(folder: Path) -> Run:
    recipe = Recipe.of(RECIPE | {"train": RECIPE["train"] | {"evaluate_bleu": True}})
    return train_run.start(recipe, folder, device="cpu", console=Console(quiet=True))


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HEED_CACHE", str(tmp_path / "cache"))


def test_a_history_is_a_table_and_a_killed_run_goes_on_with_it(tmp_path: Path) -> None:
    """Tokens are the same as without the kill; seconds never go back."""
    whole = trained(tmp_path / "whole").history
    with dies_at(5):
        trained(tmp_path / "killed")
    killed = Run.open(str(tmp_path / "killed"))
    before = killed.history
    assert [row["step"] for row in before] == [2, 3, 4]
    train_run.resume(killed.folder, device="cpu", console=Console(quiet=True))
    history = killed.history

    clock = {"seconds", "time/unix", "time/tokens_per_second"}
    assert [{k: v for k, v in row.items() if k not in clock} for row in history] == [
        {k: v for k, v in row.items() if k not in clock} for row in whole
    ]
    seconds = [row["seconds"] for row in history]
    assert seconds == sorted(seconds)
    assert seconds[0] == before[0]["seconds"]
    tokens = [row["tokens"] for row in history]
    assert tokens == sorted(tokens)
    assert tokens[0] > 0
    assert {"train/loss", "train/lr", "dev/bleu", "seen/loss"} <= {k for r in history for k in r}
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame(history)
    assert list(table["dev/bleu"].dropna()) == [r["dev/bleu"] for r in history if "dev/bleu" in r]


def test_names_are_of_one_thing_each() -> None:
    """The loss while training, of the evaluated training text, and of averaged weights."""
    scores = {"dev": {"loss": 2.0}, "train": {"loss": 1.0}}
    rows = build_history(
        [
            {"event": "train", "step": 10, "epoch": 1, "loss": 3.0, "lr": None},
            {"event": "evaluate", "step": 10, "epoch": 1, "seen": {"loss": 4.0}, **scores},
            {"event": "average", "step": 10, "epoch": 1, "kept": True, **scores},
        ],
        steps_per_epoch=4,
    )
    place = ("event", "step", "epoch", "tokens", "seconds")
    metrics = [{k: v for k, v in row.items() if k not in place} for row in rows]
    assert metrics == [
        {"train/loss": 3.0},
        {"seen/loss": 4.0, "dev/loss": 2.0, "train-set/loss": 1.0},
        {"average/kept": True, "average/dev/loss": 2.0, "average/train-set/loss": 1.0},
    ]
    assert {row["epoch"] for row in rows} == {2.5}
    assert {row["seconds"] for row in rows} == {None}


@given(
    sessions=st.lists(st.lists(st.integers(1, 50), min_size=1, max_size=4), min_size=1, max_size=4),
    pauses=st.lists(st.integers(1, 10_000), min_size=4, max_size=4),
)
def test_seconds_are_those_of_all_sessions_without_pauses(
    sessions: list[list[int]], pauses: list[int]
) -> None:
    lines: list[dict[str, Any]] = []
    now, expected, total = 1000, [], 0
    for gaps, pause in zip(sessions, pauses, strict=False):
        start = now
        for gap in gaps:
            now, total = now + gap, total + gap
            lines.append(with_clock({"event": "train", "step": len(lines)}, now, now - start))
            expected.append(total)
        now += pause
    assert [row["seconds"] for row in build_history(lines)] == expected


def test_a_line_that_is_being_written_is_left_out(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", Recipe.of(RECIPE))
    assert run.history == []
    line = {"event": "train", "step": 2, "epoch": 1, "loss": 3.0}
    run.metrics_path.write_text(json.dumps(line) + '\n{"event": "tra', encoding="utf-8")
    assert [row["step"] for row in run.history] == [2]
    run.metrics_path.write_text('{"event": "train"}\n', encoding="utf-8")
    with pytest.raises(DamagedError, match=r"metrics\.jsonl:1: this line has no event or no step"):
        _ = run.history
