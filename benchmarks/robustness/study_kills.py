"""Kill a study at random moments: its runner, the process of a trial, or all at once.

    PYTHONPATH=benchmarks python -m robustness.study_kills [--kills N] [--jobs N] [--keep]

The same command is then given again, and may be killed again. What a study leaves must equal what
an unbroken one leaves: trials, scores, records, choices and weights, but for the clock. Two studies
are killed: a grid with seeds, and a search by TPE with pruning, finalists and final trials.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from robustness.forked_command import Result, import_commands, run_command
from robustness.parallel import run_in_parallel
from robustness.trials import Counts, keep_counts, merge_counts, require_success

RECIPE = """
task = "generate"
data = { synthetic = 40, synthetic_test = 12, max_length = 24 }
tokenizer = { kind = "word" }
model = { layers = 1, width = 8, heads = 2, feed_forward = 8 }

[train]
steps = 24
batch_size = 8
lr = 0.01
evaluate_every = 6
checkpoint_every = 6
log_every = 3
precision = "float32"
"""
GRID = """
question = "Which norm?"
recipe = "recipe.toml"
seeds = 2
[grid]
"model.norm" = ["layer", "rms"]
"""
SEARCH = """
question = "How well does this model predict, at its best rate?"
recipe = "recipe.toml"
seeds = 1
[set]
"train.warmup" = 0
"train.schedule" = "constant"
"train.evaluate_every" = 4
[search]
method = "tpe"
trials = 14
round = 4
finalists = 2
finalist_seeds = 2
widen = 1
[search.space]
"train.lr" = { low = 1e-2, high = 1e-1, log = true }
"train.optimizer" = { choices = ["adamw", "adam", "sgd"] }
"train.momentum" = { low = 0.0, high = 0.9, when = { "train.optimizer" = "sgd" } }
"""
STUDIES = {"grid": GRID, "TPE": SEARCH}
CLOCK = (
    *("started", "process_started", "ended", "minutes", "seconds"),
    *("time", "time/unix", "time/tokens_per_second"),
    *("peak_memory", "environment", "checksum"),
)
"""Keys of files whose values depend on the clock or on memory."""
FOLDER = re.compile(r'/[^"]*/out/')
"""The folder of a study in its files: copies lie elsewhere."""
MAX_SECONDS = 1800.0
"""A study that takes longer hangs; on a busy machine one of seconds takes minutes."""
TARGETS = ("runner", "trial", "all")
"""What is killed: the runner alone, the process of a trial, or both and all."""
LAUNCHED_AGAIN = "is launched again"
"""What a runner says of a trial whose process was killed."""


# --------------------------------------------------------------------------------- the command


def study_command(folder: Path) -> list[str]:
    """The command that carries out the study of a folder."""
    study, out = str(folder / "study.toml"), str(folder / "out")
    return ["study", study, "--out", out, "--jobs", "2", "--device", "cpu"]


def run_study(
    folder: Path, prepare: Callable[[], None] | None = None, *, cache: Path | None = None
) -> Result:
    """Give the command of a study; `prepare` is called in its process before it."""

    def start() -> None:
        fork_trials()
        if prepare is not None:
            prepare()

    environment = {"HEED_CACHE": str(cache or folder.parent / "cache")}
    command = study_command(folder)
    return run_command(command, folder, seconds=MAX_SECONDS, environment=environment, prepare=start)


class ForkedTrial:
    """The process of a trial, forked from the runner: torch need not be imported again."""

    def __init__(self, command: Sequence[str]) -> None:
        self.reason: str | None = None
        self.code: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            become_trial(command)

    def poll(self) -> int | None:
        """Its exit code, or None while it runs."""
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if pid else None
        return self.code

    def stop(self) -> None:
        """Ask it to save a checkpoint and to end."""
        if self.code is None:
            os.kill(self.pid, signal.SIGTERM)


def become_trial(command: Sequence[str]) -> None:
    """Carry out a trial as a process launched for it would, and end."""
    code = 70
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.closerange(3, 256)  # the runner's locks above all
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        from heed.study import trial_process

        code = trial_process.main(command[3:])
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def fork_trials() -> None:
    """Let the runner in this process fork its trials, which draw no curves.

    Curves take longer than the training; `robustness.kills` breaks their drawing, too.
    """
    from heed.study.executors import LocalExecutor
    from heed.train import run as train_run

    vars(train_run)["draw_curves"] = lambda run: None

    def submit(self: LocalExecutor, command: list[str], name: str) -> ForkedTrial:
        return ForkedTrial(command)

    LocalExecutor.submit = submit  # type: ignore[method-assign]


# ---------------------------------------------------------------------------------- the kills


def kill_after(seconds: float, target: str, draw: random.Random) -> None:
    """Fork a process that kills this one or its children after so many seconds."""
    runner = os.getpid()
    if os.fork() != 0:
        return
    try:
        os.closerange(0, 256)
        time.sleep(seconds)
        trials = [pid for pid in children_of(runner) if pid != os.getpid()]
        victims = draw.sample(trials, min(1, len(trials))) if target == "trial" else [runner]
        for victim in [*victims, *(trials if target == "all" else [])]:
            with suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
    finally:
        os._exit(0)


def children_of(parent: int) -> list[int]:
    """The processes whose parent is this one."""
    children = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if int(path.read_text().rpartition(")")[2].split()[1]) == parent:
                children.append(int(path.parent.name))
    return children


def kill_study(
    base: Path, folder: Path, expected: dict[str, Any], seconds: float, number: int
) -> Counts:
    """Kill one study at a random moment, one to three times; then let it end."""
    draw, counts = random.Random(number), Counts()
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(base, folder)
    target = TARGETS[number % len(TARGETS)]
    for _ in range(draw.randint(1, 3)):
        moment = draw.uniform(0.0, seconds)
        ended = run_study(folder, partial(kill_after, moment, target, draw))
        counts.numbers["kills"] += ended.code != 0 or LAUNCHED_AGAIN in ended.output
        if ended.code == 0:
            break
    again = run_study(folder)
    counts.add(f"kill {number} ({target})", again, expected, outcome(folder / "out"))
    return counts


# -------------------------------------------------------------------------------- the outcome


def outcome(out: Path) -> dict[str, Any]:
    """What a study's folder holds, without what depends on the clock, memory or processes."""
    content: dict[str, Any] = {}
    for path in sorted(out.rglob("*")):
        name = path.relative_to(out).as_posix()
        if path.is_dir() or name.startswith("logs/") or path.name.endswith(".lock"):
            continue
        if name == "runner.json" or path.suffix in (".png", ".svg"):
            continue
        if path.suffix in (".json", ".jsonl"):
            text = FOLDER.sub("", path.read_text(encoding="utf-8"))
            lines = text.splitlines() if path.suffix == ".jsonl" else [text]
            content[name] = [without_clock(json.loads(line)) for line in lines]
        else:
            content[name] = path.read_bytes()
    return content


def without_clock(value: Any) -> Any:
    """A JSON value without what depends on the clock or on memory."""
    if isinstance(value, dict):
        return {key: without_clock(one) for key, one in value.items() if key not in CLOCK}
    return [without_clock(one) for one in value] if isinstance(value, list) else value


def new_study(folder: Path, text: str) -> Path:
    """A folder with a study file and its recipe."""
    folder.mkdir(parents=True)
    (folder / "recipe.toml").write_text(RECIPE, encoding="utf-8")
    (folder / "study.toml").write_text(text, encoding="utf-8")
    return folder


def require_pruned(out: Path) -> None:
    """Raise an error if a search pruned no trial: then the kills would not try pruning."""
    from heed.study.trials import read_trials

    if all(state.status != "pruned" for state in read_trials(out)):
        raise RuntimeError("the unbroken search pruned no trial")


def kill_share(
    base: Path, expected: dict[str, Any], seconds: float, kills: int, jobs: int, job: int
) -> dict[str, Any]:
    """The counts of one of several processes that share the kills."""
    folder = base.with_name(f"broken{job}")
    counts = [
        kill_study(base, folder, expected, seconds, number).to_json()
        for number in range(job, kills, jobs)
    ]
    return merge_counts(counts).to_json()


def main() -> None:
    """Kill both studies, and save the counts."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=30, help="Studies that are killed, of each.")
    parser.add_argument("--jobs", type=int, default=1, help="Processes that share the work.")
    parser.add_argument("--only", choices=[*STUDIES], help="One study.")
    parser.add_argument("--keep", action="store_true", help="Save the counts in the results.")
    options = parser.parse_args()
    import_commands()
    began, counts = time.monotonic(), dict[str, Counts]()
    with tempfile.TemporaryDirectory() as name:
        for kind, text in STUDIES.items():
            if options.only in (None, kind):
                base = new_study(Path(name) / kind / "base", text)
                unbroken = Path(name) / kind / "unbroken"
                shutil.copytree(base, unbroken)
                ended = run_study(unbroken)
                require_success(ended)
                if kind == "TPE":
                    require_pruned(unbroken / "out")
                expected = outcome(unbroken / "out")
                share = partial(kill_share, base, expected, ended.seconds, options.kills)
                shares = run_in_parallel(options.jobs, partial(share, options.jobs))
                counts[kind] = merge_counts(shares)
    if options.keep:
        kills = sum(one.numbers["kills"] for one in counts.values())
        title = f"Studies killed {kills} times at random moments"
        keep_counts("robustness-study-kills", title, counts, time.monotonic() - began)
    for kind, one in counts.items():
        print(kind, dict(one.numbers), *one.examples, sep="\n", flush=True)
    sys.exit(0 if all(one.is_harmless for one in counts.values()) else 1)


if __name__ == "__main__":
    main()
