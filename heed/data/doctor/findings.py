"""Findings of the doctor, as data and as terminal tables."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt
from rich.console import Group
from rich.table import Table
from rich.text import Text

from heed.data.corpus.lines import Place
from heed.data.raw_files import make_printable
from heed.terminal import build_table

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")
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
    if report.summary:
        parts.append(_splits_table(report))
    if report.findings:
        parts.append(_findings_table(report))
    counts = ", ".join(_count_severity(report, severity) for severity in SEVERITIES)
    verdict = "ready for training" if report.ok else "not ready for training"
    parts.append(Text(f"{counts}: {verdict}.", style="green" if report.ok else COLORS["error"]))
    return Group(*parts)


def _count_severity(report: Report, severity: Severity) -> str:
    count = sum(finding.severity == severity for finding in report.findings)
    return f"{count} {severity}{'' if count == 1 else 's'}"


def _splits_table(report: Report) -> Table:
    counts = ("records", "kept", "words")
    headers = ("split", *counts, "how it is read")
    table = build_table(*headers, title=f"task: {report.task}", right=counts)
    for name, one in report.summary.items():
        words = " / ".join(f"{count:,}" for count in one.words)
        cells = (name, f"{one.records:,}", f"{one.kept:,}", words, one.description)
        table.add_row(*(Text(make_printable(cell)) for cell in cells))
    return table


def _findings_table(report: Report) -> Table:
    table = build_table("", "split", "what", "where first", title="findings")
    for one in report.findings:
        label = Text(one.severity, style=COLORS[one.severity])
        where = show_places(one.places)
        table.add_row(
            label, *(Text(make_printable(cell)) for cell in (one.split, one.message, where))
        )
    return table


def show_places(places: Sequence[Place]) -> str:
    """`a.en:3, 8, 12; b.en:1`: the path once, then its lines."""
    by_path: dict[str, list[int]] = {}
    for place in places:
        by_path.setdefault(place.path, []).append(place.line)
    shown = (f"{path}:{', '.join(map(str, lines))}" for path, lines in by_path.items())
    return make_printable("; ".join(shown))
