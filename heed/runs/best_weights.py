"""Which weights a run keeps: the evaluation that chose them, by `train.best_metric`."""

from __future__ import annotations

import math
from typing import Any

from heed.config import Recipe
from heed.runs.run import Run

LOWER_IS_BETTER = ("loss", "perplexity")
"""Metrics that are better when lower."""


def score_key(value: float, metric: str) -> tuple[bool, float]:
    """Sort key for scores of a metric: larger is better, and NaN is the worst."""
    if math.isnan(value):
        return False, 0.0
    return True, -value if metric in LOWER_IS_BETTER else value


def chosen_evaluation(lines: list[dict[str, Any]], best: str) -> dict[str, Any] | None:
    """The line of `metrics.jsonl` whose weights the run keeps; None before any evaluation.

    It is the first that is best by `best` (the recipe's `train.best_metric`), or the evaluation of
    the averaged weights where that was better.
    """
    split, _, metric = best.partition("/")
    scored = [line for line in lines if split in line]
    average = next((line for line in scored if line["event"] == "average" and line["kept"]), None)
    evaluated = [line for line in scored if line["event"] == "evaluate"]
    if average or not evaluated:
        return average
    return max(evaluated, key=lambda line: score_key(line[split][metric], metric))


def describe_weights(run: Run, recipe: Recipe) -> dict[str, Any] | None:
    """Which weights `model.safetensors` holds: their kind, step, epoch and deciding score."""
    split, _, metric = recipe.train.best_metric.partition("/")
    line = chosen_evaluation(run.metrics(), recipe.train.best_metric)
    if line is None:
        return None
    average = f"the mean of the last {recipe.train.average_checkpoints} weights"
    return {
        "weights": average if line["event"] == "average" else "the best weights",
        "step": line["step"],
        "epoch": line["epoch"],
        "metric": recipe.train.best_metric,
        "value": line[split][metric],
    }
