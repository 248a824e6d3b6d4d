"""The folder of the lab: its runs and studies by name, and nothing outside it.

A name is the path relative to the folder, with `/`. A name that leads out of the folder, by `..`
or by a symbolic link, is refused, and so is a run or a study with a link that leads out of it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from heed.checksums import DamagedError
from heed.errors import UNPRINTABLE, HeedError, RunError, make_printable
from heed.files import describe_os_error
from heed.lab.error_responses import NOT_FOUND, StatusError
from heed.runs.index import UNREADABLE
from heed.runs.run import RESTORE, Run, refuse_unsafe_entries

RUN_FILES = ("recipe.toml", "environment.json")
"""A folder with one of these is a run, as `heed runs` has it."""
STUDY_FILE = "study.toml"
NOT_AS_WRITTEN = (*UNREADABLE, ArithmeticError, AssertionError, MemoryError, RuntimeError)
"""Errors that may come of files that heed did not write, a model's weights included."""
SHIPPED_RECIPES = "recipes"
"""The folder of a study with copies of its recipes, where no run is."""

logger = logging.getLogger(__name__)


class RunFolder:
    """The runs and studies below a folder. A folder that is a run or a study shows that alone."""

    def __init__(self, root: str | Path) -> None:
        folder = Path(root)
        if not folder.is_dir():
            raise RunError(
                "there is no such folder.",
                where=str(root),
                todo="Make a first run with `heed demo`, or name the folder that holds your runs.",
            )
        folder = folder.resolve()
        self.only = folder.name if is_run(folder) or is_study(folder) else None
        """The one run or study that is shown; None where all of the root are."""
        self.root = folder.parent if self.only else folder
        self.title = folder.name

    def resolve(self, name: str) -> Path:
        """The path of a name inside the folder; an error if it is elsewhere or absent."""
        parts = PurePosixPath(name).parts
        is_plain = bool(parts) and not any(
            part.startswith(".") or "\\" in part or "\x00" in part for part in parts
        )
        if not is_plain or name.startswith("/") or (self.only and parts[0] != self.only):
            raise self._missing(name)
        try:
            path = self.root.joinpath(*parts).resolve(strict=True)
        except (OSError, ValueError):
            raise self._missing(name) from None
        if not path.is_relative_to(self.root / self.only if self.only else self.root):
            raise self._missing(name)
        return path

    def run(self, name: str) -> Run:
        """The run of a name."""
        path = self.resolve(name)
        if not is_run(path):
            raise self._missing(name)
        return Run.open(path)

    def study(self, name: str) -> Path:
        """The folder of a study."""
        if not is_study(self.resolve(name)):
            raise self._missing(name)
        return self.resolve_checked(name)

    def resolve_checked(self, name: str) -> Path:
        """The path of a run, a study or a folder of these, in which no link leads out of it."""
        path = self.resolve(name)
        refuse_unsafe_entries(path, "run" if is_run(path) else "study")
        return path

    def name_of(self, path: Path) -> str:
        """The name of a path inside the folder."""
        return path.resolve().relative_to(self.root).as_posix()

    def run_names(self) -> list[str]:
        """The names of all runs, sorted."""
        return [self._name(path) for path in self._walk() if is_run(path)]

    def study_names(self) -> list[str]:
        """The names of all studies, sorted."""
        return [self._name(path) for path in self._walk() if is_study(path)]

    def _walk(self) -> Iterator[Path]:
        """Every visible folder, sorted; none inside a run, and no symbolic link."""
        start = self.root / self.only if self.only else self.root
        for folder, names, _ in os.walk(start):
            path = Path(folder)
            yield path
            is_leaf = is_run(path)
            visible = [] if is_leaf else [name for name in names if self._is_visible(path, name)]
            names[:] = sorted(visible)

    def _is_visible(self, parent: Path, name: str) -> bool:
        has_address = not UNPRINTABLE.search(name) and "\\" not in name
        is_copy = name == SHIPPED_RECIPES and is_study(parent)
        return has_address and not name.startswith(".") and not is_copy

    def _name(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()

    def _missing(self, name: str) -> StatusError:
        return StatusError(
            "there is no such run or study in this lab.",
            status=NOT_FOUND,
            where=name,
            todo="The page of all runs lists those that there are.",
        )


@contextmanager
def reading(name: str) -> Iterator[None]:
    """Read files of a run or a study: what heed did not write there is an error about them.

    The traceback is logged, since it may be an error of heed after all.
    """
    try:
        yield
    except NOT_AS_WRITTEN as error:
        if isinstance(error, HeedError | OSError):
            raise
        logger.warning("The files of %s cannot be read.", make_printable(name), exc_info=True)
        raise describe_damage(error, name) from error


def describe_damage(error: BaseException, name: str) -> HeedError:
    """Why a run or a study cannot be read, in one sentence."""
    described = describe_os_error(error) if isinstance(error, OSError) else error
    if isinstance(described, HeedError):
        return described
    kind = "it lacks a value" if isinstance(error, LookupError) else make_printable(str(error))
    what = f"this was not written by heed, or it is damaged: {kind}."
    return DamagedError(what, where=name, todo=RESTORE)


def is_run(folder: Path) -> bool:
    """Whether a folder holds a run."""
    return any((folder / name).is_file() for name in RUN_FILES)


def is_study(folder: Path) -> bool:
    """Whether a study has begun in a folder."""
    return (folder / STUDY_FILE).is_file()
