"""Kill a training run, an evaluation and an import before every single file operation.

    PYTHONPATH=benchmarks python -m robustness.kills [--every N]

The process kills itself (SIGKILL) before its first operation, its second, and so on; writes are
also killed half-way. The command is then given again (`heed resume`, where there is a run). What it
leaves must equal what an unbroken command leaves: weights, metrics but for the clock, every file.
"""

from __future__ import annotations

import argparse
import signal
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from robustness.file_operations import Watch, kill_at
from robustness.forked_command import import_commands
from robustness.parallel import run_in_parallel
from robustness.trials import (
    Counts,
    Trial,
    add_options,
    exportable_recipe,
    merge_counts,
    new_trial,
    outcome,
    report_counts,
    require_success,
)

Command = Callable[[Trial], list[str]]


def kill_everywhere(
    base: Path,
    folder: Path,
    command: Command,
    command_again: Command,
    *,
    every: int = 1,
    first: int = 0,
) -> Counts:
    """Kill a command before each operation from `first` on, or each `every`-th, until it ends.

    Every trial begins with a copy of `base`.
    """
    unbroken = new_trial(folder / "unbroken", like=base)
    require_success(unbroken.heed(command(unbroken)))
    expected, counts, number = outcome(unbroken.run), Counts(), first
    while True:
        trial = new_trial(folder / "broken", like=base)
        watch = Watch(trial.watched, before=kill_at(number))
        ended = trial.heed(command(trial), prepare=watch.install)
        if ended.code != -signal.SIGKILL:
            require_success(ended)
            return counts
        again = trial.heed(command_again(trial))
        counts.add(f"operation {number}", again, expected, outcome(trial.run))
        number += every


def _new(folder: Path) -> Path:
    """A folder with a recipe."""
    return new_trial(folder).folder


def _trained(folder: Path) -> Path:
    """A folder with a trained run."""
    trial = new_trial(folder)
    require_success(trial.heed(trial.train()))
    return folder


def _exported(folder: Path) -> Path:
    """A folder with a model of Hugging Face transformers."""
    trial, other = new_trial(folder), new_trial(folder.with_name("other"))
    (other.folder / "recipe.toml").write_text(exportable_recipe().toml(), encoding="utf-8")
    require_success(other.heed(other.train()))
    exported = str(trial.folder / "exported")
    require_success(other.heed(["export", str(other.run), exported, "--to", "hf"]))
    return folder


def _import_again(trial: Trial) -> list[str]:
    """The import again, or `heed resume` where the run is there."""
    return trial.continue_training() if trial.run.exists() else trial.import_model()


COMMANDS: dict[str, tuple[Callable[[Path], Path], Command, Command]] = {
    "train": (_new, Trial.train, Trial.continue_training),
    "evaluate": (_trained, Trial.evaluate, Trial.evaluate),
    "import": (_exported, Trial.import_model, _import_again),
}
"""For each command: how to make the folder it begins with, the command, the one after a kill."""


def _kill_share(
    base: Path,
    folder: Path,
    command: Command,
    again: Command,
    every: int,
    first: int,
    jobs: int,
    job: int,
) -> dict[str, Any]:
    """The counts of one of several processes that share the operations."""
    own_first, own_every = first + job * every, jobs * every
    counts = kill_everywhere(
        base, folder / str(job), command, again, every=own_every, first=own_first
    )
    return counts.to_json()


def main() -> None:
    """Kill every command everywhere, and save the counts."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    add_options(parser, "Kill before")
    parser.add_argument("--only", help="One command: train, evaluate or import.")
    options = parser.parse_args()
    import_commands()
    began, counts = time.monotonic(), {}
    with tempfile.TemporaryDirectory() as name:
        for kind, (make_base, command, again) in COMMANDS.items():
            if options.only in (None, kind):
                folder = Path(name) / kind
                base = make_base(folder / "base")
                every, first = options.every, options.first
                kill = partial(_kill_share, base, folder, command, again, every, first)
                shares = run_in_parallel(options.jobs, partial(kill, options.jobs))
                counts[kind] = merge_counts(shares)
    report_counts("robustness-kills", "Kills before", counts, options, began)


if __name__ == "__main__":
    main()
