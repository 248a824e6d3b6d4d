"""What the lab knows of its runs: their status, their changes, and those that come and go."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from lab_runs import append_rows, write_run

from heed import checksums
from heed.config import Recipe
from heed.lab import run_watch
from heed.lab.run_folder import RunFolder
from heed.lab.run_watch import RunWatch
from heed.runs.index import list_runs
from heed.runs.run import Run


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at the files at every call."""
    monkeypatch.setattr(run_watch, "LOOK_SECONDS", 0)
    monkeypatch.setattr(run_watch, "SEARCH_SECONDS", 0)


def statuses(watch: RunWatch) -> dict[str, str]:
    watch.refresh()
    return {name: run.entry["status"] for name, run in watch.runs.items()}


def changes(watch: RunWatch, since: int) -> list[tuple[str, Any]]:
    """The kinds of the events after one, with the run that each is about."""
    watch.refresh()
    names = []
    for event in watch.log.since(since):
        run = event.data["run"]
        names.append((event.kind, run["name"] if isinstance(run, dict) else run))
    return names


def test_a_run_is_training_while_a_process_holds_its_lock(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a")
    watch = RunWatch(RunFolder(tmp_path))
    assert statuses(watch) == {"a": "stopped"}
    with run.locked():
        assert statuses(watch) == {"a": "training"}
    assert statuses(watch) == {"a": "stopped"}
    run.write_environment({"lines": 10, "steps_per_epoch": 4})
    assert statuses(watch) == {"a": "finished"}  # its study kept no weights


def test_a_run_that_its_study_pruned_is_not_one_to_resume(tmp_path: Path) -> None:
    write_run(tmp_path / "study" / "runs" / "a")
    trial = tmp_path / "study" / "trials" / "a.json"
    trial.parent.mkdir()
    (tmp_path / "study" / "study.toml").write_text("", encoding="utf-8")
    watch = RunWatch(RunFolder(tmp_path))
    assert statuses(watch) == {"study/runs/a": "stopped"}
    checksums.write_json(trial, {"status": "pruned"})
    assert statuses(watch) == {"study/runs/a": "pruned"}


def test_a_run_that_grows_trains_on_another_machine(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a")
    watch = RunWatch(RunFolder(tmp_path))
    assert statuses(watch) == {"a": "stopped"}
    append_rows(run, [6])
    statuses(watch)
    assert statuses(watch) == {"a": "training"}


def test_a_run_that_trains_has_its_step_of_all_and_the_seconds_left(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a")  # of 100 steps, with ten tokens and a second each

    def progress() -> list[float | None]:
        watch = RunWatch(RunFolder(tmp_path))
        watch.refresh()
        entry = watch.runs["a"].entry
        return [entry[key] for key in ("steps", "total_steps", "seconds_left")]

    assert progress() == [5, 100, None]  # it is stopped: no time is left to wait for
    with run.locked():
        assert progress() == [5, 100, pytest.approx(95)]
        append_rows(run, [100])
        assert progress() == [100, 100, 0]


def test_steps_are_counted_by_epochs_where_the_recipe_names_these(tmp_path: Path) -> None:
    recipe = Recipe.of({"task": "translate", "train": {"epochs": 3}, "data": {"synthetic": 60}})
    run = Run.create(tmp_path / "a", recipe)
    watch = RunWatch(RunFolder(tmp_path))
    statuses(watch)
    assert watch.runs["a"].entry["total_steps"] is None  # the text was not read yet
    run.write_environment({"steps_per_epoch": 4})
    statuses(watch)
    assert watch.runs["a"].entry["total_steps"] == 12


def test_a_damaged_run_has_its_sentence_and_recovers(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a")
    watch = RunWatch(RunFolder(tmp_path))
    whole = run.metrics_path.read_bytes()
    run.metrics_path.write_bytes(whole.replace(b'"lr": 0.001', b'"lr": 0.002', 1))
    assert statuses(watch) == {"a": "damaged"}
    [listed] = list_runs(tmp_path)
    assert watch.runs["a"].entry["problem"] == listed["broken"]
    assert "does not match its checksum" in listed["broken"]
    assert watch.groups() == []
    run.metrics_path.write_bytes(whole)
    assert statuses(watch) == {"a": "stopped"}
    run.recipe_path.unlink()
    assert statuses(watch) == {"a": "damaged"}
    assert "recipe.toml is missing" in watch.runs["a"].entry["problem"]


@pytest.mark.parametrize(
    "text", ['{"event": "train", "step": 1, "time": 7}\n', '{"event": "train", "step": 1e400}\n']
)
def test_a_file_that_heed_did_not_write_is_no_crash(tmp_path: Path, text: str) -> None:
    run = write_run(tmp_path / "a")
    run.metrics_path.write_text(text)
    assert statuses(RunWatch(RunFolder(tmp_path))) == {"a": "damaged"}


def test_every_change_is_one_event(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a")
    watch = RunWatch(RunFolder(tmp_path))
    assert changes(watch, 0) == [("run", "a")]
    assert changes(watch, watch.log.last) == []
    last = watch.log.last
    append_rows(run, [6, 7])
    assert changes(watch, last) == [("run", "a"), ("rows", "a")]
    rows = watch.log.since(last)[-1].data
    assert rows["first"] == 10
    assert [row["step"] for row in rows["rows"]] == [6, 6, 7, 7]
    last = watch.log.last
    (tmp_path / "a").rename(tmp_path / "b")
    assert {*changes(watch, last)} == {("gone", "a"), ("run", "b")}
    last = watch.log.last
    shutil.rmtree(tmp_path / "b")
    assert changes(watch, last) == [("gone", "b")]
    assert watch.runs == {}


def test_reading_takes_bounded_time(tmp_path: Path) -> None:
    for number in range(4):
        write_run(tmp_path / str(number))
    watch = RunWatch(RunFolder(tmp_path))
    assert watch.refresh(0) == 3
    assert sorted(statuses(watch).values()) == ["stopped"] * 4


def test_best_and_last_are_those_of_the_list(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", steps=8)
    watch = RunWatch(RunFolder(tmp_path))
    watch.refresh()
    entry, [listed] = watch.runs["a"].entry, list_runs(tmp_path)
    assert entry["best"] == {
        "metric": "dev/loss",
        "value": listed["dev"]["loss"],
        "step": listed["best"],
    }
    evaluations = [row for row in run.history if row["event"] == "evaluate"]
    assert entry["last"]["value"] == evaluations[-1]["dev/loss"] != entry["best"]["value"]
    assert entry["steps"] == listed["steps"] == 8
