"""`heed design`: from options to solutions, their report and their figure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from heed.errors import HeedError
from heed.probe.design_problem import (
    COURSE,
    Problem,
    Solution,
    Task,
    read_problem,
    solve_course,
    solve_task,
)

Report = tuple[bool, dict[str, Any], str]
"""Whether all is possible (or passed), the result for JSON, and the same in words."""


@dataclass(frozen=True)
class DesignOptions:
    """The options of `heed design`."""

    file: Path | None = None
    course: bool = False
    select: int | None = None
    average: str | None = None
    weights: str | None = None
    identity: bool = False
    replace_key: int | None = None
    unit: bool = False
    query: str | None = None
    sharpness: float = 0.99
    scale: float | None = None
    values: Path | None = None
    out: Path | None = None
    check: str | None = None

    @property
    def task(self) -> Task:
        """The task that the options describe."""
        return Task(
            self.select, self.average, self.weights, self.replace_key, self.unit, self.query
        )


def run_design(options: DesignOptions) -> Report:
    """Solve what the options ask for, and draw it if they name a figure; or check a function."""
    if options.check is not None:
        if replace(options, check=None) != DesignOptions():
            what = "--check cannot be combined with another task."
            raise HeedError(what, todo="Leave out the other options.")
        return _run_check(options.check)
    problem, task = _open_problem(options), options.task
    if options.identity and task != Task():
        what = "--identity cannot be combined with another task."
        raise HeedError(what, todo="Give one task at a time.")
    if options.out is not None:
        _check_figure(options.out)
    if options.course and task == Task() and not options.identity:
        solutions = solve_course(problem, options.sharpness)
    else:
        solutions = solve_task(problem, task, options.sharpness)
    report = [_describe_problem(problem, has_items=options.course), *_describe_all(solutions)]
    if options.out is not None:
        report.append(_draw(solutions, options.out))
    result = {
        "problem": problem.name,
        "keys": problem.keys_md.tolist(),
        "values": None if problem.values_mv is None else problem.values_mv.tolist(),
        "solutions": [solution.to_dict() for solution in solutions],
    }
    is_possible = all(solution.design.is_possible for solution in solutions)
    return is_possible, result, "\n\n".join(report)


def _open_problem(options: DesignOptions) -> Problem:
    if options.course == (options.file is not None):
        what = "name a file of keys, or the course's own: not both."
        if not options.course:
            what = "there are no keys to design for."
        raise HeedError(what, todo="Write `heed design keys.json` or `heed design --course`.")
    if options.file is not None:
        return read_problem(options.file, values=options.values, scale=options.scale)
    if options.values is not None:
        raise HeedError("--values is for a file of keys.", todo="Leave it out with --course.")
    return COURSE if options.scale is None else replace(COURSE, scale=options.scale)


def _describe_problem(problem: Problem, *, has_items: bool) -> str:
    from heed.probe.design_text import describe_items

    items, width = problem.keys_md.shape
    scale = "1/√width" if problem.scale is None else f"{problem.scale:.4g}"
    line = f"{problem.name}: {items} keys of {width} numbers, scale {scale}"
    return f"{line}\n{describe_items(problem)}" if has_items else line


def _describe_all(solutions: list[Solution]) -> list[str]:
    from heed.probe.design_text import describe_solution

    return [describe_solution(solution) for solution in solutions]


def _check_figure(out: Path) -> None:
    from heed.files import check_writable
    from heed.runs.metric_plot import check_format

    check_format(out)
    check_writable(out)


def _draw(solutions: list[Solution], out: Path) -> str:
    from heed import plot
    from heed.probe.design_figure import draw_solutions

    plot.save_as(draw_solutions(solutions), out)
    return f"The figure is in {out}."


def _run_check(place: str) -> Report:
    """Compare the attention function `FILE.py:NAME` with `attend`."""
    from heed.probe.attention_check import check_function
    from heed.probe.design_text import describe_check

    result = check_function(place)
    return result.passed, result.to_dict(), describe_check(result)
