"""The queue of trainings that a lab starts: what waits, what trains, and how the last ones ended.

The queue is a file in the hidden folder `.heed-lab` of the lab's folder, read and written as a
whole under a lock, so that a server that is killed loses nothing. A training is a process of its
own, `heed train` or `heed resume`, which goes on without the server. It inherits the open lock of
its job: whether it lives is known by that lock, also to a server that was started later.

No symbolic link in the folder is followed: recipes, logs and locks are opened as they are named, or
not at all, and what is written as a whole replaces a link of its name.
"""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from threading import Event, Lock, Thread
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from heed import checksums
from heed.checksums import DamagedError
from heed.child_process import child_environment
from heed.config import Recipe
from heed.config.recipe import parse_tables
from heed.errors import HeedError, make_printable
from heed.files import (
    LOCK_FLAGS,
    describe_os_error,
    lock_file,
    locked_inodes,
    make_folder,
    open_regular,
    read_regular,
    try_lock,
    write_atomic,
)
from heed.lab.error_responses import NOT_FOUND, StatusError
from heed.lab.lock_holder import ask_to_stop, find_holders, has_process_list
from heed.lab.run_folder import RunFolder, is_run
from heed.lab.run_names import CONFLICT, place_new_run
from heed.plugins import used_plugins
from heed.runs.run import LOCK, Run
from heed.study.launch import launch_process

FOLDER, QUEUE, QUEUE_LOCK = ".heed-lab", "queue.json", "queue.lock"
JOB_ID = r"[0-9a-f]{12}"
DEVICE = r"auto|cpu|cuda(:[0-9]{1,3})?"
MOST_WAITING = 200
"""Trainings that may wait."""
MOST_ENDED = 20
"""Trainings that have ended and are still listed."""
MOST_ATTEMPTS = 2
"""A training whose process never began, since the server was killed, is started again so often."""
LOG_BYTES = 16_384
"""Bytes at the end of a log that are read for its last sentence."""
POLL_SECONDS = 1.0
SECRETS = ("HEED_LAB_KEY", "HEED_SERVE_KEY")
"""Variables that a training has no use for."""
ERROR, STOPPED = "heed: ", "Stopped "
"""How `heed` begins an error, and the line of a training that was stopped."""
FAILED, CRASHED = 2, 1
"""Exit statuses: an error in a sentence, and a bug."""
RESTORE = "Delete it: what waited is to be added again, and no run is harmed."
SILENT = "Its process ended without a message; a kill or a lack of memory does that."
ELSEWHERE = (
    "Stop it where it was started: it is no `heed train` or `heed resume` of this user on this "
    "machine."
)


class Job(BaseModel):
    """One training: a new run, or a run that is resumed."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: Annotated[str, Field(pattern=f"^{JOB_ID}$")]
    kind: Literal["train", "resume"]
    run: str
    device: Annotated[str, Field(pattern=f"^({DEVICE})$")] = "auto"
    status: Literal["waiting", "training", "finished", "stopped", "failed"] = "waiting"
    added: float = 0.0
    pid: int | None = None
    """The process that trains, where there is no list of open files."""
    attempts: int = 0
    is_stopping: bool = False
    message: str | None = None
    """How it ended, as `heed` says it."""

    @property
    def has_ended(self) -> bool:
        """Whether it neither waits nor trains."""
        return self.status not in ("waiting", "training")


class TrainingQueue:
    """The trainings of a lab. At most `jobs` of them train at once, and the others wait."""

    def __init__(self, folder: RunFolder, *, jobs: int = 1) -> None:
        self.folder, self.jobs = folder, jobs
        self.place = folder.root / FOLDER
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        """Processes that this server started: their exit status is waited for."""
        self._asked: dict[str, int] = {}
        """Processes of others that were asked to stop, by run: a second signal would kill them."""
        self._lock = Lock()

    # ------------------------------------------------------------------------------------ reading

    def read(self) -> list[Job]:
        """All jobs: those that train, those that wait, in order, and those that ended."""
        path = self.place / QUEUE
        if self.place.is_symlink():
            return []
        try:
            data = read_regular(path, follow_links=False)
        except (FileNotFoundError, NotADirectoryError):
            return []
        content = checksums.parse_json(data, where=str(path), todo=RESTORE)
        if content.get("place") != self._describe_place():
            return []  # it came with a copy of the folder: nothing is started because of that
        try:
            return [Job.model_validate(one) for one in content.get("jobs", [])]
        except (ValidationError, TypeError):
            raise DamagedError("this file is damaged.", where=str(path), todo=RESTORE) from None

    def find(self, job_id: str) -> Job:
        """The job of an id; an error if there is none."""
        return _find(self.read(), job_id)

    def read_recipe(self, job: Job) -> dict[str, Any]:
        """The tables of the recipe of a new run."""
        path = self._recipe_path(job)
        return parse_tables(read_regular(path, follow_links=False), where=str(path))

    def describe(self) -> dict[str, Any]:
        """The queue as JSON values."""
        jobs = self.read()
        waiting = [job.id for job in jobs if job.status == "waiting"]
        return {
            "jobs_at_once": self.jobs,
            "jobs": [
                job.model_dump(exclude={"pid", "attempts"})
                | {
                    "place": waiting.index(job.id) + 1 if job.id in waiting else None,
                    "has_run": is_run(self.folder.root / job.run),
                    "has_recipe": self._has_recipe(job),
                }
                for job in jobs
            ],
        }

    def names(self) -> list[str]:
        """The names of runs that wait to be made, or are being made."""
        return [job.run for job in self.read() if job.kind == "train" and not job.has_ended]

    # ----------------------------------------------------------------------------------- changing

    def add_training(self, name: str, recipe: Recipe, device: str = "auto") -> Job:
        """Add the training of a new run."""
        with self._changing() as jobs:
            place_new_run(self.folder, name, [job.run for job in jobs if not job.has_ended])
            job = _add(jobs, Job(id=token_hex(6), kind="train", run=name, device=device))
            write_atomic(self._recipe_path(job), recipe.with_absolute_paths().toml())
        return job

    def add_resume(self, name: str, device: str = "auto") -> Job:
        """Add the resumption of a run that was stopped."""
        run = self.folder.run(name)
        name = self.folder.name_of(run.folder)
        with self._changing() as jobs:
            if any(job.run == name and not job.has_ended for job in jobs):
                what = "this run waits or trains already."
                raise StatusError(what, status=CONFLICT, where=name)
            if run.finished or run.has_deleted_weights:
                raise StatusError(
                    "this run is finished.",
                    status=CONFLICT,
                    where=name,
                    todo=f"To train on, raise its end: heed resume {run.folder} --set "
                    "train.steps=N",
                )
            if _is_locked(run.folder / LOCK):
                what = "another process is training in this folder."
                raise StatusError(what, status=CONFLICT, where=name, todo="Wait for it or stop it.")
            return _add(jobs, Job(id=token_hex(6), kind="resume", run=name, device=device))

    def remove(self, job_id: str) -> None:
        """Remove a job that waits or has ended; no run is deleted."""
        with self._changing() as jobs:
            job = _find(jobs, job_id)
            if job.status == "training":
                what = "this training has begun."
                raise StatusError(what, status=CONFLICT, where=job.run, todo="Stop it first.")
            jobs.remove(job)
            self._delete_files(job)

    def move(self, job_id: str, place: int) -> None:
        """Give a job that waits another place, counted from 1."""
        with self._changing() as jobs:
            job = _find(jobs, job_id)
            if job.status != "waiting":
                what = "this training does not wait any more."
                raise StatusError(what, status=CONFLICT, where=job.run)
            jobs.remove(job)
            waiting = [index for index, one in enumerate(jobs) if one.status == "waiting"]
            is_last = place > len(waiting)
            jobs.insert(len(jobs) if is_last else waiting[max(place, 1) - 1], job)

    def stop(self, name: str) -> None:
        """Ask the process that trains a run to save a checkpoint and to end."""
        with self._changing() as jobs:
            job = next((one for one in jobs if one.run == name and one.status == "training"), None)
            if job is not None:
                if not job.is_stopping and self._is_alive(job):
                    self._ask(self._lock_path(job), job)
                    # Written after the signal: a server that is killed here asks again.
                    jobs[jobs.index(job)] = job.model_copy(update={"is_stopping": True})
                return
        run = self.folder.run(name)
        name, lock = self.folder.name_of(run.folder), run.folder / LOCK
        if not _is_locked(lock):
            raise StatusError("no process trains this run.", status=CONFLICT, where=name)
        self._ask(lock, None, name)

    def _ask(self, lock: Path, job: Job | None, name: str = "") -> None:
        """Send the signal to the process that holds a lock."""
        name = job.run if job is not None else name
        if job is not None and not has_process_list():
            # Its lock is held, so it lives, and its id is of no other process.
            if job.pid is not None:
                os.kill(job.pid, signal.SIGTERM)
            return
        for pid in find_holders(lock) if has_process_list() else []:
            if job is None and self._asked.get(name) == pid:
                return
            if ask_to_stop(pid, lock):
                self._asked[name] = pid
                return
        what = "the process that trains this run cannot be stopped from here."
        raise StatusError(what, status=CONFLICT, where=name, todo=ELSEWHERE)

    def advance(self) -> None:
        """See which trainings have ended, and start those that wait while there is room."""
        for process in list(self._processes.values()):
            process.poll()
        if not any(not job.has_ended for job in self.read()):
            return
        with self._changing() as jobs:
            for index, job in enumerate(jobs):
                if job.status == "training" and not self._is_alive(job):
                    jobs[index] = self._settle(job)
            room = self.jobs - sum(job.status == "training" for job in jobs)
            for index, job in enumerate(jobs):
                if job.status == "waiting" and room > 0:
                    started = self._start(jobs, index)
                    room -= started

    def follow(self, closing: Event, on_change: Callable[[], None]) -> Thread:
        """Advance in a thread until `closing` is set; `on_change` is called after each change."""

        def repeat() -> None:
            before: object = None
            while not closing.wait(POLL_SECONDS):
                with suppress(HeedError, OSError):  # a page says what is wrong with the files
                    self.advance()
                    now = self.describe()
                    if before is not None and now != before:
                        on_change()
                    before = now

        thread = Thread(target=repeat, name="heed-training-queue", daemon=True)
        thread.start()
        return thread

    # ---------------------------------------------------------------------------------- processes

    def _start(self, jobs: list[Job], index: int) -> bool:
        """Start the process of a job; whether it was. One that cannot be started has failed."""
        job = jobs[index]
        with ExitStack() as opened:
            try:
                command = self._build_command(job)
                log = opened.enter_context(
                    open_regular(self._log(job), follow_links=False, append=True)
                )
                handle = os.open(self._lock_path(job), LOCK_FLAGS, 0o666)
            except (HeedError, OSError) as error:
                named = describe_os_error(error) if isinstance(error, OSError) else None
                message = str(named or error)
                jobs[index] = job.model_copy(update={"status": "failed", "message": message})
                return False
            opened.callback(os.close, handle)
            try_lock(handle)
            started = job.model_copy(
                update={"status": "training", "attempts": job.attempts + 1, "is_stopping": False}
            )
            jobs[index] = started
            # Written before the process begins: a second server never starts it as well.
            self._write(jobs)
            # As for `-P`: nothing in the current folder is imported.
            variables = child_environment().items()
            environment = {key: text for key, text in variables if key not in SECRETS}
            process = launch_process(command, log, environment, inherited=(handle,))
        self._processes[job.id] = process
        jobs[index] = started.model_copy(update={"pid": process.pid})
        return True

    def _build_command(self, job: Job) -> list[str]:
        """The command line of a job. Plug-ins are those that the lab itself was started with."""
        if job.kind == "train":
            path = place_new_run(self.folder, job.run)
            source = str(self._recipe_path(job))
            recipe = Recipe.of(self.read_recipe(job), where=source)
            named = ["train", source, "--run", str(path)]
        else:
            run = self.folder.run(job.run)
            recipe = run.recipe()
            named = ["resume", str(run.folder)]
        plugins = [str(plugin.path) for plugin in used_plugins(recipe.model)]
        flags = [flag for path in plugins for flag in ("--plugin", path)]
        return [sys.executable, "-P", "-m", "heed", *named, "--device", job.device, *flags]

    def _is_alive(self, job: Job) -> bool:
        """Whether the process of a job lives."""
        process = self._processes.get(job.id)
        if process is not None:
            return process.poll() is None
        try:
            with lock_file(self._lock_path(job)) as locked:
                if locked is None and job.pid is not None:  # there are no locks here
                    os.kill(job.pid, 0)
                    return True
                return locked is False
        except OSError:
            return False

    def _settle(self, job: Job) -> Job:
        """The job whose process has ended, with how that was.

        A server that was started later does not know the exit status: the log says it, too.
        """
        process = self._processes.pop(job.id, None)
        code = None if process is None else process.returncode
        folder, log = self.folder.root / job.run, read_end_of_log(self._log(job))
        error = find_error(log) if code in (None, FAILED) else None
        unfinished = "stopped" if is_run(folder) else "failed"
        if is_run(folder) and Run(folder).finished:
            status, message = "finished", None
        elif log and log[-1].startswith(STOPPED):
            status, message = "stopped", log[-1]
        elif job.is_stopping or code == -signal.SIGTERM:
            status, message = "stopped", "Stopped before its first step."
        elif not log and process is None and job.attempts < MOST_ATTEMPTS:
            status, message = "waiting", None  # the server was killed before its process began
        elif error is not None:
            status, message = "failed", error
        else:
            status, message = unfinished, log[-1] if log and code == CRASHED else SILENT
        update = {"status": status, "message": message, "pid": None, "is_stopping": False}
        with suppress(OSError):
            self._lock_path(job).unlink()
        return job.model_copy(update=update)

    # -------------------------------------------------------------------------------------- files

    @contextmanager
    def _changing(self) -> Iterator[list[Job]]:
        """The jobs, to be changed while no other thread or server changes them."""
        if self.place.is_symlink():
            what = "this is a link, and the queue of a lab is in its folder."
            raise StatusError(what, status=CONFLICT, where=str(self.place), todo="Remove it.")
        make_folder(self.place)
        with self._lock, lock_file(self.place / QUEUE_LOCK, wait=True):
            before = self.read()
            jobs = [*before]
            yield jobs
            ended = [job for job in jobs if job.has_ended]
            for job in ended[: max(len(ended) - MOST_ENDED, 0)]:
                jobs.remove(job)
                self._delete_files(job)
            if jobs != before:
                self._write(jobs)

    def _write(self, jobs: Sequence[Job]) -> None:
        content = {"place": self._describe_place(), "jobs": [job.model_dump() for job in jobs]}
        checksums.write_json(self.place / QUEUE, content)

    def _describe_place(self) -> str:
        """What tells this folder from a copy of it, here or on another machine."""
        return f"{self.folder.root.stat().st_ino}@{platform.node()}"

    def _delete_files(self, job: Job) -> None:
        for path in (self._recipe_path(job), self._log(job), self._lock_path(job)):
            path.unlink(missing_ok=True)

    def _has_recipe(self, job: Job) -> bool:
        path = self._recipe_path(job)
        return path.is_file() and not path.is_symlink()

    def _recipe_path(self, job: Job) -> Path:
        return self.place / f"{job.id}.toml"

    def _lock_path(self, job: Job) -> Path:
        return self.place / f"{job.id}.lock"

    def _log(self, job: Job) -> Path:
        return self.place / f"{job.id}.log"


def read_end_of_log(log: Path) -> list[str]:
    """The last lines that a training printed; none where it printed nothing."""
    try:
        with open_regular(log, follow_links=False) as file:
            file.seek(max(file.seek(0, os.SEEK_END) - LOG_BYTES, 0))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    return make_printable(text.replace("\r", "\n"), multiline=True).strip().splitlines()


def find_error(lines: Sequence[str]) -> str | None:
    """The error that `heed` printed last, with a line for each complaint; None if there is none."""
    starts = [index for index, line in enumerate(lines) if line.startswith(ERROR)]
    if not starts:
        return None
    return "\n".join(lines[starts[-1] :]).removeprefix(ERROR)


def _add(jobs: list[Job], job: Job) -> Job:
    if sum(one.status == "waiting" for one in jobs) >= MOST_WAITING:
        what = f"{MOST_WAITING} trainings wait already."
        raise StatusError(what, status=CONFLICT, where=job.run, todo="Remove some of them first.")
    job = job.model_copy(update={"added": round(time.time(), 3)})
    jobs.append(job)
    return job


def _find(jobs: Sequence[Job], job_id: str) -> Job:
    for job in jobs:
        if job.id == job_id:
            return job
    what = "there is no such training in the queue."
    raise StatusError(what, status=NOT_FOUND, where=job_id, todo="Read the queue again.")


def _is_locked(lock: Path) -> bool:
    """Whether a process of this machine holds a lock; where no list says so, it is tried."""
    try:
        inode = lock.stat(follow_symlinks=False).st_ino
    except OSError:
        return False
    locked = locked_inodes()
    if locked is not None:
        return inode in locked
    with lock_file(lock) as is_free:
        return is_free is False
