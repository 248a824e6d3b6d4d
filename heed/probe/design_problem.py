"""Problems for `heed design`: keys and values from a file or of the course, and tasks about them.

Items are counted from 1 in everything that a person types or reads.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from heed.arrays import Floats
from heed.errors import DataError, HeedError
from heed.files import require_shallow
from heed.probe.design import (
    SHARPNESS,
    Design,
    average_target,
    design_query,
    select_target,
)
from heed.probe.key_replacement import replace_key

COURSE_KEYS = (
    (0.47, 0.65, 0.60),
    (0.64, 0.50, -0.59),
    (-0.03, -0.48, -0.88),
    (0.43, -0.83, 0.35),
)
"""The keys of the course's problem set: torch.manual_seed(447), randn(4, 3), rows of length 1,
rounded to two decimals."""
COURSE_VALUES = (
    (-0.07, -0.88, 0.47),
    (0.37, -0.93, -0.07),
    (-0.25, -0.75, 0.61),
    (0.94, 0.20, 0.28),
)
"""Its values, drawn next in the same way."""
SEPARATORS = {".csv": ",", ".tsv": "\t"}


@dataclass(frozen=True)
class Problem:
    """Keys, values and the scale of the scores."""

    name: str
    keys_md: Floats
    values_mv: Floats | None = None
    scale: float | None = None

    def query_for(self, target: Floats, sharpness: float) -> Design:
        """The query for target weights."""
        return design_query(
            self.keys_md, target, values=self.values_mv, scale=self.scale, sharpness=sharpness
        )


COURSE = Problem("the course's problem set", np.array(COURSE_KEYS), np.array(COURSE_VALUES), 1.0)


@dataclass(frozen=True)
class Task:
    """What is asked: one of four kinds of target, perhaps with a key to replace.

    Without any it is the identity mapping: each value selected in turn.
    """

    select: int | None = None
    average: str | None = None
    """Items such as 1,2, or `all`."""
    weights: str | None = None
    replace: int | None = None
    unit: bool = False
    query: str | None = None


@dataclass(frozen=True)
class Solution:
    """A task in words, and its design."""

    title: str
    design: Design

    def to_dict(self) -> dict[str, Any]:
        """The fields for JSON."""
        return {"task": self.title, **self.design.to_dict()}


def solve_task(problem: Problem, task: Task, sharpness: float = SHARPNESS) -> list[Solution]:
    """The solutions of one task: one, or one for each item of the identity mapping."""
    items = len(problem.keys_md)
    title, target = _read_target(task, items)
    if task.replace is None:
        if task.unit or task.query is not None:
            option = "--unit" if task.unit else "--query"
            raise HeedError(f"{option} is about a key to replace.", todo="Add --replace-key ITEM.")
        if target is None:
            return solve_identity(problem, sharpness)
        return [Solution(title, problem.query_for(target, sharpness))]
    if target is None:
        raise HeedError(
            "--replace-key needs what the new key is for.",
            todo="Add --select ITEM, --average ITEMS or --weights NUMBERS.",
        )
    design = replace_key(
        problem.keys_md,
        parse_item(task.replace, items, "--replace-key"),
        target,
        unit=task.unit,
        query=None if task.query is None else parse_numbers(task.query, "--query"),
        values=problem.values_mv,
        scale=problem.scale,
        sharpness=sharpness,
    )
    length = " by one of length 1" if task.unit else ""
    return [Solution(f"Replace key {task.replace}{length}: {title[0].lower()}{title[1:]}", design)]


def solve_identity(problem: Problem, sharpness: float = SHARPNESS) -> list[Solution]:
    """The identity mapping: for each value the query that selects it."""
    items = len(problem.keys_md)
    return [
        Solution(f"Select value {i + 1}", problem.query_for(select_target(items, i), sharpness))
        for i in range(items)
    ]


def solve_course(problem: Problem = COURSE, sharpness: float = SHARPNESS) -> list[Solution]:
    """Every task of the course's problem set."""
    tasks = [
        Task(),  # the identity mapping, which selects the first value first
        Task(average="all"),
        Task(average="1,2"),
        Task(average="1,2,3", replace=3),
        Task(select=3, replace=3, unit=True),
    ]
    return [solution for task in tasks for solution in solve_task(problem, task, sharpness)]


def read_problem(file: Path, *, values: Path | None = None, scale: float | None = None) -> Problem:
    """Read keys (and values) from a JSON, TOML, CSV or TSV file.

    JSON and TOML have `keys`, and may have `values` and `scale`; a table has one key in each row.
    """
    table = _read_file(file)
    if unknown := sorted({*table} - {"keys", "values", "scale"}):
        what = f"{unknown[0]!r} is neither keys, values nor scale."
        raise DataError(what, where=str(file), todo="Leave it out.")
    if "keys" not in table:
        todo = 'Give them, as in {"keys": [[1, 0], [0, 1]]}.'
        raise DataError("there are no keys.", where=str(file), todo=todo)
    keys_md = _to_matrix(table["keys"], f"{file}: keys")
    values_mv = None
    if values is not None:
        values_mv = _to_matrix(_read_file(values).get("keys"), str(values))
    elif "values" in table:
        values_mv = _to_matrix(table["values"], f"{file}: values")
    given = scale if scale is not None else table.get("scale")
    if given is not None and (isinstance(given, bool) or not isinstance(given, int | float)):
        raise DataError(f"the scale is {given!r}.", where=str(file), todo="Give a number above 0.")
    return Problem(file.name, keys_md, values_mv, None if given is None else float(given))


def parse_item(number: int, items: int, option: str) -> int:
    """The index of an item that is counted from 1."""
    if not 1 <= number <= items:
        raise HeedError(f"{option} {number}: the items are 1 to {items}.", todo="Give one of them.")
    return number - 1


def parse_items(text: str, items: int, option: str) -> list[int]:
    """Indices of items such as `1,2`, counted from 1; `all` is every item."""
    if text.strip() == "all":
        return list(range(items))
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        raise HeedError(
            f"{option} {text!r} is no list of items.", todo="Write 1,2 or all."
        ) from None
    return [parse_item(number, items, option) for number in numbers]


def parse_numbers(text: str, option: str) -> list[float]:
    """Numbers that are separated by commas."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise HeedError(
            f"{option} {text!r} is no list of numbers.", todo="Write 0.5,0.3,0.2."
        ) from None


def join_items(indices: Sequence[int]) -> str:
    """Items as a person counts them: 1, 2 and 4."""
    names = [str(index + 1) for index in indices]
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _read_target(task: Task, items: int) -> tuple[str, Floats | None]:
    """The title of a task and its target weights; None for the identity mapping."""
    given = {"--select": task.select, "--average": task.average, "--weights": task.weights}
    chosen = [option for option, value in given.items() if value is not None]
    if len(chosen) > 1:
        raise HeedError(
            f"{' and '.join(chosen)} are different tasks.", todo="Give one of them at a time."
        )
    if task.select is not None:
        index = parse_item(task.select, items, "--select")
        return f"Select value {task.select}", select_target(items, index)
    if task.average is not None:
        indices = sorted({*parse_items(task.average, items, "--average")})
        names = "all values" if len(indices) == items else f"values {join_items(indices)}"
        names = f"value {join_items(indices)} alone" if len(indices) == 1 else names
        return f"Average {names}", average_target(items, indices)
    if task.weights is not None:
        numbers = parse_numbers(task.weights, "--weights")
        return f"Give the weights {task.weights}", np.array(numbers)
    return "", None


def _read_file(file: Path) -> Mapping[str, Any]:
    """The content of a file: keys, values and scale by name; of a table, keys alone."""
    suffix = file.suffix.lower()
    if suffix not in (".json", ".toml", *SEPARATORS):
        raise DataError(
            "this is no file of keys that heed reads.",
            where=str(file),
            todo="Give a .json, .toml, .csv or .tsv file.",
        )
    try:
        text = file.read_text(encoding="utf-8")
        if suffix in SEPARATORS:
            rows = [line for line in text.splitlines() if line.strip()]
            return {"keys": [row.split(SEPARATORS[suffix]) for row in rows]}
        content = tomllib.loads(text) if suffix == ".toml" else json.loads(text)
        require_shallow(content)
    except (ValueError, RecursionError) as error:  # not UTF-8, no JSON or TOML, or far too deep
        what = f"this is not {suffix[1:].upper()} in UTF-8: {error or 'nested too deeply'}."
        raise DataError(what, where=str(file), todo="Correct the file.") from None
    return content if isinstance(content, dict) else {"keys": content}


def _to_matrix(rows: object, where: str) -> Floats:
    todo = "Give one row for each item, as [[1, 0], [0, 1]], all of one length."
    if not isinstance(rows, list) or not rows or not all(isinstance(row, list) for row in rows):
        raise DataError("this is no table of numbers.", where=where, todo=todo)
    width = len(rows[0])
    for number, row in enumerate(rows, 1):
        if len(row) != width or not width:
            what = f"row {number} has {len(row)} numbers, and the first has {width}."
            raise DataError(what, where=where, todo=todo)
        for cell in row:
            if not _is_number(cell):
                what = f"row {number} has {cell!r}, which is no finite number."
                raise DataError(what, where=where, todo=todo)
    return np.array([[float(cell) for cell in row] for row in rows])


def _is_number(cell: object) -> bool:
    if isinstance(cell, bool) or not isinstance(cell, int | float | str):
        return False
    try:
        return bool(np.isfinite(float(cell)))
    except (ValueError, OverflowError):
        return False
