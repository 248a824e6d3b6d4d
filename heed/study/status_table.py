"""The status of a study: a live table on a terminal, plain lines in a pipe.

Trials are summarized by system, so that a study of hundreds fits a screen of 80 columns.
"""

from __future__ import annotations

import json
import shlex
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from types import TracebackType
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from heed.config.task_metrics import LOWER_IS_BETTER
from heed.files import open_regular
from heed.stats.verdicts import format_minutes
from heed.study.study_config import StudyConfig
from heed.study.trials import RUNS, TrialState
from heed.terminal import build_note, build_table

MAX_SYSTEMS, MAX_LINES = 20, 6
"""Systems in the table, and trials that run or failed below it."""
REFRESH_SECONDS = 0.5
TAIL_BYTES = 8192
"""Bytes at the end of metrics.jsonl in which its last line lies."""
STATUSES = ("finished", "running", "failed", "pruned", "stopped", "waiting")


class StatusView:
    """Shows how far a study is while it runs, as a context."""

    def __init__(
        self, console: Console, folder: Path, config: StudyConfig, jobs: int | None
    ) -> None:
        self.console, self.folder, self.config, self.jobs = console, folder, config, jobs
        self.live = Live(console=console, auto_refresh=False) if console.is_terminal else None
        self._shown = 0.0

    def __enter__(self) -> StatusView:
        self.console.print(Text(f"The study's folder is {self.folder}"), soft_wrap=True)
        if self.live is not None:
            self.live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.live is not None:
            self.live.stop()

    def update(
        self, states: Sequence[TrialState], running: Sequence[str], event: str | None = None
    ) -> None:
        """Show the states of all trials, which of them run, and what has just happened."""
        if self.live is None:
            if event is not None:
                ended = sum(state.has_ended for state in states)
                self.console.print(f"[{ended}/{len(states)}] {event}", soft_wrap=True)
            return
        now = time.monotonic()
        if event is not None or now - self._shown >= REFRESH_SECONDS:
            self._shown = now
            status = render_status(
                self.config,
                states,
                folder=self.folder,
                running=running,
                jobs=self.jobs or len(running),
            )
            self.live.update(status, refresh=True)


def render_status(
    config: StudyConfig,
    states: Sequence[TrialState],
    *,
    folder: Path | None = None,
    running: Sequence[str] = (),
    jobs: int = 1,
) -> Group:
    """The status of a study: a sentence, a row for each system, trials that run or failed."""
    parts: list[RenderableType] = [Text(describe_status(config, states, running, jobs)), Text("")]
    systems = list(dict.fromkeys(state.trial.system for state in states))
    shown = sorted(_choose_systems(states, running, systems), key=systems.index)
    columns, rows = build_rows(config, states, running)
    table = build_table(*columns, right=columns[1:], no_wrap=columns[1:], compact=True)
    for row in rows:
        if row[0] in shown:
            table.add_row(*(Text(cell) for cell in row))
    parts.append(table)
    if len(systems) > len(shown):
        parts.append(build_note(f"and {len(systems) - len(shown)} more systems"))
    for name in running[:MAX_LINES]:
        progress = None if folder is None else read_progress(folder / RUNS / name)
        parts.append(build_note(f"{name}: {progress or 'starts'}"))
    failed = [state for state in states if state.status == "failed"]
    parts += [Text(f"{one.trial.name} failed: {one.reason}") for one in failed[-MAX_LINES:]]
    if len(failed) > MAX_LINES:
        parts.append(build_note(f"and {len(failed) - MAX_LINES} more that failed"))
    return Group(*parts)


def describe_status(
    config: StudyConfig, states: Sequence[TrialState], running: Sequence[str], jobs: int = 1
) -> str:
    """How many trials have ended, and about how long the others take."""
    counts = count_statuses(states, running)
    title = config.title or config.name or "study"
    parts = [f"{counts[status]} {status}" for status in STATUSES if counts[status]]
    text = f"{title}: {len(states)} trials: {', '.join(parts) or 'none yet'}"
    left = sum(not state.has_ended for state in states)
    minutes = [state.minutes for state in states if state.status == "finished" and state.minutes]
    if left and minutes and running:
        text += f"; {format_minutes(fmean(minutes) * left / max(1, jobs))} left"
    return f"{text}."


def describe_trial(state: TrialState, config: StudyConfig) -> str:
    """One line about how a trial ended."""
    name = state.trial.name
    if state.status != "finished":
        return f"{name} {state.status}: {state.reason}"
    minutes = "" if state.minutes is None else f", {state.minutes:.1f} min"
    reused = "" if state.reused is None else f", taken from {state.reused}"
    dev = "" if state.dev is None else f": dev {config.metric} {format_score(state.dev)}"
    return f"{name} finished{dev}{minutes}{reused}"


def describe_end(folder: Path, config: StudyConfig, states: Sequence[TrialState]) -> str:
    """How a command for a study ended, and what to do next."""
    left = [state for state in states if not state.has_ended]
    counts = count_statuses(states, ())
    ended = ", ".join(f"{counts[s]} {s}" for s in ("finished", "failed", "pruned") if counts[s])
    text = f"{folder}: {ended or 'no trial has ended'}"
    if not left:
        return f"{text}. Next: heed report {shlex.quote(str(folder))}"
    why = find_spent_budget(config, states)
    reason = "" if why is None else f", because {why}"
    return f"{text}; {len(left)} are left{reason}. The same command goes on."


def find_spent_budget(
    config: StudyConfig, states: Sequence[TrialState], running: int = 0
) -> str | None:
    """Why nothing new begins: the part of the budget that is spent; None while there is some."""
    budget = config.budget
    begun = [state for state in states if state.started is not None and state.reused is None]
    waiting_to_write = max(0, running - sum(state.status == "running" for state in begun))
    spent = {
        "trials": len(begun) + waiting_to_write,
        "minutes": sum(state.minutes or 0.0 for state in begun),
        "tokens": sum(state.tokens or 0 for state in begun),
    }
    for name, used in spent.items():
        limit = getattr(budget, name)
        if limit is not None and used >= limit:
            return f"the budget of {limit:,.10g} {name} is spent"
    return None


def mark_interrupted(states: Sequence[TrialState], *, is_running: bool) -> list[TrialState]:
    """The states, where none runs those that say they do as stopped: they were interrupted."""
    if is_running:
        return list(states)
    return [
        replace(state, status="stopped", reason=state.reason or "its process was killed.")
        if state.status == "running"
        else state
        for state in states
    ]


def count_statuses(states: Sequence[TrialState], running: Sequence[str]) -> Counter[str]:
    """Trials by status. One that says it runs, and does not, was interrupted: it is stopped."""
    counts: Counter[str] = Counter()
    for state in states:
        status: str = state.status
        if state.trial.name in running:
            status = "running"
        elif status == "running":
            status = "stopped"
        counts[status] += 1
    return counts


def build_rows(
    config: StudyConfig, states: Sequence[TrialState], running: Sequence[str] = ()
) -> tuple[list[str], list[list[str]]]:
    """The columns and one row for each system: trials by status, scores on dev, minutes."""
    by_system: dict[str, list[TrialState]] = {}
    for state in states:
        by_system.setdefault(state.trial.system, []).append(state)
    counts = {name: count_statuses(one, running) for name, one in by_system.items()}
    shown = [s for s in STATUSES if s == "finished" or any(one[s] for one in counts.values())]
    searches = any(state.trial.stage == "search" for state in states)
    metric = f"dev {config.metric}"
    columns = ["system", *shown, *(["best in search"] if searches else []), metric, "sd", "min"]
    rows = []
    for name, group in by_system.items():
        searched = _scores(group, ("search", "finalist"))
        final = _scores(group, ("final",))
        minutes = [state.minutes for state in group if state.minutes is not None]
        choose = min if config.metric in LOWER_IS_BETTER else max
        best = [format_score(choose(searched)) if searched else "–"] if searches else []
        rows.append(
            [
                name,
                *(str(counts[name][status] or "–") for status in shown),
                *best,
                format_score(fmean(final)) if final else "–",
                format_score(stdev(final)) if len(final) > 1 else "–",
                f"{fmean(minutes):.1f}" if minutes else "–",
            ]
        )
    return columns, rows


def _scores(states: Sequence[TrialState], stages: Sequence[str]) -> list[float]:
    return [
        state.dev
        for state in states
        if state.trial.stage in stages and state.status == "finished" and state.dev is not None
    ]


def _choose_systems(
    states: Sequence[TrialState], running: Sequence[str], systems: Sequence[str]
) -> list[str]:
    """The systems that a table shows: those that run or failed first, then the others in order."""
    urgent = [s.trial.system for s in states if s.trial.name in running or s.status == "failed"]
    return list(dict.fromkeys([*urgent, *systems]))[:MAX_SYSTEMS]


def read_progress(run: Path) -> str | None:
    """How far a run is, from the last line of its metrics; None before the first."""
    line: dict[str, Any] = {}
    with suppress(OSError, ValueError), open_regular(run / "metrics.jsonl") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - TAIL_BYTES))
        ending = file.read().splitlines()
        line = json.loads(ending[-1]) if ending else {}
    with suppress(KeyError, TypeError, ValueError):
        speed = line["time"]["tokens_per_second"]
        return f"step {line['step']:,}, epoch {line['epoch']}, {speed:,.0f} tokens/s"
    return None


def format_score(value: float) -> str:
    """A score with two digits, or four where it is below 1."""
    return f"{value:.2f}" if abs(value) >= 1 else f"{value:.4f}"
