"""Damage every file of a run and of the cache, one at a time, and see what commands make of it.

    python benchmarks/robustness/bit_flips.py --flips 16

A file has single bits flipped at random places, is cut short, emptied or deleted. Then each command
that reads it runs in a forked child. It must give an error that says what to do, the same answer as
before, or say what is damaged and use the next intact one. Another answer without a word is a
silent difference; that and a traceback are faults.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import partial
from hashlib import sha256
from multiprocessing import get_context
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from common import RESULTS, machine

from heed.runs.environment import describe_environment
from heed.runs.run import Run
from robustness.forked_command import Result, import_commands, run_command

ENDS = ("error", "same answer", "recovered", "next intact one", "SILENT DIFFERENCE", "TRACEBACK")
"""What a damaged file leads to. Recovered: the same answer, after saying what is damaged."""
FAULTS = ENDS[-2:]
UNREAD = (".lock", ".png", ".svg", ".align")
"""Ends of names of files that no command reads."""
SIZES = ("data.synthetic=40", "data.synthetic_test=8", "data.max_length=32", "tokenizer.kind=word")
MODEL = ("model.layers=1", "model.width=8", "model.heads=2")
TRAIN = ("train.steps=8", "train.batch_size=8", "train.evaluate_every=2", "train.log_every=2")
KEEP = ("train.checkpoint_every=2", "train.keep_checkpoints=3", "train.average_checkpoints=2")
TEXT = "The cat sees the old dog."


@dataclass(frozen=True)
class Command:
    """A command, and the files that it reads."""

    name: str
    arguments: tuple[str, ...]
    reads: tuple[str, ...] = ("*",)
    """Patterns of the names of these files."""
    trains: str | None = None
    """The folder of the run that it trains: its weights and metrics are the answer then."""


@dataclass(frozen=True)
class Scene:
    """A run or a cache to damage, and the commands that read it."""

    name: str
    folder: str
    """The files of this folder are damaged."""
    commands: tuple[Command, ...]
    cache: str = "cache"


@dataclass(frozen=True)
class Damage:
    """A change of one file."""

    name: str
    apply: Callable[[Path], None]


@dataclass
class Counts:
    """How often each end was seen, and a sentence for each fault."""

    ends: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)


MODEL_FILES = ("recipe.toml", "tokenizer.json", "environment.json", "model.safetensors")
CLASSIFIER_FILES = (*MODEL_FILES, "labels.json", "calibration.json")
LISTED = ("recipe.toml", "environment.json", "metrics.jsonl")
NO_INTERVALS = ("--bootstrap", "0")
CLASSIFIER, TRANSLATOR, STOPPED, NEW = (
    f"runs/{name}" for name in ("classifier", "translator", "stopped", "new")
)
RUNS = ("runs", "runs", "--json")
SCENES = (
    Scene(
        "finished classifier",
        CLASSIFIER,
        (
            Command(
                "classify", ("classify", CLASSIFIER, TEXT, "--probabilities"), CLASSIFIER_FILES
            ),
            Command(
                "evaluate",
                ("evaluate", CLASSIFIER, *NO_INTERVALS, "--json"),
                (*CLASSIFIER_FILES, "metrics.jsonl", "evaluation.json"),
            ),
            Command("runs", RUNS, LISTED),
            Command("resume", ("resume", CLASSIFIER), MODEL_FILES, trains=CLASSIFIER),
        ),
        cache="cache-classifier",
    ),
    Scene(
        "finished translator",
        TRANSLATOR,
        (
            Command("translate", ("translate", TRANSLATOR, TEXT), MODEL_FILES),
            Command("score", ("score", TRANSLATOR, "--json"), ("test.tsv", "checksums.json")),
        ),
    ),
    Scene(
        "stopped run",
        STOPPED,
        (
            Command(
                "resume",
                ("resume", STOPPED),
                (*LISTED, "tokenizer.json", "state.json", "*.safetensors"),
                trains=STOPPED,
            ),
            Command("translate", ("translate", STOPPED, TEXT), ("best-*",)),
            Command("runs", RUNS, ("metrics.jsonl", "state.json")),
        ),
    ),
    Scene(
        "cache",
        "cache",
        (Command("train", ("train", "recipe.toml", "--run", NEW), trains=NEW),),
    ),
)


# ------------------------------------------------------------------------------------- the files


def make_files(folder: Path) -> None:
    """Train the runs: a classifier and a translator that are finished, and a stopped translator."""
    folder.mkdir(parents=True)
    flags = [flag for change in (*SIZES, *MODEL, *TRAIN, *KEEP) for flag in ("--set", change)]
    for cache, arguments in (
        ("cache-classifier", ("train", "demo-classify", "--run", CLASSIFIER, *flags)),
        ("cache-classifier", ("evaluate", CLASSIFIER, "--calibrate", *NO_INTERVALS)),
        ("cache", ("train", "demo-translate", "--run", TRANSLATOR, *flags)),
        ("cache", ("evaluate", TRANSLATOR, *NO_INTERVALS)),
    ):
        result = heed(arguments, folder, cache)
        if result.code != 0:
            raise RuntimeError(result.err)
    translator, stopped = folder / TRANSLATOR, folder / STOPPED
    shutil.copy(translator / "recipe.toml", folder)
    shutil.copytree(translator, stopped)
    (stopped / "model.safetensors").unlink()
    for path in (stopped / "checkpoints").glob("*-000000008*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def heed(arguments: Sequence[str], folder: Path, cache: str) -> Result:
    """Run a command in this folder, with this cache in it."""
    device = () if arguments[0] in ("runs", "score") else ("--device", "cpu")
    environment = {"HEED_CACHE": str(folder / cache)}
    return run_command([*arguments, *device], folder, seconds=120, environment=environment)


def files_of(folder: Path) -> list[Path]:
    """The files of a folder that commands read."""
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return [path for path in paths if not path.name.endswith(UNREAD)]


def damages(size: int, flips: int, draw: random.Random) -> Iterator[Damage]:
    """The ways to damage a file of this size."""
    bits = draw.sample(range(8 * size), min(flips, 8 * size))
    for bit in sorted(bits):
        yield Damage(f"bit {bit % 8} of byte {bit // 8}", partial(flip, bit=bit))
    lengths = {"one byte less": size - 1, "half of it": size // 2, "empty": 0} if size else {}
    for name, length in lengths.items():
        yield Damage(name, partial(os.truncate, length=length))
    yield Damage("deleted", Path.unlink)


def flip(path: Path, bit: int) -> None:
    """Flip one bit of a file."""
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


# ------------------------------------------------------------------------------------- the ends


def answer(command: Command, result: Result, folder: Path) -> str:
    """What a command gives: its output, or the weights and metrics of the run that it trains."""
    if command.trains is None:
        return result.out
    run = Run(folder / command.trains)
    lines = [{k: v for k, v in line.items() if k != "time"} for line in run.metrics()]
    return f"{sha256(run.weights_path.read_bytes()).hexdigest()} {lines}"


def classify_end(command: Command, file: Path, result: Result, folder: Path, expected: str) -> str:
    """Which of `ENDS` a command came to after this file was damaged."""
    if result.outcome in ("traceback", "signal", "other", "time", "memory"):
        return "TRACEBACK"
    if result.code != 0:
        return "error"
    text = result.out + result.err
    named = any(name in text for name in (file.name, file.parent.name))
    if answer(command, result, folder) == expected:
        return "recovered" if named and command.name != "runs" else "same answer"
    if command.name == "runs":  # a list with the complaint about one of the runs
        broken = [run["broken"] for run in json.loads(result.out)]
        return "error" if any(broken) else "SILENT DIFFERENCE"
    return "next intact one" if named and result.err.strip() else "SILENT DIFFERENCE"


def run_scene(
    scene: Scene,
    base: Path,
    trial: Path,
    *,
    flips: int,
    seed: int = 0,
    chosen: Callable[[Command, Path], bool] | None = None,
) -> Counts:
    """Damage every file of a scene in every way, as far as it is `chosen`."""
    draw, counts = random.Random(f"{seed} {scene.name}"), Counts()
    places = {"runs", scene.cache}
    for command in scene.commands:
        restore(base, trial, places)
        expected = answer(command, heed(command.arguments, trial, scene.cache), trial)
        for path in files_of(base / scene.folder):
            name = path.relative_to(base)
            known = any(fnmatch(path.name, pattern) for pattern in command.reads)
            if not known or (chosen is not None and not chosen(command, name)):
                continue
            for damage in damages(path.stat().st_size, flips, draw):
                restore(base, trial, places)
                damage.apply(trial / name)
                result = heed(command.arguments, trial, scene.cache)
                end = classify_end(command, trial / name, result, trial, expected)
                counts.ends[end] += 1
                if end in FAULTS:
                    last = (result.err.strip() or result.out.strip() or "nothing").splitlines()[-1]
                    text = f"{name}, {damage.name}, {command.name}: {end}: {last[:300]}"
                    counts.faults.append(text)
    return counts


def restore(base: Path, trial: Path, places: Iterable[str]) -> None:
    """Put the files of these folders back as they were made."""
    for name in places:
        shutil.rmtree(trial / name, ignore_errors=True)
        shutil.copytree(base / name, trial / name)


# ------------------------------------------------------------------------------------- the page


def keep(counts: dict[str, Counts], seconds: float) -> None:
    """Save the counts, with the machine, versions, command and commit."""
    environment = describe_environment()
    info = machine("cpu") | {"packages": environment["packages"], "commit": environment["commit"]}
    info["seconds"] = round(seconds)
    figures = {name: dict(one.ends) | {"faults": one.faults} for name, one in counts.items()}
    document = json.dumps({"machine": info, "figures": figures}, indent=1)
    (RESULTS / "robustness-bit-flips.json").write_text(f"{document}\n", encoding="utf-8")
    total = sum((one.ends for one in counts.values()), Counter[str]())
    rows = [[name, *(one.ends[end] for end in ENDS)] for name, one in counts.items()]
    rows.append(["all", *(total[end] for end in ENDS)])
    lines = [
        "# Damaged files",
        "",
        "Each file of a run and of the cache was damaged, and each command that reads it run.",
        "",
        f"| | {' | '.join(ENDS)} |",
        f"|---|{'---:|' * len(ENDS)}",
        *(f"| {' | '.join(map(str, row))} |" for row in rows),
        "",
        *(f"- {key}: {value}" for key, value in info.items()),
        *(f"- fault: {fault}" for one in counts.values() for fault in one.faults),
        "",
    ]
    (RESULTS / "robustness-bit-flips.md").write_text("\n".join(lines), encoding="utf-8")
    print("\n".join(lines), flush=True)


def main() -> None:
    """Run all scenes and save the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flips", type=int, default=16, help="bits flipped in each file")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scene", choices=[scene.name for scene in SCENES], help="only this one")
    parser.add_argument("--jobs", type=int, default=2, help="scenes at the same time")
    options = parser.parse_args()
    import_commands()
    began, counts = time.monotonic(), dict[str, Counts]()
    scenes = [scene for scene in SCENES if options.scene in (None, scene.name)]
    with tempfile.TemporaryDirectory() as place:
        base = Path(place) / "base"
        make_files(base)
        trials = [Path(place) / scene.name.replace(" ", "-") for scene in scenes]
        for trial in trials:
            shutil.copytree(base, trial)
        with ProcessPoolExecutor(options.jobs, mp_context=get_context("fork")) as pool:
            run = partial(run_scene, base=base, flips=options.flips, seed=options.seed)
            jobs = [
                pool.submit(run, scene, trial=trial)
                for scene, trial in zip(scenes, trials, strict=True)
            ]
            for scene, job in zip(scenes, jobs, strict=True):
                counts[scene.name] = one = job.result()
                print(scene.name, dict(one.ends), *one.faults[:20], sep="\n", flush=True)
    if options.scene is None:
        keep(counts, time.monotonic() - began)
    if any(one.faults for one in counts.values()):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
