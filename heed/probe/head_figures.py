"""Figures of heads: a cell for each, with its name, or with what silencing it costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from heed import plot
from heed.plot import Curve
from heed.probe.ablate import Ablation
from heed.probe.head_cards import ALIGNMENT_METRICS, MIXED, RULES, HeadCard, HeadReport
from heed.probe.head_tables import COLUMNS, NUMBERS, TITLES, unit_of
from heed.probe.patch import Head

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHARES = {
    rule.metric: rule.short_name
    for rule in RULES
    if rule.metric in COLUMNS and rule.metric not in NUMBERS
}
"""Metrics of the table that are shares, and the names that they give to heads."""


@dataclass(frozen=True)
class LabeledCell:
    """A cell of a grid: a text in at most three lines, and how dark it is, from 0 to 1."""

    text: str
    shade: float


def draw_heads(report: HeadReport) -> Figure:
    """A grid of heads by layer: each with its name and the share, or the error, that gave it."""
    cells = {card.head: _name_cell(card) for card in report.cards}
    return cell_grids(
        grids(cells),
        title=f"Heads on {report.set_name}, {report.examples:,} {unit_of(report)}",
        row_label="layer",
        column_label="head",
        note="The share of weight that gave the name; of a mixed head, its largest one.\n"
        "For alignment, the alignment error rate; for local and broad, distance and\n"
        "entropy as a share of those of uniform attention.",
    )


def draw_costs(ablation: Ablation) -> Figure:
    """A grid of heads by layer: what silencing each one alone changes."""
    largest = max(abs(cost.change.difference) for cost in ablation.costs) or 1.0
    digits = ablation.metric.digits - 1
    cells = {}
    for cost in sorted(ablation.costs, key=lambda cost: cost.head):
        difference, interval = cost.change.difference, cost.change.interval
        star = "*" if interval.low > 0 or interval.high < 0 else ""
        cells[cost.head] = LabeledCell(f"{difference:+.{digits}f}{star}", abs(difference) / largest)
    order = [kind for kind in TITLES if any(head.kind == kind for head in cells)]
    cells = {head: cells[head] for kind in order for head in cells if head.kind == kind}
    return cell_grids(
        grids(cells),
        title=f"Change of {ablation.metric.name} on {ablation.set_name} without each head",
        row_label="layer",
        column_label="head",
        note=f"Silenced alone ({ablation.how}). * The 95% interval, for all heads together,\n"
        "excludes zero.",
    )


def draw_removals(ablation: Ablation) -> Figure:
    """The removal curve: the metric by the number of heads removed, with its interval."""
    points, band = [(0.0, ablation.whole)], [(ablation.whole, ablation.whole)]
    for i, cost in enumerate(ablation.removals, start=1):
        interval = cost.change.interval
        points.append((float(i), cost.change.value))
        band.append((ablation.whole + interval.low, ablation.whole + interval.high))
    curve = Curve(ablation.metric.name, points, band)
    return plot.curve_panels(
        {ablation.metric.name: [curve]},
        title=f"Heads removed one after another on {ablation.set_name} ({ablation.how})",
        x="heads removed",
        note="Each step removes the head whose removal raises the loss least. Shaded: the 95% "
        "interval of the difference to the whole model, for all steps together.",
    )


def grids(cells: Mapping[Head, LabeledCell]) -> dict[str, Sequence[Sequence[LabeledCell]]]:
    """The cells of each kind of attention, by layer."""
    layers: dict[str, dict[int, list[LabeledCell]]] = {}
    for head, cell in cells.items():
        layers.setdefault(head.kind, {}).setdefault(head.layer, []).append(cell)
    return {
        TITLES[kind]: [rows.get(layer, []) for layer in range(max(rows) + 1)]
        for kind, rows in layers.items()
    }


def _name_cell(card: HeadCard) -> LabeledCell:
    rule = card.rule
    if rule is not None:
        value = card.metrics[rule.metric].value
        if rule.metric in ALIGNMENT_METRICS:
            return LabeledCell(f"{rule.short_name}\nAER {value:.2f}", 1 - value)
        if rule.below:
            return LabeledCell(f"{rule.short_name}\n{value:.0%}", 1 - value)
        return LabeledCell(f"{rule.short_name}\n{value:.0%}", value)
    shares = {name: card.metrics[name].value for name in SHARES if name in card.metrics}
    largest = max(shares, key=lambda name: shares[name])
    return LabeledCell(f"{MIXED}\n{SHARES[largest]}\n{shares[largest]:.0%}", shares[largest])


def cell_grids(
    panels: Mapping[str, Sequence[Sequence[LabeledCell]]],
    *,
    title: str,
    row_label: str,
    column_label: str,
    note: str = "",
) -> Figure:
    """Grids of cells, one below the other: a row for each layer, a column for each head.

    Rows may differ in length. Rows and columns are numbered from 1.
    """
    with plot.use_style():
        columns = max(len(row) for rows in panels.values() for row in rows)
        width, height, gap, left = plot.clamp(7.0 / columns, 0.8, 0.95), 0.46, 0.62, 0.85
        rows_in_all = sum(len(rows) for rows in panels.values())
        below = 0.3 + 0.17 * note.count("\n")
        total = (
            left + columns * width + 0.2,
            below + rows_in_all * height + len(panels) * gap + 0.2,
        )
        figure = plot.new_figure(*total)
        top = total[1] - 0.2
        for name, rows in panels.items():
            top -= gap + len(rows) * height
            axes = plot.add_axes(figure, left, top + 0.1, columns * width, len(rows) * height)
            _draw_cells(axes, rows, columns)
            axes.set_title(plot.replace_unprintable(name), fontsize=plot.TEXT_SIZE, pad=16)
            axes.set_yticks(
                [row + 0.5 for row in range(len(rows))],
                [f"{row_label} {row + 1}" for row in range(len(rows))],
            )
            axes.set_xticks(
                [column + 0.5 for column in range(columns)],
                [f"{column_label} {column + 1}" for column in range(columns)],
                fontsize=plot.NOTE_SIZE,
            )
        heading = plot.replace_unprintable(title)
        figure.text(0.1 / total[0], 1, heading, fontsize=plot.TITLE_SIZE, verticalalignment="top")
        text = plot.replace_unprintable(note)
        figure.text(0.1 / total[0], 0, text, fontsize=plot.NOTE_SIZE, verticalalignment="bottom")
    return figure


def _draw_cells(axes: Axes, rows: Sequence[Sequence[LabeledCell]], columns: int) -> None:
    from matplotlib import colormaps
    from matplotlib.patches import Rectangle

    for row, cells in enumerate(rows):
        for column, cell in enumerate(cells):
            shade = plot.clamp(cell.shade, 0.0, 1.0)
            face = colormaps["Blues"](0.05 + 0.85 * shade)
            axes.add_patch(
                Rectangle((column, row), 1, 1, facecolor=face, edgecolor="white", lw=1.5)
            )
            axes.text(
                column + 0.5,
                row + 0.5,
                plot.replace_unprintable(cell.text),
                color=plot.text_color(face),
                fontsize=8.0,
                horizontalalignment="center",
                verticalalignment="center",
                linespacing=1.1,
            )
    axes.set(xlim=(0, columns), ylim=(len(rows), 0))
    axes.tick_params(length=0, pad=2, labeltop=True, labelbottom=False)
    axes.spines[["top", "right", "bottom", "left"]].set_visible(False)
