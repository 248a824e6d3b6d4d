"""What the points say: series of cost by size, their fits, and tables of both."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
from common import table

from by_size.communication import INFINIBAND, NVLINK, compute_scaling
from by_size.corpus_size import LIMIT
from by_size.fits import FEWEST, Polynomial, PowerLaw, fit_polynomial, fit_power_law
from by_size.record import Measurement, Point
from by_size.training_steps import RANKS, SHARED
from heed.bench.timing import PROCESSOR

TIME, MEMORY, SPEED = "time", "memory", "tokens/s"
UNITS = {
    "length": "tokens",
    "width": "",
    "depth": "layers",
    "vocabulary": "tokens",
    "corpus": "pairs",
    "batch": "sentences",
    "output": "tokens",
}
"""What a size counts."""
Row = list[str]


@dataclass(frozen=True)
class Value:
    """A median at a size, with the least and the greatest of its turns."""

    size: int
    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Series:
    """A cost by size: one curve of a figure."""

    question: str
    curve: str
    quantity: str
    values: tuple[Value, ...]

    @property
    def name(self) -> str:
        """What varies: `length, rope`, `width`, `batch`."""
        if self.question == "length":
            return f"length, {self.curve}"
        return self.curve if self.question == "decoding" else self.question

    @property
    def unit(self) -> str:
        """What its size counts."""
        return UNITS[self.curve if self.question == "decoding" else self.question]

    @property
    def xs(self) -> list[float]:
        """The sizes."""
        return [float(value.size) for value in self.values]

    @property
    def ys(self) -> list[float]:
        """The medians."""
        return [value.median for value in self.values]

    @property
    def last_doubling(self) -> float:
        """What twice the size costs, between the last two sizes."""
        before, last = self.values[-2:]
        doublings = math.log2(last.size / before.size)
        return float((last.median / before.median) ** (1 / doublings))


@dataclass(frozen=True)
class Fit:
    """A series with its fits."""

    series: Series
    power: PowerLaw
    polynomial: Polynomial


def build_series(measurements: Iterable[Measurement]) -> list[Series]:
    """All series: time and memory, and for a corpus tokens per second.

    Time by length is that of one sequence: steps have equally many tokens at every length. Memory
    by length is that of such a step.
    """
    usable = [one for one in measurements if one.seconds and one.failed is None]
    usable = [one for one in usable if one.point.question not in ("ranks", "share")]
    series = []
    for (question, curve), group in groupby(by_curve(usable), _key):
        points = list(group)
        for quantity, values in _quantities(points):
            if values:
                series.append(Series(question, curve, quantity, tuple(values)))
    return series


def by_curve(measurements: Iterable[Measurement]) -> list[Measurement]:
    """Questions, and curves of each, in the order in which they were begun; each by size."""
    found = list(measurements)
    questions = list(dict.fromkeys(one.point.question for one in found))
    curves = list(dict.fromkeys(map(_key, found)))
    return sorted(
        found,
        key=lambda one: (
            questions.index(one.point.question),
            curves.index(_key(one)),
            one.point.size,
        ),
    )


def _key(one: Measurement) -> tuple[str, str]:
    return one.point.question, one.point.curve


def _quantities(points: list[Measurement]) -> Iterator[tuple[str, list[Value]]]:
    yield TIME, [_value(one, [s / _sequences(one) for s in one.seconds]) for one in points]
    yield MEMORY, [_value(one, [one.memory]) for one in points if one.memory]
    yield SPEED, [_value(one, one.info["tokens_per_second"]) for one in points if _speeds(one)]


def _sequences(one: Measurement) -> int:
    return int(one.info["sequences"]) if one.point.question == "length" else 1


def _speeds(one: Measurement) -> list[float]:
    return list(one.info.get("tokens_per_second", ()))


def _value(one: Measurement, turns: list[float]) -> Value:
    return Value(one.point.size, statistics.median(turns), min(turns), max(turns))


def fit_all(measurements: Iterable[Measurement]) -> list[Fit]:
    """The fits of all series that have enough sizes.

    The time of a sequence has no fixed part: steps of equally many tokens cannot show one.
    """
    return [
        Fit(
            one,
            fit_power_law(one.xs, one.ys),
            fit_polynomial(one.xs, one.ys, fixed=(one.question, one.quantity) != ("length", TIME)),
        )
        for one in build_series(measurements)
        if len(one.values) >= FEWEST
    ]


# ----------------------------------------------------------------------------------------- tables


def format_seconds(value: float) -> str:
    """A time with the unit in which it is short."""
    return _format(value, (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9)))


def format_bytes(value: float) -> str:
    """Bytes with the unit in which they are few."""
    return _format(value, (("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1.0)))


def _format(value: float, units: tuple[tuple[str, float], ...]) -> str:
    if value == 0:
        return "0"
    name, size = next((unit for unit in units if value >= unit[1]), units[-1])
    return f"{value / size:.3g} {name}"


def _number(quantity: str) -> Callable[[float], str]:
    if quantity == SPEED:
        return lambda value: f"{value:,.0f}"
    return format_seconds if quantity == TIME else format_bytes


def exponent_rows(fits: Iterable[Fit]) -> tuple[Row, list[Row]]:
    """A row a series: its range, exponent with interval, and what the last doubling cost."""
    rows = []
    for fit in fits:
        series, power = fit.series, fit.power
        first, last = series.values[0].size, series.values[-1].size
        rows.append(
            [
                series.name,
                series.quantity,
                f"{first:,} to {last:,} {series.unit}".strip(),
                f"{power.exponent:.2f}",
                f"{power.low:.2f} to {power.high:.2f}",
                f"{series.last_doubling:.2f}",
            ]
        )
    return ["varied", "of", "range", "exponent", "95% interval", "last doubling"], rows


def polynomial_rows(fits: Iterable[Fit]) -> tuple[Row, list[Row]]:
    """A row a series: the three terms, and where the quadratic one exceeds the linear one."""
    rows = []
    for fit in fits:
        if fit.series.quantity == SPEED:
            continue
        number, polynomial = _number(fit.series.quantity), fit.polynomial
        rows.append(
            [
                fit.series.name,
                fit.series.quantity,
                number(polynomial.fixed),
                number(polynomial.linear),
                number(1000 * polynomial.quadratic),  # by itself it would have no readable unit
                _crossover(polynomial),
                f"{polynomial.worst:.0%}",
            ]
        )
    columns = ["varied", "of", "fixed", "per unit", "per 1,000 units²", "crossover", "worst"]
    return columns, rows


def _crossover(polynomial: Polynomial) -> str:
    crossover = polynomial.crossover
    if crossover > 100 * polynomial.range[1]:
        return "none"
    return f"{crossover:,.3g}" if crossover < 1000 else f"{crossover:,.0f}"


def point_rows(measurements: Iterable[Measurement]) -> tuple[Row, list[Row]]:
    """A row a point: median and range of its turns, tokens per second, memory."""
    rows = []
    for one in by_curve(measurements):
        name = f"{one.point.question}, {one.point.curve}"
        if one.failed or not one.seconds:
            rows.append([name, f"{one.point.size:,}", one.failed or "no turn", *[""] * 4])
            continue
        low, high = min(one.seconds), max(one.seconds)
        speeds = _speeds(one)
        speed = statistics.median(speeds) if speeds else one.tokens_per_second
        rows.append(
            [
                name,
                f"{one.point.size:,}",
                format_seconds(one.median),
                f"{format_seconds(low)} to {format_seconds(high)}",
                str(len(one.seconds)),
                f"{speed:,.0f}",
                "" if one.memory is None else format_bytes(one.memory),
            ]
        )
    return ["point", "size", "median", "range", "turns", "tokens/s", "memory"], rows


def rank_rows(measurements: Iterable[Measurement]) -> tuple[Row, list[Row]]:
    """Measured ranks: time of a step, and the speed-up over one rank on one core.

    Processor time is that of all ranks together, so the speed-up is what as many idle cores allow.
    """
    found = [one for one in measurements if one.point.question == "ranks" and one.seconds]
    alone = next((one for one in found if one.point == Point("ranks", "1 thread", 1)), None)
    rows = []
    for one in found if alone else []:
        ranks, together = one.point.size, one.clock == PROCESSOR
        speedup = (ranks if together else 1) * alone.median / one.median if alone else 1.0
        rows.append(
            [
                f"{ranks} {'rank' if ranks == 1 else 'ranks'} of {one.point.curve}",
                format_seconds(one.median),
                f"{format_seconds(min(one.seconds))} to {format_seconds(max(one.seconds))}",
                f"{'at most ' if together and ranks > 1 else ''}{speedup:.2f}",
            ]
        )
    clock = "processor time" if alone and alone.clock == PROCESSOR else "time"
    return ["measured", f"{clock} of a step", "range", "speed-up"], rows


def scaling_rows(measurements: Iterable[Measurement]) -> tuple[Row, list[Row]]:
    """Computed ranks: from measured steps of one device, and counted communication."""
    found = {one.point: one for one in measurements if one.seconds and one.failed is None}
    rows = []
    for name in SHARED:
        steps = [
            found.get(Point("share", f"{name}, {execution}", ranks))
            for execution, ranks in (("graphs", 1), ("eager", RANKS), ("eager", 1))
        ]
        single = steps[0]
        if single is None:
            continue
        for batches, step in ((1, steps[1]), (RANKS, steps[2])):
            if step is None:
                continue
            for link in (NVLINK, INFINIBAND):
                gradient = single.info["gradient_bytes"]
                scaling = compute_scaling(
                    single.median, step.median, gradient, RANKS, link, batches=batches
                )
                hidden, exposed = scaling.seconds
                rows.append(
                    [
                        name,
                        f"{batches * single.tokens:,}",
                        link.name,
                        format_seconds(single.median),
                        format_seconds(step.median),
                        format_bytes(gradient),
                        format_seconds(scaling.all_reduce),
                        f"{format_seconds(hidden)} to {format_seconds(exposed)}",
                        f"{scaling.speedup[0]:.1f} to {scaling.speedup[1]:.1f}",
                    ]
                )
    columns = ["model", "tokens a step", "link", "step of one GPU", "computation of each of eight"]
    return [*columns, "gradient", "all-reduce", "step of eight", "speed-up"], rows


def _describe_session(session: dict[str, Any]) -> str:
    """A measurement's command, its commit where the record has it, and the load before it."""
    commit = f"commit {session['commit']}, " if session.get("commit") else ""
    return f"command: {session['command']}, {commit}load {session['load_at_start']}"


def describe(machine: dict[str, Any], sessions: list[Any], measured: list[Measurement]) -> str:
    """The whole result as text."""
    fits = fit_all(measured)
    busy = [one.busy_elsewhere for one in measured if one.seconds]
    parts = ["\n".join(f"{key}: {value}" for key, value in machine.items() if key != "command")]
    parts.append("\n".join(map(_describe_session, sessions)))
    if any(one.clock == PROCESSOR for one in measured):
        wall = sorted({one.point.question for one in measured if one.clock != PROCESSOR})
        but = f", but those of {' and '.join(wall)} by the clock" if wall else ""
        parts[0] += (
            f"\nSeconds are processor time{but}; tokens/s of corpora and ranks are by the clock."
        )
    if busy and max(busy) > 0.5:
        parts[0] += (
            f"\nMeasured on a shared machine: other processes kept {sum(busy) / len(busy):.1f} "
            "cores busy on average."
        )
    titles = {
        "How cost grows: size to this exponent. Time by length is of one sequence; memory by length"
        " of a step of equally many tokens.": exponent_rows(fits),
        "Cost as fixed + per unit · n + per unit² · n². Beyond the crossover the quadratic term"
        " exceeds the linear one.": polynomial_rows(fits),
        "Ranks, measured on this machine": rank_rows(measured),
        "Eight ranks, computed, not measured. Speed-up: all communication that fits behind the"
        " backward pass hidden, and none": scaling_rows(measured),
        "All points": point_rows(measured),
    }
    parts += [table(title, columns, rows) for title, (columns, rows) in titles.items() if rows]
    pairs = [f for f in fits if (f.series.question, f.series.quantity) == ("corpus", MEMORY)]
    for fit in pairs:
        growth = float(np.polyfit(fit.series.xs, fit.series.ys, 1)[0])
        parts.append(f"Memory for each additional pair: {growth:.1f} bytes (limit {LIMIT:.0f}).")
    return "\n\n".join(parts)


def markdown(columns: Row, rows: list[Row]) -> str:
    """A table in Markdown."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
