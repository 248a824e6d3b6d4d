"""Checkpoints: atomic, checksummed, exact.

A checkpoint is a folder `step-N` with `tensors.safetensors` (weights, optimizer, generators) and
`state.json` (plain numbers). It is written under another name, flushed to the disk and renamed, so
it exists whole or not at all. Every file contains its checksum. What it counts on, the metrics and
the weights below, is flushed before.

Evaluations save weights alone beside them: `best-N` and `recent-N`. Those that were the best or the
last when a checkpoint was written are kept as long as it is, and `state.json` has their steps. A
run resumed from it has these, and none of later steps. Snapshots are such files too, in a folder of
their own; the one of a step is written before its checkpoint, and all are kept.

A checkpoint that was damaged later, or whose weights or metrics were, is recognized and renamed to
`damaged-N`, and the checkpoint before it is used.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import Tensor

from heed import checksums
from heed.errors import RunError
from heed.files import (
    DISK_FULL,
    delete_drafts,
    delete_folder,
    draft_folder,
    make_folder,
    publish,
)
from heed.models.weights import read_weights, verify_weights, write_weights_with_checksum
from heed.runs.weight_files import BEST, RECENT, SNAPSHOT, STATE, TENSORS, WHOLE, list_weights

DAMAGED = "damaged-"
"""Prefix of the folder of a damaged checkpoint."""
TRY_BEFORE = "Trying the one before it."
"""What happens next where a checkpoint is damaged."""


def save(folder: Path, step: int, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> Path:
    """Write the checkpoint `step-N`; returns its folder."""
    final = folder / f"{WHOLE}{step:09d}"
    try:
        make_folder(folder)
        delete_drafts(folder)
        with draft_folder(folder) as outer:
            draft = outer / final.name
            draft.mkdir()
            write_weights_with_checksum(draft / TENSORS, tensors)
            state = checksums.dump_json(numbers | {"step": step})
            (draft / STATE).write_text(state, encoding="utf-8")
            if final.exists():
                final.rename(outer / "replaced")
            publish(draft, final)
    except (OSError, SafetensorError) as error:
        raise disk_error(error, folder) from error
    return final


def load_newest(
    folder: Path, warn: Callable[[str], None], *, lines: int | None = None
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Load the newest checkpoint that a run can be resumed from; empty where there is none.

    The best and recent weights of its time must be intact too, and so must the lines of metrics
    that it counts; `lines` is how many there are, None if that is not to be checked.
    """
    for path in sorted(folder.glob(f"{WHOLE}*"), reverse=True):
        try:
            numbers = checksums.read_json(path / STATE, todo=TRY_BEFORE)
            if lines is not None and (needed := numbers.get("lines", 0)) > lines:
                what = f"metrics.jsonl has {lines} intact lines of the {needed} before it."
                raise RunError(what, todo=TRY_BEFORE)
            for weights in _needed_weights(folder, numbers):
                verify_weights(weights, todo=TRY_BEFORE)
            return read_weights(path / TENSORS, todo=TRY_BEFORE), numbers
        except (OSError, RunError) as error:
            warn(f"Checkpoint {path.name} cannot be used: {error}")
    return {}, {}


def _needed_weights(folder: Path, numbers: dict[str, Any]) -> Iterator[Path]:
    """The files of the weights that were the best or recent when a checkpoint was written."""
    if (best := numbers.get("best_step")) is not None:
        yield weights_path(folder, BEST, best)
    yield from (weights_path(folder, RECENT, step) for step in numbers.get("recent_steps", ()))


def weights_path(folder: Path, kind: str, step: int) -> Path:
    """The file of the BEST, RECENT or SNAPSHOT weights of a step."""
    return folder / f"{kind}{step:09d}.safetensors"


def has_checkpoints(folder: Path) -> bool:
    """Whether a checkpoint was ever written here, damaged ones included."""
    return any(any(folder.glob(f"{kind}*")) for kind in (WHOLE, DAMAGED))


def set_damaged_aside(folder: Path, after: int) -> None:
    """Rename the checkpoints after this step, from which a run resumes: they are damaged.

    Otherwise `prune` would count them as the newest, and delete intact ones.
    """
    for path in folder.glob(f"{WHOLE}*"):
        if path.name > f"{WHOLE}{after:09d}":
            renamed = folder / path.name.replace(WHOLE, DAMAGED)
            shutil.rmtree(renamed, ignore_errors=True)
            path.rename(renamed)


def prune(folder: Path, keep: int, *, average: int) -> None:
    """Delete all but the newest `keep` checkpoints, and weights that no longer have a use.

    The run, and a run resumed from any of these checkpoints, needs the best weights up to that step
    and the last `average` of the recent ones.
    """
    checkpoints = sorted(folder.glob(f"{WHOLE}*"))
    for path in checkpoints[:-keep]:
        delete_folder(path)
    for kind, count in ((BEST, 1), (RECENT, average)):
        paths = list_weights(folder, kind)
        needed = {*paths[-count:]}
        for one in checkpoints[-keep:]:
            needed.update([path for path in paths if _step(path) <= _step(one)][-count:])
        for path in paths:
            if path not in needed:
                path.unlink()


def save_weights(folder: Path, kind: str, step: int, weights: dict[str, Tensor]) -> None:
    """Save weights as BEST, RECENT or SNAPSHOT of a step."""
    make_folder(folder)
    write_tensors(weights_path(folder, kind, step), weights)


def delete_weights(folder: Path, after: int) -> None:
    """Delete weights of steps after this, from which a run resumes: those steps are trained again.

    On a machine that is not deterministic they may come out differently.
    """
    for path in (one for kind in (BEST, RECENT, SNAPSHOT) for one in list_weights(folder, kind)):
        if _step(path) > f"{after:09d}":
            path.unlink()


def average_recent(folder: Path, steps: Sequence[int], *, todo: str) -> dict[str, Tensor]:
    """The average of the recent weights of these steps, read one after another to save memory.

    All of them are needed: `todo` is the advice where one is missing or damaged.
    """
    first, *others = (weights_path(folder, RECENT, step) for step in steps)
    weights = read_weights(first, todo=todo)
    sums = {name: weight.double() for name, weight in weights.items()}
    dtypes = {name: weight.dtype for name, weight in weights.items()}
    for path in others:
        for name, weight in read_weights(path, todo=todo).items():
            sums[name] += weight
    return {name: (total / len(steps)).to(dtypes[name]) for name, total in sums.items()}


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write a safetensors file atomically, flushed to the disk."""
    try:
        with draft_folder(path.parent) as draft:
            write_weights_with_checksum(draft / path.name, tensors)
            publish(draft / path.name, path)
    except (OSError, SafetensorError) as error:
        raise disk_error(error, path) from error


def disk_error(error: Exception, path: Path) -> RunError:
    """The error of a disk that cannot be written to."""
    full = getattr(error, "errno", None) in DISK_FULL or "No space left" in str(error)
    what = "the disk is full." if full else f"the disk cannot be written to: {error}."
    first = "Free some space (checkpoints/ of old runs, say)" if full else "Correct that"
    return RunError(
        what,
        where=str(path),
        todo=f"{first}, then `heed resume` this run: its last checkpoint is intact.",
    )


def _step(path: Path) -> str:
    """The step in the name of a checkpoint or of weights."""
    return path.name.partition("-")[2][:9]
