"""The commands that are broken off, what they leave when unbroken, and how both are compared."""

from __future__ import annotations

import json
import platform
import shutil
import sys
import time
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from common import RESULTS, machine

from heed import checksums
from heed.config import Recipe
from heed.runs.run import LOCK, Run
from robustness.forked_command import Result, run_command

TINY_MODEL = {"layers": 1, "width": 8, "heads": 2, "dropout": 0.1}
MAX_SECONDS = 300.0
"""A command that takes longer hangs."""
WORK = "work"
"""The folder below which file operations are watched: the run and the cache."""


def translator_recipe() -> Recipe:
    """A recipe with every kind of file: generated text, averaged weights, one checkpoint kept."""
    return Recipe.of(
        {
            "data": {"synthetic": 24, "synthetic_test": 4, "max_length": 24},
            "tokenizer": {"kind": "word"},
            "model": TINY_MODEL,
            "train": {
                "steps": 5,
                "batch_size": 8,
                "checkpoint_every": 2,
                "evaluate_every": 2,
                "log_every": 1,
                "keep_checkpoints": 1,
                "average_checkpoints": 2,
            },
        }
    )


def exportable_recipe() -> Recipe:
    """A language model that Hugging Face's GPT-2 can hold."""
    shape = {"position": "learned", "max_positions": 32, "activation": "gelu_tanh"}
    return Recipe.of(
        {
            "task": "generate",
            "data": {"synthetic": 24, "synthetic_test": 4, "max_length": 16},
            "tokenizer": {"kind": "bpe", "vocab_size": 300},
            "model": TINY_MODEL | shape,
            "train": {"steps": 2, "batch_size": 8},
        }
    )


@dataclass(frozen=True)
class Trial:
    """A folder with a run and a cache, on which commands work."""

    folder: Path

    @property
    def run(self) -> Path:
        """The run folder."""
        return self.folder / WORK / "runs" / "run"

    @property
    def cache(self) -> Path:
        """The cache folder."""
        return self.folder / WORK / "cache"

    @property
    def watched(self) -> Path:
        """The folder of all file operations that count."""
        return self.folder / WORK

    def train(self) -> list[str]:
        """The command that trains the run."""
        return ["train", str(self.folder / "recipe.toml"), "--run", str(self.run), *ON_CPU]

    def continue_training(self) -> list[str]:
        """The command that a user gives after a break: resume, or train where there is no run."""
        resume = ["resume", str(self.run), *ON_CPU]
        return resume if (self.run / "recipe.toml").exists() else self.train()

    def evaluate(self) -> list[str]:
        """The command that evaluates the run."""
        return ["evaluate", str(self.run), "--split", "dev", "--bootstrap", "100", *ON_CPU]

    def import_model(self) -> list[str]:
        """The command that imports a model as the run."""
        return ["import", str(self.folder / "exported"), "--run", str(self.run)]

    def heed(self, arguments: Sequence[str], prepare: Callable[[], None] | None = None) -> Result:
        """Run a command with the trial's cache; `prepare` is called in its process before it."""
        cache = {"HEED_CACHE": str(self.cache)}
        return run_command(
            arguments, self.folder, seconds=MAX_SECONDS, environment=cache, prepare=prepare
        )


ON_CPU = ("--device", "cpu")


def new_trial(folder: Path, *, like: Path | None = None) -> Trial:
    """A folder with the recipe; `like` is one to copy, with everything in it."""
    shutil.rmtree(folder, ignore_errors=True)
    if like is not None:
        shutil.copytree(like, folder, symlinks=True)
    else:
        (folder / WORK).mkdir(parents=True)
        recipe = translator_recipe().toml()
        (folder / "recipe.toml").write_text(recipe, encoding="utf-8")
    return Trial(folder)


def require_success(ended: Result) -> None:
    """Raise an error if an unbroken command failed: then nothing can be compared."""
    if ended.code != 0:
        raise RuntimeError(ended.output)


# ----------------------------------------------------------------------------------- outcomes


Outcome = dict[str, Any]
"""The content of every file of a run folder, by name."""


def outcome(run: Path) -> Outcome:
    """What a run folder holds, without what depends on the clock or on where the folder is."""
    content: Outcome = {}
    for path in sorted(run.rglob("*")):
        name = path.relative_to(run).as_posix()
        if path.is_dir():
            content[f"{name}/"] = None
        elif name == "metrics.jsonl":
            content[name] = [without_time(line) for line in Run(run).metrics()]
        elif name != LOCK:
            content[name] = path.read_bytes()
            if path.suffix in (".json", ".toml"):  # the checksum depends on the paths, too
                text = content[name].replace(str(run.parents[2]).encode(), b"")
                content[name] = checksums.FIELD.sub(b"", text)
    return content


def without_time(line: dict[str, Any]) -> dict[str, Any]:
    """A line of metrics without what depends on the clock."""
    return {key: value for key, value in line.items() if key != "time"}


def describe_differences(unbroken: Outcome, broken: Outcome) -> list[str]:
    """One sentence for each file that differs."""
    sentences = [f"{name} is missing" for name in unbroken.keys() - broken.keys()]
    sentences += [f"{name} is left over" for name in broken.keys() - unbroken.keys()]
    common = unbroken.keys() & broken.keys()
    return sentences + [f"{name} differs" for name in common if unbroken[name] != broken[name]]


@dataclass
class Counts:
    """What became of all breaks."""

    numbers: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)
    """Sentences about breaks that did harm."""

    def add(self, where: str, ended: Result, unbroken: Outcome, broken: Outcome) -> None:
        """Count one break, after which the command was given again and ended so."""
        self.numbers["breaks"] += 1
        differences = describe_differences(unbroken, broken)
        lines = (len(x.get("metrics.jsonl", ())) for x in (unbroken, broken))
        lost = max(0, next(lines) - next(lines))
        harms = {
            "tracebacks": int(ended.has_traceback),
            "refusals": int(ended.code != 0 and not ended.has_traceback),
            "silent differences": int(ended.code == 0 and bool(differences)),
            "lost lines": lost if ended.code == 0 else 0,
        }
        self.numbers.update(harms)
        if any(harms.values()):
            last = ended.output.strip().splitlines()[-1:] or [""]
            changes = "; ".join(differences)
            self.examples.append(f"{where}: exit {ended.code}, {changes} | {last[0]}")

    def merge(self, other: dict[str, Any]) -> None:
        """Add counts that another process has made, as `to_json` returned them."""
        self.numbers.update(other["numbers"])
        self.examples += other["examples"]

    def to_json(self) -> dict[str, Any]:
        """The counts as JSON values."""
        return {"numbers": dict(self.numbers), "examples": self.examples}

    @property
    def is_harmless(self) -> bool:
        """Whether no break did harm."""
        return not self.examples


def merge_counts(shares: Iterable[dict[str, Any]]) -> Counts:
    """The counts of several processes together."""
    merged = Counts()
    for share in shares:
        merged.merge(share)
    return merged


def add_options(parser: ArgumentParser, verb: str) -> None:
    """The options of both harnesses; `verb` says what is done at an operation."""
    parser.add_argument("--every", type=int, default=1, help=f"{verb} every N-th operation.")
    parser.add_argument("--first", type=int, default=0, help=f"{verb} the first operation on.")
    parser.add_argument("--jobs", type=int, default=1, help="Processes that share the work.")
    parser.add_argument("--keep", action="store_true", help="Save the counts in the results.")


def report_counts(
    name: str, what: str, counts: dict[str, Counts], options: Namespace, began: float
) -> NoReturn:
    """Print the counts, save them with `--keep`, and exit with 0 if no break did harm."""
    if options.keep:
        often = "every" if options.every == 1 else f"every {options.every}th"
        keep_counts(name, f"{what} {often} file operation", counts, time.monotonic() - began)
    for kind, one in counts.items():
        print(kind, dict(one.numbers), *one.examples, sep="\n", flush=True)
    raise SystemExit(0 if all(one.is_harmless for one in counts.values()) else 1)


def keep_counts(name: str, title: str, counts: dict[str, Counts], seconds: float) -> None:
    """Print the counts, and save them as Markdown and JSON with the machine and the commit."""
    module = name.replace("-", ".", 1).replace("-", "_")
    command = " ".join(["PYTHONPATH=benchmarks python -m", module, *sys.argv[1:]])
    info = machine("cpu") | _versions() | {"command": command}
    info["seconds"] = round(seconds)
    columns = ["breaks", "tracebacks", "refusals", "silent differences", "lost lines"]
    rows = [f"| {' | '.join(['', *columns])} |", f"|{'---|' * (len(columns) + 1)}"]
    for kind, one in counts.items():
        rows.append(f"| {kind} | {' | '.join(str(one.numbers[column]) for column in columns)} |")
    head = [f"- {key}: {value}" for key, value in info.items()]
    harm = [f"- {kind}: {text}" for kind, one in counts.items() for text in one.examples]
    page = "\n".join([f"# {title}", "", *rows, "", *head, *(["", *harm] if harm else []), ""])
    print(page, flush=True)
    (RESULTS / f"{name}.md").write_text(page, encoding="utf-8")
    figures = {kind: dict(one.numbers) | {"harm": one.examples} for kind, one in counts.items()}
    document = json.dumps({"machine": info, "figures": figures}, indent=1)
    (RESULTS / f"{name}.json").write_text(document + "\n", encoding="utf-8")


def _versions() -> dict[str, str]:
    from importlib.metadata import version

    packages = ("safetensors", "tokenizers", "numpy")
    return {name: version(name) for name in packages} | {"file system": _file_system()}


def _file_system() -> str:
    """The type of the file system of temporary files, where Linux says it."""
    if sys.platform != "linux":
        return platform.system()
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    below = [mount for mount in mounts if Path("/tmp").is_relative_to(mount[0])]  # noqa: S108
    return max(below, key=lambda mount: len(mount[0]))[1]
