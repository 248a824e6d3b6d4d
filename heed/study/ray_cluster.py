"""Trials on a Ray cluster: `heed study … --on ray`. Ray places them; the study's folder is shared.

Ray receives command lines and paths, and gives back exit codes. Its remote function is
`subprocess.call` of the standard library, which is pickled as that name. So nothing of heed is
pickled, and no Ray worker imports heed: each trial is a process of its own, below a supervisor
that ends it when its worker is gone. All else goes through the study's folder.

A trial whose worker or machine dies looks like one that was killed: the runner submits it again,
and it resumes from its run folder. Its lock keeps it from being carried out twice at once.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from secrets import token_hex
from typing import IO, Any

from heed.errors import HeedError, install_hint
from heed.files import lock_file, make_folder, write_atomic
from heed.study.trial_supervisor import MARKER
from heed.study.trials import LOGS, lock_path

TCP_SECONDS = 5.0
"""Seconds for a connection to the address of a cluster."""
CONNECT_SECONDS = 60.0
"""Seconds in which Ray must be connected or started."""
READY_SECONDS = 180.0
"""Seconds in which every machine must have been checked."""
LEAVE_SECONDS = 30.0
"""Seconds for leaving the cluster."""
LOG = "ray.log"
"""What Ray prints, in the folder of logs."""
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that ask a trial to stop: its exit code is then 128 + N, as a command's is."""


@dataclass(frozen=True)
class TrialResources:
    """What Ray sets aside for each trial."""

    cpus: float = 1.0
    gpus: float | None = None
    """None: one GPU where the cluster has any and the device is not `cpu`."""


class RayCluster:
    """An executor that submits trials to Ray, by way of a driver process. See `connect_ray`."""

    def __init__(self, folder: Path, driver: subprocess.Popen[bytes]) -> None:
        self.folder, self.driver = folder, driver
        self.jobs = 0
        """Number of trials that the cluster had room for at once when it was connected."""
        self._ends: dict[str, tuple[int, str | None]] = {}
        """Exit code and reason of each job that has ended, by key."""
        self._messages: deque[dict[str, Any]] = deque()
        self._unread = b""

    def submit(self, command: list[str], name: str) -> RayTrial:
        """Submit the command line of a trial; Ray chooses the machine."""
        key, log = f"{name}-{token_hex(4)}", self.folder / LOGS / f"{name}.log"
        self._write({"submit": key, "job": [str(log), *command]})
        return RayTrial(self, key, name)

    def cancel(self, key: str) -> None:
        """Cancel a job, whether it has begun or not."""
        self._write({"cancel": key})

    def find_end(self, key: str) -> tuple[int, str | None] | None:
        """Exit code of a job and what befell it; None until it has ended."""
        self._read_messages(0.0)
        while self._messages:
            message = self._messages.popleft()
            self._ends[message["ended"]] = message["code"], message["reason"]
        return self._ends.get(key)

    def await_message(self, kind: str, seconds: float) -> Any:
        """What the driver writes as `kind`; an error if it fails or takes longer."""
        deadline = time.monotonic() + seconds
        while not self._messages and (left := deadline - time.monotonic()) > 0:
            self._read_messages(left)
        if self._messages:
            message = self._messages.popleft()
            if "error" in message:
                where, todo = str(self.folder), message["todo"]
                raise HeedError(message["error"], where=where, todo=todo)
            return message[kind]
        raise HeedError(
            f"the Ray cluster did not answer within {seconds:.0f} seconds.",
            todo=f"Check it (`ray status`); {self.folder / LOGS / LOG} has what Ray printed.",
        )

    def close(self) -> None:
        """Leave the cluster: Ray ends what was submitted and has not ended."""
        with suppress(BrokenPipeError):
            _pipe(self.driver.stdin).close()
        try:
            self.driver.wait(LEAVE_SECONDS)
        except subprocess.TimeoutExpired:
            self.driver.kill()
            self.driver.wait()
        _pipe(self.driver.stdout).close()

    def _write(self, message: dict[str, Any]) -> None:
        try:
            _pipe(self.driver.stdin).write(json.dumps(message).encode() + b"\n")
        except BrokenPipeError:
            raise self._lost() from None

    def _read_messages(self, seconds: float) -> None:
        """Read what the driver writes within so many seconds, and return at once after that."""
        output = _pipe(self.driver.stdout)
        readable, _, _ = select.select([output], [], [], seconds)
        if not readable:
            return
        data = os.read(output.fileno(), 1 << 20)
        if not data:
            raise self._lost()
        *lines, self._unread = (self._unread + data).split(b"\n")
        self._messages.extend(json.loads(line) for line in lines)

    def _lost(self) -> HeedError:
        """The error for a driver that has ended, as it does when the cluster is gone."""
        return HeedError(
            "the connection to the Ray cluster was lost; every finished trial is kept.",
            where=str(self.folder),
            todo=f"Give the same command again; {LOGS}/{LOG} has what Ray printed.",
        )


class RayTrial:
    """A trial that Ray carries out somewhere."""

    def __init__(self, cluster: RayCluster, key: str, name: str) -> None:
        self.cluster, self.key, self.name = cluster, key, name
        self.reason: str | None = None
        """What befell it, where its worker or machine was lost."""
        self._is_canceled = False

    def poll(self) -> int | None:
        """Its exit code, or None while it runs; below 0 it was killed, or its machine was lost."""
        end = self.cluster.find_end(self.key)
        if end is None or (self._is_canceled and self._is_alive()):
            return None
        code, self.reason = end
        return 128 - code if code > 128 and code - 128 not in STOP_SIGNALS else code

    def _is_alive(self) -> bool:
        """Whether any process on any machine carries out the trial: it holds the trial's lock."""
        with lock_file(lock_path(self.cluster.folder, self.name)) as locked:
            return locked is False

    def stop(self) -> None:
        """Cancel it: without its worker the trial saves a checkpoint and ends."""
        if not self._is_canceled:
            self._is_canceled = True
            self.cluster.cancel(self.key)


def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
    """A stream of a process that was launched with pipes."""
    if stream is None:
        raise ValueError("the process has no pipe")
    return stream


# -------------------------------------------------------------------------------- the connection


@contextmanager
def connect_ray(
    folder: Path, address: str | None, resources: TrialResources, device: str
) -> Iterator[RayCluster]:
    """Connect to a Ray cluster, or start Ray on this machine where no address is known.

    Every machine is checked before anything is submitted. The connection ends with the block.
    """
    folder, address = folder.resolve(), find_address(address)
    with _holding_marker(folder) as mark:
        settings = {
            "study": str(folder),
            "mark": mark,
            "address": address,
            "directory": str(Path.cwd()),
            "cpus": resources.cpus,
            "gpus": resources.gpus,
            "device": device,
        }
        cluster = RayCluster(folder, _launch_driver(folder, settings))
        try:
            cluster.await_message("connected", CONNECT_SECONDS)
            cluster.jobs = cluster.await_message("ready", READY_SECONDS)
            yield cluster
        finally:
            cluster.close()


def find_address(address: str | None) -> str | None:
    """The address of the cluster, this one or RAY_ADDRESS; None: Ray is started here.

    Raises an error where Ray is not installed or nothing listens at the address.
    """
    if find_spec("ray") is None:
        what = "`--on ray` needs Ray, which is not installed."
        raise HeedError(what, todo=install_hint("ray"))
    address = address or os.environ.get("RAY_ADDRESS") or None
    if address is not None:
        require_listener(address)
    return address


def require_listener(address: str) -> None:
    """Raise an error unless something listens at this address, HOST:PORT.

    Ray itself would wait for minutes.
    """
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise HeedError(
            f"{address!r} is no address of a Ray cluster.",
            todo="Give HOST:PORT, as `ray start --head` prints it.",
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), TCP_SECONDS).close()
    except OSError as error:
        raise HeedError(
            f"the Ray cluster at {address} cannot be reached: {error.strerror or error}.",
            todo="Check the address and that Ray runs there (`ray status`).",
        ) from None


def _launch_driver(folder: Path, settings: dict[str, Any]) -> subprocess.Popen[bytes]:
    """Launch the driver in a session of its own: Ctrl-C on the terminal reaches the runner."""
    make_folder(folder / LOGS)
    with (folder / LOGS / LOG).open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "heed.study.ray_driver", json.dumps(settings)],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env={"RAY_USAGE_STATS_ENABLED": "0", **os.environ},  # heed sends nothing anywhere
            start_new_session=True,
        )


@contextmanager
def _holding_marker(folder: Path) -> Iterator[str]:
    """Write a random mark into the study's folder and hold its lock: machines look for both."""
    marker, mark = folder / MARKER, token_hex(8)
    write_atomic(marker, mark)
    try:
        with lock_file(marker):
            yield mark
    finally:
        marker.unlink(missing_ok=True)
