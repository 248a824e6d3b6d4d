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
from pathlib import Path

from robustness.commands import import_once
from robustness.disk import Disk, Loss, Recording, hash_files, write_files
from robustness.trials import Counts, keep_counts, new_trial, outcome, require_success


def cut_everywhere(folder: Path, *, every: int = 1, first: int = 0) -> dict[str, Counts]:
    """Cut after each operation from `first` on, or each `every`-th; the counts for each loss.

    A state of the disk that occurs again is tried once.
    """
    unbroken = new_trial(folder / "unbroken")
    recording = Recording(folder / "recording")
    watch = recording.watch(unbroken.watched)
    require_success(unbroken.heed(unbroken.train(), prepare=watch.install))
    expected = outcome(unbroken.run)
    counts = {loss.value: Counts() for loss in Loss}
    disk, tried = Disk(unbroken.watched), set[str]()
    for number, operation in enumerate(recording.replay(disk)):
        if number < first or (number - first) % every:
            continue
        for loss in Loss:
            files = disk.files_after_cut(loss, seed=number)
            if (state := hash_files(files)) in tried:
                continue
            tried.add(state)
            trial = new_trial(folder / "broken")
            write_files(trial.watched, files)
            ended = trial.heed(trial.continue_training())
            where = f"after operation {number} ({operation})"
            counts[loss.value].add(where, ended, expected, outcome(trial.run))
    return counts


def main() -> None:
    """Cut everywhere, and save the counts."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--every", type=int, default=1, help="Cut after every N-th operation.")
    parser.add_argument("--first", type=int, default=0, help="The first operation to cut after.")
    parser.add_argument("--keep", action="store_true", help="Save the counts in the results.")
    options = parser.parse_args()
    import_once()
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        counts = cut_everywhere(Path(name), every=options.every, first=options.first)
    if options.keep:
        title = "Power cuts after every file operation"
        keep_counts("robustness-power-cuts", title, counts, time.monotonic() - begin)
    for loss, one in counts.items():
        print(loss, dict(one.numbers), *one.examples, sep="\n", flush=True)
    raise SystemExit(0 if all(one.is_harmless for one in counts.values()) else 1)


if __name__ == "__main__":
    main()
