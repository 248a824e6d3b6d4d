"""What the doctor found, as data, and as tables for a person."""

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

from heed.data.corpus.text_files import Place, printable
from heed.terminal import build_table

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")
COLOURS: dict[Severity, str] = {"error": "bold red", "warning": "yellow", "note": "cyan"}


@dataclass(frozen=True)
class Finding:
    """One kind of trouble in one split."""

    severity: Severity
    code: str  # a short name that stays the same, for programs
    split: str
    message: str  # what it is, with figures
    count: int = 1
    places: tuple[Place, ...] = ()  # the first few


@dataclass(frozen=True)
class SplitSummary:
    """One split in figures."""

    files: tuple[str, ...]
    decided: str  # how the files were read
    records: int  # all that could be read
    kept: int  # of those, what training uses
    dropped: Mapping[str, int]  # the others, by reason
    words: tuple[int, ...]  # running words of each text
    labels: Mapping[str, int] = field(default_factory=dict)
    in_train: int | None = None  # kept records that train has too
    in_train_same_label: int | None = None
    source_in_train: int | None = None
    unknown_words: tuple[float, ...] | None = None  # share of running words that train lacks


@dataclass(frozen=True)
class Report:
    """Everything the doctor has to say; `ok` means that training can read it all."""

    task: str | None  # None where it could not be told
    findings: tuple[Finding, ...]
    summary: Mapping[str, SplitSummary]
    # By split, which of its kept records train has too: what is left is the clean part.
    seen: Mapping[str, npt.NDArray[np.bool_]] = field(default_factory=dict, compare=False)

    @property
    def errors(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.severity == "error")

    @property
    def ok(self) -> bool:
        return not self.errors

    @property
    def exit_code(self) -> int:
        """For the command line: 1 on errors, 0 otherwise, warnings or none."""
        return 0 if self.ok else 1

    def to_json(self) -> str:
        """The whole report for a program, with every place as a path and a line."""
        findings = [
            {**asdict(finding), "places": [place._asdict() for place in finding.places]}
            for finding in self.findings
        ]
        summary = {name: asdict(one) for name, one in self.summary.items()}
        report = {"task": self.task, "ok": self.ok, "findings": findings, "summary": summary}
        return json.dumps(report, indent=2)


def in_order(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Errors first, then warnings, then notes; within each as they were found."""
    return tuple(sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity)))


def render(report: Report) -> Group:
    """Tables for a terminal: the splits, the findings, and a verdict."""
    parts: list[Table | Text] = []
    if report.summary:
        parts.append(_splits_table(report))
    if report.findings:
        parts.append(_findings_table(report))
    said = ", ".join(_counted(report, severity) for severity in SEVERITIES)
    verdict = "fit to train on" if report.ok else "not fit to train on"
    parts.append(Text(f"{said}: {verdict}.", style="green" if report.ok else COLOURS["error"]))
    return Group(*parts)


def _counted(report: Report, severity: Severity) -> str:
    count = sum(finding.severity == severity for finding in report.findings)
    return f"{count} {severity}{'' if count == 1 else 's'}"


def _splits_table(report: Report) -> Table:
    counts = ("records", "kept", "words")
    headers = ("split", *counts, "how it is read")
    table = build_table(*headers, title=f"task: {report.task}", right=counts)
    for name, one in report.summary.items():
        words = " / ".join(f"{count:,}" for count in one.words)
        cells = (name, f"{one.records:,}", f"{one.kept:,}", words, one.decided)
        table.add_row(*(Text(printable(cell)) for cell in cells))
    return table


def _findings_table(report: Report) -> Table:
    table = build_table("", "split", "what", "where first", title="findings")
    for one in report.findings:
        label = Text(one.severity, style=COLOURS[one.severity])
        where = show_places(one.places)
        table.add_row(label, *(Text(printable(cell)) for cell in (one.split, one.message, where)))
    return table


def show_places(places: Sequence[Place]) -> str:
    """`a.en:3, 8, 12; b.en:1`: the path once, then its lines."""
    by_path: dict[str, list[int]] = {}
    for place in places:
        by_path.setdefault(place.path, []).append(place.line)
    shown = (f"{path}:{', '.join(map(str, found))}" for path, found in by_path.items())
    return printable("; ".join(shown))
