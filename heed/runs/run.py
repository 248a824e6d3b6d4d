"""The run folder: self-contained, so that it can be moved, loaded, resumed and reported on.

recipe.toml         the resolved recipe, with every key
tokenizer.json      the tokenizer
labels.json         a classifier's class names, in order
calibration.json    the temperature of its probabilities, once it is calibrated
model.safetensors   the chosen weights, once training is finished
checkpoints/        training states to resume from, and the best weights so far
snapshots/          weights every `train.snapshot_every` steps, if the recipe has it
metrics.jsonl       one line per measurement; values that depend on the clock are under `time`
environment.json    versions, hardware, data hashes, plug-ins, weights not from `init`
evaluation.json     results of `heed evaluate`, by the name of the test set
evaluations/        item counts of each evaluation, for `heed compare`
data/               texts that were given as lists in Python, as JSON lines
figures/            training curves and attention maps
notes.txt           notes on the run, written in the lab

Every file that is read again contains its checksum, and is verified then; that of the tokenizer is
in environment.json. No link in the folder is followed to a place outside, and nothing but regular
files is opened.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from heed import checksums
from heed.checksums import DamagedError
from heed.config import Recipe
from heed.errors import RunError
from heed.files import (
    NO_FILE,
    delete_drafts,
    is_draft,
    lock_file,
    locked_inodes,
    make_folder,
    read_regular,
    write_atomic,
)
from heed.plugins import check_plugins
from heed.runs.weight_files import WeightFiles

FORMAT = 5
"""Version of the folder's format: recipe keys, files, names of weights. Others are refused."""
RECIPE_START = '# checksum = "{}"; delete this line if you change the file by hand'
"""The first line of recipe.toml: what is cut off at the end is missed, then."""
RESTORE = "Restore it from a copy of the run."
"""The advice for a file of a run that cannot be written again."""
LOCK = ".lock"
"""The file whose lock a process that trains in the folder holds."""
STUDY_RUNS, STUDY_TRIALS = "runs", "trials"
"""Folders of a study: the run of a trial is runs/NAME, its state trials/NAME.json."""


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
        self.snapshots = folder / "snapshots"
        self.weight_files = WeightFiles(self.checkpoints, self.snapshots)
        self.metrics_path = folder / "metrics.jsonl"
        self.environment_path = folder / "environment.json"
        self.figures = folder / "figures"
        self.data = folder / "data"
        self._is_new_folder = False

    def __repr__(self) -> str:
        state = "finished" if self.finished else "not finished"
        with suppress(RunError, OSError):  # what is wrong with its files is not for a repr
            state = "finished, weights not kept" if self.has_deleted_weights else state
        return f"Run({self.folder}: {state if self.recipe_path.exists() else 'no run here'})"

    def _repr_html_(self) -> str:
        from heed.notebook import render_table
        from heed.runs.index import list_run

        entry = list_run(self)
        scores = {
            f"{name}/{metric}": value
            for name in ("dev", "test")
            for metric, value in (entry[name] or {}).items()
            if metric in ("loss", "perplexity", "accuracy", "bleu")
        }
        columns = ("task", "model", "parameters", "steps")
        return render_table([{key: entry[key] for key in columns} | scores], caption=repr(self))

    @classmethod
    def create(cls, folder: Path, recipe: Recipe) -> Run:
        """Create a new run. The folder and its recipe exist before anything slow begins."""
        with cls.creating(folder, recipe) as run:
            return run

    @classmethod
    @contextmanager
    def creating(
        cls, folder: Path, recipe: Recipe, files: Mapping[str, bytes] | None = None
    ) -> Iterator[Run]:
        """Create a new run and hold its lock: of two at the same instant, one gets an error.

        `files` are the content of files in its `data/`, by name.
        """
        run = cls(folder)
        run.refuse_if_taken()
        run._is_new_folder = make_folder(folder)
        with run.locked():
            run.refuse_if_taken()  # again: another process may have been faster
            run.delete_drafts()
            for name, content in (files or {}).items():  # first: a recipe makes the folder a run
                run.write_data(name, content)
            run.write_recipe(recipe)
            yield run

    def refuse_if_taken(self) -> None:
        """Refuse to create a run where there is one, or anything else but an empty folder.

        A lock and drafts, which a killed process leaves, do not count.
        """
        if self.recipe_path.exists():
            raise RunError(
                "there is a run here already.",
                where=str(self.folder),
                todo=f"Continue it (heed resume {self.folder}), or name another folder.",
            )
        if not self.folder.exists():
            return
        if not self.folder.is_dir():
            raise RunError("this is a file.", where=str(self.folder), todo="Name a new folder.")
        if any(path.name != LOCK and not is_draft(path) for path in self.folder.iterdir()):
            what = "this folder is not empty."
            raise RunError(what, where=str(self.folder), todo="Name a new folder.")

    @classmethod
    def open(cls, folder: str | Path) -> Run:
        """Open an existing run."""
        run = cls(Path(folder))
        if not run.recipe_path.exists():
            is_there = run.folder.exists()
            here = "recipe.toml is missing" if is_there else "there is no such folder"
            raise RunError(
                f"there is no run here: {here}.",
                where=str(folder),
                todo="Name the folder that `heed train` made.",
            )
        refuse_unsafe_entries(run.folder)
        return run

    def delete_if_unstarted(self) -> None:
        """Delete a run whose training never started."""
        if not self.metrics_path.exists():
            self.delete_if_unsaved()

    def delete_if_unsaved(self) -> None:
        """Delete a run that has no checkpoint to resume from.

        Its folder stays if it was there before: it may be a link or the current folder.
        """
        if self.checkpoints.exists():
            return
        self.recipe_path.unlink(missing_ok=True)  # first: what is left is no run
        for path in self.folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        if self._is_new_folder:
            self.folder.rmdir()

    def delete_drafts(self) -> None:
        """Delete what killed processes left half-written in the folder and below it."""
        folders = [path for path in self.folder.iterdir() if path.is_dir() and not is_draft(path)]
        for folder in (self.folder, *folders):
            delete_drafts(folder)

    @property
    def finished(self) -> bool:
        """Whether training is finished. An empty file of weights is what a copy cut off leaves."""
        return self.weights_path.exists() and self.weights_path.stat().st_size > 0

    @property
    def has_deleted_weights(self) -> bool:
        """Whether training is finished and no weights are left: a study keeps only some."""
        if self.weights_path.exists() or self._has_weights():
            return False
        return self._has_ended

    @property
    def has_lost_weights(self) -> bool:
        """Whether training ended and `heed resume` can write its lost file of weights again."""
        return not self.finished and self._has_ended and self._has_weights()

    @property
    def _has_ended(self) -> bool:
        """Whether training ended, after which the final weights are written."""
        return "lines" in self.environment()

    def find_pruning_study(self) -> Path | None:
        """The folder of the study that pruned this run in a search; None for any other run.

        The state of the trial says so: the run itself is one that training has stopped.
        """
        path = self.trial_path
        try:
            state = {} if path is None else checksums.read_json(path, todo=RESTORE)
        except (OSError, RunError):  # no trial; the study says what is wrong with its files
            return None
        return path.parent.parent if path and state.get("status") == "pruned" else None

    @property
    def trial_path(self) -> Path | None:
        """Where a study keeps the state of the trial that this run is; None outside a study."""
        folder = self.folder.resolve()
        if folder.parent.name != STUDY_RUNS:
            return None
        return folder.parent.parent / STUDY_TRIALS / f"{folder.name}.json"

    def refuse_if_pruned(self) -> None:
        """Refuse to train a run on that its study pruned: the study counts it as it ended."""
        study = self.find_pruning_study()
        if study is not None:
            raise RunError(
                f"this run was pruned by the search of the study {study.name}, which counts it as "
                "it is.",
                where=str(self.folder),
                todo="To train this recipe to its end, make a new run: "
                f"heed train {self.recipe_path} --run NEW",
            )

    def weights_step(self, weights: str) -> int:
        """The step of `last`, or of weights named by their step; an error if there are none."""
        step = self.weight_files.find_step(weights)
        if step is not None:
            return step
        self.refuse_deleted_weights()
        raise RunError(
            f"this run has no weights {weights!r}.",
            where=str(self.folder),
            todo=f"It has {self.weight_files.describe_names()}. More are kept with "
            "train.keep_checkpoints or train.snapshot_every.",
        )

    def refuse_deleted_weights(self) -> None:
        """Raise an error where the weights of a finished run were deleted."""
        if self.has_deleted_weights:
            raise RunError(
                "the training of this run is finished, and its study did not keep its weights.",
                where=str(self.folder),
                todo=f"Train it again (heed train {self.recipe_path} --run NEW), or set "
                'keep_weights = "all" before a study begins.',
            )

    def require_weights(self) -> Path:
        """Path of the chosen weights; an error if training is not finished."""
        if not self.finished:
            self.refuse_deleted_weights()
            if self.has_lost_weights:
                raise RunError(
                    "the weights of this finished run are missing.",
                    where=str(self.weights_path),
                    todo=f"`heed resume {self.folder}` writes them again.",
                )
            missing = "" if self.weight_files.best_path else ", and it has no weights yet"
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
        if plugins := self.environment().get("plugins"):
            check_plugins(plugins, where=str(self.folder))
        text = read_regular(self.recipe_path)
        if not text.strip() or not checksums.is_intact(text):
            todo = (
                "Put it back as it was. For other settings make a new run "
                f"(heed train {self.recipe_path} --run …), or delete its first line to use it so."
            )
            raise checksums.damage(str(self.recipe_path), todo)
        return self._with_own_data(Recipe.read(self.recipe_path))

    def _with_own_data(self, recipe: Recipe) -> Recipe:
        """The recipe with the files of `data/` where they are now: the folder may have moved.

        A trial has them in the `data/` of its study.
        """
        above = self.folder.absolute().parents[1:2]  # the study's folder has runs/NAME
        folders = [self.data, *(folder / self.data.name for folder in above)]
        if not any(folder.is_dir() for folder in folders):
            return recipe

        def place(name: str) -> str:
            if Path(name).parent.name != self.data.name or Path(name).exists():
                return name
            moved = [folder / Path(name).name for folder in folders]
            return next((str(path.absolute()) for path in moved if path.exists()), name)

        return recipe.map_paths(place)

    def write_data(self, name: str, content: bytes) -> Path:
        """Write a file of `data/`; under another name if there is one of other content."""
        make_folder(self.data)
        path, number = self.data / name, 1
        while path.exists() and path.read_bytes() != content:
            number += 1
            path = self.data / f"{Path(name).stem}-{number}{Path(name).suffix}"
        if not path.exists():
            write_atomic(path, content)
        return path

    def write_recipe(self, recipe: Recipe) -> None:
        """Write `recipe.toml`."""
        text = recipe.with_absolute_paths().toml()
        start = RECIPE_START.format(checksums.BLANK)
        write_atomic(self.recipe_path, checksums.seal_text(f"{start}\n{text}"))

    def environment(self) -> dict[str, Any]:
        """Content of `environment.json`; empty before training has started."""
        path = self.environment_path
        if not path.exists() and not self._has_weights():
            return {}
        if not path.exists():
            raise DamagedError("this file is missing.", where=str(path), todo=RESTORE)
        info = checksums.read_json(path, todo=RESTORE)
        kinds: dict[str, type] = {"data": dict, "files": dict, "plugins": list, "new_parts": list}
        kinds |= {"lines": int, "steps_per_epoch": int}
        if any(not isinstance(info.get(key, kind()), kind) for key, kind in kinds.items()):
            raise DamagedError("this file is damaged.", where=str(path), todo=RESTORE)
        return info

    def _has_weights(self) -> bool:
        """Whether there are weights here, of a finished run or in a checkpoint."""
        return self.finished or self.weight_files.has_any

    def metrics(self) -> list[dict[str, Any]]:
        """All complete lines of `metrics.jsonl`; a line cut off by a crash is left out.

        An error if a line is damaged, or if there are fewer than the run has counted. A number that
        was not finite is None.
        """
        # Counted before they are read: while the run trains, lines and then checkpoints are added.
        count = self.counted_lines()
        lines = self._read_metrics_lines()
        self.check_line_count(len(lines), count)
        return [self.parse_metrics_line(line, number) for number, line in enumerate(lines, 1)]

    def check_line_count(self, lines: int, counted: int) -> None:
        """Raise an error if `metrics.jsonl` has fewer lines than the run has counted."""
        if lines < counted:
            what = f"this file is incomplete: it has {lines} of {counted} lines."
            raise DamagedError(what, where=str(self.metrics_path), todo=RESTORE)

    def parse_metrics_line(self, line: bytes, number: int) -> dict[str, Any]:
        """The content of one line of `metrics.jsonl`, verified; they count from 1."""
        todo = f"{RESTORE[:-1]}, or correct this line and leave out its checksum."
        return checksums.parse_json(line, where=f"{self.metrics_path}:{number}", todo=todo)

    @property
    def history(self) -> list[dict[str, Any]]:
        """Every measurement while training as a flat row: `pandas.DataFrame(run.history)`."""
        from heed.runs.history import read_history

        return read_history(self)

    def items(self, set_name: str = "test") -> dict[str, Any]:
        """The item counts of an evaluation by column: `pandas.DataFrame(run.items("test"))`."""
        from heed.runs.item_counts import read_items, set_names

        items = read_items(self.folder, set_name)
        if items is None:
            known = ", ".join(set_names(self.folder)) or "none"
            raise RunError(
                f"there are no item counts of {set_name!r}; there are those of: {known}.",
                where=str(self.folder),
                todo=f"Evaluate it: heed evaluate {self.folder} --split {set_name}",
            )
        return dict(items.columns)

    def metrics_lines(self) -> int:
        """The number of complete lines of `metrics.jsonl` before the first damaged one."""
        lines = self._read_metrics_lines()
        return next(
            (number for number, line in enumerate(lines) if not _is_intact_line(line)), len(lines)
        )

    def truncate_metrics(self, lines: int) -> None:
        """Delete all but the first lines of `metrics.jsonl`."""
        complete = self._read_metrics_lines()
        if self.metrics_path.exists():
            write_atomic(self.metrics_path, b"".join(line + b"\n" for line in complete[:lines]))

    def _read_metrics_lines(self) -> list[bytes]:
        path = self.metrics_path
        return read_regular(path).split(b"\n")[:-1] if path.exists() else []

    def counted_lines(self) -> int:
        """The number of lines of metrics that the run counted at its end, or at a checkpoint."""
        numbers = self.environment() if self.finished else self.weight_files.newest_state()
        return int(numbers.get("lines", 0))

    def write_environment(self, info: dict[str, Any]) -> None:
        """Write `environment.json`: versions, hardware, checksums of the tokenizer, and `info`."""
        from heed.runs.environment import describe_environment

        files = {
            path.name: checksums.hash_file(path)
            for path in self._tokenizer_files()
            if path.exists()
        }
        info = describe_environment() | info | {"files": files, "format": FORMAT}
        checksums.write_json(self.environment_path, info)

    def find_damaged_tokenizer(self) -> Path | None:
        """The file of the tokenizer that is not as training wrote it, if any."""
        recorded = self.environment().get("files", {})
        for path in self._tokenizer_files():
            if path.name in recorded and not (
                path.exists() and checksums.hash_file(path) == recorded[path.name]
            ):
                return path
        return None

    def has_tokenizer(self) -> bool:
        """Whether the run has, or had, a tokenizer: an imported one may come without."""
        name = self.tokenizer_path.name
        return self.tokenizer_path.exists() or name in self.environment().get("files", {})

    def _tokenizer_files(self) -> tuple[Path, ...]:
        """The tokenizer's file, and the roles of special tokens if it was trained elsewhere."""
        return self.tokenizer_path, self.folder / "tokenizer_config.json"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder's lock: a second process that wants to train here gets an error."""
        with lock_file(self.folder / LOCK) as locked:
            if locked is False:
                raise RunError(
                    "another process is training in this folder.",
                    where=str(self.folder),
                    todo="Wait for it, stop it, or name another folder.",
                )
            yield

    @property
    def is_locked(self) -> bool:
        """Whether a process trains here; False where the system lists no locks."""
        try:
            inode = (self.folder / LOCK).stat(follow_symlinks=False).st_ino
        except OSError:
            return False
        return inode in (locked_inodes() or ())


def refuse_unsafe_entries(folder: Path, kind: str = "run") -> None:
    """Raise an error for a link that leads out of a folder, and for a pipe or a device in it.

    A run or a study may come from anywhere, and files are read from it, written to it and emptied.
    To open a pipe would wait until another process writes to it.
    """
    root, waiting = os.path.realpath(folder), [os.fspath(folder)]
    while waiting:
        entries: list[os.DirEntry[str]] = []
        with suppress(OSError), os.scandir(waiting.pop()) as found:
            entries = sorted(found, key=lambda one: one.name)
        for entry in entries:
            is_link = entry.is_symlink()
            if is_link and not Path(os.path.realpath(entry.path)).is_relative_to(root):
                raise RunError(
                    f"this link leads out of the {kind} folder.",
                    where=entry.path,
                    todo="Put the file itself there, or remove the link.",
                )
            try:
                is_folder, is_file = entry.is_dir(), entry.is_file()
            except OSError:  # a link to itself, which cannot be opened
                continue
            if is_folder:
                waiting += [] if is_link else [entry.path]
            elif not is_file and Path(entry.path).exists():
                raise RunError(NO_FILE, where=entry.path, todo="Remove it.")


def refuse_unsafe_texts(recipe: Recipe) -> None:
    """Raise an error for a recipe of a stranger that names a pipe or a device as its text."""

    def check(name: str) -> str:
        path = Path(name)
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise RunError(NO_FILE, where=name, todo="Name files in recipe.toml.")
        return name

    recipe.map_paths(check)


def _is_intact_line(line: bytes) -> bool:
    try:
        checksums.parse_json(line, where="", todo="")
    except DamagedError:
        return False
    return True
