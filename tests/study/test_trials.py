"""The state of a trial on disk: the same when it is read again, in the order of numbers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from heed.config.task_metrics import LOWER_IS_BETTER, TASK_METRICS
from heed.errors import RunError
from heed.metrics.item_metrics import COUNTS, item_metrics
from heed.runs.item_counts import ItemCounts
from heed.study.trial_process import TrialClock
from heed.study.trials import Trial, TrialState, read_state, read_trials, trial_rows, write_state

STATE = TrialState(
    Trial("rope-seed0", 0, "rope", {"model.position": "rope", "train.lr": 1e-3}, "demo", 0),
    status="finished",
    started=1.5,
    tokens=10**9,
    dev=33.25,
    scores={"dev": {"bleu": 33.25}, "test": {"bleu": 31.0}},
    run="runs/rope-seed0",
)


def item_counts(task: str) -> ItemCounts:
    names = {
        "translate": [f"{metric}.{count}" for metric in COUNTS for count in COUNTS[metric]],
        "classify": ["label", "predicted", "log_probability"],
        "generate": ["loss", "bytes", "tokens", "words", "correct"],
    }[task]
    columns = {name: np.ones(2) for name in names}
    return ItemCounts(task=task, set_name="dev", text_hash="", columns=columns, classes=("a", "b"))


def test_metrics_of_a_task_are_those_that_item_counts_give() -> None:
    for task, names in TASK_METRICS.items():
        metrics = item_metrics(item_counts(task))
        assert tuple(metrics) == names
        for name, metric in metrics.items():
            assert metric.metric.higher_is_better == (name not in LOWER_IS_BETTER)


def test_states_are_read_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    (tmp_path / "trials").mkdir()
    names = ["b-seed0", "a-seed0", "c-seed0"]
    states = [
        replace(STATE, trial=replace(STATE.trial, name=name, number=i))
        for i, name in enumerate(names)
    ]
    for state in reversed(states):
        write_state(tmp_path, state)
    assert read_trials(tmp_path) == states
    assert read_state(tmp_path, "a-seed0") == states[1]


def test_a_state_that_was_changed_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "trials").mkdir()
    write_state(tmp_path, STATE)
    path = tmp_path / "trials/rope-seed0.json"
    path.write_bytes(path.read_bytes().replace(b"33.25", b"34.25"))
    with pytest.raises(RunError, match="does not match its checksum"):
        read_trials(tmp_path)
    path.write_text("{}", encoding="utf-8")
    with pytest.raises(RunError, match="no state of a trial"):
        read_trials(tmp_path)
    with pytest.raises(RunError, match="no trial 'x'"):
        read_state(tmp_path, "x")


@pytest.mark.parametrize(
    ("state", "minutes"),
    [
        # Killed: its time is up to the last measurement.
        (replace(STATE, status="running", process_started=1000.0), 1.5),
        # Stopped in good order first, then killed.
        (replace(STATE, status="stopped", minutes=2.0, ended=900.0, process_started=1000.0), 3.5),
        # The last process wrote its own time.
        (replace(STATE, status="stopped", minutes=2.0, ended=1100.0, process_started=1000.0), 2.0),
        # Written before the start of a process was.
        (replace(STATE, status="running", minutes=2.0), 2.0),
    ],
)
def test_minutes_are_those_of_every_process(
    state: TrialState, minutes: float, tmp_path: Path
) -> None:
    run = tmp_path / "runs/rope-seed0"
    run.mkdir(parents=True)
    rows = [{"step": n, "time": {"unix": 1000.0 + 45 * n}} for n in range(3)]
    rows.append({"step": 3, "time": {"unix": None}})
    (run / "metrics.jsonl").write_text(
        "".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8"
    )
    clock = TrialClock(tmp_path, state)
    begun = clock.begin(state)
    assert (begun.minutes, begun.status) == (minutes, "running")
    assert begun.process_started is not None
    ended = clock.end(begun, "finished", None)
    assert minutes <= (ended.minutes or 0) < minutes + 1
    assert TrialClock(tmp_path, ended).before == ended.minutes


def test_rows_have_a_column_for_every_key_and_score() -> None:
    other = replace(STATE, trial=replace(STATE.trial, name="b", changes={"model.layers": 2}))
    rows = trial_rows([STATE, replace(other, scores={}, status="failed", reason="why")])
    assert rows[0].keys() == rows[1].keys()
    assert rows[0]["test/bleu"] == 31.0
    assert rows[1]["model.position"] is None
    assert rows[1]["reason"] == "why"
