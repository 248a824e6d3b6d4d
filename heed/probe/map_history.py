"""How attention forms in training: the maps of every head at each snapshot, beside its final ones.

All snapshots read the same tokens. A head keeps its number within a run, so that it is compared
with itself: at each snapshot the similarity of its maps to those of the last one, and its entropy.

Shapes: h heads, n queries, m keys. Sizes are in inches, font sizes in points.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table

from heed import plot
from heed.arrays import Floats
from heed.errors import ConfigError, HeedError, RunError
from heed.probe.attend import LoadedModel, View
from heed.probe.attention_maps import AttentionMap, AttentionMaps, map_inputs
from heed.probe.examples import open_probe_set
from heed.probe.head_matching import list_map_heads, stack_heads
from heed.probe.lens import spread
from heed.probe.map_figure import MEAN, NAMES
from heed.probe.map_output import save_by_kind
from heed.probe.patch import Head
from heed.runs.run import Run
from heed.terminal import build_note, build_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SETTLED = 0.9
"""The similarity to its final map from which a head counts as settled."""
PROBE_TEXTS = 16
"""Texts of the dev set that are read where none is given."""
LEVELS = "▁▂▃▄▅▆▇█"
"""Similarity from 0 to 1 in the terminal."""
MOST_LEVELS, STEP_COLUMNS = 24, 4
"""Snapshots in the line of levels, and those whose similarity is printed as a number."""
PANEL_WIDTH, PANEL_HEIGHT, GAP = 1.05, 0.72, 0.18
"""Size of a head's panel in the figure, and the space between two."""


@dataclass(frozen=True)
class HeadHistory:
    """One head at every snapshot."""

    head: Head
    similarity: list[float]
    """To its maps at the last snapshot: the mean over queries of the weight on the same keys."""
    entropy: list[float]
    """In bits, the mean over queries."""

    def settled_index(self) -> int | None:
        """The first snapshot from which the similarity stays at 0.9 or more."""
        below = [i for i, value in enumerate(self.similarity) if value < SETTLED]
        index = below[-1] + 1 if below else 0
        return index if index < len(self.similarity) else None


@dataclass(frozen=True)
class MapHistory:
    """One kind of attention of a run over its snapshots."""

    run: str
    kind: str
    steps: list[int]
    texts: list[str]
    by_word: bool
    heads: list[HeadHistory]

    def settles(self, history: HeadHistory) -> int | None:
        """The step at which a head settles."""
        index = history.settled_index()
        return None if index is None else self.steps[index]

    def to_dict(self) -> dict[str, Any]:
        """The history for JSON; heads are named from 1."""
        return {
            "run": self.run,
            "kind": self.kind,
            "steps": self.steps,
            "texts": self.texts,
            "by_word": self.by_word,
            "settled_similarity": SETTLED,
            "heads": [
                {
                    "head": one.head.label,
                    "similarity": one.similarity,
                    "entropy": one.entropy,
                    "settles_at_step": self.settles(one),
                }
                for one in self.heads
            ],
        }


@dataclass
class _Sums:
    """Sums over the queries of all texts, for each head of one kind."""

    heads: list[Head]
    similarity: list[Floats] = field(default_factory=list)
    entropy: list[Floats] = field(default_factory=list)
    queries: int = 0

    def start_step(self) -> None:
        self.similarity.append(np.zeros(len(self.heads)))
        self.entropy.append(np.zeros(len(self.heads)))
        self.queries = 0

    def add(self, attention: AttentionMap, final: AttentionMap) -> None:
        """Add a text. Queries that see a single key have no choice and do not count."""
        rows = final.visible.sum(axis=1) > 1
        a_hnm, b_hnm = stack_heads(attention, rows), stack_heads(final, rows)
        self.similarity[-1] += np.minimum(a_hnm, b_hnm).sum(axis=(1, 2))
        logs_hnm = np.log2(a_hnm, out=np.zeros_like(a_hnm), where=a_hnm > 0)
        self.entropy[-1] -= (a_hnm * logs_hnm).sum(axis=(1, 2))
        self.queries += int(rows.sum())

    def histories(self) -> Iterator[HeadHistory]:
        queries = max(1, self.queries)
        for i, head in enumerate(self.heads):
            similarity, entropy = (
                [float(step_h[i]) / queries for step_h in sums]
                for sums in (self.similarity, self.entropy)
            )
            yield HeadHistory(head, similarity, entropy)


def require_snapshots(folder: Path) -> list[int]:
    """The steps of a run's snapshots; an error if there are fewer than two."""
    steps = Run.open(folder).weight_files.snapshot_steps()
    if len(steps) < 2:
        count = "one snapshot" if steps else "no snapshots"
        raise RunError(
            f"this run has {count}, and two are needed to see attention change.",
            where=str(folder),
            todo="Train with --set train.snapshot_every=N: then weights are kept every N steps.",
        )
    return steps


def read_probe_set(folder: Path, step: int, *, device: str) -> list[tuple[Any, ...]]:
    """The arguments of `attention` for the first texts of the run's dev set, references included.

    The weights of `step` are read along.
    """
    probe = open_probe_set(folder, limit=PROBE_TEXTS, device=device, weights=str(step))
    texts = [record.texts for record in probe.records()]
    if probe.recipe.task == "classify":
        return [(text if text[1:] else text[0],) for text in texts]
    return list(texts)


def follow_heads(
    load: Callable[[int], LoadedModel],
    steps: Sequence[int],
    texts: Sequence[tuple[Any, ...]],
    view: View,
    *,
    run: str,
) -> list[MapHistory]:
    """Follow every head over the snapshots of these steps, kind by kind.

    `load` returns the model of a step. `texts` are arguments of `attention`; a translation that is
    not given is the last snapshot's, and every snapshot reads it.
    """
    if view.head == MEAN:
        raise ConfigError(["--over-training follows heads: --head is a number, not mean."])
    final = load(steps[-1])
    inputs = [final.inputs(*read) for read in texts]

    def read_maps(model: LoadedModel, index: int) -> AttentionMaps:
        maps = map_inputs(model.model, *inputs[index])
        return (maps.by_word() if view.words else maps).select(view.kind, view.layer)

    first = read_maps(final, 0)
    sums = {one.kind: _Sums(list_map_heads(one)) for one in first.maps}
    for step in steps:
        model = final if step == steps[-1] else load(step)
        for each in sums.values():
            each.start_step()
        for index in range(len(inputs)):
            # The final maps are computed again for every step: all texts' may not fit in memory.
            maps, final_maps = read_maps(model, index), read_maps(final, index)
            for kind, each in sums.items():
                each.add(maps.get(kind), final_maps.get(kind))
    shown = [" | ".join(read[0]) if isinstance(read[0], tuple) else read[0] for read in texts]
    return [
        MapHistory(run, kind, list(steps), shown, view.words, _choose_heads(each, kind, view))
        for kind, each in sums.items()
    ]


def _choose_heads(sums: _Sums, kind: str, view: View) -> list[HeadHistory]:
    chosen = [one for one in sums.histories() if view.head in (None, one.head.head)]
    if not chosen:
        raise HeedError(
            f"there is no such head of {kind} attention.", todo="Leave --head out to see all heads."
        )
    return chosen


# ------------------------------------------------------------------------------------- the table


def render_histories(histories: Sequence[MapHistory]) -> RenderableType:
    """The tables of each kind for the terminal, and what their numbers mean."""
    parts = [part for one in histories for part in (_build_table(one), "")]
    return Group(*parts, build_note(_note(histories[0])))


def _build_table(history: MapHistory) -> Table:
    """A row for each head: similarity over the steps, entropy, settled step."""
    steps = history.steps
    columns = spread(len(steps), STEP_COLUMNS + 1)[:-1]  # at the last snapshot it is 1
    numbers = [f"{steps[i]:,}" for i in columns]
    title = _name(history.kind)
    right = (*numbers, "entropy", "settles")
    table = build_table(
        "head", "similarity", *numbers, "entropy", "settles", title=title, right=right, compact=True
    )
    for one in history.heads:
        levels = "".join(_level(one.similarity[i]) for i in spread(len(steps), MOST_LEVELS))
        values = [f"{one.similarity[i]:.2f}" for i in columns]
        entropy = f"{one.entropy[0]:.2f} → {one.entropy[-1]:.2f}"
        settles = history.settles(one)
        step = "–" if settles is None else f"{settles:,}"
        table.add_row(_short(one.head), levels, *values, entropy, step)
    return table


def _note(history: MapHistory) -> str:
    units = "words" if history.by_word else "tokens"
    count = len(history.texts)
    texts = f"{count} text{'s' * (count > 1)}, the same {units} at each of {len(history.steps)}"
    return (
        f"{texts} snapshots. Similarity to the map at step {history.steps[-1]:,}: the weight on "
        f"the same {units}, 0 to 1, as a line over all steps and as numbers at some. "
        f"A head (layer.head) settles at the first snapshot from which it stays at {SETTLED} or "
        "more. Entropy in bits, first and last snapshot."
    )


def _level(similarity: float) -> str:
    return LEVELS[min(int(similarity * len(LEVELS)), len(LEVELS) - 1)]


def _short(head: Head) -> str:
    return f"{head.layer + 1}.{head.head + 1}"


def _name(kind: str) -> str:
    return NAMES.get(kind, "Cross-attention")


# ------------------------------------------------------------------------------------ the figure


def save_history(histories: Sequence[MapHistory], path: Path) -> Iterator[Path]:
    """Write the figure of each kind, or all numbers as JSON; yields the paths."""
    return save_by_kind(histories, path, draw_history)


def draw_history(history: MapHistory) -> Figure:
    """Similarity over the steps, a panel for each head: layers below each other."""
    layers = [list(group) for _, group in groupby(history.heads, lambda one: one.head.layer)]
    across = max(map(len, layers))
    left, below, above = 0.75, 0.62, 0.25
    width = max(across * (PANEL_WIDTH + GAP), 3.4)
    height = len(layers) * (PANEL_HEIGHT + GAP)
    with plot.use_style():
        figure = plot.new_figure(left + width + 0.1, below + height + above)
        for row, heads in enumerate(layers):
            bottom = below + height - (row + 1) * (PANEL_HEIGHT + GAP) + GAP
            is_lowest = row == len(layers) - 1
            for column, one in enumerate(heads):
                place = (left + column * (PANEL_WIDTH + GAP), bottom, PANEL_WIDTH, PANEL_HEIGHT)
                axes = plot.add_axes(figure, *place)
                _draw_head(axes, history, one)
                axes.tick_params(labelleft=column == 0, labelbottom=is_lowest, length=2.5)
        inches = figure.get_size_inches()
        title = f"{_name(history.kind)}: similarity to the final map"
        figure.text(0.1 / inches[0], 1.0, title, fontsize=plot.TITLE_SIZE, va="top")
        x = (left + (across * (PANEL_WIDTH + GAP) - GAP) / 2) / inches[0]
        figure.text(x, (below - 0.17) / inches[1], "training step", ha="center", va="center")
        note = (
            f"Panels are heads (layer.head). Dot: from here on {SETTLED} (dashed) or more. "
            f"The final map is that of step {history.steps[-1]:,}."
        )
        text = plot.wrap_text(note, left + width, plot.NOTE_SIZE)
        figure.text(0.1 / inches[0], 0.0, text, fontsize=plot.NOTE_SIZE, va="bottom")
    return figure


def _draw_head(axes: Axes, history: MapHistory, one: HeadHistory) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    steps = history.steps
    axes.axhline(SETTLED, color=plot.INK, linewidth=0.6, linestyle=(0, (4, 2)))
    axes.plot(steps, one.similarity, color=plot.COLORS[0], linewidth=1.6)
    index = one.settled_index()
    if index is not None:
        place = steps[index], one.similarity[index]
        (dot,) = axes.plot(*place, color=plot.COLORS[1], marker="o", clip_on=False)
        dot.set(markersize=5.5, markeredgecolor="white")
    axes.text(0.97, 0.06, _short(one.head), ha="right", va="bottom", transform=axes.transAxes)
    axes.set(xlim=(steps[0], steps[-1]), ylim=(0, 1.03), yticks=(0, 0.5, 1))
    axes.xaxis.set_major_locator(MaxNLocator(2, integer=True, prune="upper"))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda step, _: plot.format_tick(step)))
    axes.spines[["top", "right"]].set_visible(False)
