"""Names of new runs: inside the folder of the lab, and free."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path, PurePosixPath

from heed.errors import UNPRINTABLE, RunError
from heed.lab.error_responses import INVALID, StatusError
from heed.lab.run_folder import RunFolder, is_run, is_study
from heed.runs.run import Run

CONFLICT = 409
MOST_BYTES = 120
"""Bytes of a name's part: file systems take 255, and drafts beside it have longer names."""
MOST_PARTS = 8


def place_new_run(folder: RunFolder, name: str, taken: Collection[str] = ()) -> Path:
    """The path of a new run; an error if the name leads elsewhere or is in use.

    `taken` are the names of runs that wait to be made.
    """
    if folder.only is not None:
        raise StatusError(
            "this lab shows one run or study alone, so a new run has no place in it.",
            status=CONFLICT,
            where=name,
            todo="Start the lab of a folder of runs: heed lab FOLDER",
        )
    problem = find_problem(name)
    if problem is not None:
        raise StatusError(f"a run cannot have this name: {problem}", status=INVALID, where=name)
    path = folder.root
    for part in PurePosixPath(name).parts[:-1]:
        path = path / part
        inside = "run" if is_run(path) else "study" if is_study(path) else None
        if path.is_symlink() or (path.exists() and not path.is_dir()):
            what = f"{part!r} is a link or a file."
            raise StatusError(what, status=CONFLICT, where=name, todo="Choose another name.")
        if inside is not None:
            what = f"{part!r} is a {inside}, and no run is made inside one."
            raise StatusError(what, status=CONFLICT, where=name, todo="Choose another name.")
    path = folder.root / name
    if name in taken:
        what = "a run of this name waits in the queue."
        raise StatusError(what, status=CONFLICT, where=name, todo="Choose another name.")
    if path.is_symlink():
        what = "there is a link of this name."
        raise StatusError(what, status=CONFLICT, where=name, todo="Choose another name.")
    try:
        Run(path).refuse_if_taken()
    except RunError as error:
        todo = "Choose another name."
        raise StatusError(error.what, status=CONFLICT, where=name, todo=todo) from error
    return path


def find_problem(name: str) -> str | None:
    """Why a name is not that of a run inside the folder; None where it is."""
    parts = name.split("/")
    if not name.strip() or name != name.strip():
        return "it is empty, or begins or ends with a space."
    if any(part in ("", ".", "..") or part.startswith(".") for part in parts):
        return "no part of it may be empty or begin with a dot."
    if "\\" in name or UNPRINTABLE.search(name):
        return "it has a backslash or a control character."
    if len(parts) > MOST_PARTS or any(len(part.encode()) > MOST_BYTES for part in parts):
        return f"it has more than {MOST_PARTS} parts, or a part of more than {MOST_BYTES} bytes."
    return None


def suggest_name(folder: RunFolder, stem: str, taken: Collection[str] = ()) -> str:
    """The first of NAME, NAME-2, … that is free."""
    stem = stem if find_problem(stem) is None else "run"
    name, number = stem, 1
    while name in taken or (folder.root / name).exists() or (folder.root / name).is_symlink():
        number += 1
        name = f"{stem}-{number}"
    return name
