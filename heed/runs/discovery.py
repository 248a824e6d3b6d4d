"""Discovery of runs: run folders, folders of runs, and glob patterns."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from heed.errors import RunError
from heed.runs.run import Run


def find_runs(names: Sequence[str | Path]) -> list[Run]:
    """The runs that these names mean, each once: run folders, folders of runs, glob patterns.

    An error if a name means no run. Whether a run can be read is not checked.
    """
    runs: dict[Path, Run] = {}
    for name in map(str, names):
        matches = [run for path in expand_pattern(name) for run in runs_below(path)]
        if not matches:
            raise no_run_error(name)
        for run in matches:
            runs.setdefault(run.folder.resolve(), run)
    return list(runs.values())


def expand_pattern(name: str) -> list[Path]:
    """The paths that match a glob pattern, sorted; a name that is no pattern is its own path."""
    path = Path(name)
    if not _is_pattern(name):
        return [path]
    root = Path(path.anchor)
    return sorted(root.glob(str(path.relative_to(root))))


def no_run_error(name: str) -> RunError:
    """The error for a name that means no run."""
    what = "there is no such folder."
    if _is_pattern(name):
        what = "no run matches this pattern."
    elif Path(name).exists():
        what = "there is no run here."
    todo = "Name run folders or folders of runs; `heed runs` lists those in runs/."
    return RunError(what, where=name, todo=todo)


def _is_pattern(name: str) -> bool:
    return any(sign in name for sign in "*?[") and not Path(name).exists()


def runs_below(folder: Path) -> list[Run]:
    """Every run in a folder and below it, sorted, but none in hidden folders, such as drafts."""
    names = ("recipe.toml", "environment.json")  # a run that lacks one of them is found as well
    paths = {path.parent.relative_to(folder) for name in names for path in folder.rglob(name)}
    visible = (path for path in paths if not any(part.startswith(".") for part in path.parts))
    return [Run(folder / path) for path in sorted(visible)]
