"""Evaluation results in a run folder: `evaluation.json`, and one table of texts for each test set.

Results are stored by the name of their test set, which comes from its file name. Two files can have
the same name; the hash of their content distinguishes them, and neither overwrites the other.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from heed import checksums
from heed.checksums import MANIFEST, DamagedError
from heed.errors import RunError
from heed.files import lock_file, make_folder, naming_path, to_json, write_atomic

Result = dict[str, Any]
"""The result of one evaluation, as JSON values."""
RESULTS, RESULTS_LOCK = "evaluation.json", ".evaluation.lock"
TRANSLATIONS, PREDICTIONS, DOCUMENTS = "translations", "predictions", "documents"
"""Folders of the tables with every text, by task."""
OTHER_WEIGHTS = "@step-"
"""In the name of a result, before the step: it is not of the run's best weights."""
OTHER_WINDOW = "@window-"
"""In the name of a result, before the tokens of a window other than data.max_length."""
SAME_KEYS = ("task", "hash", "dropped", "checkpoint", "decode", "window", "calibration", "in_train")
"""Two results with equal values here come from the same text and the same model."""
LATEST_KEYS = ("run", "system", "files", "looks")
"""Where the text and model lie now, and how often it was evaluated: always taken from the latest
result."""


def read_results(folder: Path) -> dict[str, Result]:
    """All results of a run, by the name of the test set."""
    path = folder / RESULTS
    if not path.exists():
        return {}
    todo = "Move this file away, and evaluate again."
    results = checksums.read_json(path, todo=todo)
    if not all(isinstance(result, dict) for result in results.values()):
        raise DamagedError("the stored results cannot be read.", where=str(path), todo=todo)
    return results


def count_looks(results: dict[str, Result], name: str) -> int:
    """How often a run was evaluated on a set, with any of its weights.

    Every result has the number that it was. A result without one is from before they were counted.
    """
    base = _base_name(name)
    looks = [r.get("looks", 1) for key, r in results.items() if _base_name(key) == base]
    return max(looks, default=0)


def _base_name(name: str) -> str:
    return name.partition(OTHER_WEIGHTS)[0]


def unique_set_name(
    name: str,
    files: Sequence[str],
    content_hash: str,
    results: dict[str, Result],
    reserved: Collection[str],
) -> str:
    """The name under which to store a test set: `name`, unless another text has it already.

    `reserved` are the names of the run's other test sets.
    """
    known = [one for one, result in results.items() if result.get("hash") == content_hash]
    return next(
        one
        for one in _candidate_names(name, files, known)
        if one not in (*reserved, checksums.KEY)
        and results.get(one, {}).get("hash", content_hash) == content_hash
    )


def _candidate_names(name: str, files: Sequence[str], known: Sequence[str]) -> Iterator[str]:
    """The name itself, names under which the same text is stored already, then new names."""
    yield name
    yield from (one for one in known if one.startswith(f"{name}-") or one.endswith(f"-{name}"))
    if folder := Path(files[0]).parent.resolve().name.lstrip("."):
        yield f"{folder}-{name}"
    yield from (f"{name}-{number}" for number in count(2))


@contextmanager
def saving_results(folder: Path) -> Iterator[None]:
    """Write results in this block: one process after another, and OS errors become a `RunError`."""
    try:
        with naming_path(folder / RESULTS), lock_file(folder / RESULTS_LOCK, wait=True):
            yield
    except OSError as error:
        raise RunError(
            f"the results could not be saved: {error.strerror}.",
            where=str(error.filename or folder),
            todo="They are printed above. To save them, make the folder writable or copy the run.",
        ) from error


def save_result(folder: Path, name: str, result: Result) -> None:
    """Add a result to `evaluation.json`, merged with an earlier one on the same text and model.

    The file is read again here: another set may have been evaluated at the same time. Call it
    within `saving_results`, or one of two results that are saved at one instant is lost.
    """
    new: Result = json.loads(to_json(result))  # as it will be read back: no tuples
    results = read_results(folder)
    results |= {name: merge_results(results.get(name, {}), new)}
    checksums.write_json(folder / RESULTS, json.loads(to_json(results)))


def merge_results(old: Result, new: Result) -> Result:
    """Both results merged, or only the new one if text or model differ.

    Where both have a value, the one from more bootstrap samples is taken.
    """
    if not old or any(old.get(key) != new.get(key) for key in SAME_KEYS):
        return new
    merged: Result
    merged = _overlay(new, old) if old["resamples"] > new["resamples"] else _overlay(old, new)
    return merged | {key: new[key] for key in LATEST_KEYS if key in new}


def _overlay(base: Any, top: Any) -> Any:
    """`top`, completed with what only `base` has, at every depth."""
    if isinstance(base, dict) and isinstance(top, dict):
        return base | {
            key: _overlay(base[key], value) if key in base else value for key, value in top.items()
        }
    lists = isinstance(base, list) and isinstance(top, list) and len(base) == len(top)
    if lists and all(isinstance(one, dict) for one in (*base, *top)):
        return [_overlay(one, other) for one, other in zip(base, top, strict=True)]
    return top


def save_table(folder: Path, kind: str, name: str, table: str) -> None:
    """Write the table (TSV) of every text of a test set; `kind` is its subfolder."""
    make_folder(folder / kind)
    path, recorded = folder / kind / f"{name}.tsv", folder / kind / MANIFEST
    write_atomic(path, table)
    try:
        hashes = checksums.read_json(recorded, todo="") if recorded.exists() else {}
    except DamagedError:  # those of the other tables are lost, and the tables are not verified
        hashes = {}
    checksums.write_json(recorded, hashes | {path.name: checksums.hash_file(path)})


def list_tables(folder: Path, kind: str) -> list[Path]:
    """The tables of a run, verified; `kind` is their subfolder."""
    if (folder / kind / MANIFEST).exists():
        todo = f"Write it again: heed evaluate {folder}"
        checksums.verify_manifest(folder / kind, todo=todo)
    return sorted((folder / kind).glob("*.tsv"))
