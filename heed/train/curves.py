"""Training curves: loss by step, and a language model's perplexity."""

from __future__ import annotations

from typing import Any

from heed import plot
from heed.runs.run import Run

Series = dict[str, list[tuple[float, float]]]
MAX_PERPLEXITY = 1e100
"""Larger values are not drawn. A run with too high a learning rate has them, and infinite ones."""


def draw_curves(run: Run) -> None:
    """Draw the loss of training and of every evaluated set into the run's figures.

    A language model's perplexity is drawn as well, on a logarithmic axis. The best step is marked.
    """
    lines, task = run.metrics(), run.recipe().task
    train = [line for line in lines if line["event"] == "train" and line["loss"] is not None]
    evaluated = _evaluations(lines, "loss")
    losses = {"while training": [(line["step"], line["loss"]) for line in train]} | evaluated
    figure = plot.curves(
        {name: points for name, points in losses.items() if points},
        title="Loss while training",
        x="step",
        y=f"cross-entropy a {'text' if task == 'classify' else 'token'}",
        best=_best_steps(evaluated),
    )
    plot.save(figure, run.figures / "loss")
    if task == "generate" and (perplexities := _evaluations(lines, "perplexity")):
        figure = plot.curves(
            perplexities,
            title="Perplexity at every evaluation",
            x="step",
            y="perplexity by token",
            best=_best_steps(perplexities),
            log_y=True,
        )
        plot.save(figure, run.figures / "perplexity")


def _evaluations(lines: list[dict[str, Any]], metric: str) -> Series:
    """Every set's values of a metric by step, without those too large to draw."""
    series: Series = {}
    for line in lines:
        if line["event"] == "evaluate":
            for name in line.keys() - {"event", "step", "epoch", "time", "seen"}:
                if line[name][metric] < MAX_PERPLEXITY:
                    label = "train, evaluated" if name == "train" else name
                    series.setdefault(label, []).append((line["step"], line[name][metric]))
    return dict(sorted(series.items()))


def _best_steps(series: Series) -> dict[str, float]:
    """The step with the lowest value of each set."""
    return {name: min(points, key=lambda point: point[1])[0] for name, points in series.items()}
