"""Tiny studies for tests, whose trials are forked: they need not import torch again."""

from __future__ import annotations

import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib.pyplot  # noqa: F401 - loaded once, before trials are forked
import torch._dynamo  # noqa: F401 - torch's optimizers import it

import heed.evaluate.evaluate_run
import heed.train.run  # noqa: F401
from heed.study import trial_process
from heed.study.runner import RunOptions
from heed.study.study_file import StudyConfig, StudyFlags, declare_study
from heed.study.trials import TrialState

RECIPE = """
task = "generate"
[data]
synthetic = 60
synthetic_test = 20
max_length = 32
[tokenizer]
kind = "word"
[model]
layers = 1
width = 16
heads = 2
feed_forward = 16
position = "rope"
dropout = 0.1
[train]
steps = 12
batch_size = 8
lr = 0.01
evaluate_every = 4
checkpoint_every = 4
log_every = 2
precision = "float32"
"""


def write_recipe(folder: Path) -> Path:
    path = folder / "tiny.toml"
    path.write_text(RECIPE, encoding="utf-8")
    return path


def tiny_study(folder: Path, *changes: str, seeds: str = "1", **values: Any) -> StudyConfig:
    """A study of two systems, both quick to train."""
    vary = ["model.norm=layer,rms"]
    config = declare_study(write_recipe(folder), StudyFlags(vary, seeds, changes))
    return config.model_copy(update=values)


def fork(function: Callable[[], int]) -> int:
    """Call a function in a forked process that prints nothing; returns its process id."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads of torch, which wait
        pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        os.closerange(3, 256)  # locks of the parent, which a new program would not have
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115 - not pytest's
        code = function()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


class ForkHandle:
    """A forked trial."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.code: int | None = None
        self.reason: str | None = None

    def poll(self) -> int | None:
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if pid else None
        return self.code

    def stop(self) -> None:
        if self.code is None:
            os.kill(self.pid, signal.SIGTERM)


class ForkExecutor:
    """Carries out the command line of a trial in a forked process."""

    jobs = 2

    def __init__(self) -> None:
        self.launched: list[tuple[str, int]] = []

    def submit(self, command: list[str], name: str) -> ForkHandle:
        assert command[:3] == [sys.executable, "-m", "heed.study.trial_process"]
        pid = fork(lambda: trial_process.main(command[3:]))
        self.launched.append((name, pid))
        return ForkHandle(pid)


def on_cpu(jobs: int = 2, **options: Any) -> RunOptions:
    return RunOptions(jobs, "cpu", **options)


def outcome_of(folder: Path, states: list[TrialState]) -> dict[str, Any]:
    """What a study came to, the clock apart: scores, and the bytes of all weights."""
    return {
        state.trial.name: (
            state.trial,
            state.status,
            state.dev,
            state.scores,
            state.tokens,
            state.steps,
            weights_of(folder, state),
        )
        for state in states
    }


def weights_of(folder: Path, state: TrialState) -> bytes | None:
    path = folder / (state.run or "") / "model.safetensors"
    return path.read_bytes() if path.exists() else None
