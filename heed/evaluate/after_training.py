"""Score the test set at the end of training (`train.evaluate_test`)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from heed.evaluate.evaluate_run import evaluate_run
from heed.evaluate.job import Options
from heed.runs.best_weights import describe_weights
from heed.runs.results_file import read_results
from heed.runs.run import Run

METRICS = ("bleu", "chrf")
"""Metrics of translations; `heed evaluate` computes TER as well."""


def evaluate_test(
    folder: Path,
    *,
    device: str,
    notify: Callable[[str], None],
    on_result: Callable[[dict[str, Any]], None],
) -> None:
    """Evaluate the test set of a trained run, unless these weights have a result already."""
    run = Run.open(folder)
    recipe = run.recipe()
    result = read_results(folder).get("test")
    if result is None or result["checkpoint"] != describe_weights(run, recipe):
        metrics = METRICS if recipe.task == "translate" else ()
        evaluate_run(
            folder,
            Options("test", metrics=metrics),
            device=device,
            notify=notify,
            on_result=on_result,
        )
