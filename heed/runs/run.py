"""The run folder: self-contained, so that it can be moved, loaded, resumed and reported on.

recipe.toml         every key, resolved
tokenizer.json      how text becomes ids
classes.json        a classifier's classes, in order
calibration.json    the temperature of its probabilities, once it is calibrated
model.safetensors   the chosen weights, once training is done
checkpoints/        to go on from, and the best weights so far
metrics.jsonl       what was measured, a line each; what hangs on the clock is under `time`
environment.json    versions, hardware, hashes of the data, parts that its origin did not have
figures/            curves and maps
"""

from __future__ import annotations

import json
import math
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from heed.config import Recipe
from heed.errors import HeedError, RunError
from heed.files import write_whole

FORMAT = 2
"""Of a run's folder. In the first, tokens were scaled alike whatever their positions, and nothing
scaled tables of positions: such runs are read as they were meant."""
BEST = "best-"
"""How the names of weights begin that were the best so far, before the step that they are of."""
FALLING = ("loss", "perplexity")
"""Metrics that are better when lower."""
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
                todo=f"Go on with it (heed resume {folder}), or name another folder.",
            )
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            what = "this folder is not empty." if folder.is_dir() else "this is a file."
            raise RunError(what, where=str(folder), todo="Name a new folder.")
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(run.recipe_path, _from_anywhere(recipe).toml())
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

    @property
    def best_path(self) -> Path:
        """The best weights so far; in runs of earlier versions they have no step in their name."""
        kept = weights_in(self.checkpoints, BEST)
        return kept[-1] if kept else self.checkpoints / "best.safetensors"

    def require_weights(self) -> Path:
        """The chosen weights, of a run that has them."""
        if not self.finished:
            yet = "" if self.best_path.exists() else ", and it has no weights yet"
            raise RunError(
                f"the training of this run is not finished{yet}.",
                where=str(self.folder),
                todo=f"Go on with: heed resume {self.folder}",
            )
        return self.weights_path

    def recipe(self) -> Recipe:
        """What this run was told to do."""
        recipe = Recipe.read(self.recipe_path)
        return recipe if self.format() >= FORMAT else _of_the_first_format(recipe)

    def format(self) -> int:
        """Of which format the folder is."""
        return int(self.environment().get("format", FORMAT))

    def environment(self) -> dict[str, Any]:
        """What was kept beside the recipe; nothing before training has begun."""
        if not self.environment_path.exists():
            return {}
        return dict(json.loads(self.environment_path.read_text(encoding="utf-8")))

    def metrics(self) -> list[dict[str, Any]]:
        """Every line measured so far; a line cut off by a crash is left out."""
        if not self.metrics_path.exists():
            return []
        lines = self.metrics_path.read_bytes().split(b"\n")[:-1]
        return [json.loads(line) for line in lines]

    def write_environment(self, facts: dict[str, Any]) -> None:
        """Keep what the result hangs on beside the recipe."""
        facts = environment() | facts | {"format": self.format()}
        text = json.dumps(facts, indent=1, ensure_ascii=False)
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


def weights_in(folder: Path, kind: str) -> list[Path]:
    """The weights of a kind among checkpoints, by the step in their names, the newest last."""
    return sorted(folder.glob(f"{kind}{'[0-9]' * 9}.safetensors"))


def _from_anywhere(recipe: Recipe) -> Recipe:
    """A recipe whose files are found from whatever folder its run is resumed."""

    def whole(names: list[str]) -> list[str]:
        return [str(Path(name).absolute()) if Path(name).exists() else name for name in names]

    data, tokenizer, init = recipe.data, recipe.tokenizer, recipe.init
    files = {key: whole(getattr(data, key)) for key in ("train", "dev", "test")}
    sets = {name: whole(names) for name, names in data.sets.items()}
    return replace(
        recipe,
        data=data.model_copy(update=files | {"sets": sets}),
        tokenizer=tokenizer.model_copy(update={"text": whole(tokenizer.text)}),
        init=init if init.run is None else init.model_copy(update={"run": whole([init.run])[0]}),
    )


def _of_the_first_format(recipe: Recipe) -> Recipe:
    model = recipe.model
    scale = model.embedding_scale or (model.embedding_width or model.width) ** 0.75
    before = model.model_copy(update={"embedding_scale": scale, "position_scale": 1.0})
    return replace(recipe, model=before)


def worth(value: float, metric: str) -> tuple[bool, float]:
    """What to compare scores by: the larger the better, and no number (NaN) is the worst."""
    if math.isnan(value):
        return False, 0.0
    return True, -value if metric in FALLING else value


def kept(lines: list[dict[str, Any]], best: str) -> dict[str, Any] | None:
    """The evaluation whose weights a run keeps: the first that is best by `train.best`, or that
    of the mean of the last weights where it was better. None before there is any."""
    name, _, metric = best.partition("/")
    scored = [line for line in lines if name in line]
    average = next((line for line in scored if line["event"] == "average" and line["kept"]), None)
    evaluated = [line for line in scored if line["event"] == "evaluate"]
    if average or not evaluated:
        return average
    return max(evaluated, key=lambda line: worth(line[name][metric], metric))


def index(folder: Path) -> list[dict[str, Any]]:
    """Every run in a folder or below it: what it is, how far it came, what its weights score."""
    if not folder.is_dir():
        raise RunError(
            "there is no such folder.", where=str(folder), todo="Make a first run: heed demo"
        )
    return [_facts(Run(path.parent)) for path in sorted(folder.rglob("recipe.toml"))]


def _facts(run: Run) -> dict[str, Any]:
    """A line of the index. A run that cannot be read has one as well, which says why."""
    facts: dict[str, Any] = {"run": str(run.folder), "task": None, "model": None, "step": None}
    facts |= {"finished": run.finished, "dev": None, "broken": None}
    try:
        recipe, lines = run.recipe(), run.metrics()
        best = kept(lines, recipe.train.best)
        model = f"{recipe.model.family} {recipe.model.layers}x{recipe.model.width}"
        return facts | {
            "task": recipe.task,
            "model": f"{model} {recipe.model.position}",
            "step": lines[-1]["step"] if lines else 0,
            "dev": best["dev"] if best else None,
        }
    except (HeedError, OSError, ValueError, LookupError, TypeError) as problem:
        return facts | {"broken": str(problem)}


def table(runs: list[dict[str, Any]]) -> Table:
    """The same for a person. A long name goes on in the next line; nothing is cut."""
    metrics = {
        "loss": ("loss", "{:.3f}"),
        "accuracy": ("acc.", "{:.1%}"),
        "bleu": ("BLEU", "{:.1f}"),
    }
    if not any("bleu" in (run["dev"] or ()) for run in runs):
        del metrics["bleu"]
    shown = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for name in ("run", "task", "model", ""):
        shown.add_column(name, overflow="fold", no_wrap=name not in ("run", "model"))
    for name in ("step", *(f"dev\n{short}" for short, _ in metrics.values())):
        shown.add_column(name, justify="right", no_wrap=True)
    for run in runs:
        state = "finished" if run["finished"] else "to resume"
        told = [run["task"] or "–", run["model"] or "–", "broken" if run["broken"] else state]
        told.append("–" if run["step"] is None else str(run["step"]))
        scores = run["dev"] or {}
        told += [f.format(scores[m]) if m in scores else "–" for m, (_, f) in metrics.items()]
        shown.add_row(Text(run["run"]), *told)
    return shown


def environment() -> dict[str, Any]:
    """Versions and hardware."""
    import torch

    facts: dict[str, Any] = {
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
