"""Training curves: loss by step and epoch, and a language model's perplexity."""

from __future__ import annotations

import textwrap
from typing import Any

from heed import plot
from heed.config import Recipe
from heed.config.train import LAST
from heed.runs.best_weights import chosen_evaluation
from heed.runs.history import build_history, display_set_name
from heed.runs.run import Run

Series = dict[str, list[tuple[float, float]]]
MAX_PERPLEXITY = 1e100
"""Larger values are not drawn. A run with too high a learning rate has them, and infinite ones."""
NOTE_WIDTH = 100
"""Characters in a line of the note below a figure."""


def draw_curves(run: Run) -> None:
    """Draw the loss of training and of every evaluated set into the run's figures.

    A language model's perplexity is drawn as well, on a logarithmic axis. The evaluation whose
    weights the run keeps is marked.
    """
    lines, recipe = run.metrics(), run.recipe()
    steps_per_epoch = run.environment().get("steps_per_epoch")
    axis = ("epoch", float(steps_per_epoch)) if steps_per_epoch else None
    kept = chosen_evaluation(lines, recipe.train.best_metric)
    rows = build_history(lines, steps_per_epoch)
    training = _training_losses(rows)
    evaluated = _evaluations(rows, "loss")
    figure = plot.curves(
        ({"training": training} if training else {}) | evaluated,
        title="Loss while training",
        x="step",
        y=f"cross-entropy a {'text' if recipe.task == 'classify' else 'token'}",
        best=_marks(evaluated, kept),
        best_label="kept",
        second_x=axis,
        note=_describe_losses(recipe) + _describe_kept(recipe, kept),
    )
    plot.save(figure, run.figures / "loss")
    if recipe.task == "generate" and (perplexities := _evaluations(rows, "perplexity")):
        figure = plot.curves(
            perplexities,
            title="Perplexity at every evaluation",
            x="step",
            y="perplexity by token",
            best=_marks(perplexities, kept),
            best_label="kept",
            log_y=True,
            second_x=axis,
            note=_describe_kept(recipe, kept),
        )
        plot.save(figure, run.figures / "perplexity")


def has_curves(run: Run) -> bool:
    """Whether every figure is there; False after a kill between the weights and the figures."""
    has_perplexity = run.recipe().task == "generate" and _evaluations(run.history, "perplexity")
    names = ["loss", "perplexity"] if has_perplexity else ["loss"]
    return all(path.exists() for name in names for path in plot.figure_paths(run.figures / name))


def _training_losses(rows: list[dict[str, Any]]) -> list[tuple[float, float]]:
    """The training loss by step; each point is the mean since the point before.

    Evaluations have it too: they are drawn where they are more than the lines of metrics. A last
    point over few steps would be mostly noise, so its steps are counted with those before.
    """
    logged, seen = (
        [(float(row["step"]), float(row[metric])) for row in rows if metric in row]
        for metric in ("train/loss", "seen/loss")
    )
    points = max(logged, seen, key=len)
    steps = [step for step, _ in points]
    counts = [step - before for before, step in zip([0.0, *steps], steps, strict=False)]
    if len(points) > 1 and counts[-1] < counts[-2] / 2:
        (_, before), (last, loss) = points[-2:]
        mean = (before * counts[-2] + loss * counts[-1]) / (counts[-2] + counts[-1])
        points[-2:] = [(last, mean)]
    return points


def _evaluations(rows: list[dict[str, Any]], metric: str) -> Series:
    """Every set's values of a metric by step, without those too large to draw."""
    series: Series = {}
    for row in rows:
        for key, value in row.items() if row["event"] == "evaluate" else ():
            name, _, last = key.partition("/")
            if last == metric and name != "seen" and value < MAX_PERPLEXITY:
                series.setdefault(display_set_name(name), []).append((row["step"], value))
    return dict(sorted(series.items()))


def _marks(series: Series, kept: dict[str, Any] | None) -> dict[str, float]:
    """The step of the kept weights in every series that has it; none for averaged weights."""
    if kept is None or kept["event"] != "evaluate":
        return {}
    step = kept["step"]
    return {name: step for name, points in series.items() if any(x == step for x, _ in points)}


def _describe_losses(recipe: Recipe) -> str:
    """How the training loss and the losses of evaluated sets differ."""
    train, model = recipe.train, recipe.model
    parts = {
        "dropout": model.dropout or model.attention_dropout or model.feed_forward_dropout,
        "label smoothing": train.label_smoothing,
        "class weights": train.class_weights,
        "R-Drop": train.rdrop,
        "token dropout": train.token_dropout or train.source_token_dropout,
        "BPE dropout": recipe.tokenizer.dropout,
    }
    active = [name for name, value in parts.items() if value]
    where = f", with {', '.join(active)}" if active else ""
    others = "Other losses: the plain cross-entropy of the weights at that step."
    text = f"Training: mean over the steps since the point before{where}. {others}"
    return textwrap.fill(text, NOTE_WIDTH, break_on_hyphens=False) + "\n"


def _describe_kept(recipe: Recipe, kept: dict[str, Any] | None) -> str:
    """Which weights the run keeps, and by which metric."""
    if kept is None:
        return ""
    metric = recipe.train.best_metric
    why = "the last" if metric == LAST else f"chosen by {metric}"
    if kept["event"] != "evaluate":
        count = recipe.train.average_checkpoints
        kind = f"Kept: the mean of the last {count} weights"
        return f"{kind}." if metric == LAST else f"{kind}, {why}."
    return f"Kept: the weights of step {kept['step']:,}, {why}."
