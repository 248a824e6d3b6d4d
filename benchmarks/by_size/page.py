"""The tables of `docs/speed.md` on growth, made from the kept records so that they can't drift."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from by_size.communication import GRADIENT_BYTES, INFINIBAND, NVLINK, compute_scaling
from by_size.record import Measurement, read_measurements
from by_size.summary import (
    MEMORY,
    SPEED,
    TIME,
    Fit,
    Row,
    by_curve,
    fit_all,
    format_bytes,
    format_seconds,
    markdown,
    rank_rows,
    scaling_rows,
)
from by_size.training_steps import RANKS, count_parameters
from heed.bench.standard_shapes import GPT2, SETS
from heed.bench.timing import PROCESSOR

PLACE = re.compile(r"(<!-- growth: (\w+) (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
"""The place of a part: its device and its name."""

QUOTED = (
    (GPT2, GPT2.tokens / 569_000),
    (replace(SETS[2], name="translator"), SETS[2].tokens / 3_380_000),
)
"""Seconds of a captured step on one H200, from tokens/s quoted from `training-cuda.txt`."""


def read_record(path: Path) -> tuple[dict[str, Any], list[Measurement]]:
    """A kept record: the whole JSON, and its measurements."""
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content, list(read_measurements(content).values())


def fill(text: str, results: Path) -> str:
    """A page's text with every table made anew; a device without a record has none."""

    def replaced(found: re.Match[str]) -> str:
        path = results / f"growth-{found[2]}.json"
        body = ""
        if path.exists():
            body = PARTS[found[3]](*read_record(path))
        return f"{found[1]}{body}{found[4]}"

    return PLACE.sub(replaced, text)


def write_page(page: Path, results: Path) -> None:
    """Write the tables of a page."""
    page.write_text(fill(page.read_text(encoding="utf-8"), results), encoding="utf-8")


def growth_rows(measured: list[Measurement]) -> tuple[Row, list[Row]]:
    """A row per size that varies: exponents of time and memory, and what twice the size costs."""
    fits = fit_all(measured)
    rows = []
    for name in dict.fromkeys(fit.series.name for fit in fits):
        found = {fit.series.quantity: fit for fit in fits if fit.series.name == name}
        time = found[TIME].series
        sizes = f"{time.values[0].size:,} to {time.values[-1].size:,} {time.unit}".strip()
        cells = [_cell(found.get(quantity)) for quantity in (TIME, MEMORY)]
        rows.append([name, sizes, *(part for cell in cells for part in cell)])
    columns = ["varied", "range", "time: exponent (95%)", "twice the size"]
    return [*columns, "memory: exponent (95%)", "twice the size"], rows


def _cell(fit: Fit | None) -> Row:
    if fit is None:
        return ["", ""]
    power = fit.power
    interval = f"{power.low:.2f} to {power.high:.2f}"
    return [f"{power.exponent:.2f} ({interval})", f"× {fit.series.last_doubling:.2f}"]


def length_rows(measured: list[Measurement]) -> tuple[Row, list[Row]]:
    """A row per position: the linear and quadratic part of a sequence's time, and the crossover."""
    rows = []
    for fit in fit_all(measured):
        if (fit.series.question, fit.series.quantity) != ("length", TIME):
            continue
        polynomial, last = fit.polynomial, fit.series.values[-1]
        share = polynomial.quadratic * last.size**2 / polynomial.at(last.size)
        crossover = polynomial.crossover
        rows.append(
            [
                f"`{fit.series.curve}`",
                format_seconds(polynomial.linear),
                format_seconds(1000 * polynomial.quadratic),
                f"{crossover:,.0f} tokens" if crossover < 100 * last.size else "none",
                f"{share:.0%}",
                f"{polynomial.worst:.0%}",
            ]
        )
    columns = ["position", "per token", "more per token for each 1,000 tokens", "crossover"]
    return [*columns, "quadratic share at the longest", "worst deviation"], rows


def corpus_rows(measured: list[Measurement]) -> tuple[Row, list[Row]]:
    """A row per corpus: seconds to the first step by part, memory, tokens per second."""
    rows = []
    for one in by_curve(measured):
        if one.point.question != "corpus" or not one.seconds:
            continue
        parts, speeds = one.info["parts"], one.info["tokens_per_second"]
        clock = "processor" if one.clock == PROCESSOR else "seconds"
        # The doctor's end is seen in the console's output, which may come late.
        data = sum(parts[name][clock] for name in ("doctor", "tokenizer"))
        seconds = [data, parts["store"][clock]]
        rows.append(
            [
                f"{one.point.size:,}",
                f"{one.median:.1f}",
                *(f"{value:.1f}" for value in seconds),
                f"{(one.memory or 0) / 1e6:.0f}",
                f"{one.info['resident'] / 1e6:.0f}",
                f"{statistics.median(speeds):,.0f}",
                str(len(one.seconds)),
            ]
        )
    columns = ["pairs", "s to the first step", "doctor and tokenizer", "token store"]
    return [*columns, "MB, anonymous", "MB, resident", SPEED, "runs"], rows


def paper_rows(_: list[Measurement]) -> tuple[Row, list[Row]]:
    """Eight ranks from one GPU's quoted steps, a share taking an eighth of the time."""
    rows = []
    for setting, seconds in QUOTED:
        gradient = GRADIENT_BYTES * count_parameters(setting)
        for link in (NVLINK, INFINIBAND):
            whole = compute_scaling(seconds, seconds, gradient, RANKS, link, batches=RANKS)
            shared = compute_scaling(seconds, seconds / RANKS, gradient, RANKS, link)
            rows.append(
                [
                    f"{setting.name}, {setting.tokens:,} tokens",
                    format_seconds(seconds),
                    format_bytes(gradient),
                    link.name,
                    format_seconds(whole.all_reduce),
                    *(f"{one.speedup[1]:.1f} to {one.speedup[0]:.1f}" for one in (whole, shared)),
                ]
            )
    columns = ["model and batch", "step of one GPU", "gradient", "link", "all-reduce"]
    return [*columns, "a batch each", "one batch shared"], rows


def gpu_section(content: dict[str, Any], measured: list[Measurement]) -> str:
    """What a GPU's record says: tables, figures, and the computed ranks."""
    name, torch = content["machine"]["gpu"], content["machine"]["torch"]
    shapes = {fit.series.question for fit in fit_all(measured)}
    parts = [
        f"### On a GPU\n\nOne {name}, torch {torch}, bfloat16, steps captured as CUDA graphs. Time "
        "by length is that of one sequence, memory that of a step of equally many tokens.",
        markdown(*growth_rows(measured)),
    ]
    if "length" in shapes:
        parts += [markdown(*length_rows(measured))]
    figures = {
        "length": "Cost of a training step by length on a GPU",
        "shape": "Cost of a training step by the model's shape on a GPU",
        "decoding": "Greedy decoding by batch and by output length on a GPU",
    }
    drawn = {"shape" if one in ("width", "depth", "vocabulary") else one for one in shapes}
    parts += [
        f"![{text}](images/growth-{figure}-cuda.png)"
        for figure, text in figures.items()
        if figure in drawn
    ]
    columns, rows = scaling_rows(measured)
    if rows:
        parts.append(
            "Eight GPUs, **computed, not measured**, from the measured steps of one. The first two "
            "rows of a model share its batch, the next two give every GPU a whole batch. The "
            "speed-up is over one GPU with captured steps; several ranks launch kernel by kernel."
        )
        parts.append(markdown(columns, rows))
    return "\n\n".join(parts) + "\n"


def _table(
    rows_of: Callable[[list[Measurement]], tuple[Row, list[Row]]],
) -> Callable[[dict[str, Any], list[Measurement]], str]:
    def build(_: dict[str, Any], measured: list[Measurement]) -> str:
        columns, rows = rows_of(measured)
        return f"{markdown(columns, rows)}\n" if rows else ""

    return build


PARTS = {
    "exponents": _table(growth_rows),
    "length": _table(length_rows),
    "corpus": _table(corpus_rows),
    "ranks": _table(rank_rows),
    "paper": _table(paper_rows),
    "section": gpu_section,
}
