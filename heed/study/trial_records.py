"""The record of a trial: scores by item, history, environment and state, without any text.

A trial whose state was lost is taken up from its record.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from heed import checksums
from heed.checksums import DamagedError
from heed.errors import RunError
from heed.runs.run import Run
from heed.study.run_records import SUFFIX, ScoredRun, parse_record, read_run, write_record
from heed.study.trials import RECORDS, RESTORE, RUNS, Trial, TrialState, parse_state, state_path

PATH_KEYS = {"data": ("train", "dev", "test", "sets"), "tokenizer": ("text",), "init": ("from",)}
"""Keys of a recipe whose values are paths."""
TRAINING_ROWS = 300
"""Rows of training metrics in a record; evaluations are all in it."""
RESTORE_RECORD = "Restore it from a copy; or delete {}, and `heed study` makes both again."


@dataclass(frozen=True)
class TrialRecord:
    """What the record of a finished trial holds."""

    run: ScoredRun
    """The run under the trial's name."""
    history: list[dict[str, Any]]
    """The rows of the run's history: every evaluation, and some of the training rows."""
    environment: dict[str, Any]


def record_path(folder: Path, name: str) -> Path:
    """The file of a trial's record."""
    return folder / RECORDS / f"{name}{SUFFIX}"


def write_trial_record(folder: Path, state: TrialState) -> None:
    """Write the record of a trial that has finished or was pruned."""
    run = folder / RUNS / state.trial.name
    opened, scored = Run(run), read_run(run)
    sets = {name: scored.evaluations[name] for name in state.scores if name in scored.evaluations}
    scored = replace(
        scored,
        name=state.trial.name,
        recipe=_shorten_paths(scored.recipe),
        minutes=state.minutes,
        evaluations=sets,
        looks={name: scored.looks[name] for name in sets},
    )
    details = {
        "history": _thin_history(opened.history),
        "parameters": state.parameters,
        "peak_memory": state.peak_memory,
        "environment": opened.environment(),
        "state": asdict(state),
    }
    write_record(scored, folder / RECORDS, details=details)


def read_trial_record(folder: Path, name: str) -> TrialRecord:
    """Read the record of a finished trial; an error where it is missing."""
    path = record_path(folder, name)
    state = state_path(folder, name)
    if not path.exists():
        what = "the record of this trial, which has ended, is missing."
        raise RunError(what, where=str(path), todo=RESTORE_RECORD.format(state))
    document = checksums.read_json(path, todo=RESTORE_RECORD.format(f"it and {state}"))
    run = replace(parse_record(document, str(path)), name=name)
    return TrialRecord(run, document.get("history") or [], document.get("environment") or {})


def verify_records(folder: Path, states: Sequence[TrialState]) -> None:
    """Raise an error for a trial that has ended and whose record is missing or damaged."""
    for state in states:
        if state.status in ("finished", "pruned"):
            read_trial_record(folder, state.trial.name)


def restore_state(folder: Path, trial: Trial) -> TrialState | None:
    """The state of a trial that has ended, from its record; None where that does not tell it."""
    path = record_path(folder, trial.name)
    try:
        content = checksums.read_json(path, todo=RESTORE).get("state")
        state = None if content is None else parse_state(content, str(path))
    except (FileNotFoundError, DamagedError):  # the trial is carried out, and its record written
        return None
    if state is None or replace(state.trial, number=trial.number, added=trial.added) != trial:
        return None
    return state if state.has_ended else None


def _thin_history(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """All evaluations, and of the training rows an even share."""
    training = [i for i, row in enumerate(rows) if row["event"] == "train"]
    step = max(1, -(-len(training) // TRAINING_ROWS))
    wanted = {*training[step - 1 :: step]}
    return [row for i, row in enumerate(rows) if row["event"] != "train" or i in wanted]


def _shorten_paths(tables: dict[str, Any]) -> dict[str, Any]:
    """The tables of a recipe without the place of its files: hashes say which text it was."""

    def shorten(value: Any) -> Any:
        if isinstance(value, str) and Path(value).is_absolute():
            path, here = Path(value), Path.cwd()
            return str(path.relative_to(here) if path.is_relative_to(here) else path.name)
        if isinstance(value, list):
            return [shorten(one) for one in value]
        if isinstance(value, dict):
            return {key: shorten(one) for key, one in value.items()}
        return value

    result = dict(tables)
    for section, keys in PATH_KEYS.items():
        values = result.get(section, {})
        result[section] = {k: shorten(v) if k in keys else v for k, v in values.items()}
    return result
