"""The runner of a study: it keeps trial processes going until nothing is left to do.

There is one runner for a study's folder, which holds its lock. All it knows is on disk, so that the
same command goes on after it was killed. Trials run in processes of their own, on this machine or
elsewhere: an executor launches their command lines.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from heed.errors import HeedError, StoppedError
from heed.files import delete_drafts, make_folder
from heed.study.executors import Executor, Handle
from heed.study.kept_weights import delete_weights
from heed.study.plan import mark_added, plan_trials
from heed.study.status_table import describe_trial, find_spent_budget
from heed.study.study_config import StudyConfig
from heed.study.study_folder import Additions, read_additions
from heed.study.trial_process import NO_SPACE
from heed.study.trial_records import restore_state, verify_records
from heed.study.trials import (
    LOGS,
    RECORDS,
    RUNS,
    TRIALS,
    Trial,
    TrialState,
    read_state,
    read_trials,
    write_state,
)
from heed.train.interrupt import Interrupt

POLL_SECONDS = 0.1
ATTEMPTS = 3
"""How often a trial is launched by one command, where its process is killed from outside."""


class View(Protocol):
    """Shows how far a study is."""

    def update(
        self, states: Sequence[TrialState], running: Sequence[str], event: str | None = None
    ) -> None:
        """Show the states of all trials, which of them run, and what has just happened."""


class NoView:
    """Shows nothing."""

    def update(
        self, states: Sequence[TrialState], running: Sequence[str], event: str | None = None
    ) -> None:
        """Show nothing."""


@dataclass(frozen=True)
class RunOptions:
    """How a study is carried out on this machine. Nothing here changes a result."""

    jobs: int | None = 1
    """Trials at a time; None: as many as there is room for."""
    device: str = "auto"
    minutes: float | None = None
    """Minutes after which this command stops; the same one goes on."""
    reuse: Sequence[Path] = ()
    """Folders of finished runs that need not be trained again."""
    plugins: Sequence[Path] = ()
    view: View = field(default_factory=NoView)


def carry_out_study(
    folder: Path, config: StudyConfig, executor: Executor, options: RunOptions
) -> list[TrialState]:
    """Carry out what is left of a study; returns the states of its trials.

    Call it within `study_lock`. Raises a `StoppedError` when stopped by a signal, and a `HeedError`
    where the disk is full: the same command goes on in both cases. A lost or damaged record is an
    error before anything is trained: a search prunes by records, and reports read nothing else.
    """
    verify_records(folder, read_trials(folder))
    for name in (TRIALS, RECORDS, RUNS, LOGS):
        make_folder(folder / name)
        delete_drafts(folder / name)
    additions = read_additions(folder)
    with Interrupt() as interrupt:
        runner = StudyRunner(folder, config, executor, options, interrupt)
        while trials := next_trials(config, runner.list_states(), additions):
            if not runner.run_trials(trials):
                break
        runner.end()
    return runner.list_states()


def next_trials(
    config: StudyConfig, states: Sequence[TrialState], additions: Additions
) -> list[Trial]:
    """The trials that can be carried out now; none where the study is complete."""
    if config.search is None:
        trials = plan_trials(config, additions)
    else:
        from heed.study.search.propose import propose

        trials = [mark_added(trial, additions) for trial in propose(config, states)]
    ended = {state.trial.name for state in states if state.has_ended}
    return [trial for trial in trials if trial.name not in ended]


@dataclass
class LaunchedTrial:
    """A trial whose process runs, and how often this command launched it."""

    trial: Trial
    handle: Handle
    attempts: int = 1


class StudyRunner:
    """Carries out trials of one study, and knows the states of all."""

    def __init__(
        self,
        folder: Path,
        config: StudyConfig,
        executor: Executor,
        options: RunOptions,
        interrupt: Interrupt,
    ) -> None:
        self.folder, self.config, self.executor = folder, config, executor
        self.options, self.interrupt = options, interrupt
        self.states = {state.trial.name: state for state in read_trials(folder)}
        self.running: list[LaunchedTrial] = []
        self.deadline = math.inf
        if options.minutes is not None:
            self.deadline = time.monotonic() + 60 * options.minutes
        self.retry_reason: str | None = None
        """Why a trial failed that the next command tries again."""

    def list_states(self) -> list[TrialState]:
        """The states of all trials, in the order of their numbers."""
        return sorted(self.states.values(), key=lambda state: state.trial.number)

    @property
    def must_stop(self) -> bool:
        """Whether the trials that run are to stop, too."""
        return self.interrupt.requested or time.monotonic() >= self.deadline

    def run_trials(self, trials: Sequence[Trial]) -> bool:
        """Carry out some trials, `jobs` at a time; whether all of them have ended."""
        for trial in trials:
            if trial.name not in self.states:
                self._write(restore_state(self.folder, trial) or TrialState(trial))
        delete_weights(self.folder, self.config, self.list_states())
        waiting = [trial for trial in trials if not self.states[trial.name].has_ended]
        while waiting or self.running:
            if self.must_stop:
                waiting.clear()
                for one in self.running:
                    one.handle.stop()
            while waiting and len(self.running) < (self.options.jobs or self.executor.jobs):
                if not self._may_begin(waiting[0]):
                    waiting.clear()
                    break
                self._launch(waiting.pop(0))
            for one in list(self.running):
                if (code := one.handle.poll()) is not None:
                    self.running.remove(one)
                    self._finish(one, code)
            self._show()
            if self.running:
                time.sleep(POLL_SECONDS)
        return all(self.states[trial.name].has_ended for trial in trials)

    def end(self) -> None:
        """Write what a full disk did not take, and raise the error of a study that was stopped."""
        delete_weights(self.folder, self.config, self.list_states())  # a kill may have come before
        with suppress(OSError):
            for state in self.list_states():
                if state.can_retry:
                    write_state(self.folder, state)
        left = sum(not state.has_ended for state in self.states.values())
        are = "1 trial is" if left == 1 else f"{left} trials are"
        if self.interrupt.requested:
            todo = f"{are} left, and nothing is lost: the same command goes on."
            raise StoppedError("Stopped.", todo=todo, code=self.interrupt.exit_code)
        if self.retry_reason is not None:
            todo = f"{are} left, and nothing else is lost: the same command goes on then."
            raise HeedError(self.retry_reason, todo=todo)

    def _may_begin(self, trial: Trial) -> bool:
        """Whether a trial may begin. One that has begun before goes on, whatever was spent."""
        if self.retry_reason is not None:
            return False
        if self.states[trial.name].started is not None:
            return True
        return find_spent_budget(self.config, self.list_states(), len(self.running)) is None

    def _launch(self, trial: Trial, attempts: int = 1) -> None:
        """Launch the process of a trial."""
        command = [sys.executable, "-m", "heed.study.trial_process"]
        command += [str(self.folder.absolute()), trial.name, "--device", self.options.device]
        for option, paths in (("--reuse", self.options.reuse), ("--plugin", self.options.plugins)):
            command += [part for path in paths for part in (option, str(path.absolute()))]
        handle = self.executor.submit(command, trial.name)
        self.running.append(LaunchedTrial(trial, handle, attempts))

    def _finish(self, launched: LaunchedTrial, code: int) -> None:
        """Take over how a trial's process ended."""
        name = launched.trial.name
        state = self.states[name] = read_state(self.folder, name)
        if state.status in ("running", "waiting", "stopped") and self.must_stop:
            self._write(replace(state, status="stopped"))
            return
        if state.status in ("running", "waiting", "stopped"):
            if (code < 0 or state.status == "stopped") and launched.attempts < ATTEMPTS:
                self._launch(launched.trial, launched.attempts + 1)
                self._show(f"{name}: its process was killed, and is launched again")
                return
            reason = _describe_code(code, launched.attempts, name)
            if launched.handle.reason is not None:
                reason = f"{launched.handle.reason}, {launched.attempts} times."
            state = replace(state, status="failed", reason=reason, ended=time.time())
            self._write(replace(state, can_retry=code == NO_SPACE))
        state = self.states[name]
        if state.can_retry:
            self.retry_reason = f"Trial {name} failed: {state.reason}"
        delete_weights(self.folder, self.config, self.list_states())
        self._show(describe_trial(state, self.config))

    def _write(self, state: TrialState) -> None:
        """Write a state; one of a failed trial is kept in memory where the disk is full."""
        self.states[state.trial.name] = state
        try:
            write_state(self.folder, state)
        except OSError:
            if not state.can_retry:
                raise

    def _show(self, event: str | None = None) -> None:
        running = [one.trial.name for one in self.running]
        self.options.view.update(self.list_states(), running, event)


def _describe_code(code: int, attempts: int, name: str) -> str:
    """Why a process failed that could not write its state."""
    if code == NO_SPACE:
        return "the disk is full. Free some space."
    if code < 0:
        return (
            f"its process was killed by signal {-code}, {attempts} times. Memory may have run out: "
            "use fewer --jobs."
        )
    return f"its process ended with exit code {code}. What it printed is in {LOGS}/{name}.log."
