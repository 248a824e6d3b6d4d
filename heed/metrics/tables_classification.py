"""What is known of a classifier's answers, for a person to read: classes, confusion, baselines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

Facts = Mapping[str, Any]
MANY = 12
"""Classes beyond which no confusion matrix is printed: it would not fit."""
LEAST = 0.0001
"""The smallest chance that is told as it is."""
SIGNATURE = (
    "intervals: 95%, percentile bootstrap of the texts; p: exact McNemar test of the answers"
)


def details(facts: Facts) -> Iterator[RenderableType]:
    """The tables after the figures: of the whole set; baselines also of its clean part."""
    yield _classes(facts["classes"])
    if len(facts["classes"]) <= MANY:
        yield _confusion(facts["confusion"])
    yield _reliability(facts["reliability"])
    if "calibration" in facts:
        yield from _calibration(facts)
    if "baselines" in facts:
        yield from _baselines(facts["split"], facts)
        if facts["in_train"] and facts["clean"]:
            yield from _baselines("not in train", facts["clean"])
        yield from _chosen(facts["baselines"])
    yield Text(SIGNATURE, style="dim")


def percent(facts: Facts, key: str) -> str:
    """A share in percent, its interval after it where there is one: `84.0  [76.1, 91.0]`."""
    span = facts.get("interval", {}).get(key)
    told = f"{100 * facts[key]:.1f}"
    return told + (f"  [{100 * span['low']:.1f}, {100 * span['high']:.1f}]" if span else "")


def headed(*columns: str, title: str | None = None) -> Table:
    """A table that is still empty, under these heads."""
    table = Table(title=title, title_justify="left", show_edge=False)
    for column in columns:
        table.add_column(Text(column), overflow="fold")
    return table


def _classes(classes: Facts) -> Table:
    table = headed("class", "texts", "precision, %", "recall, %", "F1, %")
    for name, own in classes.items():
        cells = (percent(own, key) for key in ("precision", "recall", "f1"))
        table.add_row(Text(name), f"{own['texts']:,}", *cells)
    return table


def _confusion(matrix: Facts) -> Table:
    """How often a class (the row) was called another (the column), and the share of the row."""
    names, counts = matrix["classes"], matrix["counts"]
    low, high = matrix.get("share_low"), matrix.get("share_high")
    table = headed("is ↓ called →", *names, title="confusion: texts, and % of the row")
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


def _reliability(bins: Sequence[Facts]) -> Table:
    head = ("confidence", "texts", "mean confidence, %", "accuracy, %")
    table = headed(*head, title="reliability")
    for one in bins:
        sure = f"{100 * one['confidence']:.1f}"
        bounds = f"{one['from']:.2f} to {one['to']:.2f}"
        span = {"interval": {"accuracy": one["interval"]}} if "interval" in one else {}
        right = percent({"accuracy": one["accuracy"], **span}, "accuracy")
        table.add_row(bounds, f"{one['texts']:,}", sure, right)
    return table


def _calibration(facts: Facts) -> Iterator[RenderableType]:
    """What the temperature did to the probabilities."""
    fitted, before = facts["calibration"], facts["uncalibrated"]
    where = f"{fitted['split']} ({fitted['texts']:,} texts)"
    yield Text(f"temperature {fitted['temperature']:.3f}, fitted on {where}", style="dim")
    table = headed("", "before", "after", title="calibration")
    names = {
        "log_loss": "log loss",
        "brier": "Brier score",
        "calibration_error": "calibration error",
    }
    for key, name in names.items():
        table.add_row(name, _figure(before, key), _figure(facts, key))
    yield table


def _figure(facts: Facts, key: str) -> str:
    span = facts.get("interval", {}).get(key)
    return f"{facts[key]:.4f}" + (f"  [{span['low']:.4f}, {span['high']:.4f}]" if span else "")


def _baselines(part: str, facts: Facts) -> Iterator[RenderableType]:
    """This run and each baseline, with what the run has more, and the chance of that by luck."""
    head = ("system", "accuracy, %", "macro F1, %", "this run: more by", "p")
    table = headed(*head, title=f"baselines, {part}")
    table.add_row("this run", percent(facts, "accuracy"), f"{100 * facts['macro_f1']:.1f}", "", "")
    for one in facts["baselines"]:
        test = one["paired"]
        span, more = test["interval"], f"{100 * test['difference']:+.1f}"
        if span is not None:
            more += f"  [{100 * span['low']:+.1f}, {100 * span['high']:+.1f}]"
        chance = f"{test['p']:.4f}" if test["p"] >= LEAST else f"< {LEAST}"
        figures = (percent(one, "accuracy"), f"{100 * one['macro_f1']:.1f}")
        table.add_row(Text(one["name"]), *figures, more, chance)
    yield table


def _chosen(found: Sequence[Facts]) -> Iterator[RenderableType]:
    """What dev chose for each baseline that leaves a choice."""
    for one in found:
        if one["chosen"]:
            own = one["chosen"]
            told = f"{own['features']}, C = {own['C']:g} ({100 * own['dev_accuracy']:.1f}% there)"
            yield Text(f"{one['name']}, chosen on dev: {told}", style="dim")
