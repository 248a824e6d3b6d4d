"""The process that talks to Ray for a study, below its runner (`heed.study.ray_cluster`).

    python -m heed.study.ray_driver JOB

JOB and all messages are JSON, one line each. It reads `{"submit": KEY, "job": […]}` and
`{"cancel": KEY}`. It writes `connected`, `ready` or `error`, and the exit code of every job. When
its input ends it leaves the cluster, and Ray ends what it has submitted.

It is a process of its own because Ray's core ends its process when a cluster is lost, replaces
handlers of signals, waits for minutes for a cluster that is not there, and prints what it likes.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

from heed import __version__
from heed.errors import first_line
from heed.study.trial_supervisor import NO_LOCKS, OTHER_FOLDER, OTHER_VERSION

REMOTE_FUNCTION = subprocess.call
"""What Ray calls on its machines, with a list of strings; it returns an exit code. Ray pickles the
function with cloudpickle, which writes one of the standard library as its name, without code."""
CHECK_SECONDS = 120.0
"""Seconds in which every machine must have checked that it sees the study's folder."""
LOST = -int(signal.SIGKILL)
"""The exit code of a job whose worker or machine was lost, as if it was killed."""
HINDRANCES = {
    OTHER_FOLDER: (
        "does not see this folder",
        "Name a folder (--out) on a disk that all machines share, at the same path.",
    ),
    NO_LOCKS: (
        "does not see the locks of this folder, which keep two processes from training one run",
        "Mount the disk with locks (option `flock`, or NFS version 4).",
    ),
    OTHER_VERSION: (
        f"has another version of heed than {__version__}",
        "Install the same version on all machines.",
    ),
}
"""What hinders a trial on a machine, and what to do, for each such exit code of the supervisor."""


def main(arguments: Sequence[str]) -> int:
    """Connect, check the machines, then submit jobs until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the runner decides when to stop
    output = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # what Ray prints goes to the log
    driver = Driver(json.loads(arguments[0]), output)
    try:
        driver.connect()
        driver.check_machines()
        driver.serve()
    except _CannotRunError as problem:
        driver.write({"error": problem.args[0], "todo": problem.args[1]})
        return 2
    finally:
        driver.leave()
    return 0


class _CannotRunError(Exception):
    """What is wrong with the cluster, and what to do."""


@dataclass(frozen=True)
class JobEnd:
    """How a job ended."""

    code: int
    """Its exit code; below 0 it was killed, or its worker was lost."""
    reason: str | None = None
    """What befell it, where it is not the job's own end."""
    is_worker_lost: bool = False
    """Whether the Ray worker or its machine died."""


class Driver:
    """A connection to a Ray cluster, and the jobs that it carries out."""

    def __init__(self, settings: dict[str, Any], output: BinaryIO) -> None:
        self.settings, self.output = settings, output
        self.references: dict[str, Any] = {}
        """Ray's references of jobs that have not ended, by key."""
        self.resources: dict[str, float] = {}
        self._ray: Any = None
        self._unread = b""

    def write(self, message: dict[str, Any]) -> None:
        """Write a message to the runner."""
        self.output.write(json.dumps(message).encode() + b"\n")

    def connect(self) -> None:
        """Connect to the cluster, or start Ray on this machine where there is no address."""
        import ray

        self._ray = ray
        # Ray retries nothing by itself: the runner counts attempts, and shows them.
        self._call = ray.remote(max_retries=0)(REMOTE_FUNCTION)
        address = self.settings["address"]
        options = {} if address else {"include_dashboard": False}
        try:
            ray.init(address=address or "local", logging_level="ERROR", **options)
        except (ConnectionError, RuntimeError, ValueError) as error:
            todo = "Run the command on a machine of the cluster (`ray start --address=…`)."
            what = f"Ray cannot be used: {first_line(error).rstrip('.')}."
            raise _CannotRunError(what, todo) from error
        self.resources = {"CPU": self.settings["cpus"], "GPU": self._choose_gpus()}
        self.write({"connected": self.resources})

    def _choose_gpus(self) -> float:
        """GPUs for each trial. Where none are set aside for it, Ray hides all of them."""
        if self.settings["gpus"] is not None:
            return self.settings["gpus"]
        has_gpus = self._ray.cluster_resources().get("GPU", 0.0) > 0
        return 1.0 if has_gpus and self.settings["device"] != "cpu" else 0.0

    def leave(self) -> None:
        """Leave the cluster: Ray ends the workers of all jobs."""
        if self._ray is not None:
            self._ray.shutdown()

    # ------------------------------------------------------------------------------- machines

    def check_machines(self) -> None:
        """Make sure that every machine with room sees the study's folder and its locks."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        nodes = [node for node in self._ray.nodes() if node["Alive"]]
        rooms = {node["NodeID"]: self._count_room(node["Resources"]) for node in nodes}
        if not any(rooms.values()):
            wanted = f"{self.resources['CPU']:g} CPUs and {self.resources['GPU']:g} GPUs"
            raise _CannotRunError(
                f"no machine of the Ray cluster has {wanted} for a trial.",
                "Change --cpus-per-trial or --gpus-per-trial, or add machines (`ray start`).",
            )
        checks = {}
        for node in nodes:
            if rooms[node["NodeID"]]:
                strategy = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
                reference = self._submit([], num_cpus=0, num_gpus=0, scheduling_strategy=strategy)
                checks[reference] = node
        deadline = time.monotonic() + CHECK_SECONDS
        jobs = 0
        for reference, node in checks.items():
            seconds = max(0.0, deadline - time.monotonic())
            ready, _ = self._ray.wait([reference], timeout=seconds)
            end = self._result(reference) if ready else JobEnd(LOST, "no answer in time")
            if not end.is_worker_lost:  # else the machine is gone, and the others go on
                _require_place(node["NodeManagerAddress"], end)
                jobs += rooms[node["NodeID"]]
        if jobs == 0:
            todo = "Check the cluster (`ray status`)."
            raise _CannotRunError("every machine of the Ray cluster was lost.", todo)
        self.write({"ready": jobs})

    def _count_room(self, resources: dict[str, float]) -> int:
        """Number of trials that a machine with these resources has room for."""
        wanted = {name: amount for name, amount in self.resources.items() if amount > 0}
        shares = [resources.get(name, 0.0) / amount for name, amount in wanted.items()]
        return int(min(shares, default=1.0) + 1e-9)

    # ----------------------------------------------------------------------------------- jobs

    def serve(self) -> None:
        """Submit and cancel jobs, and report their ends, until the input ends."""
        while (messages := self._read_messages()) is not None:
            for message in messages:
                self._obey(message)
            if self.references:
                ready, _ = self._ray.wait([*self.references.values()], timeout=0.1)
                for key in [key for key, one in self.references.items() if one in ready]:
                    end = self._result(self.references.pop(key))
                    code = end.code if end.reason is None else LOST
                    self.write({"ended": key, "code": code, "reason": end.reason})

    def _read_messages(self) -> list[dict[str, Any]] | None:
        """The messages that have come from the runner; None when it is gone."""
        readable, _, _ = select.select([0], [], [], 0 if self.references else 0.1)
        if not readable:
            return []
        data = os.read(0, 1 << 20)
        if not data:
            return None
        *lines, self._unread = (self._unread + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def _obey(self, message: dict[str, Any]) -> None:
        if "submit" in message:
            resources = {"num_cpus": self.resources["CPU"], "num_gpus": self.resources["GPU"]}
            self.references[message["submit"]] = self._submit(message["job"], **resources)
        elif message["cancel"] in self.references:
            # By force, since the worker only waits for the supervisor and hears nothing.
            self._ray.cancel(self.references[message["cancel"]], force=True)

    def _submit(self, job: Sequence[str], **options: Any) -> Any:
        """Submit a supervised job. It gets a pipe, which ends when the Ray worker does."""
        module = [sys.executable, "-m", "heed.study.trial_supervisor"]
        command = [*module, self.settings["study"], self.settings["mark"], __version__, *job]
        call = self._call.options(**options)
        return call.remote(command, stdin=subprocess.PIPE, cwd=self.settings["directory"])

    def _result(self, reference: Any) -> JobEnd:
        """How a job has ended."""
        from ray.exceptions import RayError, RayTaskError

        try:
            code = int(self._ray.get(reference))
        except RayTaskError as error:
            return JobEnd(LOST, _describe_cause(error.cause))
        except RayError as error:
            lost = f"its Ray worker was lost ({type(error).__name__})"
            return JobEnd(LOST, lost, is_worker_lost=True)
        reason = f"its machine {HINDRANCES[code][0]}" if code in HINDRANCES else None
        return JobEnd(code, reason)


def _require_place(machine: str, end: JobEnd) -> None:
    """Raise an error if a machine cannot carry out trials, by the end of its check."""
    if end.code == 0:
        return
    default = (
        f"cannot run heed with {sys.executable}: {end.reason or f'exit code {end.code}'}",
        "Install the same Python and heed at the same path on all machines.",
    )
    what, todo = HINDRANCES.get(end.code, default)
    raise _CannotRunError(f"the machine {machine} of the Ray cluster {what}.", todo)


def _describe_cause(cause: BaseException) -> str:
    """Why a worker could not launch a command."""
    if isinstance(cause, OSError) and cause.filename is not None:
        return f"{cause.filename}: {cause.strerror}"
    return f"{type(cause).__name__}: {cause}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
