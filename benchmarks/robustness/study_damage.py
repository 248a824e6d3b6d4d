"""A hostile machine for studies: damaged files, full and read-only disks, two runners, clocks.

    PYTHONPATH=benchmarks python -m robustness.study_damage [--flips N] [--only SCENE] [--keep]

A study must end in one sentence with exit code 2, or go on to what an undisturbed one leaves. After
the cause is gone the same command must get there. A traceback, and another result without a word,
are faults. The scenes of the disks need Linux and the right to mount (root).
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from robustness.bit_flips import damages
from robustness.forked_command import Result, import_commands, run_command
from robustness.study_kills import (
    GRID,
    new_study,
    outcome,
    run_study,
)
from robustness.trials import Counts, describe_differences, keep_counts, require_success

DAMAGED = ("study.toml", "additions.jsonl", "trials/*.json", "records/*.json", "recipes/*.toml")
"""The files of a study's folder that its commands read."""
DISK_BYTES = 64 << 20
FULL_TRIAL = "layer-seed1"
"""The trial in which the disk becomes full: others have ended, and others wait."""
DAY = 86400.0


class Scene:
    """A study that an undisturbed command has carried out, and the counts of what befell others."""

    def __init__(self, place: Path) -> None:
        self.place, self.counts = place, Counts()
        self.base = new_study(place / "base", GRID)
        self.whole = self.copy("whole")
        require_success(self.run(self.whole))
        self.expected = outcome(self.whole / "out")

    def copy(self, name: str, of: Path | None = None) -> Path:
        """A fresh copy of the study before anything was trained, or of another folder."""
        folder = self.place / name
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(of or self.base, folder)
        return folder

    def run(self, folder: Path, prepare: Callable[[], None] | None = None) -> Result:
        """Give the command of a study, with the cache of all studies of the scene."""
        return run_study(folder, prepare, cache=self.place / "cache")

    def compare(self, folder: Path) -> Result:
        """Compare the systems of a study."""
        environment = {"HEED_CACHE": str(self.place / "cache")}
        command = ["compare", str(folder / "out")]
        return run_command(command, folder, seconds=120.0, environment=environment)

    def require_sentence(self, what: str, ended: Result, *words: str) -> None:
        """Count a fault unless a command ended in one sentence with all of these words."""
        missing = [word for word in words if word not in ended.output]
        is_sentence = ended.outcome == "sentence" and not missing
        self._count(what, ended, [] if is_sentence else [f"no sentence with {missing}"])

    def require_same(self, what: str, ended: Result, folder: Path) -> None:
        """Count a fault unless a command led to what an undisturbed one leaves."""
        differences = describe_differences(self.expected, outcome(folder / "out"))
        self._count(what, ended, differences if ended.code == 0 else [f"exit {ended.code}"])

    def _count(self, what: str, ended: Result, problems: Sequence[str]) -> None:
        self.counts.numbers["breaks"] += 1
        if ended.has_traceback:
            self.counts.numbers["tracebacks"] += 1
        elif problems:
            kind = "silent differences" if ended.code == 0 else "refusals"
            self.counts.numbers[kind] += 1
        if ended.has_traceback or problems:
            last = (ended.err.strip() or ended.out.strip() or "nothing").splitlines()[-1]
            problem = "; ".join(problems)
            self.counts.examples.append(f"{what}: exit {ended.code}, {problem} | {last[:300]}")


# --------------------------------------------------------------------------------- the scenes


def damage_files(scene: Scene, flips: int) -> None:
    """Flip bits, shorten and delete every file that commands read, then give the command again.

    It names the file, or gets to the same result: a trial whose file is gone is carried out again.
    """
    draw = random.Random(0)
    names = [
        path.relative_to(scene.whole / "out")
        for pattern in DAMAGED
        for path in sorted((scene.whole / "out").glob(pattern))
    ]
    for name in names:
        for damage in damages((scene.whole / "out" / name).stat().st_size, flips, draw):
            folder = scene.copy("damaged", scene.whole)
            damage.apply(folder / "out" / name)
            what = f"{name}, {damage.name}"
            is_record = name.parts[0] == "records"  # read by comparisons and reports alone
            ended = scene.compare(folder) if is_record else scene.run(folder)
            if ended.code == 2 or is_record:
                scene.require_sentence(what, ended, name.name)
            else:
                scene.require_same(what, ended, folder)


def fill_disk(scene: Scene, flips: int) -> None:
    """Fill the disk while a trial trains; then free it and give the command again."""
    with mounted(scene.place / "disk") as disk:
        folder = scene.copy("disk/study")
        filler = disk / "filler"

        def fill_when_running() -> None:
            if os.fork() == 0:
                _fill_during(folder / "out" / "runs" / FULL_TRIAL, filler)

        ended = scene.run(folder, fill_when_running)
        scene.require_sentence("full disk", ended, "the disk is full", "the same command goes on")
        _fill(filler)
        ended = scene.run(folder)
        scene.require_sentence("still full", ended, "the disk is full")
        filler.unlink()
        scene.require_same("disk with space again", scene.run(folder), folder)


def _fill_during(run: Path, filler: Path) -> None:
    """Fill the disk once a run has begun to train, then end this process."""
    try:
        os.closerange(0, 256)
        deadline = time.monotonic() + 120
        while not (run / "metrics.jsonl").exists() and time.monotonic() < deadline:
            time.sleep(0.002)
        _fill(filler)
    finally:
        os._exit(0)


def _fill(filler: Path) -> None:
    """Write a file until the disk is full."""
    with suppress(OSError), filler.open("ab", buffering=0) as file:
        for size in (1 << 20, 1 << 12):
            with suppress(OSError):
                while file.write(b"\0" * size):
                    pass


def make_read_only(scene: Scene, flips: int) -> None:
    """A disk that becomes read-only before the study, and one that holds a whole study."""
    with mounted(scene.place / "disk") as disk:
        new, whole = scene.copy("disk/new"), scene.copy("disk/whole", scene.whole)
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)  # noqa: S607  # Linux
        scene.require_sentence("new study on a read-only disk", scene.run(new), "read-only")
        status = ["study", str(whole / "out"), "--status"]
        environment = {"HEED_CACHE": str(scene.place / "cache")}
        ended = run_command(status, scene.place, environment=environment)
        scene.require_same("status on a read-only disk", ended, whole)
    blocked = scene.copy("blocked")
    (blocked / "out").write_text("a file", encoding="utf-8")
    scene.require_sentence("a file in place of the folder", scene.run(blocked), str(blocked))


def run_two(scene: Scene, flips: int) -> None:
    """Give the command again while it runs: the second ends in a sentence, the first goes on."""
    folder = scene.copy("two")
    first = os.fork()
    if first == 0:
        os._exit(scene.run(folder).code)
    deadline = time.monotonic() + 60
    while not any((folder / "out" / "runs").glob("*/recipe.toml")):
        assert time.monotonic() < deadline  # noqa: S101  # no study, nothing to compare
        time.sleep(0.01)
    for second in [scene.run(folder) for _ in range(3)]:
        scene.require_sentence("a second runner", second, "another process is running this study")
    code = os.waitstatus_to_exitcode(os.waitpid(first, 0)[1])
    ended = Result("answer" if code == 0 else "other", code, "", "", 0.0)
    scene.require_same("the first runner", ended, folder)


def move_clock(scene: Scene, flips: int) -> None:
    """Let the clock jump by up to a day, forwards and backwards, at every look at it."""
    real, draw = time.time, random.Random(0)

    def jump() -> None:
        time.time = lambda: real() + draw.uniform(-DAY, DAY)

    folder = scene.copy("clock")
    with (folder / "study.toml").open("a", encoding="utf-8") as file:
        file.write("[budget]\nminutes = 60\n")
    ended = scene.run(folder, jump)
    found = outcome(folder / "out")
    found["study.toml"] = scene.expected["study.toml"]  # it has the budget
    differences = describe_differences(scene.expected, found)
    scene._count("a clock that jumps", ended, differences)


@contextmanager
def mounted(folder: Path) -> Iterator[Path]:
    """A small disk at this folder."""
    folder.mkdir()
    size = f"size={DISK_BYTES}"
    mount = ["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(folder)]
    subprocess.run(mount, check=True)
    try:
        yield folder
    finally:
        unmount = ["umount", "--lazy", str(folder)]
        subprocess.run(unmount, check=True)
        folder.rmdir()


SCENES: dict[str, Callable[[Scene, int], None]] = {
    "damaged files": damage_files,
    "full disk": fill_disk,
    "read-only disk": make_read_only,
    "two runners": run_two,
    "jumping clock": move_clock,
}


def main() -> None:
    """Play all scenes, and save the counts."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--flips", type=int, default=4, help="Bits flipped in each file.")
    parser.add_argument("--only", choices=[*SCENES], action="append", help="One scene.")
    parser.add_argument("--keep", action="store_true", help="Save the counts in the results.")
    options = parser.parse_args()
    import_commands()
    began, counts = time.monotonic(), dict[str, Counts]()
    for name, play in SCENES.items():
        if options.only is None or name in options.only:
            with tempfile.TemporaryDirectory() as place:
                scene = Scene(Path(place))
                play(scene, options.flips)
                counts[name] = scene.counts
                print(
                    name, dict(scene.counts.numbers), *scene.counts.examples, sep="\n", flush=True
                )
    if options.keep:
        title = "A study on a hostile machine"
        keep_counts("robustness-study-damage", title, counts, time.monotonic() - began)
    sys.exit(0 if all(one.is_harmless for one in counts.values()) else 1)


if __name__ == "__main__":
    main()
