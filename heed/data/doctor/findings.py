"""Findings of the doctor, as data and as terminal tables."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
from rich.console import Group
from rich.table import Table
from rich.text import Text

from heed.data.corpus.lines import Place
from heed.errors import make_printable
from heed.terminal import build_note, build_table

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")
LONG_FOLDER = 24  # characters of a folder's path above which it is printed once
COLORS: dict[Severity, str] = {"error": "bold red", "warning": "yellow", "note": "cyan"}


@dataclass(frozen=True)
class Finding:
    """One kind of problem in one split."""

    severity: Severity
    code: str  # short, stable name for programs
    split: str
    message: str  # description with numbers
    count: int = 1
    places: tuple[Place, ...] = ()  # the first few


@dataclass(frozen=True)
class SplitSummary:
    """Statistics of one split."""

    files: tuple[str, ...]
    description: str  # how the files were read
    records: int  # records that could be read
    kept: int  # of those, records that training uses
    dropped: Mapping[str, int]  # the others, by reason
    words: tuple[int, ...]  # words of each text
    labels: Mapping[str, int] = field(default_factory=dict)
    in_train: int | None = None  # usable records that are also in train
    in_train_same_label: int | None = None
    source_in_train: int | None = None
    unknown_words: tuple[float, ...] | None = None  # share of words that are not in train


@dataclass(frozen=True)
class Report:
    """The doctor's report; `ok` means that training can read all the data."""

    task: str | None  # None if it could not be inferred
    findings: tuple[Finding, ...]
    summary: Mapping[str, SplitSummary]
    # By split, which of its usable records are also in train; the others are the clean part.
    seen: Mapping[str, npt.NDArray[np.bool_]] = field(default_factory=dict, compare=False)

    @property
    def errors(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.severity == "error")

    @property
    def ok(self) -> bool:
        return not self.errors

    @property
    def exit_code(self) -> int:
        """Exit code of the command line: 1 on errors, else 0."""
        return 0 if self.ok else 1

    def to_json(self) -> str:
        """The whole report as JSON, with every place as a path and a line."""
        findings = [
            {**asdict(finding), "places": [place._asdict() for place in finding.places]}
            for finding in self.findings
        ]
        summary = {name: asdict(one) for name, one in self.summary.items()}
        report = {"task": self.task, "ok": self.ok, "findings": findings, "summary": summary}
        return json.dumps(report, indent=2)


def sort_findings(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Sort findings by severity: errors, warnings, notes; stable within each."""
    return tuple(sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity)))


def render_report(report: Report) -> Group:
    """Terminal tables: the splits, the findings, and a verdict."""
    parts: list[Table | Text] = []
    folder = _long_common_folder(report)
    if folder:
        parts.append(build_note(make_printable(f"files in {folder}")))
    if report.summary:
        parts.append(_splits_table(report))
    if report.findings:
        parts.append(_findings_table(report, folder))
    counts = ", ".join(_count_severity(report, severity) for severity in SEVERITIES)
    verdict = "ready for training" if report.ok else "not ready for training"
    parts.append(Text(f"{counts}: {verdict}.", style="green" if report.ok else COLORS["error"]))
    return Group(*parts)


def _count_severity(report: Report, severity: Severity) -> str:
    count = sum(finding.severity == severity for finding in report.findings)
    return f"{count} {severity}{'' if count == 1 else 's'}"


def _long_common_folder(report: Report) -> str:
    """The folder of all files where its path is long: findings then leave it out."""
    folders = {str(Path(file).parent) for one in report.summary.values() for file in one.files}
    folder = folders.pop() if len(folders) == 1 else ""
    return folder if len(folder) > LONG_FOLDER else ""


def _splits_table(report: Report) -> Table:
    counts = ("records", "kept", "words")
    headers = ("split", *counts, "how it is read")
    title = f"task: {report.task}"
    table = build_table(*headers, title=title, right=counts, no_wrap=counts, compact=True)
    for name, one in report.summary.items():
        words = " / ".join(f"{count:,}" for count in one.words)
        cells = (name, f"{one.records:,}", f"{one.kept:,}", words, one.description)
        table.add_row(*(Text(make_printable(cell)) for cell in cells))
    return table


def _findings_table(report: Report, folder: str) -> Table:
    table = build_table("", "split", "what, and where first", title="findings", compact=True)
    for one in report.findings:
        label = Text(one.severity, style=COLORS[one.severity])
        what = Text(make_printable(one.message))
        if one.places:
            places = [place._replace(path=_below(folder, place.path)) for place in one.places]
            what.append(f"\n{show_places(places)}", style="dim")
        table.add_row(label, Text(make_printable(one.split)), what)
    return table


def _below(folder: str, path: str) -> str:
    return str(Path(path).relative_to(folder)) if folder else path


def show_places(places: Sequence[Place]) -> str:
    """`a.en:3, 8, 12; b.en:1`: the path once, then its lines."""
    by_path: dict[str, list[int]] = {}
    for place in places:
        by_path.setdefault(place.path, []).append(place.line)
    shown = (f"{path}:{', '.join(map(str, lines))}" for path, lines in by_path.items())
    return make_printable("; ".join(shown))
