"""Checkpoints: atomic, checksummed, exact.

A checkpoint is a folder `step-N` with `tensors.safetensors` (weights, optimizer, generators) and
`state.json` (plain numbers, and the checksum of the tensors). It is written under another name,
flushed to the disk and renamed, so it is there whole or not at all; one that was damaged later
is recognised and put aside as `damaged-N`, and the one before it serves.

Beside them lie weights alone, which evaluations leave: `best-N` and `recent-N`. Those that were the
best or the last when a checkpoint was written are kept as long as it is; a run that goes on from it
has these, and none from later.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from torch.optim import Optimizer

from heed.errors import RunError
from heed.models.weights import read_weights, write_weights
from heed.runs.run import BEST, list_weights
from heed.train.distributed.sharding import placed_like

PART, BLOCK = 1 << 26, 1 << 20
"""Bytes that a thread hashes, and those that it reads at once."""
BY_PARTS = "parts-"
"""How the checksum of a file begins that was hashed in parts."""
DRAFT, WHOLE, DAMAGED = ".draft-", "step-", "damaged-"
"""How the names of folders begin: of one being written, of one written, of one put aside."""
RECENT = "recent-"
"""How the names of weights begin that are to be averaged at the end."""


def save(folder: Path, step: int, tensors: dict[str, Tensor], facts: dict[str, Any]) -> Path:
    """Write checkpoint `step-N`; returns its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    clear_drafts(folder)
    draft, final = folder / f"{DRAFT}{step:09d}", folder / f"{WHOLE}{step:09d}"
    draft.mkdir()
    try:
        write_tensors(draft / "tensors.safetensors", tensors)
        facts = facts | {"step": step, "checksum": checksum(draft / "tensors.safetensors")}
        _write_flushed(draft / "state.json", json.dumps(facts, indent=1).encode())
        if final.exists():
            shutil.rmtree(final)
        draft.rename(final)
        _flush_folder(folder)
    except OSError as error:
        shutil.rmtree(draft, ignore_errors=True)
        raise disk_trouble(error, folder) from error
    return final


def newest(folder: Path, warn: Callable[[str], None]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The newest checkpoint that is whole; nothing at all where there is none."""
    for path in sorted(folder.glob(f"{WHOLE}*"), reverse=True):
        try:
            facts = json.loads((path / "state.json").read_text(encoding="utf-8"))
            if checksum(path / "tensors.safetensors") != facts["checksum"]:
                raise ValueError("its checksum does not match")
            return load_file(path / "tensors.safetensors"), facts
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            warn(f"Checkpoint {path.name} is damaged ({error}); trying the one before it.")
    return {}, {}


def any_in(folder: Path) -> bool:
    """Whether a checkpoint was ever written here, be it damaged by now."""
    return any(any(folder.glob(f"{kind}*")) for kind in (WHOLE, DAMAGED))


def put_aside(folder: Path, after: int) -> None:
    """Rename the checkpoints after this step, from which a run goes on: they were found damaged.

    Else `prune` would count them as the newest, and remove those that are whole.
    """
    for path in folder.glob(f"{WHOLE}*"):
        if path.name > f"{WHOLE}{after:09d}":
            aside = folder / path.name.replace(WHOLE, DAMAGED)
            shutil.rmtree(aside, ignore_errors=True)
            path.rename(aside)


def prune(folder: Path, keep: int, *, average: int) -> None:
    """Remove all but the newest `keep` checkpoints, and weights that nothing will ask for.

    The run, and each of these where it is gone on from, asks for the newest best by then and for
    the newest `average` of the recent.
    """
    checkpoints = sorted(folder.glob(f"{WHOLE}*"))
    for path in checkpoints[:-keep]:
        shutil.rmtree(path)
    for kind, count in ((BEST, 1), (RECENT, average)):
        paths = list_weights(folder, kind)
        needed = {*paths[-count:]}
        for one in checkpoints[-keep:]:
            needed.update([path for path in paths if _step(path) <= _step(one)][-count:])
        for path in paths:
            if path not in needed:
                path.unlink()


def keep_weights(folder: Path, kind: str, step: int, weights: dict[str, Tensor]) -> None:
    """Keep weights of a kind, BEST or RECENT, under the step that they are of."""
    folder.mkdir(exist_ok=True)
    write_tensors(folder / f"{kind}{step:09d}.safetensors", weights)


def forget_weights(folder: Path, after: int) -> None:
    """Remove weights of steps after this, from which a run goes on: they will be made again.

    Where a machine does not repeat itself, others may be made, and be the best.
    """
    for path in (*list_weights(folder, BEST), *list_weights(folder, RECENT)):
        if _step(path) > f"{after:09d}":
            path.unlink()


def mean_of_recent(folder: Path, count: int) -> dict[str, Tensor]:
    """The mean of the last weights, one after another so that two sets fit in memory."""
    paths = list_weights(folder, RECENT)[-count:]
    first = read_weights(paths[0])
    mean = {name: weight.double() for name, weight in first.items()}
    kinds = {name: weight.dtype for name, weight in first.items()}
    for path in paths[1:]:
        for name, weight in read_weights(path).items():
            mean[name] += weight
    return {name: (total / len(paths)).to(kinds[name]) for name, total in mean.items()}


def clear_drafts(folder: Path) -> None:
    """Remove what a killed process left half-written."""
    for path in folder.glob(f"{DRAFT}*"):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """A safetensors file, whole or not at all, flushed to the disk."""
    draft = path.with_name(f"{DRAFT}{path.name}")
    try:
        write_weights(draft, tensors)
        with draft.open("rb") as file:
            os.fsync(file.fileno())
        draft.replace(path)
        _flush_folder(path.parent)
    except (OSError, SafetensorError) as error:
        draft.unlink(missing_ok=True)
        raise disk_trouble(error, path) from error


def checksum(path: Path) -> str:
    """A hash of a file; of a large one, of the hashes of its parts, made side by side."""
    size = path.stat().st_size
    if size <= PART:
        return _digest(path, 0, size).hex()
    starts = range(0, size, PART)
    with ThreadPoolExecutor(min(len(starts), os.cpu_count() or 1)) as pool:
        digests = pool.map(lambda start: _digest(path, start, PART), starts)
        return BY_PARTS + blake2b(b"".join(digests), digest_size=16).hexdigest()


def _digest(path: Path, start: int, size: int) -> bytes:
    """A hash of some of a file's bytes. Neither to read nor to hash holds other threads up."""
    digest = blake2b(digest_size=16)
    with path.open("rb", buffering=0) as file:
        file.seek(start)
        while size > 0 and (block := file.read(min(size, BLOCK))):
            digest.update(block)
            size -= len(block)
    return digest.digest()


def disk_trouble(error: Exception, path: Path) -> RunError:
    """What to do about a disk that cannot be written to."""
    full = getattr(error, "errno", None) == errno.ENOSPC or "No space left" in str(error)
    what = "the disk is full." if full else f"the disk cannot be written to: {error}."
    first = "Free some space (older runs' checkpoints/ folders, say)" if full else "Mend that"
    return RunError(
        what,
        where=str(path),
        todo=f"{first}, then `heed resume` this run: its last checkpoint is whole.",
    )


def _step(path: Path) -> str:
    """The step of a checkpoint or of weights, as their names have it."""
    return path.name.partition("-")[2][:9]


def _write_flushed(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _flush_folder(path: Path) -> None:
    if os.name != "posix":
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# ----------------------------------------------------------------- an optimizer, taken to pieces


def optimizer_pieces(optimizer: Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """An optimizer's state as named tensors and plain numbers."""
    state = optimizer.state_dict()
    tensors: dict[str, Tensor] = {}
    numbers: dict[str, Any] = {}
    for index, values in state["state"].items():
        for name, value in values.items():
            kept = tensors if isinstance(value, Tensor) else numbers
            kept[f"optimizer.{index}.{name}"] = value
    groups = [
        {key: value for key, value in group.items() if not isinstance(value, Tensor)}
        for group in state["param_groups"]
    ]
    return tensors, {"numbers": numbers, "groups": groups}


def restore_optimizer(
    optimizer: Optimizer, tensors: dict[str, Tensor], facts: dict[str, Any]
) -> None:
    """Put the pieces back."""
    state: dict[int, dict[str, Any]] = {}
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for name, value in _optimizer_items(tensors, facts["numbers"]):
        _, index, key = name.split(".", 2)
        if isinstance(value, Tensor):
            value = placed_like(value, parameters[int(index)])
        state.setdefault(int(index), {})[key] = value
    groups = optimizer.state_dict()["param_groups"]
    for group, saved in zip(groups, facts["groups"], strict=True):
        group.update(saved)
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def _optimizer_items(
    tensors: dict[str, Tensor], numbers: dict[str, Any]
) -> Iterator[tuple[str, Any]]:
    yield from ((name, t) for name, t in tensors.items() if name.startswith("optimizer."))
    yield from numbers.items()
