"""A Ray cluster of three machines on this one: a head that runs no trials, and two workers.

    python ray_machines.py

Prints the address and the process ids of the two workers' raylets as JSON, then waits until its
input ends. Ray is imported in this process alone, so that its threads and warnings stay out of the
tests. `started_cluster` launches it and leaves no process behind.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from killing import FOUND

START_SECONDS, END_SECONDS = 120.0, 20.0


@dataclass(frozen=True)
class RayMachines:
    """A cluster that runs."""

    address: str
    raylets: list[int]
    """Process ids: a raylet is what a machine is to Ray."""
    environment: dict[str, str]
    """The environment of all of its processes, and of commands that use it."""

    def processes(self, text: str) -> dict[int, list[str]]:
        """The command lines of all processes in this environment with this text, by their ids."""
        return {
            number: command
            for number, command in _processes_in(self.environment["RAY_TMPDIR"]).items()
            if any(text in part for part in command)
        }


@contextmanager
def started_cluster() -> Iterator[RayMachines]:
    """Start a cluster, with a home of its own; at the end all of its processes are gone."""
    place = tempfile.mkdtemp(prefix="ray-")  # pytest's folders are too long for names of sockets
    environment = os.environ | {
        "HOME": place,
        "RAY_TMPDIR": place,
        "HEED_CACHE": str(Path(place) / "cache"),
        "RAY_USAGE_STATS_ENABLED": "0",
        "PYTHONPATH": FOUND,
        "OMP_NUM_THREADS": "1",
    }
    with (Path(place) / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, __file__],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
        )
    try:
        with process:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, (Path(place) / "log").read_text(errors="replace")
            yield RayMachines(**json.loads(line), environment=environment)
    finally:
        _end_all(place)
        shutil.rmtree(place)


def _processes_in(place: str) -> dict[int, list[str]]:
    """Command lines of the processes whose environment names this folder, by their ids."""
    commands = {}
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if f"RAY_TMPDIR={place}".encode() in (path / "environ").read_bytes():
                command = (path / "cmdline").read_bytes().decode(errors="replace").split("\0")
                commands[int(path.name)] = command
    commands.pop(os.getpid(), None)
    return commands


def _end_all(place: str) -> None:
    """Kill what is left in this environment, and wait until nothing is."""
    deadline = time.monotonic() + END_SECONDS
    while left := _processes_in(place):
        assert time.monotonic() < deadline, left
        for number in left:
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        time.sleep(0.05)


def main() -> None:
    """Start the cluster, and hold it until the input ends."""
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what Ray prints
    from ray.cluster_utils import Cluster

    small: dict[str, Any] = {"object_store_memory": 80 << 20, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **small})
    nodes = [cluster.add_node(num_cpus=1, wait=False, **small) for _ in range(2)]
    cluster.wait_for_nodes(timeout=START_SECONDS)
    raylets = [node.all_processes["raylet"][0].process.pid for node in nodes]
    print(json.dumps({"address": cluster.address, "raylets": raylets}), file=output, flush=True)
    sys.stdin.read()
    cluster.shutdown()


if __name__ == "__main__":
    main()
