"""Checkpoints: atomic, checksummed, exact.

A checkpoint is a folder `step-N` with `tensors.safetensors` (weights, optimizer, generators) and
`state.json` (plain numbers, and the checksum of the tensors). It is written under another name,
flushed to the disk and renamed, so it exists whole or not at all. One that was damaged later is
recognized and renamed to `damaged-N`, and the checkpoint before it is used.

Evaluations save weights alone beside them: `best-N` and `recent-N`. Those that were the best or the
last when a checkpoint was written are kept as long as it is. A run resumed from it has these, and
none of later steps.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from heed.errors import RunError
from heed.models.weights import read_weights, write_weights
from heed.runs.run import BEST, list_weights

CHUNK, BLOCK = 1 << 26, 1 << 20
"""Bytes that one thread hashes, and bytes that it reads at once."""
CHUNKED = "parts-"
"""Prefix of the checksum of a file that was hashed in chunks."""
DRAFT, WHOLE, DAMAGED = ".draft-", "step-", "damaged-"
"""Prefixes of folders: being written, complete, damaged."""
RECENT = "recent-"
"""Prefix of weights that are averaged at the end."""


def save(folder: Path, step: int, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> Path:
    """Write the checkpoint `step-N`; returns its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    delete_drafts(folder)
    draft, final = folder / f"{DRAFT}{step:09d}", folder / f"{WHOLE}{step:09d}"
    draft.mkdir()
    try:
        write_tensors(draft / "tensors.safetensors", tensors)
        numbers |= {"step": step, "checksum": checksum(draft / "tensors.safetensors")}
        _write_flushed(draft / "state.json", json.dumps(numbers, indent=1).encode())
        if final.exists():
            shutil.rmtree(final)
        draft.rename(final)
        _flush_folder(folder)
    except OSError as error:
        shutil.rmtree(draft, ignore_errors=True)
        raise disk_error(error, folder) from error
    return final


def load_newest(
    folder: Path, warn: Callable[[str], None]
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Load the newest intact checkpoint; empty where there is none."""
    for path in sorted(folder.glob(f"{WHOLE}*"), reverse=True):
        try:
            numbers = json.loads((path / "state.json").read_text(encoding="utf-8"))
            if checksum(path / "tensors.safetensors") != numbers["checksum"]:
                raise ValueError("its checksum does not match")
            return load_file(path / "tensors.safetensors"), numbers
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            warn(f"Checkpoint {path.name} is damaged ({error}); trying the one before it.")
    return {}, {}


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
        shutil.rmtree(path)
    for kind, count in ((BEST, 1), (RECENT, average)):
        paths = list_weights(folder, kind)
        needed = {*paths[-count:]}
        for one in checkpoints[-keep:]:
            needed.update([path for path in paths if _step(path) <= _step(one)][-count:])
        for path in paths:
            if path not in needed:
                path.unlink()


def save_weights(folder: Path, kind: str, step: int, weights: dict[str, Tensor]) -> None:
    """Save weights as BEST or RECENT of a step."""
    folder.mkdir(exist_ok=True)
    write_tensors(folder / f"{kind}{step:09d}.safetensors", weights)


def delete_weights(folder: Path, after: int) -> None:
    """Delete weights of steps after this, from which a run resumes: those steps are trained again.

    On a machine that is not deterministic they may come out differently.
    """
    for path in (*list_weights(folder, BEST), *list_weights(folder, RECENT)):
        if _step(path) > f"{after:09d}":
            path.unlink()


def average_recent(folder: Path, count: int) -> dict[str, Tensor]:
    """The average of the last recent weights, read one after another to save memory."""
    paths = list_weights(folder, RECENT)[-count:]
    first = read_weights(paths[0])
    sums = {name: weight.double() for name, weight in first.items()}
    dtypes = {name: weight.dtype for name, weight in first.items()}
    for path in paths[1:]:
        for name, weight in read_weights(path).items():
            sums[name] += weight
    return {name: (total / len(paths)).to(dtypes[name]) for name, total in sums.items()}


def delete_drafts(folder: Path) -> None:
    """Delete what a killed process left half-written."""
    for path in folder.glob(f"{DRAFT}*"):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write a safetensors file atomically, flushed to the disk."""
    draft = path.with_name(f"{DRAFT}{path.name}")
    try:
        write_weights(draft, tensors)
        with draft.open("rb") as file:
            os.fsync(file.fileno())
        draft.replace(path)
        _flush_folder(path.parent)
    except (OSError, SafetensorError) as error:
        draft.unlink(missing_ok=True)
        raise disk_error(error, path) from error


def checksum(path: Path) -> str:
    """The hash of a file; of a large one, the hash of its chunks' hashes, computed in parallel."""
    size = path.stat().st_size
    if size <= CHUNK:
        return _digest(path, 0, size).hex()
    starts = range(0, size, CHUNK)
    with ThreadPoolExecutor(min(len(starts), os.cpu_count() or 1)) as pool:
        digests = pool.map(lambda start: _digest(path, start, CHUNK), starts)
        return CHUNKED + blake2b(b"".join(digests), digest_size=16).hexdigest()


def _digest(path: Path, start: int, size: int) -> bytes:
    """The hash of some bytes of a file. Reading and hashing release the interpreter lock."""
    digest = blake2b(digest_size=16)
    with path.open("rb", buffering=0) as file:
        file.seek(start)
        while size > 0 and (block := file.read(min(size, BLOCK))):
            digest.update(block)
            size -= len(block)
    return digest.digest()


def disk_error(error: Exception, path: Path) -> RunError:
    """The error of a disk that cannot be written to."""
    full = getattr(error, "errno", None) == errno.ENOSPC or "No space left" in str(error)
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
