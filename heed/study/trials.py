"""Trials of a study: one training run each, and its state in a small file.

trials/NAME.json            the state, written as a whole
records/NAME.record.json    scores by item, history and environment of a finished trial; no text
runs/NAME/                  the run folder
logs/NAME.log               what the trial printed
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from pathlib import Path, PurePath
from typing import Any, Literal

from pydantic import TypeAdapter

from heed import checksums
from heed.checksums import DamagedError
from heed.errors import RunError
from heed.runs.run import STUDY_RUNS, STUDY_TRIALS

TRIALS, RECORDS, RUNS, LOGS = STUDY_TRIALS, "records", STUDY_RUNS, "logs"
"""Subfolders of a study."""
Stage = Literal["search", "finalist", "final"]
Status = Literal["waiting", "running", "finished", "failed", "pruned", "stopped"]
FINISHED, FAILED = "finished", "failed"
ENDED = (FINISHED, FAILED, "pruned")
"""Statuses in which nothing is left to do."""
RESTORE = (
    "Restore it from a copy, or delete it: the trial is then taken up from its record, or else "
    "carried out again."
)


@dataclass(frozen=True)
class Trial:
    """One training run of a study."""

    name: str
    """A safe file name: `rope-seed0`, `rope-trial007`."""
    number: int
    """Its place in the order of the study, from 0."""
    system: str
    changes: dict[str, Any]
    """All recipe keys that are set beyond the recipe, the fixed ones included."""
    recipe: str
    """The recipe as the study names it."""
    seed: int
    stage: Stage = "final"
    """Trials of a search and of its finalists are scored on dev only."""
    added: bool = False
    """Whether it belongs to seeds or systems that were added after the study was declared."""


@dataclass(frozen=True)
class TrialState:
    """A trial and how far it is."""

    trial: Trial
    status: Status = "waiting"
    reason: str | None = None
    """Why it failed, was pruned or stopped."""
    can_retry: bool = False
    """Whether a failed trial is tried again by the next command: its disk was full, say."""
    started: float | None = None
    """Unix time at which it began."""
    ended: float | None = None
    """Unix time at which it ended."""
    minutes: float | None = None
    """Minutes of its processes, evaluation included, without pauses. A process that was killed
    counts up to the last measurement that its run recorded."""
    process_started: float | None = None
    """Unix time at which its last process began."""
    tokens: int | None = None
    """Training tokens, without padding."""
    steps: int | None = None
    dev: float | None = None
    """The score on dev by the metric that chooses."""
    scores: dict[str, dict[str, float]] = field(default_factory=dict)
    """Every metric of every set that it was scored on."""
    parameters: int | None = None
    peak_memory: int | None = None
    """Bytes at the peak: of the GPU where there is one, else of the process."""
    machine: str | None = None
    run: str | None = None
    """The run folder, relative to the study's."""
    reused: str | None = None
    """The finished run that was taken in place of training, if one was."""

    @property
    def has_ended(self) -> bool:
        """Whether nothing is left to do for it."""
        return self.status in ENDED and not self.can_retry


def state_path(folder: Path, name: str) -> Path:
    """The file of a trial's state."""
    return folder / TRIALS / f"{name}.json"


def lock_path(folder: Path, name: str) -> Path:
    """The file whose lock the process of a trial holds."""
    return folder / TRIALS / f".{name}.lock"


def write_state(folder: Path, state: TrialState) -> None:
    """Write a trial's state, atomically."""
    checksums.write_json(state_path(folder, state.trial.name), asdict(state))


def read_state(folder: Path, name: str) -> TrialState:
    """The state of one trial."""
    path = state_path(folder, name)
    if not path.exists():
        raise RunError(f"this study has no trial {name!r}.", where=str(folder))
    return _read(path)


def read_trials(folder: Path) -> list[TrialState]:
    """The states of all trials of a study, in the order of their numbers."""
    states = [_read(path) for path in sorted((folder / TRIALS).glob("[!.]*.json"))]
    return sorted(states, key=lambda state: (state.trial.number, state.trial.name))


def _read(path: Path) -> TrialState:
    state = parse_state(checksums.read_json(path, todo=RESTORE), str(path))
    if state.trial.name != path.stem:
        what = "this is the state of another trial."
        raise DamagedError(what, where=str(path), todo=RESTORE)
    return state


def parse_state(content: Any, where: str) -> TrialState:
    """The state of a trial from its values in JSON."""
    try:
        trial = _known_fields(Trial, content["trial"])
        state = _state_parser().validate_python(
            _known_fields(TrialState, content) | {"trial": trial}
        )
        place = PurePath(state.run or RUNS)
        if place.is_absolute() or ".." in place.parts:
            raise ValueError("the run is not in the study's folder")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        what = "this is no state of a trial."
        raise DamagedError(what, where=where, todo=RESTORE) from error
    return state


@cache
def _state_parser() -> TypeAdapter[TrialState]:
    """Checks the kind of every value of a state. Made when it is first used: it takes a while."""
    return TypeAdapter(TrialState)


def _known_fields(kind: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    names = {one.name for one in fields(kind)}
    return {key: value for key, value in values.items() if key in names}


def trial_rows(states: Sequence[TrialState]) -> list[dict[str, Any]]:
    """One flat row for each trial, for CSV and pandas: its keys, status and scores."""
    keys = dict.fromkeys(key for state in states for key in state.trial.changes)
    sets = dict.fromkeys(
        f"{name}/{metric}"
        for state in states
        for name, scores in state.scores.items()
        for metric in scores
    )
    rows = []
    for state in states:
        trial = state.trial
        row: dict[str, Any] = {
            "trial": trial.name,
            "system": trial.system,
            "seed": trial.seed,
            "stage": trial.stage,
            "added": trial.added,
            "status": state.status,
            "reason": state.reason,
            "minutes": state.minutes,
            "tokens": state.tokens,
            "steps": state.steps,
            "parameters": state.parameters,
            "peak_memory": state.peak_memory,
            "machine": state.machine,
            "run": state.run,
        }
        row |= {key: trial.changes.get(key) for key in keys}
        for column in sets:
            name, _, metric = column.partition("/")
            row[column] = state.scores.get(name, {}).get(metric)
        rows.append(row)
    return rows
