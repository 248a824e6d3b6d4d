"""What every study has: a command that trains by the real commands, and one that makes its page."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from common import DOCS, RESULTS, machine
from reading import MACHINE, OTHERS, Facts, briefly, read, rounded
from running import Plan, settings

Asked = TypeVar("Asked", bound=Plan)


@dataclass(frozen=True)
class CommandLine:
    """What a study can be told; `add` makes room for another command."""

    parser: argparse.ArgumentParser
    training: argparse.ArgumentParser
    add: Callable[..., argparse.ArgumentParser]


def command_line(
    doc: str | None,
    *,
    train: str,
    data: str,
    jobs: str = "runs side by side",
    devices: Sequence[str] = ("cpu", "cuda"),
    records: bool = False,
) -> CommandLine:
    """`train` and `report`, with what all studies ask; the first device is the usual one.

    With `records` the project keeps so much of every run that a report needs no run folders.
    """
    parser = argparse.ArgumentParser(description=doc.split("\n")[0] if doc else None)
    commands = parser.add_subparsers(dest="command", required=True)
    training = commands.add_parser("train", help=train)
    training.add_argument("--data", type=Path, required=True, help=data)
    training.add_argument("--runs", type=Path, required=True, help="folder for the runs")
    training.add_argument("--jobs", type=int, default=1, help=jobs)
    training.add_argument("--minutes", type=float, default=600.0, help="begin nothing after these")
    training.add_argument(
        "--grace", type=float, default=0.5, help="minutes after these until runs are stopped"
    )
    training.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    training.add_argument("--device", default=devices[0], choices=devices)
    training.add_argument("--pack", type=Path, help="a .tar.xz or .tar.gz to keep")
    telling = commands.add_parser("report", help="make the page of results")
    telling.add_argument("--runs", type=Path, required=not records, help="folder with the runs")
    telling.add_argument("--out", type=Path, default=DOCS, help="folder for the page")
    telling.add_argument("--results", type=Path, default=RESULTS, help="folder for the JSON")
    return CommandLine(parser, training, commands.add_parser)


def some_seeds(training: argparse.ArgumentParser, names: Sequence[str]) -> None:
    """Which systems to train, or groups of them, and how often each."""
    training.add_argument("--only", nargs="+", choices=names, default=names)
    training.add_argument("--seeds", type=int, default=3)


def planned(told: argparse.Namespace, kind: type[Asked], **more: Any) -> Asked:
    """What was asked for, from now on; there is a folder for it."""
    deadline = time.monotonic() + 60 * told.minutes
    plan = kind(
        data=told.data.resolve(),
        runs=told.runs.resolve(),
        changes=told.set,
        device=told.device,
        jobs=told.jobs,
        deadline=deadline,
        stop=deadline + 60 * told.grace,
        **more,
    )
    plan.runs.mkdir(parents=True, exist_ok=True)
    return plan


def note_machine(plan: Plan, script: str, words: Sequence[str], **more: Any) -> None:
    """Note the machine beside the runs, and the command: what it was told, but for its folders.

    Others that runs were trained on before stay noted.
    """
    command = ["python", f"benchmarks/{script}.py", "train", "--data", "DIR", "--runs", "RUNS"]
    command += ["--jobs", str(plan.jobs), "--device", plan.device, *words, *settings(plan.changes)]
    path, known = plan.runs / MACHINE, machine(plan.device)
    before = read(path)
    others = before.get(OTHERS, []) + ([briefly(before)] if before else [])
    known |= {"command": " ".join(command), "jobs": plan.jobs} | more
    known[OTHERS] = sorted({*others} - {briefly(known)})
    path.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")


def publish(
    name: str, figures: Facts, page_of: Callable[[Facts, Path], str], out: Path, results: Path
) -> None:
    """Write the figures, and the page that is made of them; its pictures go beside it."""
    figures = rounded(figures)
    for folder in (out, results):
        folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(figures, indent=1, ensure_ascii=False)
    (results / f"{name}.json").write_text(text + "\n", encoding="utf-8")
    page = page_of(figures, out)
    (out / f"{name}.md").write_text(page, encoding="utf-8")
    print(page)


def obey(
    told: argparse.Namespace,
    learn: Callable[[argparse.Namespace], bool],
    report: Callable[[Path, Path, Path], None],
) -> None:
    """Report, or train, and say by the exit code whether all is there."""
    if told.command == "report":
        report(told.runs, told.out, told.results)
    else:
        raise SystemExit(0 if learn(told) else 1)
