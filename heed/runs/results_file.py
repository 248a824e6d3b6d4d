"""What stays in the run folder: results by the name of their set, none over another text's.

A set is called by its file, and two files may be called alike. Their contents tell them apart.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from heed.errors import RunError
from heed.evaluate.held_out_set import Facts
from heed.files import to_json, write_whole
from heed.stats.bootstrap import RESAMPLES

RESULTS = "evaluation.json"
ALIKE = ("task", "hash", "dropped", "checkpoint", "decode", "window", "calibration", "in_train")
"""Where all of these are the same, two results are of one text and one model."""
NEWEST = ("run", "system", "files")
"""What is said as it is now, though the figures are older."""


def results(folder: Path) -> dict[str, Facts]:
    """Every result so far, by the name of its set."""
    path = folder / RESULTS
    if not path.exists():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        found = None
    if not isinstance(found, dict):
        what = "the results kept here cannot be read."
        raise RunError(what, where=str(path), todo="Move this file away, and evaluate again.")
    return found


def own_name(
    name: str, files: Sequence[str], content: str, before: dict[str, Facts], taken: Collection[str]
) -> str:
    """The name under which a set is kept: its own, unless another text has it already.

    `content` is the hash of the text; `taken` are names of the run's other sets.
    """
    known = [one for one, facts in before.items() if facts.get("hash") == content]
    return next(
        one
        for one in _names(name, files, known)
        if one not in taken and before.get(one, {}).get("hash", content) == content
    )


def _names(name: str, files: Sequence[str], known: Sequence[str]) -> Iterator[str]:
    """Its own, then one that the same text got before, then new ones."""
    yield name
    yield from (one for one in known if one.startswith(f"{name}-") or one.endswith(f"-{name}"))
    if folder := Path(files[0]).absolute().parent.name:
        yield f"{folder}-{name}"
    yield from (f"{name}-{number}" for number in count(2))


def keep(folder: Path, name: str, facts: Facts) -> None:
    """Write a result beside those on other sets; fuller figures of the same are not lost.

    What is there is read now: another set may have been scored at the same time.
    """
    new: Facts = json.loads(to_json(facts))  # as it will be read: no tuples
    before = results(folder)
    whole = before | {name: joined(before.get(name, {}), new)}
    write_whole(folder / RESULTS, to_json(whole, indent=1) + "\n")


def joined(old: Facts, new: Facts) -> Facts:
    """Both results, if of one text and one model; where both tell, the one of more samples."""
    if any(old.get(key) != new.get(key) for key in ALIKE):
        return new
    fuller = old.get("resamples", RESAMPLES) > new["resamples"]
    both: Facts = _over(new, old) if fuller else _over(old, new)
    return both | {key: new[key] for key in NEWEST if key in new}


def _over(below: Any, above: Any) -> Any:
    """What stands above, and of what it does not tell, what lies below."""
    if isinstance(below, dict) and isinstance(above, dict):
        return below | {
            key: _over(below[key], value) if key in below else value for key, value in above.items()
        }
    lists = isinstance(below, list) and isinstance(above, list) and len(below) == len(above)
    if lists and all(isinstance(one, dict) for one in (*below, *above)):
        return [_over(one, other) for one, other in zip(below, above, strict=True)]
    return above


def write_all(folder: Path, writing: Sequence[Callable[[], None]]) -> None:
    """Write what is to stay; where that cannot be, say it in a sentence."""
    try:
        for write in writing:
            write()
    except OSError as problem:
        raise RunError(
            f"the figures could not be kept: {problem.strerror}.",
            where=str(problem.filename or folder),
            todo="They are told above; make the folder writable, or copy the run, to keep them.",
        ) from problem
