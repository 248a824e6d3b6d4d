"""What `heed design` prints: queries, weights, errors and proofs; and the check of a function."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from heed.arrays import Floats
from heed.probe.design import Design, largest_weight, least_squares_weights
from heed.probe.design_problem import Problem, Solution, join_items
from heed.probe.separation import Dependence

if TYPE_CHECKING:
    from heed.probe.attention_check import CheckResult

WIDTH = 80
LABEL = 16
SMALL = 5e-4
"""Coefficients below this are not shown."""


def describe_solution(solution: Solution) -> str:
    """A solution as a block of lines for a terminal of 80 columns."""
    design, lines = solution.design, [solution.title]
    if design.replaced is not None:
        key_d = design.keys_md[design.replaced]
        length = f"length {np.linalg.norm(key_d):.3g}"
        lines += _row(f"key {design.replaced + 1}", f"{format_vector(key_d)}  {length}")
    lines += _row("query", f"{format_vector(design.query_d)}  length {design.length:.3g}")
    lines += _row("weights", format_vector(design.weights_m))
    lines += _row("target weights", format_vector(design.target_m))
    if design.output_v is not None and design.values_mv is not None:
        lines += _row("output", format_vector(design.output_v))
        lines += _row("target output", format_vector(design.target_m @ design.values_mv))
    lines += _row("error", _describe_error(design))
    lines += _row("", describe_answer(design))
    return "\n".join(lines)


def describe_items(problem: Problem) -> str:
    """The keys and values of a problem, a row for each."""
    lines = list[str]()
    for name, rows in (("key", problem.keys_md), ("value", problem.values_mv)):
        for number, row in enumerate([] if rows is None else rows, 1):
            lines += _row(f"{name} {number}", format_vector(row))
    return "\n".join(lines)


def format_vector(vector: Floats) -> str:
    """Numbers in columns, with three decimals, or three digits where these would hide them."""
    top = float(np.abs(vector).max(initial=0.0))
    if top and not 0.01 <= top < 10_000:
        return " ".join(f"{value + 0.0:9.3g}" for value in vector)
    return " ".join(f"{value + 0.0:7.3f}" for value in np.where(np.abs(vector) < SMALL, 0, vector))


def describe_dependence(design: Design) -> str:
    """Why no query reaches the target, with the combination of keys that proves it."""
    dependence = design.dependence
    if dependence is None:
        return ""
    left, right = (
        _combination(np.maximum(sign * dependence.coefficients_m, 0)) for sign in (1, -1)
    )
    residual = dependence.residual(design.keys_md)
    proof = f"Impossible: {left} = {right} (both sides agree to {max(residual, 1e-16):.0e})."
    wanted = np.flatnonzero(design.target_m)
    bound = largest_weight(design)
    if bound is not None:
        return (
            f"{proof} The key lies in the hull of the others: under every query its score is that "
            f"average of theirs, so {bound:.3f} is an upper bound on its weight. The query shown "
            f"gives it {design.weights_m[wanted[0]]:.3f}, the maximum over all queries."
        )
    if _contradicts_zeros(design, dependence):
        return (
            f"{proof} Both sides have the same score under every query, so keys "
            f"{join_items([int(i) for i in wanted])} cannot score alike and all others lower. "
            "Shown: the closest by KL."
        )
    used = design.target_m > 0
    coefficients, logs = dependence.coefficients_m[used], np.log(design.target_m[used])
    size = float(np.maximum(coefficients, 0).sum())
    above = float(np.maximum(coefficients, 0) @ logs) / size
    below = float(np.maximum(-coefficients, 0) @ logs) / size
    return (
        f"{proof} So under every query the same means of log-weights are equal too; those of the "
        f"target are {above:.3f} and {below:.3f}. Shown: the closest by KL."
    )


def describe_answer(design: Design) -> str:
    """What the query is: exact, or exact in the limit, or the closest and why."""
    if design.dependence is not None:
        return describe_dependence(design)
    if not design.is_possible:
        return "This query fixes the weights of the other keys: only that of the new key was free."
    if design.is_exact:
        return "Exact."
    wanted = [int(i) for i in np.flatnonzero(design.target_m)]
    what = f"item {wanted[0] + 1}" if len(wanted) == 1 else f"items {join_items(wanted)}"
    shortest = "The shortest query" if design.replaced is None else "A query"
    return (
        f"{shortest} that gives {design.sharpness:.6g} of the weight to {what}. Longer ones come "
        "as close to the target as you like; none reaches it."
    )


def _describe_error(design: Design) -> str:
    naive = float(np.abs(least_squares_weights(design) - design.target_m).max())
    parts = [f"weights {design.largest_deviation:.2g}", f"KL {design.divergence:.2g}"]
    if design.value_error is not None:
        parts.append(f"output {design.value_error:.2g}")
    return f"{', '.join(parts)}; by least squares: weights {naive:.2g}"


def _contradicts_zeros(design: Design, dependence: Dependence) -> bool:
    """Whether the proof is about keys that are to have no weight."""
    return bool((np.abs(dependence.coefficients_m[design.target_m == 0]) > SMALL).any())


def _combination(coefficients_m: Floats) -> str:
    """One side of a dependence, as a weighted mean of keys."""
    shares_m = coefficients_m / coefficients_m.sum()
    return " + ".join(
        f"key {index + 1}" if share > 1 - SMALL else f"{share:.3g} · key {index + 1}"
        for index, share in enumerate(shares_m)
        if share > SMALL
    )


def _row(label: str, text: str) -> Iterable[str]:
    """A labeled text, wrapped beside its label."""
    lines = textwrap.wrap(text, WIDTH - LABEL, drop_whitespace=True, break_long_words=False)
    if text.startswith(" "):  # columns of numbers keep their places
        lines[0] = " " * (len(text) - len(text.lstrip())) + lines[0].lstrip()
    return [
        f"  {label if not number else '':{LABEL - 2}}{line}" for number, line in enumerate(lines)
    ]


def describe_check(result: CheckResult) -> str:
    """The check of an attention function: a line for each kind of input, then the first failure."""
    lines = [result.name, f"q, k, v of shape {result.layout}, compared with heed's attend:"]
    for kind in result.kinds:
        verdict = f"FAIL ({kind.failures} of {kind.cases})" if kind.failures else "pass"
        deviation = f"largest deviation {kind.largest_deviation:.1e}"
        lines.append(f"  {kind.kind:24}{verdict:20}{deviation}")
    if result.not_tested:
        lines.append(f"  not tested: {', '.join(result.not_tested)} (it takes no such argument)")
    if not result.returns_weights:
        lines.append("  not tested: weights (it returns the output alone)")
    if result.first_failure is not None:
        first = next(kind.kind for kind in result.kinds if kind.failures)
        lines += ["", f"The first failure ({first}):", *result.first_failure.splitlines()]
    if result.hint is not None:
        lines += ["", result.hint]
    return "\n".join(lines)
