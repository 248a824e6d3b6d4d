"""The table of a comparison as plain text of at most 80 columns, like for like first."""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Sequence
from itertools import groupby

from heed.bench.like_for_like import LIKE_FOR_LIKE, SAME_PRECISION, Ratio, Row, SpeedComparison
from heed.bench.timing import PROCESSOR

NAME, WIDTH = 28, 80
"""Columns of a row's name, and of the whole table."""
COLUMNS = ("tokens/s", "range", "ratio", "range", "of peak", "GiB")
WIDTHS = (8, 11, 6, 9, 7, 5)
PRECISIONS = {"float32": "float32", "tf32": "float32 with tf32 products", "bf16": "bfloat16"}
HEADINGS = {
    LIKE_FOR_LIKE: "LIKE FOR LIKE, {}: heed and the fastest peer",
    SAME_PRECISION: "Also in {}",
}
UNITS = ((1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))


def comparison_table(comparison: SpeedComparison) -> str:
    """The rows of a comparison under their headings, failures below."""
    lines = [_line("", COLUMNS)]
    rows = comparison.rows()
    for heading, some in groupby(rows, key=_heading):
        lines += [heading, *(_row_line(row) for row in some)]
    failed = [row for row in rows if row.result.failed]
    for row in failed:
        lines += _wrap(f"{row.result.system.name}: {row.result.failed}")
    return "\n".join(lines)


def comparison_text(comparison: SpeedComparison) -> str:
    """A comparison with its title, its verdicts and its table."""
    results = comparison.results
    title = f"{comparison.name}: {results[0].system.workload.describe()}"
    lines = _wrap(title)
    for ratio, row in like_for_like_rows(comparison):
        lines += _wrap(_verdict(ratio, row))
    if comparison.options.alone:
        alone = "Each system took all its turns alone, because memory may not hold several."
        lines += _wrap(alone)
    lines += ["", comparison_table(comparison)]
    return "\n".join(lines)


def like_for_like_rows(comparison: SpeedComparison) -> list[tuple[Ratio, Row]]:
    """The ratios to the fastest peers, with the peers' rows."""
    rows = comparison.rows()
    return [(row.ratio, row) for row in rows if row.kind == LIKE_FOR_LIKE and row.ratio]


def comparison_notes(comparisons: Sequence[SpeedComparison]) -> list[str]:
    """How the tables were measured and what their columns are, in wrapped lines."""
    first = comparisons[0]
    turns = first.options.turns
    peaks = {
        result.system.precision: statistics.median(result.peaks) / 1e12
        for comparison in comparisons
        for result in comparison.results
        if not result.failed
    }
    measured = ", ".join(f"{PRECISIONS[p]} {value:.3g}" for p, value in peaks.items())
    notes = [
        "Complete training steps on the same batches; every system in a process of its own; "
        f"median and range (lowest–highest) of {turns} turns, which alternate between the systems "
        "unless a table says otherwise. Padding is not counted.",
        "Ratio: heed's tokens/s over the peer's, of paired turns; in a further row of heed's, its "
        "own over the fastest peer's.",
        "Of peak: of a large matrix product in the same precision, timed after every turn "
        f"(TFLOP/s: {measured}). GiB: peak memory.",
    ]
    if first.options.device.type == "cpu":
        notes.append("A CPU has no CUDA graphs, so no peer is captured.")
    if first.options.clock == PROCESSOR:
        notes.append(
            "Seconds are processor time of one thread, which others on the machine hardly change."
        )
    if any(b.segments is not None for r in first.results for b in r.system.workload.batches):
        notes.append("heed keeps packed sequences apart; the peer attends across their borders.")
    notes += dict.fromkeys(
        f"{result.system.name}, {PRECISIONS[result.system.precision]}: {result.execution}"
        for comparison in comparisons
        for result in comparison.results
        if result.system.is_heed and result.system.mode == "auto" and result.execution
    )
    return [line for note in notes for line in _wrap(note)]


def _heading(row: Row) -> str:
    precision = PRECISIONS[row.result.system.precision]
    return HEADINGS.get(row.kind, "Other precision, {}: no like for like").format(precision)


def _verdict(ratio: Ratio, row: Row) -> str:
    precision = PRECISIONS[row.result.system.precision]
    return (
        f"heed trains {ratio.median:.2f} times as fast as {ratio.over} in {precision} "
        f"({ratio.lowest:.2f} to {ratio.highest:.2f})."
    )


def _row_line(row: Row) -> str:
    result, ratio = row.result, row.ratio
    name = f"  {result.system.name}"
    if result.failed:
        return _line(name, ("failed",))
    rates = result.rates
    cells = [
        _shorten(result.rate),
        _range(min(rates), max(rates)),
        "" if ratio is None else f"{ratio.median:.2f}",
        "" if ratio is None else f"{ratio.lowest:.2f}–{ratio.highest:.2f}",
        f"{result.share_of_peak():.1%}",
        "" if result.memory is None else f"{result.memory / 2**30:.1f}",
    ]
    return _line(name, cells)


def _line(name: str, cells: Sequence[str]) -> str:
    """A line of the table; a long name has a line of its own."""
    numbers = "".join(f" {c:>{w}}" for c, w in zip(cells, WIDTHS, strict=False))
    if len(name) > NAME:
        return f"{name}\n{'':{NAME}}{numbers}"
    return f"{name:<{NAME}}{numbers}".rstrip()


def _shorten(number: float) -> str:
    return _range(number, number).partition("–")[2]


def _range(low: float, high: float) -> str:
    """Two numbers in the unit of the higher one."""
    factor, unit = next((f, u) for f, u in UNITS if high >= 0.9995 * f or f == 1.0)
    return f"{low / factor:.3g}–{high / factor:.3g}{unit}"


def _wrap(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, subsequent_indent="  ", break_on_hyphens=False)
