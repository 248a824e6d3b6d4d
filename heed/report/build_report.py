"""The report of whatever is named: one run, several runs compared, or a study."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from heed.errors import ConfigError
from heed.report.comparison_report import build_comparison_report
from heed.report.document import Document
from heed.report.run_report import ReportOptions, build_run_report
from heed.report.study_report import build_study_report
from heed.runs.discovery import find_runs
from heed.study.study_folder import refuse_lost_study

STUDY_FILE = "study.toml"
"""The file that makes a folder a study."""
DEFAULT_NAME = "report.html"
NOTES = (".txt", ".md")
"""How the name of a file with notes ends."""


def build_report(names: Sequence[str | Path], options: ReportOptions | None = None) -> Document:
    """The report of a study folder, a run, or several runs (folders of runs and patterns too)."""
    options = options or ReportOptions()
    for name in names:
        refuse_lost_study(Path(name))
    studies = [name for name in names if is_study(name)]
    if studies and len(names) > 1:
        raise ConfigError([f"{studies[0]} is a study: it has a report of its own, name it alone."])
    if studies:
        return build_study_report(
            studies[0],
            title=options.title or None,
            author=options.author or None,
            notes=options.notes or None,
            examples=options.with_examples,
        )
    runs = find_runs(names)
    if len(runs) == 1:
        return build_run_report(runs[0].folder, options)
    return build_comparison_report([run.folder for run in runs], options)


def is_study(name: str | Path) -> bool:
    """Whether this names the folder of a study."""
    return (Path(name) / STUDY_FILE).is_file()


def default_path(names: Sequence[str | Path]) -> Path:
    """Where a report is written without --out: in its run or study, else in the current folder."""
    folders = [name for name in names if is_study(name)] or [run.folder for run in find_runs(names)]
    return Path(folders[0]) / DEFAULT_NAME if len(folders) == 1 else Path(DEFAULT_NAME)


def read_notes(notes: str | None) -> str:
    """The author's notes: the text of a file of this name, else the text itself.

    A name that ends as a text file does is an error where there is none: it is no note.
    """
    if not notes:
        return ""
    path = Path(notes)
    try:
        is_file, is_folder = path.is_file(), path.is_dir()
    except (OSError, ValueError):  # too long for the name of a file, or no name at all
        return notes
    if is_folder or (not is_file and path.suffix in NOTES and not any(map(str.isspace, notes))):
        what = "is a folder" if is_folder else "does not exist"
        raise ConfigError([f"--notes: {notes} {what}. Name a text file, or give the words."])
    if not is_file:
        return notes
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ConfigError([f"--notes: {notes} is not UTF-8 text."]) from None
