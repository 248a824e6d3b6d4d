"""The process of one trial: train or resume its run, score it, write its record and its state.

    python -m heed.study.trial_process STUDY TRIAL [--device D] [--threads N] [--reuse FOLDER]…

Each part can be repeated: a trial that was killed anywhere ends with the same weights, scores and
record as an unbroken one. The process holds a lock, so that a trial is never carried out twice at
once. It ends when the process that launched it does, after a checkpoint.
"""

from __future__ import annotations

import argparse
import os
import platform
import signal
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heed.errors import HeedError, StoppedError
from heed.files import DISK_FULL, describe_os_error, lock_file, make_folder
from heed.runs.history import is_number
from heed.study.pretrained_run import resolve_changes, train_pretrained_run
from heed.study.study_config import PRETRAINED
from heed.study.study_file import StudyConfig
from heed.study.study_folder import read_study_folder
from heed.study.trial_records import write_trial_record
from heed.study.trials import RUNS, Trial, TrialState, lock_path, read_state, write_state

if TYPE_CHECKING:
    from heed.config import Recipe
    from heed.evaluate.job import Options
    from heed.train.recorder import EvaluationHook

FAILED, CRASHED, NO_SPACE = 2, 1, 74
"""Exit codes: an error in a sentence, a bug, and a disk too full to write the trial's state."""
WATCH_SECONDS = 0.5
"""Seconds between two looks at whether the launching process lives."""


@dataclass(frozen=True)
class TrialOptions:
    """How a trial is carried out on this machine."""

    device: str = "auto"
    threads: int | None = None
    """CPU threads; by default those of the study."""
    reuse: Sequence[Path] = ()
    """Folders in which a finished run of the same recipe and text may lie."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out the trial that the command line names; returns the exit code."""
    parser = argparse.ArgumentParser(prog="heed.study.trial_process", description=__doc__)
    parser.add_argument("study", type=Path)
    parser.add_argument("trial")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--reuse", type=Path, action="append", default=[])
    parser.add_argument("--plugin", type=Path, action="append", default=[])
    options = parser.parse_args(arguments)
    _end_with_parent(os.getppid())
    from heed.train import precompile

    precompile.start_early(options.device)  # Before torch is imported, as `heed train` does.
    if options.plugin:
        from heed.plugins import load_plugins

        load_plugins(options.plugin)
    return run_trial(
        options.study,
        options.trial,
        TrialOptions(options.device, options.threads, options.reuse),
    )


def _end_with_parent(parent: int) -> None:
    """Send SIGTERM to this process once its parent is gone: training saves a checkpoint then."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(WATCH_SECONDS)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def run_trial(folder: Path, name: str, options: TrialOptions) -> int:
    """Carry out a trial unless it has ended; returns the exit code.

    Where another process carries it out, wait for that one first.
    """
    with lock_file(lock_path(folder, name), wait=True):
        state, config = read_state(folder, name), read_study_folder(folder)
        if state.has_ended:
            return 0
        clock = TrialClock(folder, state)
        try:
            state = replace(clock.begin(state), machine=_describe_machine(), run=f"{RUNS}/{name}")
            write_state(folder, state)
            state = _carry_out(folder, config, state, options)
            state = clock.end(state, state.status, state.reason)
            write_trial_record(folder, state)
        except StoppedError as stopped:
            print(stopped, flush=True)
            write_state(folder, clock.end(state, "stopped", stopped.what))
            return stopped.code
        except Exception as error:
            return _record_failure(folder, clock, state, error)
        write_state(folder, state)
        return 0


class TrialClock:
    """The time of a trial, over all processes that carried it out."""

    def __init__(self, folder: Path, state: TrialState) -> None:
        self.before = (state.minutes or 0.0) + _lost_minutes(folder, state)
        self.began = time.monotonic()

    def begin(self, state: TrialState) -> TrialState:
        now = round(time.time(), 3)
        return replace(
            state,
            status="running",
            reason=None,
            can_retry=False,
            started=state.started or now,
            minutes=round(self.before, 4) or None,
            process_started=now,
        )

    def end(self, state: TrialState, status: Any, reason: str | None) -> TrialState:
        ended = round(time.time(), 3)
        minutes = round(self.before + (time.monotonic() - self.began) / 60, 4)
        return replace(state, status=status, reason=reason, ended=ended, minutes=minutes)


def _lost_minutes(folder: Path, state: TrialState) -> float:
    """Minutes of a process that was killed: from its start to its run's last measurement."""
    began = state.process_started
    if began is None or (state.ended is not None and state.ended >= began):
        return 0.0  # The last process wrote its own time.
    from heed.runs.run import Run

    try:
        lines = Run(folder / RUNS / state.trial.name).metrics()
    except HeedError:  # Training says what is wrong with it.
        return 0.0
    times = [line.get("time") for line in lines]
    moments = [one.get("unix") for one in times if isinstance(one, dict)]
    last = max((one for one in moments if is_number(one)), default=0.0)
    return max(0.0, last - began) / 60


def _record_failure(folder: Path, clock: TrialClock, state: TrialState, error: Exception) -> int:
    """Write why a trial failed; on a full disk not even that may be possible."""
    is_full = getattr(error, "errno", None) in DISK_FULL or "the disk is full" in str(error)
    message: Exception | None = error
    if isinstance(error, OSError):
        message = describe_os_error(error, where=str(folder)) or error
    reason = str(message).replace(f"{folder.absolute()}/", "")  # a report tells it elsewhere
    if not isinstance(message, HeedError):
        reason = f"{type(error).__name__}: {error} (the traceback is in its log)"
    try:
        if not isinstance(message, HeedError):
            traceback.print_exc()
        print(f"heed: {reason}", file=sys.stderr, flush=True)
        sys.stdout.flush()
    except OSError:  # its log is on the full disk, too
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
    try:
        write_state(folder, replace(clock.end(state, "failed", reason), can_retry=is_full))
    except OSError:
        return NO_SPACE
    return FAILED if isinstance(message, HeedError) else CRASHED


def _carry_out(
    folder: Path, config: StudyConfig, state: TrialState, options: TrialOptions
) -> TrialState:
    """Train and score a trial; returns its state, finished or pruned."""
    from heed.runs.run import Run
    from heed.terminal import PlainConsole
    from heed.train.resolve import set_threads

    set_threads(options.threads or config.threads)
    trial, run = state.trial, folder / RUNS / state.trial.name
    console = PlainConsole()
    try:
        reused = _train(folder, config, trial, options, console)
    except StoppedError as stopped:
        if not _is_pruned(stopped):
            raise
        console.print(str(stopped))
        return _measure(replace(state, status="pruned", reason=str(stopped)), run)
    scores = {
        name: _score(run, name, config.metric, options.device, console)
        for name in sets_to_score(config, trial.stage, Run(run).recipe())
    }
    state = _measure(replace(state, status="finished", scores=scores, reused=reused), run)
    return replace(state, dev=scores.get("dev", {}).get(config.metric or ""))


# ------------------------------------------------------------------------------------ training


def resolve_trial(folder: Path, config: StudyConfig, trial: Trial) -> Recipe:
    """The recipe that a trial trains, from the study's own copy."""
    return resolve_changes(folder, config, trial.recipe, trial.changes, trial.seed, config.texts)


def _train(
    folder: Path, config: StudyConfig, trial: Trial, options: TrialOptions, console: Any
) -> str | None:
    """Train a trial's run to its end, or take one that exists; returns where that lies."""
    from heed.runs.run import Run
    from heed.train import precompile
    from heed.train import run as train_run

    run = Run(folder / RUNS / trial.name)
    hook = _after_evaluation(folder, config, trial)
    if run.recipe_path.exists():
        train_run.resume(run.folder, device=options.device, console=console, after_evaluation=hook)
        return None
    if trial.changes.get("init.from") == PRETRAINED:
        train_pretrained_run(folder, config, options.device, console)
    recipe = resolve_trial(folder, config, trial)
    if options.reuse:
        from heed.study.run_reuse import copy_run, find_finished_run

        finished = find_finished_run(recipe, options.reuse)
        if finished is not None:
            console.print(f"{finished.folder} has the same recipe and text: it is taken.")
            copy_run(finished, run.folder)
            return str(finished.folder)
    precompile.start_early(options.device, recipe)
    make_folder(run.folder.parent)
    train_run.start(
        recipe, run.folder, device=options.device, console=console, after_evaluation=hook
    )
    return None


def _after_evaluation(folder: Path, config: StudyConfig, trial: Trial) -> EvaluationHook | None:
    """What follows each evaluation in training: pruning, in a search."""
    if config.search is None:
        return None
    from heed.study.search.pruning import build_hook

    return build_hook(folder, config, trial, folder / RUNS / trial.name)


def _is_pruned(stopped: StoppedError) -> bool:
    from heed.study.search.pruning import PrunedError

    return isinstance(stopped, PrunedError)


# ------------------------------------------------------------------------------------- scoring


def sets_to_score(config: StudyConfig, stage: str, recipe: Recipe) -> list[str]:
    """The sets that a trial is scored on: dev, and in the last stage those of the study."""
    later = [name for name in config.sets if name != "dev"] if stage == "final" else []
    return [*(["dev"] if recipe.data.has_dev else []), *later]


def scoring_options(task: str, name: str, metric: str | None) -> Options:
    """How a trial is evaluated on a set."""
    from heed.evaluate.job import Options

    metrics = ("bleu", "chrf", *(["ter"] if metric == "ter" else []))
    return Options(name, metrics=metrics if task == "translate" else (), resamples=0)


def _score(
    folder: Path, name: str, metric: str | None, device: str, console: Any
) -> dict[str, float]:
    """Every metric of a run on a set, from its stored result if it has one for these weights."""
    from heed.evaluate.evaluate_run import evaluate_run
    from heed.metrics.item_metrics import item_metrics
    from heed.runs.best_weights import describe_weights
    from heed.runs.item_counts import read_items
    from heed.runs.results_file import read_results
    from heed.runs.run import Run

    run = Run.open(folder)
    recipe = run.recipe()
    options = scoring_options(recipe.task, name, metric)
    result = read_results(folder).get(name)
    if (
        result is None
        or result["checkpoint"] != describe_weights(run, recipe)
        or not all(one in result for one in options.metrics)
    ):
        result = evaluate_run(folder, options, device=device, notify=console.print)
    items = read_items(folder, result["split"])
    if items is not None:
        return {one: value.value for one, value in item_metrics(items).items()}
    scores = {one: result[one] for one in ("loss", "perplexity") if one in result}
    return scores | {"accuracy": 100 * result["accuracy"]}


def _measure(state: TrialState, folder: Path) -> TrialState:
    """The state with what was measured of the run: tokens, steps, parameters, memory."""
    import torch

    from heed.device import peak_memory
    from heed.runs.index import count_parameters
    from heed.runs.run import Run

    run = Run(folder)
    rows = run.history
    device = torch.device("cuda" if torch.cuda.is_initialized() else "cpu")
    return replace(
        state,
        tokens=rows[-1]["tokens"] if rows else None,
        steps=rows[-1]["step"] if rows else None,
        parameters=count_parameters(run),
        peak_memory=max(peak_memory(device) or 0, state.peak_memory or 0),
    )


def _describe_machine() -> str:
    """The hardware of this process, without the name of the machine."""
    import torch

    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return f"{platform.machine()}, {os.cpu_count()} cores"


if __name__ == "__main__":
    sys.exit(main())
