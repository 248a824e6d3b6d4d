"""Cut the power after every single file operation of a training run, and resume it.

    PYTHONPATH=benchmarks python -m robustness.power_cuts [--every N]

The operations of one run are recorded. After each of them, and for each `Loss`, the folder is built
as a disk would hold it after a power cut: without what was not flushed. The run is resumed there
(or started, where none is left). What it leaves must equal what the unbroken run left.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from robustness.disk import Disk, Loss, Recording, hash_files, write_files
from robustness.forked_command import import_commands
from robustness.parallel import run_in_parallel
from robustness.trials import (
    Counts,
    Outcome,
    Trial,
    add_options,
    merge_counts,
    new_trial,
    outcome,
    report_counts,
    require_success,
)


class Cut(NamedTuple):
    """A state of the disk after a power cut."""

    where: str
    loss: Loss
    files: dict[str, bytes | None]


def record_cuts(unbroken: Trial, folder: Path, *, every: int, first: int) -> list[Cut]:
    """Train, and list what the disk holds after a cut at each operation, or each `every`-th.

    A state of the disk that occurs again is left out.
    """
    recording = Recording(folder)
    watch = recording.watch(unbroken.watched)
    require_success(unbroken.heed(unbroken.train(), prepare=watch.install))
    disk, states, cuts = Disk(unbroken.watched), set[str](), []
    for number, operation in enumerate(recording.replay(disk)):
        if number < first or (number - first) % every:
            continue
        for loss in Loss:
            files = disk.files_after_cut(loss, seed=number)
            if (state := hash_files(files)) not in states:
                states.add(state)
                cuts.append(Cut(f"after operation {number} ({operation})", loss, files))
    return cuts


def resume_after_cuts(
    cuts: Sequence[Cut], folder: Path, expected: Outcome, jobs: int, job: int
) -> dict[str, Any]:
    """Resume after the cuts of one of several processes; its counts for each loss."""
    counts = {loss.value: Counts() for loss in Loss}
    for cut in cuts[job::jobs]:
        trial = new_trial(folder / str(job))
        write_files(trial.watched, cut.files)
        ended = trial.heed(trial.continue_training())
        counts[cut.loss.value].add(cut.where, ended, expected, outcome(trial.run))
    return {loss: one.to_json() for loss, one in counts.items()}


def cut_everywhere(folder: Path, *, every: int, first: int, jobs: int) -> dict[str, Counts]:
    """Cut and resume; the counts for each loss."""
    unbroken = new_trial(folder / "unbroken")
    cuts = record_cuts(unbroken, folder / "recording", every=every, first=first)
    expected = outcome(unbroken.run)
    work = partial(resume_after_cuts, cuts, folder / "broken", expected, jobs)
    shares = run_in_parallel(jobs, work)
    return {loss.value: merge_counts(share[loss.value] for share in shares) for loss in Loss}


def main() -> None:
    """Cut everywhere, and save the counts."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    add_options(parser, "Cut after")
    options = parser.parse_args()
    import_commands()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        counts = cut_everywhere(
            Path(name), every=options.every, first=options.first, jobs=options.jobs
        )
    report_counts("robustness-power-cuts", "Power cuts after", counts, options, began)


if __name__ == "__main__":
    main()
