"""Tables of classification results: classes, confusion, reliability, calibration, baselines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from heed.terminal import build_note, build_table

Result = Mapping[str, Any]
MAX_CLASSES = 12
"""Largest number of classes for which the confusion matrix fits the terminal."""
SMALLEST_P = 0.0001
"""Smaller p-values are printed as `< 0.0001`."""
SIGNATURE = "intervals: 95%, percentile bootstrap over texts; p: exact McNemar test of predictions"


def render_details(result: Result) -> Iterator[RenderableType]:
    """The tables below the metrics.

    Classes and confusion are those of the whole set; the others are also shown for its clean part.
    """
    parts = {result["split"]: result}
    if result["in_train"] and result["clean"]:
        parts["not in train"] = result["clean"]
    yield _build_class_table(result["classes"])
    if len(result["classes"]) <= MAX_CLASSES:
        yield _build_confusion_table(result["confusion"])
    for name, part in parts.items():
        yield _build_reliability_table(name, part["reliability"])
    if "calibration" in result:
        yield _describe_temperature(result["calibration"])
        for name, part in parts.items():
            yield _build_calibration_table(name, part)
    if "baselines" in result:
        for name, part in parts.items():
            yield _build_baseline_table(name, part)
        yield from _render_hyperparameters(result["baselines"])
    yield build_note(SIGNATURE)


def format_percent(result: Result, key: str) -> str:
    """A share in percent, with its interval if there is one: `84.0  [76.1, 91.0]`."""
    interval = result.get("interval", {}).get(key)
    text = f"{100 * result[key]:.1f}"
    if not interval:
        return text
    return f"{text}  [{100 * interval['low']:.1f}, {100 * interval['high']:.1f}]"


def _build_class_table(classes: Mapping[str, Result]) -> Table:
    table = build_table("class", "texts", "precision, %", "recall, %", "F1, %")
    for name, metrics in classes.items():
        cells = (format_percent(metrics, key) for key in ("precision", "recall", "f1"))
        table.add_row(Text(name), f"{metrics['texts']:,}", *cells)
    return table


def _build_confusion_table(matrix: Result) -> Table:
    """Counts by true class (row) and predicted class (column), and the share of the row."""
    names, counts = matrix["classes"], matrix["counts"]
    low, high = matrix.get("share_low"), matrix.get("share_high")
    title = "confusion: texts, and % of the row"
    table = build_table("true ↓ predicted →", *names, title=title)
    for i, name in enumerate(names):
        total, cells = sum(counts[i]), []
        for j, count in enumerate(counts[i]):
            cell = f"{count:,}"
            if total:
                cell += f"  {100 * count / total:.0f}"
                if low is not None and high is not None and low[i][j] is not None:
                    cell += f" [{100 * low[i][j]:.0f}, {100 * high[i][j]:.0f}]"
            cells.append(cell)
        table.add_row(Text(name), *cells)
    return table


def _build_reliability_table(name: str, bins: Sequence[Result]) -> Table:
    headers = ("confidence", "texts", "mean confidence, %", "accuracy, %")
    table = build_table(*headers, title=f"reliability, {name}")
    for one in bins:
        confidence = f"{100 * one['confidence']:.1f}"
        bounds = f"{one['from']:.2f} to {one['to']:.2f}"
        interval = {"interval": {"accuracy": one["interval"]}} if "interval" in one else {}
        accuracy = format_percent({"accuracy": one["accuracy"], **interval}, "accuracy")
        table.add_row(bounds, f"{one['texts']:,}", confidence, accuracy)
    return table


def _describe_temperature(fitted: Result) -> RenderableType:
    where = f"{fitted['split']} ({fitted['texts']:,} texts)"
    return build_note(f"temperature {fitted['temperature']:.3f}, fitted on {where}")


def _build_calibration_table(name: str, part: Result) -> Table:
    """Metrics of the probabilities before and after temperature scaling."""
    before = part["uncalibrated"]
    table = build_table("", "before", "after", title=f"calibration, {name}")
    names = {
        "log_loss": "log loss",
        "brier": "Brier score",
        "calibration_error": "calibration error",
    }
    for key, label in names.items():
        table.add_row(label, _format_metric(before, key), _format_metric(part, key))
    return table


def _format_metric(result: Result, key: str) -> str:
    interval = result.get("interval", {}).get(key)
    text = f"{result[key]:.4f}"
    return f"{text}  [{interval['low']:.4f}, {interval['high']:.4f}]" if interval else text


def _build_baseline_table(part: str, result: Result) -> Table:
    """This run and each baseline, with the difference in accuracy and its p-value."""
    headers = ("system", "accuracy, %", "macro F1, %", "this run: difference", "p")
    table = build_table(*headers, title=f"baselines, {part}")
    macro_f1 = f"{100 * result['macro_f1']:.1f}"
    table.add_row("this run", format_percent(result, "accuracy"), macro_f1, "", "")
    for one in result["baselines"]:
        paired = one["paired"]
        interval, difference = paired["interval"], f"{100 * paired['difference']:+.1f}"
        if interval is not None:
            difference += f"  [{100 * interval['low']:+.1f}, {100 * interval['high']:+.1f}]"
        p = f"{paired['p']:.4f}" if paired["p"] >= SMALLEST_P else f"< {SMALLEST_P}"
        cells = (format_percent(one, "accuracy"), f"{100 * one['macro_f1']:.1f}")
        table.add_row(Text(one["name"]), *cells, difference, p)
    return table


def _render_hyperparameters(baselines: Sequence[Result]) -> Iterator[RenderableType]:
    """The hyperparameters of each baseline that has some."""
    for one in baselines:
        if chosen := one["hyperparameters"]:
            accuracy = f"{100 * chosen['dev_accuracy']:.1f}% there"
            values = f"{chosen['features']}, C = {chosen['C']:g} ({accuracy})"
            yield build_note(f"{one['name']}, chosen on dev: {values}")
