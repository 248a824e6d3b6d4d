"""Trials on a Ray cluster: two workers on this machine, one of which dies in the middle."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from ray_machines import RayMachines, started_cluster
from studying import ForkExecutor, on_cpu, outcome_of, write_recipe

from heed.errors import HeedError
from heed.study import ray_cluster
from heed.study.ray_cluster import RayTrial, TrialResources, connect_ray
from heed.study.runner import carry_out_study
from heed.study.study_file import StudyFlags, declare_study
from heed.study.study_folder import create_study_folder
from heed.study.study_lock import study_lock
from heed.study.trials import LOGS, TRIALS, TrialState, lock_path, read_trials

TRIAL = """
import fcntl, os, signal, sys, time
with open(sys.argv[1], "w") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    print("begin", flush=True)
    if sys.argv[2] == "stubborn":  # it lives on without its worker
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(print("saved", flush=True) or 143))
    parent = os.getppid()
    while not os.path.exists(sys.argv[3]):
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.05)
    print("end", flush=True)
"""
"""Behaves as the process of a trial does: holds a lock, and ends with the process above it.

Else it ends when there is a file.
"""


def wait_until(condition: Callable[[], object], seconds: float = 180.0) -> None:
    """Wait until a condition holds; the test fails if that takes far too long."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.03)


def code_of(trial: RayTrial) -> int:
    """The exit code of a trial, once it has ended."""
    codes: list[int | None] = [None]

    def has_ended() -> bool:
        codes[0] = trial.poll()
        return codes[0] is not None

    wait_until(has_ended)
    assert codes[0] is not None
    return codes[0]


def test_unreachable_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An address that is none, or at which nothing listens: one sentence at once."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
    for wrong in ("head", "ray://head:10001", "head:0", address):
        with (
            pytest.raises(HeedError, match=r"cannot be reached|is no address"),
            connect_ray(tmp_path, wrong, TrialResources(), "cpu"),
        ):
            pass
    monkeypatch.setattr(ray_cluster, "find_spec", lambda name: None)
    with (
        pytest.raises(HeedError, match=r"pip install '\.\[ray\]'"),
        connect_ray(tmp_path, None, TrialResources(), "cpu"),
    ):
        pass
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_address_of_something_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Something listens that is no Ray: an error after a bounded time, where Ray waits on."""
    monkeypatch.setattr(ray_cluster, "CONNECT_SECONDS", 3.0)
    monkeypatch.setattr(ray_cluster, "LEAVE_SECONDS", 0.5)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        address = f"127.0.0.1:{other.getsockname()[1]}"
        with (
            pytest.raises(HeedError, match="did not answer"),
            connect_ray(tmp_path, address, TrialResources(), "cpu"),
        ):
            pass


@pytest.fixture(scope="module")
def machines() -> Iterator[RayMachines]:
    """A cluster with two workers. The tests of this file use it up in their order."""
    with started_cluster() as machines, pytest.MonkeyPatch.context() as patch:
        for name, value in machines.environment.items():
            patch.setenv(name, value)
        yield machines


@pytest.mark.slow
def test_nothing_of_heed_is_pickled() -> None:
    """The remote function is written as a name of the standard library."""
    program = "from ray import cloudpickle; from heed.study.ray_driver import REMOTE_FUNCTION; "
    program += "print(cloudpickle.dumps(REMOTE_FUNCTION))"
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert "subprocess" in answer.stdout
    assert "heed" not in answer.stdout
    assert len(answer.stdout) < 100


@pytest.mark.slow
def test_machines_that_cannot_be_used(
    machines: RayMachines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too few resources anywhere, and a folder that the machines do not see: one sentence."""
    for resources, sentence in (
        (TrialResources(cpus=64), "no machine .* has 64 CPUs and 0 GPUs"),
        (TrialResources(), r"the machine .* does not see this folder.* Name a folder \(--out\)"),
    ):

        @contextmanager
        def another_mark(folder: Path) -> Iterator[str]:
            yield "what this path holds on a disk of the machine's own"

        monkeypatch.setattr(ray_cluster, "_holding_marker", another_mark)
        with (
            pytest.raises(HeedError, match=sentence),
            connect_ray(tmp_path, machines.address, resources, "cpu"),
        ):
            pass


@pytest.mark.slow
def test_commands(machines: RayMachines, tmp_path: Path) -> None:
    """Exit codes come back; a stop saves; a process that lives on keeps the next one waiting."""
    (tmp_path / TRIALS).mkdir()
    end = tmp_path / TRIALS / "end"

    def command(name: str, kind: str) -> list[str]:
        return [sys.executable, "-c", TRIAL, str(lock_path(tmp_path, name)), kind, str(end)]

    def is_running(command: list[str]) -> bool:
        running = machines.processes(str(end)).values()
        return any(words[1] == "-c" and words[2:6] == command[2:] for words in running)

    def log(name: str) -> list[str]:
        path = tmp_path / LOGS / f"{name}.log"
        return path.read_text().split() if path.exists() else []

    with connect_ray(tmp_path, machines.address, TrialResources(), "cpu") as cluster:
        assert cluster.jobs == 2
        programs = ("raise SystemExit(3)", "import os; os.kill(os.getpid(), 9)", "")
        ends = [cluster.submit([sys.executable, "-c", one], "code") for one in programs]
        assert [code_of(end) for end in ends] == [3, -signal.SIGKILL, 0]

        stopped = cluster.submit(command("stopped", "willing"), "stopped")
        stubborn = cluster.submit(command("stubborn", "stubborn"), "stubborn")
        queued = cluster.submit(command("queued", "willing"), "queued")
        wait_until(lambda: log("stopped") and log("stubborn"))
        for trial in (queued, stopped):
            trial.stop()
            assert code_of(trial) != 0
        assert log("stopped") == ["begin", "saved"]
        assert not log("queued")

        # The worker and the supervisor are killed; the process of the trial lives on. A supervisor
        # that ended first would be an exit code to the worker, and one that goes on would act.
        supervisors = machines.processes("heed.study.trial_supervisor")
        for number in [number for number, words in supervisors.items() if "stubborn" in words]:
            parent = int(Path(f"/proc/{number}/stat").read_text().split()[3])
            os.kill(number, signal.SIGSTOP)
            for victim in (parent, number):
                os.kill(victim, signal.SIGKILL)
        assert code_of(stubborn) == -signal.SIGKILL
        assert stubborn.reason is not None
        again = cluster.submit(command("stubborn", "willing"), "stubborn")
        wait_until(lambda: is_running(command("stubborn", "willing")))
        assert log("stubborn") == ["begin"]
        end.touch()
        assert code_of(again) == 0
        assert log("stubborn") == ["begin", "end", "begin", "end"]  # never two at once
    assert not machines.processes("heed.study")
    assert {path.name for path in tmp_path.iterdir()} == {TRIALS, LOGS}


# ------------------------------------------------------------------------------ a whole study

VARY = ("model.position=rope,alibi,none",)
CHANGES = ("train.steps=120", "train.evaluate_every=60", "train.checkpoint_every=15")


def trial_process(machines: RayMachines, name: str, *, other: int = 0) -> int:
    """The process of a trial, once there is one besides the process `other`."""
    numbers: set[int] = set()

    def is_there() -> bool:
        commands = machines.processes("heed.study.trial_process")
        trials = {n for n, words in commands.items() if name in words and words[2] != SUPERVISOR}
        numbers.update(trials - {other})
        return bool(numbers)

    wait_until(is_there)
    return numbers.pop()


SUPERVISOR = "heed.study.trial_supervisor"


def parent_of(number: int) -> int:
    """The process that launched another."""
    return int(Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[1])


def freeze_after_checkpoint(machines: RayMachines, folder: Path, name: str, other: int = 0) -> int:
    """Freeze the process of a trial once it has saved a checkpoint; returns its number."""
    checkpoints = folder / "runs" / name / "checkpoints"
    before = {path.name for path in checkpoints.glob("[!.]*")}
    number = trial_process(machines, name, other=other)
    wait_until(lambda: {path.name for path in checkpoints.glob("[!.]*")} - before)
    os.kill(number, signal.SIGSTOP)
    return number


@pytest.mark.slow
def test_a_worker_dies_in_the_middle_of_a_trial(machines: RayMachines, tmp_path: Path) -> None:
    """The study ends with the trials, scores and weights of one without Ray.

    First a whole machine is killed with its trial. The trial goes on elsewhere, where its worker is
    killed but not its process: the next attempt waits until that one has saved and ended.
    """
    flags = StudyFlags(VARY, "1", CHANGES)
    recipe = write_recipe(tmp_path)
    config = declare_study(recipe, flags)
    local, out = tmp_path / "local", tmp_path / "out"
    with study_lock(local):
        create_study_folder(local, config)
        expected = outcome_of(local, carry_out_study(local, config, ForkExecutor(), on_cpu()))

    command = [sys.executable, "-m", "heed", "study", str(recipe), "--seeds", "1"]
    command += [part for key in VARY for part in ("--vary", key)]
    command += [part for change in CHANGES for part in ("--set", change)]
    command += ["--out", str(out), "--on", "ray", "--address", machines.address, "--device", "cpu"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=-1, stderr=-1, text=True) as runner:
        name = "none-seed0"  # the third: two workers have carried out another one before it
        first = freeze_after_checkpoint(machines, out, name)
        done = {state.trial.name: state for state in read_trials(out) if state.has_ended}
        assert done
        supervisor = parent_of(first)
        worker = parent_of(supervisor)
        raylet = parent_of(worker)
        assert raylet in machines.raylets
        for number in (raylet, worker, supervisor, first):
            os.kill(number, signal.SIGKILL)

        second = freeze_after_checkpoint(machines, out, name, other=first)
        supervisor = parent_of(second)
        for number in (parent_of(supervisor), supervisor):
            os.kill(number, signal.SIGKILL)
        trial_process(machines, name, other=second)  # the next attempt is there
        lines = metrics_of(out, name)
        time.sleep(1.0)
        assert metrics_of(out, name) == lines  # it waits
        os.kill(second, signal.SIGCONT)
        output, errors = runner.communicate(timeout=180)
    assert runner.returncode == 0, output + errors
    assert "launched again" in output
    states = read_trials(out)
    assert outcome_of(out, states) == expected
    assert {name: state_of(states, name) for name in done} == done  # finished ones are untouched
    assert not machines.processes("heed.study")


def metrics_of(folder: Path, name: str) -> bytes:
    """What the run of a trial has measured."""
    return (folder / "runs" / name / "metrics.jsonl").read_bytes()


def state_of(states: list[TrialState], name: str) -> TrialState:
    """The state of one trial."""
    return next(state for state in states if state.trial.name == name)
