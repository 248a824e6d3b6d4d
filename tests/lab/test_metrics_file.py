"""Metrics as columns equal the rows of the plain reader, however the file grew."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heed.checksums import BLANK, KEY, DamagedError, seal_text
from heed.config import Recipe
from heed.lab.metrics_file import MetricsFile
from heed.runs.history import AXES
from heed.runs.metric_plot import RunHistory
from heed.runs.run import Run

number = st.one_of(st.none(), st.floats(-1e9, 1e9), st.integers(-(10**20), 10**20))
clock = st.fixed_dictionaries(
    {"unix": st.floats(0, 1e4), "seconds": st.floats(0, 1e3)},
    optional={"tokens_per_second": st.floats(0, 1e6)},
)
train = st.fixed_dictionaries(
    {"event": st.just("train"), "step": st.integers(0, 30), "loss": number, "lr": number},
    optional={"epoch": st.integers(1, 3), "tokens": st.integers(0, 10**9), "time": clock},
)
evaluate = st.fixed_dictionaries(
    {
        "event": st.sampled_from(["evaluate", "average", "train"]),
        "step": st.integers(0, 30),
        "dev": st.dictionaries(st.sampled_from(["loss", "bleu"]), number),
    },
    optional={"loss": number, "time": clock},
)


def new_run(folder: Path) -> Run:
    return Run.create(folder, Recipe.of({"task": "translate", "data": {"synthetic": 10}}))


def to_text(lines: list[dict[str, Any]]) -> str:
    """Lines as training writes them, each with its checksum."""
    return "".join(seal_text(json.dumps({**line, KEY: BLANK})) + "\n" for line in lines)


def assert_same(metrics: MetricsFile, run: Run) -> None:
    """The columns hold what the plain reader reads."""
    history = RunHistory("run", run.history)
    known = [name for name in history.metrics if len(history.series(name, "step").steps)]
    assert metrics.rows == len(history.rows)
    for name in {*known, *metrics.metrics}:
        for x in AXES:
            mine, plain = metrics.series(name, x), history.series(name, x)
            finite = np.isfinite(plain.values)
            assert (mine.steps == plain.steps[finite]).all(), (name, x)
            assert np.array_equal(mine.x, plain.x[finite])
            assert np.array_equal(mine.values, plain.values[finite])


@given(lines=st.lists(st.one_of(train, evaluate), max_size=12), cut=st.integers(0, 12))
def test_columns_equal_rows(
    lines: list[dict[str, Any]], cut: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    run = new_run(tmp_path_factory.mktemp("run") / "run")
    metrics = MetricsFile(run)
    run.metrics_path.write_text(to_text(lines[:cut]))
    metrics.read_on(None, wants_rows=False)
    with run.metrics_path.open("a") as file:
        file.write(to_text(lines[cut:]))
    rows, is_replaced = metrics.read_on(None, wants_rows=True)
    assert not is_replaced
    assert rows == run.history[cut:]
    assert_same(metrics, run)


def line(step: int, loss: float = 1.0) -> dict[str, Any]:
    return {"event": "train", "step": step, "loss": loss}


def test_only_what_was_appended_is_read(tmp_path: Path) -> None:
    run = new_run(tmp_path / "run")
    metrics = MetricsFile(run)
    assert metrics.read_on(None, wants_rows=True) == ([], False)  # there is no file yet
    text = to_text([line(1), line(2), line(3)])
    run.metrics_path.write_text(text[:-5])  # the last line is being written
    rows, _ = metrics.read_on(None, wants_rows=True)
    assert [row["step"] for row in rows] == [1, 2]
    with run.metrics_path.open("a") as file:
        file.write(text[-5:])
    rows, _ = metrics.read_on(None, wants_rows=True)
    assert [row["step"] for row in rows] == [3]
    assert metrics.read_on(None, wants_rows=True) == ([], False)


def test_a_replaced_file_is_read_anew(tmp_path: Path) -> None:
    run = new_run(tmp_path / "run")
    metrics = MetricsFile(run)
    run.metrics_path.write_text(to_text([line(step) for step in range(1, 6)]))
    metrics.read_on(None, wants_rows=False)
    run.truncate_metrics(2)  # as `heed resume` does after a checkpoint
    with run.metrics_path.open("a") as file:
        file.write(to_text([line(3, 7.0), line(4, 8.0), line(5, 9.0)]))
    rows, is_replaced = metrics.read_on(None, wants_rows=True)
    assert (rows, is_replaced) == ([], True)
    assert metrics.series("train/loss", "step").values.tolist() == [1, 1, 7, 8, 9]
    assert_same(metrics, run)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1]\n", "is damaged: it is not a JSON object"),
        ('{"event": "train"}\n', "this line has no event or no step"),
        (to_text([line(2)]).replace("1.0", "2.0"), "does not match its checksum"),
        ("\x00\n", "is damaged"),
    ],
)
def test_damage_is_named_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    run = new_run(tmp_path / "run")
    run.metrics_path.write_text(to_text([line(1)]) + text)
    with pytest.raises(DamagedError, match=message) as plain:
        run.history  # noqa: B018 (the property reads the file)
    with pytest.raises(DamagedError, match=message) as columns:
        MetricsFile(run).read_on(None, wants_rows=False)
    assert str(columns.value) == str(plain.value)
    assert ":2:" in str(columns.value)
