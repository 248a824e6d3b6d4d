"""The queue of trainings: order, persistence, processes that outlive a server, and the signal."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from lab_runs import write_run
from labs import TINY, TINY_DATA

from heed.checksums import DamagedError
from heed.config import Recipe
from heed.config.recipe import apply_overrides
from heed.errors import HeedError
from heed.files import lock_file
from heed.lab.lock_holder import ask_to_stop, find_holders, is_training
from heed.lab.run_folder import RunFolder
from heed.lab.training_queue import Job, TrainingQueue, find_error, read_end_of_log
from heed.runs.run import LOCK
from heed.study.launch import launch_process

RECIPE = Recipe.of(apply_overrides({"task": "translate"}, [*TINY_DATA, *TINY]))
PRETENDER = """
import os, signal, sys, time
run, said = sys.argv[1:3]
print(said, flush=True)
stop = []
signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
while not stop and not os.path.exists(run + ".end"):
    time.sleep(0.01)
print("Stopped at step 3; nothing is lost." if stop else "", flush=True)
"""
"""A process in place of training: it runs until it is asked to stop, or until a file is there."""


class PretendingQueue(TrainingQueue):
    """A queue whose processes are those of a script that is named as `heed train` is."""

    script: Path
    said = "Model: tiny."

    def _build_command(self, job: Job) -> list[str]:
        return [sys.executable, str(self.script), "train", str(self.end(job.run)), self.said]

    def end(self, name: str) -> Path:
        """The process of this run ends when a file of this name and `.end` is there."""
        return self.folder.root / f".{name}"


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    folder = tmp_path / "runs"
    folder.mkdir()
    script = tmp_path / "heed"
    script.write_text(PRETENDER.replace("argv[1:3]", "argv[2:4]"), encoding="utf-8")
    return folder


@pytest.fixture
def open_queue(runs: Path) -> Iterator[Callable[..., PretendingQueue]]:
    """Open the queue of the folder, as a server does when it starts."""
    processes: list[subprocess.Popen[bytes]] = []
    opened: list[PretendingQueue] = []

    def open_one(**options: int) -> PretendingQueue:
        queue = PretendingQueue(RunFolder(runs), **options)
        queue.script = runs.parent / "heed"
        opened.append(queue)
        return queue

    yield open_one
    for queue in opened:
        processes += queue._processes.values()
    for process in processes:
        process.kill()
        process.wait()


def statuses(queue: TrainingQueue) -> dict[str, str]:
    return {job.run: job.status for job in queue.read()}


def advance_until(queue: TrainingQueue, wanted: dict[str, str]) -> None:
    end = time.monotonic() + 30
    while statuses(queue) != wanted:
        assert time.monotonic() < end, statuses(queue)
        queue.advance()
        time.sleep(0.02)


def test_trainings_run_in_order_and_one_at_a_time(
    open_queue: Callable[..., PretendingQueue],
) -> None:
    queue = open_queue()
    for name in ("a", "b", "c"):
        queue.add_training(name, RECIPE)
    queue.move(queue.read()[2].id, 2)
    queue.advance()
    queue.advance()
    assert statuses(queue) == {"a": "training", "c": "waiting", "b": "waiting"}
    queue.end("a.end").touch()
    # It made no run: that is a failure, and the next one begins.
    advance_until(queue, {"a": "failed", "c": "training", "b": "waiting"})
    with pytest.raises(HeedError, match="has begun"):
        queue.remove(queue.read()[1].id)
    with pytest.raises(HeedError, match="waits in the queue"):
        queue.add_training("b", RECIPE)


def test_two_jobs_train_at_once_where_that_is_asked_for(
    open_queue: Callable[..., PretendingQueue],
) -> None:
    queue = open_queue(jobs=2)
    for name in ("a", "b", "c"):
        queue.add_training(name, RECIPE)
    queue.advance()
    assert statuses(queue) == {"a": "training", "b": "training", "c": "waiting"}


def test_a_server_that_is_started_later_knows_what_trains(
    open_queue: Callable[..., PretendingQueue], runs: Path
) -> None:
    first = open_queue()
    for name in ("a", "b"):
        first.add_training(name, RECIPE)
    first.advance()
    second = open_queue()
    second.advance()
    assert statuses(second) == {"a": "training", "b": "waiting"}
    write_run(runs / "a").weights_path.write_bytes(b"weights")
    first.end("a.end").touch()
    advance_until(second, {"a": "finished", "b": "training"})
    # The first server, if it still lives, agrees.
    first.advance()
    assert statuses(first) == {"a": "finished", "b": "training"}


def test_a_process_that_never_began_is_started_again_once(
    open_queue: Callable[..., PretendingQueue], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that is killed between its note and the process leaves a job that trains nowhere."""
    queue = open_queue()
    queue.add_training("a", RECIPE)

    def die(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    for attempt in ("waiting", "failed"):
        with monkeypatch.context() as patch:
            patch.setattr("heed.lab.training_queue.launch_process", die)
            with pytest.raises(KeyboardInterrupt):
                queue.advance()
        assert statuses(queue) == {"a": "training"}
        with queue._changing() as jobs:
            jobs[0] = queue._settle(jobs[0])
        assert statuses(queue) == {"a": attempt}


def test_the_process_that_trains_is_asked_once(
    open_queue: Callable[..., PretendingQueue], runs: Path
) -> None:
    first = open_queue()
    first.add_training("a", RECIPE)
    first.advance()
    log = first.place / f"{first.read()[0].id}.log"
    while "Model" not in log.read_text(encoding="utf-8"):
        time.sleep(0.01)
    second = open_queue()  # the server was started again since
    second.stop("a")
    assert second.read()[0].is_stopping
    second.stop("a")  # a second signal would end the process without a checkpoint
    write_run(runs / "a")
    advance_until(second, {"a": "stopped"})
    assert second.read()[0].message == "Stopped at step 3; nothing is lost."
    with pytest.raises(HeedError, match="no process trains"):
        second.stop("a")


def test_only_a_process_of_heed_that_holds_the_lock_gets_the_signal(runs: Path) -> None:
    lock = runs / LOCK
    with lock_file(lock):  # this process is no `heed train`
        assert find_holders(lock) == []
        other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        try:
            assert not ask_to_stop(other.pid, lock)
            assert other.poll() is None
        finally:
            other.kill()
            other.wait()
    assert not ask_to_stop(other.pid, lock)  # it is gone
    assert is_training(["python", "-P", "-m", "heed", "train", "demo"])
    assert is_training(["/usr/bin/python3", "/usr/bin/heed", "--debug", "resume", "runs/a"])
    assert not is_training(["vim", "heed", "train"][:1])
    assert not is_training(["python", "-m", "heed", "lab"])
    assert not is_training(["python", "-m", "heed.study.trial_process", "train"])
    assert not is_training([""])


def test_a_copied_folder_starts_nothing(
    open_queue: Callable[..., PretendingQueue], runs: Path, tmp_path: Path
) -> None:
    open_queue().add_training("a", RECIPE)
    copy = tmp_path / "copy"
    shutil.copytree(runs, copy)
    queue = TrainingQueue(RunFolder(copy))
    queue.advance()
    assert queue.read() == []
    assert not (copy / "a").exists()


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"jobs": 3', "\x00"])
def test_a_damaged_queue_is_named_and_nothing_starts(
    open_queue: Callable[..., PretendingQueue], text: str
) -> None:
    queue = open_queue()
    queue.add_training("a", RECIPE)
    path = queue.place / "queue.json"
    path.write_text(text, encoding="utf-8")
    if text == "{}":  # another program's, or of another place
        assert queue.read() == []
        return
    with pytest.raises(DamagedError, match="queue"):
        queue.advance()


def test_a_hostile_job_leads_nowhere(
    open_queue: Callable[..., PretendingQueue], tmp_path: Path
) -> None:
    queue = open_queue()
    queue.add_training("a", RECIPE)
    content = {"place": queue._describe_place()}
    for change in ({"id": "../../../x"}, {"device": "cpu --plugin x"}, {"kind": "exec"}):
        job = queue.read()[0].model_dump() | change
        path = queue.place / "queue.json"
        before = path.read_bytes()
        path.write_text(json.dumps(content | {"jobs": [job]}), encoding="utf-8")
        with pytest.raises(DamagedError):
            queue.read()
        path.write_bytes(before)
    with queue._changing() as jobs:
        jobs[0] = jobs[0].model_copy(update={"run": "../outside"})
    real = TrainingQueue(queue.folder)
    real.advance()
    assert real.read()[0].status == "failed"
    assert not (tmp_path / "outside").exists()


UNSEEN = "heed: unseen"


def plant(link: Path, outside: Path) -> None:
    """Put a link in place of a file of the queue."""
    link.unlink(missing_ok=True)
    link.symlink_to(outside)


def test_a_recipe_that_is_a_link_is_not_read(
    open_queue: Callable[..., PretendingQueue], tmp_path: Path
) -> None:
    job = open_queue().add_training("a", RECIPE)
    queue = TrainingQueue(RunFolder(tmp_path / "runs"))
    path = queue.place / f"{job.id}.toml"
    outside = tmp_path / "outside.toml"
    outside.write_bytes(path.read_bytes())  # it could be trained
    assert queue.describe()["jobs"][0]["has_recipe"]
    plant(path, outside)
    assert not queue.describe()["jobs"][0]["has_recipe"]
    with pytest.raises(OSError, match="symbolic link"):
        queue.read_recipe(job)
    queue.advance()
    assert statuses(queue) == {"a": "failed"}
    assert f"{path}: this is a symbolic link" in (queue.read()[0].message or "")
    queue.remove(job.id)
    assert outside.exists()


@pytest.mark.parametrize("kind", ["log", "lock"])
@pytest.mark.parametrize("exists", [True, False])
def test_a_log_or_lock_that_is_a_link_is_not_written(
    open_queue: Callable[..., PretendingQueue], tmp_path: Path, kind: str, exists: bool
) -> None:
    queue = open_queue()
    job = queue.add_training("a", RECIPE)
    outside = tmp_path / "outside"
    if exists:
        outside.write_text(UNSEEN, encoding="utf-8")
    plant(queue.place / f"{job.id}.{kind}", outside)
    queue.advance()
    assert statuses(queue) == {"a": "failed"}
    assert f"{job.id}.{kind}: this is a symbolic link" in (queue.read()[0].message or "")
    assert outside.exists() == exists
    assert not exists or outside.read_text(encoding="utf-8") == UNSEEN


def test_a_log_that_becomes_a_link_is_neither_written_nor_read(
    open_queue: Callable[..., PretendingQueue], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process writes to the file that was opened, whatever its path leads to by then."""
    queue = open_queue()
    job = queue.add_training("a", RECIPE)
    log, outside = queue.place / f"{job.id}.log", tmp_path / "outside"
    outside.write_text(UNSEEN, encoding="utf-8")
    written = tmp_path / "written"

    def launch(*args: Any, **options: Any) -> Any:
        log.rename(written)
        plant(log, outside)
        return launch_process(*args, **options)

    monkeypatch.setattr("heed.lab.training_queue.launch_process", launch)
    queue.advance()
    queue.end("a.end").touch()
    advance_until(queue, {"a": "failed"})
    assert queue.said in written.read_text(encoding="utf-8")
    assert outside.read_text(encoding="utf-8") == UNSEEN
    assert "unseen" not in (queue.read()[0].message or "")
    assert read_end_of_log(outside) == [UNSEEN]
    assert read_end_of_log(log) == []


def test_a_queue_that_is_a_link_is_neither_read_nor_written(
    open_queue: Callable[..., PretendingQueue], tmp_path: Path
) -> None:
    queue = open_queue()
    queue.add_training("a", RECIPE)
    path, outside = queue.place / "queue.json", tmp_path / "outside"
    outside.write_bytes(path.read_bytes())
    before = outside.read_bytes()
    plant(path, outside)
    for use in (queue.read, queue.advance, lambda: queue.add_training("b", RECIPE)):
        with pytest.raises(OSError, match="symbolic link"):
            use()
    assert outside.read_bytes() == before
    path.unlink()
    plant(queue.place / "queue.lock", tmp_path / "absent")
    with pytest.raises(OSError, match="symbolic link"):
        queue.add_training("b", RECIPE)
    assert not (tmp_path / "absent").exists()


def test_a_folder_that_is_a_link_is_no_queue(
    open_queue: Callable[..., PretendingQueue], tmp_path: Path
) -> None:
    queue = open_queue()
    queue.add_training("a", RECIPE)
    queue.place.rename(tmp_path / "outside")
    before = {path.name: path.read_bytes() for path in (tmp_path / "outside").iterdir()}
    queue.place.symlink_to(tmp_path / "outside")
    assert queue.read() == []
    with pytest.raises(HeedError, match="this is a link"):
        queue.add_training("b", RECIPE)
    assert {path.name: path.read_bytes() for path in (tmp_path / "outside").iterdir()} == before


def test_the_error_at_the_end_of_a_log_is_whole(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"heed: a warning\nstep 1\rstep 2\n\nheed: x.toml: first\nsecond \x1b[31m\n")
    assert find_error(read_end_of_log(log)) == "x.toml: first\nsecond \\x1b[31m"
    assert find_error(["Model"]) is None
    assert read_end_of_log(tmp_path / "none") == []


def test_a_process_that_is_killed_leaves_a_run_to_resume(
    open_queue: Callable[..., PretendingQueue], runs: Path
) -> None:
    queue = open_queue()
    queue.add_training("a", RECIPE)
    queue.advance()
    write_run(runs / "a")
    os.kill(queue.read()[0].pid or 0, signal.SIGKILL)
    advance_until(queue, {"a": "stopped"})
    assert "without a message" in (queue.read()[0].message or "")
    queue.add_resume("a")
    assert statuses(queue) == {"a": "waiting"}


def test_the_last_ones_that_ended_are_listed(
    open_queue: Callable[..., PretendingQueue], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heed.lab.training_queue.MOST_ENDED", 2)
    queue = open_queue()
    for number in range(4):
        queue.add_training(f"r{number}", RECIPE)
    with queue._changing() as jobs:
        jobs[:] = [job.model_copy(update={"status": "failed"}) for job in jobs]
    assert list(statuses(queue)) == ["r2", "r3"]
    assert len(list(queue.place.glob("*.toml"))) == 2
