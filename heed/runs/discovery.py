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
        path = Path(name)
        is_pattern = any(sign in name for sign in "*?[") and not path.exists()
        root = Path(path.anchor)
        folders = sorted(root.glob(str(path.relative_to(root)))) if is_pattern else [path]
        matches = [run for folder in folders if folder.is_dir() for run in runs_below(folder)]
        if not matches:
            what = "there is no such folder."
            if is_pattern:
                what = "no run matches this pattern."
            elif path.exists():
                what = "there is no run here."
            todo = "Name run folders or folders of runs; `heed runs` lists those in runs/."
            raise RunError(what, where=name, todo=todo)
        for run in matches:
            runs.setdefault(run.folder.resolve(), run)
    return list(runs.values())


def runs_below(folder: Path) -> list[Run]:
    """Every run in a folder and below it, sorted, but none in hidden folders, such as drafts."""
    names = ("recipe.toml", "environment.json")  # a run that lacks one of them is found as well
    paths = {path.parent.relative_to(folder) for name in names for path in folder.rglob(name)}
    visible = (path for path in paths if not any(part.startswith(".") for part in path.parts))
    return [Run(folder / path) for path in sorted(visible)]
