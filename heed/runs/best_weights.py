"""Which weights a run keeps: the evaluation that chose them, by `train.best_metric`."""

from __future__ import annotations

import math
from typing import Any

from heed.checksums import DamagedError
from heed.config import Recipe
from heed.config.task_metrics import LOWER_IS_BETTER
from heed.config.train import LAST
from heed.runs.run import Run
from heed.runs.weight_files import BEST_WEIGHTS


def score_key(value: float | None, metric: str) -> tuple[bool, float]:
    """Sort key for scores of a metric: larger is better, and one that is not finite is the worst.

    It is None in `metrics.jsonl`, which is strict JSON.
    """
    if value is None or not math.isfinite(value):
        return False, 0.0
    return True, -value if metric in LOWER_IS_BETTER else value


def chosen_evaluation(lines: list[dict[str, Any]], best: str) -> dict[str, Any] | None:
    """The line of `metrics.jsonl` whose weights the run keeps; None before any evaluation.

    It is the first that is best by `best` (the recipe's `train.best_metric`), or the evaluation of
    the averaged weights where that was better. `last` chooses the last evaluation.
    """
    try:
        return _choose_evaluation(lines, best)
    except (LookupError, TypeError, AttributeError, OverflowError) as error:
        what = f"a line of metrics.jsonl has no {best}: it was not written by heed."
        raise DamagedError(what, todo="Restore the file from a copy of the run.") from error


def _choose_evaluation(lines: list[dict[str, Any]], best: str) -> dict[str, Any] | None:
    split, _, metric = best.partition("/")
    scored = [line for line in lines if best == LAST or split in line]
    average = next((line for line in scored if line["event"] == "average" and line["kept"]), None)
    evaluated = [line for line in scored if line["event"] == "evaluate"]
    if average or not evaluated:
        return average
    if best == LAST:
        return evaluated[-1]
    return max(evaluated, key=lambda line: score_key(line[split][metric], metric))


def describe_weights(
    run: Run, recipe: Recipe, weights: str = BEST_WEIGHTS
) -> dict[str, Any] | None:
    """Which weights these are: their kind, step, epoch, and their score if they were evaluated.

    `weights` are "best", "last" or a step; the score of the best ones is the one that decided.
    """
    split, _, metric = recipe.train.best_metric.partition("/")
    if weights != BEST_WEIGHTS:
        return _describe_step(run, recipe, run.weights_step(weights))
    line = chosen_evaluation(run.metrics(), recipe.train.best_metric)
    if line is None:
        return None
    is_last = recipe.train.best_metric == LAST
    kind = "the last weights" if is_last else "the best weights"
    if line["event"] == "average":
        kind = f"the mean of the last {recipe.train.average_checkpoints} weights"
    return {
        "weights": kind,
        "step": line["step"],
        "epoch": line["epoch"],
        "metric": None if is_last else recipe.train.best_metric,
        "value": None if is_last else line[split][metric],
    }


def _describe_step(run: Run, recipe: Recipe, step: int) -> dict[str, Any]:
    """The weights of one step, whether they were the best or not."""
    split, _, metric = recipe.train.best_metric.partition("/")
    lines = [line for line in run.metrics() if line["step"] == step]
    scores = [
        line[split][metric] for line in lines if line["event"] == "evaluate" and split in line
    ]
    return {
        "weights": "the weights",
        "step": step,
        "epoch": lines[-1]["epoch"] if lines else None,
        "metric": recipe.train.best_metric,
        "value": scores[-1] if scores else None,
    }
