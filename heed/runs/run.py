"""The run folder: self-contained, so that it can be moved, loaded, resumed and reported on.

recipe.toml         the resolved recipe, with every key
tokenizer.json      the tokenizer
labels.json         a classifier's class names, in order
calibration.json    the temperature of its probabilities, once it is calibrated
model.safetensors   the chosen weights, once training is finished
checkpoints/        training states to resume from, and the best weights so far
metrics.jsonl       one line per measurement; values that depend on the clock are under `time`
environment.json    versions, hardware, data hashes, plug-ins, weights not from `init`
evaluation.json     results of `heed evaluate`, by the name of the test set
figures/            training curves and attention maps
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from heed.config import Recipe
from heed.errors import RunError
from heed.files import write_atomic
from heed.plugins import check_plugins
from heed.runs.environment import describe_environment

FORMAT = 4
"""Version of the folder's format: recipe keys and file names. Other versions are refused."""
BEST = "best-"
"""Prefix of the best weights' file name; the step follows."""


class Run:
    """A run folder and the paths of its files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.recipe_path = folder / "recipe.toml"
        self.tokenizer_path = folder / "tokenizer.json"
        self.labels_path = folder / "labels.json"
        self.calibration_path = folder / "calibration.json"
        self.weights_path = folder / "model.safetensors"
        self.checkpoints = folder / "checkpoints"
        self.metrics_path = folder / "metrics.jsonl"
        self.environment_path = folder / "environment.json"
        self.figures = folder / "figures"

    @classmethod
    def create(cls, folder: Path, recipe: Recipe) -> Run:
        """Create a new run. The folder and its recipe exist before anything slow begins."""
        run = cls(folder)
        if run.recipe_path.exists():
            raise RunError(
                "there is a run here already.",
                where=str(folder),
                todo=f"Continue it (heed resume {folder}), or name another folder.",
            )
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            what = "this folder is not empty." if folder.is_dir() else "this is a file."
            raise RunError(what, where=str(folder), todo="Name a new folder.")
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(run.recipe_path, _with_absolute_paths(recipe).toml())
        return run

    @classmethod
    def open(cls, folder: Path) -> Run:
        """Open an existing run."""
        run = cls(folder)
        if not run.recipe_path.exists():
            raise RunError(
                "there is no run here: recipe.toml is missing.",
                where=str(folder),
                todo="Name the folder that `heed train` made.",
            )
        return run

    def delete_if_unstarted(self) -> None:
        """Delete the folder of a run whose training never started."""
        if not self.metrics_path.exists() and not self.checkpoints.exists():
            shutil.rmtree(self.folder)

    def delete_if_unsaved(self) -> None:
        """Delete the folder of a run that has no checkpoint to resume from."""
        if not self.checkpoints.exists():
            shutil.rmtree(self.folder)

    @property
    def finished(self) -> bool:
        """Whether training is finished."""
        return self.weights_path.exists()

    @property
    def best_path(self) -> Path | None:
        """The best weights so far; None before the first evaluation."""
        paths = list_weights(self.checkpoints, BEST)
        return paths[-1] if paths else None

    def require_weights(self) -> Path:
        """Path of the chosen weights; an error if training is not finished."""
        if not self.finished:
            missing = "" if self.best_path else ", and it has no weights yet"
            raise RunError(
                f"the training of this run is not finished{missing}.",
                where=str(self.folder),
                todo=f"Continue it with: heed resume {self.folder}",
            )
        return self.weights_path

    def recipe(self) -> Recipe:
        """The run's resolved recipe."""
        version = self.environment().get("format", FORMAT)
        if version != FORMAT:
            raise RunError(
                f"this run has format {version}, and this version of heed reads format {FORMAT}.",
                where=str(self.folder),
                todo="Use the version of heed in its environment.json, or train it again.",
            )
        check_plugins(self.environment().get("plugins", ()), where=str(self.folder))
        return Recipe.read(self.recipe_path)

    def environment(self) -> dict[str, Any]:
        """Content of `environment.json`; empty before training has started."""
        if not self.environment_path.exists():
            return {}
        return dict(json.loads(self.environment_path.read_text(encoding="utf-8")))

    def metrics(self) -> list[dict[str, Any]]:
        """All complete lines of `metrics.jsonl`; a line cut off by a crash is left out."""
        if not self.metrics_path.exists():
            return []
        lines = self.metrics_path.read_bytes().split(b"\n")[:-1]
        return [json.loads(line) for line in lines]

    def write_environment(self, info: dict[str, Any]) -> None:
        """Write `environment.json`: versions, hardware and `info`."""
        info = describe_environment() | info | {"format": FORMAT}
        text = json.dumps(info, indent=1, ensure_ascii=False)
        write_atomic(self.environment_path, text + "\n")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder's lock: a second process that wants to train here gets an error."""
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


def list_weights(folder: Path, prefix: str) -> list[Path]:
    """Weight files with this prefix in a checkpoint folder, sorted by step, the newest last."""
    return sorted(folder.glob(f"{prefix}{'[0-9]' * 9}.safetensors"))


def _with_absolute_paths(recipe: Recipe) -> Recipe:
    """The recipe with absolute paths, so that the run can be resumed from any folder."""

    def absolute(names: list[str]) -> list[str]:
        return [str(Path(name).absolute()) if Path(name).exists() else name for name in names]

    data, tokenizer, init = recipe.data, recipe.tokenizer, recipe.init
    files = {key: absolute(getattr(data, key)) for key in ("train", "dev", "test")}
    sets = {name: absolute(names) for name, names in data.sets.items()}
    return replace(
        recipe,
        data=data.model_copy(update=files | {"sets": sets}),
        tokenizer=tokenizer.model_copy(update={"text": absolute(tokenizer.text)}),
        init=init
        if init.from_model is None
        else init.model_copy(update={"from_model": absolute([init.from_model])[0]}),
    )
