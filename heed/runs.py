"""The run folder: self-contained, so that it can be moved, loaded, resumed and reported on.

recipe.toml         every key, resolved
tokenizer.json      how text becomes ids
classes.json        a classifier's classes, in order
calibration.json    the temperature of its probabilities, once it is calibrated
model.safetensors   the chosen weights, once training is done
checkpoints/        to go on from, and the best weights so far
metrics.jsonl       what was measured, a line each; what hangs on the clock is under `time`
environment.json    versions, hardware, hashes of the data
figures/            curves and maps
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rich.table import Table

from heed.config import Recipe
from heed.errors import RunError

FORMAT = 1
PACKAGES = ("heed", "torch", "tokenizers", "safetensors", "numpy", "sacrebleu", "pydantic")


class Run:
    """A folder on disk and the names of what is in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.recipe_path = folder / "recipe.toml"
        self.tokenizer_path = folder / "tokenizer.json"
        self.classes_path = folder / "classes.json"
        self.calibration_path = folder / "calibration.json"
        self.weights_path = folder / "model.safetensors"
        self.checkpoints = folder / "checkpoints"
        self.best_path = self.checkpoints / "best.safetensors"
        self.metrics_path = folder / "metrics.jsonl"
        self.environment_path = folder / "environment.json"
        self.figures = folder / "figures"

    @classmethod
    def create(cls, folder: Path, recipe: Recipe) -> Run:
        """A new run. The folder and its recipe are there before anything slow begins."""
        run = cls(folder)
        if run.recipe_path.exists():
            raise RunError(
                "there is a run here already.",
                where=str(folder),
                todo=f"Go on with it (heed resume {folder}), or name another folder with --run.",
            )
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise RunError(
                "this is not an empty folder.", where=str(folder), todo="Name another with --run."
            )
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(run.recipe_path, recipe.toml())
        return run

    @classmethod
    def open(cls, folder: Path) -> Run:
        """A run that exists."""
        run = cls(folder)
        if not run.recipe_path.exists():
            raise RunError(
                "there is no run here: recipe.toml is missing.",
                where=str(folder),
                todo="Name the folder that `heed train` made.",
            )
        return run

    def forget(self) -> None:
        """Take away the folder of a run that never began to learn."""
        if not self.metrics_path.exists() and not self.checkpoints.exists():
            shutil.rmtree(self.folder)

    @property
    def finished(self) -> bool:
        """Whether training reached its end."""
        return self.weights_path.exists()

    def require_weights(self) -> Path:
        """The chosen weights, of a run that has them."""
        if not self.finished:
            raise RunError(
                "this run has no weights yet: its training is not finished.",
                where=str(self.folder),
                todo=f"Go on with: heed resume {self.folder}",
            )
        return self.weights_path

    def recipe(self) -> Recipe:
        """What this run was told to do."""
        return Recipe.read(self.recipe_path)

    def metrics(self) -> list[dict[str, Any]]:
        """Every line measured so far; a line cut off by a crash is left out."""
        if not self.metrics_path.exists():
            return []
        lines = self.metrics_path.read_bytes().split(b"\n")[:-1]
        return [json.loads(line) for line in lines]

    def write_environment(self, facts: dict[str, Any]) -> None:
        """Keep what the result hangs on beside the recipe."""
        text = json.dumps(environment() | facts, indent=1, ensure_ascii=False)
        write_whole(self.environment_path, text + "\n")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Only one process trains in a folder; the second is refused."""
        if sys.platform == "win32":
            yield
            return
        import fcntl

        with (self.folder / ".lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise RunError(
                    "another process is training in this folder.",
                    where=str(self.folder),
                    todo="Wait for it, stop it, or name another folder.",
                ) from None
            yield


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file so that it is there whole or not at all, also after a power cut."""
    data = content.encode() if isinstance(content, str) else content
    handle, draft = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(draft).replace(path)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise


def index(folder: Path) -> list[dict[str, Any]]:
    """Every run in a folder or below it: what it is, how far it came, its best dev scores."""
    found = []
    for path in sorted(folder.rglob("recipe.toml")):
        run = Run(path.parent)
        recipe, lines = run.recipe(), run.metrics()
        scores = [line for line in lines if line["event"] == "evaluate"]
        best = min(scores, key=lambda line: line["dev"]["loss"], default=None)
        found.append(
            {
                "run": str(run.folder),
                "task": recipe.task,
                "model": f"{recipe.model.family} {recipe.model.layers}x{recipe.model.width} "
                f"{recipe.model.position}",
                "step": lines[-1]["step"] if lines else 0,
                "finished": run.finished,
                "dev": best["dev"] if best else None,
            }
        )
    return found


def table(runs: list[dict[str, Any]]) -> Table:
    """The same for a person."""
    shown = Table()
    for name in ("run", "task", "model", "step", "dev loss", "dev accuracy", ""):
        shown.add_column(name)
    for run in runs:
        dev = run["dev"]
        scores = (f"{dev['loss']:.3f}", f"{dev['accuracy']:.1%}") if dev else ("–", "–")
        state = "finished" if run["finished"] else "to resume"
        shown.add_row(run["run"], run["task"], run["model"], str(run["step"]), *scores, state)
    return shown


def environment() -> dict[str, Any]:
    """Versions and hardware."""
    import torch

    facts: dict[str, Any] = {
        "format": FORMAT,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: _version(name) for name in PACKAGES},
        "cpu_threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "commit": _commit(),
    }
    if torch.cuda.is_available():
        facts["gpu"] = torch.cuda.get_device_name()
        facts["cuda"] = torch.version.cuda
    return facts


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:  # run from a checkout that is not installed
        return None


def _commit() -> str | None:
    """The commit of the checkout heed runs from; None where it is installed."""
    here, git = Path(__file__).resolve().parents[1], shutil.which("git")
    if git is None or not (here / ".git").exists():
        return None
    try:
        answer = subprocess.run(
            [git, "-C", str(here), "rev-parse", "HEAD"],
            capture_output=True,
            text=True,
            timeout=5,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()
