"""Tables of classification results: classes, confusion, reliability, calibration, baselines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from heed.evaluate.table_cells import (
    Result,
    format_difference,
    format_interval,
    format_paired_p,
    format_percent,
)
from heed.terminal import build_note, build_table

MAX_CLASSES = 12
"""Largest number of classes for which the confusion matrix fits the terminal."""
IF_PERFECT = "calibration_error_if_perfect"
CALIBRATION_ROWS = {
    "log_loss": ("log loss", "{:.4f}"),
    "brier": ("Brier score", "{:.4f}"),
    "calibration_error": ("expected calibration error", "{:.4f}"),
    "calibration_error_debiased": ("… debiased", "{:.4f}"),
    IF_PERFECT: ("… if perfectly calibrated", ""),
}
"""Rows of metrics of probabilities: the key in the result, its label, its format."""
INTERVALS = (
    "intervals: 95%; Wilson for shares, Student's t for log loss and Brier score, "
    "bootstrap for macro F1"
)


def render_details(result: Result) -> Iterator[RenderableType]:
    """The tables below the metrics, of the whole set and of its clean part."""
    parts = {result["split"]: result}
    if result["in_train"] and result["clean"]:
        parts["not in train"] = result["clean"]
    for name, part in parts.items():
        yield _build_class_table(name, part["classes"])
    if len(result["classes"]) <= MAX_CLASSES:
        for name, part in parts.items():
            yield _build_confusion_table(name, part["confusion"])
    for name, part in parts.items():
        yield _build_reliability_table(name, part["reliability"])
    if "calibration" in result:
        yield _describe_temperature(result["calibration"])
        for name, part in parts.items():
            yield _build_calibration_table(name, part)
        yield from _warn_of_calibration(result, parts)
    if "baselines" in result:
        for name, part in parts.items():
            yield _build_baseline_table(name, part)
        yield from _render_hyperparameters(result["baselines"])
        yield build_note(
            "p: two-sided approximate randomization of predictions, corrected for the "
            f"{len(result['baselines'])} baselines (max-t). Over test texts alone: another seed "
            "of this recipe can score otherwise."
        )
    yield build_note(INTERVALS)


def _build_class_table(part: str, classes: Mapping[str, Result]) -> Table:
    headers = ("class", "texts", "precision, %", "recall, %", "F1, %")
    table = build_table(*headers, title=f"classes, {part}")
    for name, metrics in classes.items():
        cells = (format_percent(metrics, key) for key in ("precision", "recall", "f1"))
        table.add_row(Text(name), f"{metrics['texts']:,}", *cells)
    return table


def _build_confusion_table(part: str, matrix: Result) -> Table:
    """Counts by true class (row) and predicted class (column), and the share of the row."""
    names, counts = matrix["classes"], matrix["counts"]
    low, high = matrix.get("share_low"), matrix.get("share_high")
    title = f"confusion, {part}: texts, and % of the row"
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
        shown = {**one, "interval": {"accuracy": one["interval"]}}
        accuracy = format_percent(shown, "accuracy")
        table.add_row(bounds, f"{one['texts']:,}", confidence, accuracy)
    return table


def _describe_temperature(fitted: Result) -> RenderableType:
    where = f"{fitted['split']} ({fitted['texts']:,} texts)"
    return build_note(f"temperature {fitted['temperature']:.3f}, fitted on {where}")


def _build_calibration_table(name: str, part: Result) -> Table:
    """Metrics of the probabilities before and after temperature scaling."""
    before = part["uncalibrated"]
    table = build_table("", "before", "after", title=f"calibration, {name}")
    for key, (label, form) in CALIBRATION_ROWS.items():
        table.add_row(label, _format_metric(before, key, form), _format_metric(part, key, form))
    return table


def _warn_of_calibration(result: Result, parts: Mapping[str, Result]) -> Iterator[RenderableType]:
    """That the temperature makes probabilities worse here, where it does, and how to delete it."""
    fitted, found = result["calibration"], False
    for name, part in parts.items():
        changes = {
            label: [form.format(one[key]) for one in (part["uncalibrated"], part)]
            for key, (label, form) in CALIBRATION_ROWS.items()
            if key in ("log_loss", "calibration_error")
        }
        worse = [
            f"{label} {before} → {after}"
            for label, (before, after) in changes.items()
            if float(after) > float(before)
        ]
        if worse:
            found = True
            yield Text(f"On {name}, calibration makes probabilities worse: {', '.join(worse)}.")
    if found:
        yield Text(
            f"The temperature was fitted on {fitted['texts']:,} texts of {fitted['split']} and is "
            f"saved in calibration.json. To delete it: heed evaluate {result['run']} --uncalibrate"
        )


def _format_metric(result: Result, key: str, form: str) -> str:
    if key == IF_PERFECT:
        return format_perfect_error(result[key])
    interval, text = result["interval"].get(key), form.format(result[key])
    return f"{text}  {format_interval(interval, form)}" if interval else text


def format_perfect_error(error: Result) -> str:
    """The calibration error of a perfectly calibrated classifier on as many texts."""
    return f"{error['mean']:.4f}, up to {error['high']:.4f}"


def _build_baseline_table(part: str, result: Result) -> Table:
    """This run and each baseline, with the difference in accuracy and its p-value."""
    headers = ("system", "accuracy, %", "macro F1, %", "this run: difference", "p")
    table = build_table(*headers, title=f"baselines, {part}", compact=True)
    macro_f1 = f"{100 * result['macro_f1']:.1f}"
    table.add_row("this run", format_percent(result, "accuracy"), macro_f1, "", "")
    for one in result["baselines"]:
        paired = one["paired"]
        difference = format_difference(paired, "{:+.1f}", factor=100)
        cells = (format_percent(one, "accuracy"), f"{100 * one['macro_f1']:.1f}")
        table.add_row(Text(one["name"]), *cells, difference, format_paired_p(paired))
    return table


def _render_hyperparameters(baselines: Sequence[Result]) -> Iterator[RenderableType]:
    """The hyperparameters of each baseline that has some."""
    for one in baselines:
        if chosen := one["hyperparameters"]:
            accuracy = f"{100 * chosen['dev_accuracy']:.1f}% there"
            values = f"{chosen['features']}, C = {chosen['C']:g} ({accuracy})"
            yield build_note(f"{one['name']}, chosen on dev: {values}")
