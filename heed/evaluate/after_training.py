"""Score the test set at the end of training (`train.evaluate_test`)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from heed.config import DecodeConfig, Recipe
from heed.evaluate.evaluate_run import evaluate_run
from heed.evaluate.evaluation_time import estimate_evaluations
from heed.evaluate.job import Options
from heed.runs.best_weights import describe_weights
from heed.runs.results_file import read_results
from heed.runs.run import Run
from heed.terminal import Say

METRICS = ("bleu", "chrf")
"""Metrics of translations; `heed evaluate` computes TER as well."""


def evaluate_test(
    folder: Path,
    *,
    device: str,
    notify: Say,
    on_result: Callable[[dict[str, Any]], None],
) -> None:
    """Evaluate the test set of a trained run, unless these weights have a result already."""
    run = Run.open(folder)
    recipe = run.recipe()
    result = read_results(folder).get("test")
    if result is None or result["checkpoint"] != describe_weights(run, recipe):
        evaluate_run(
            folder, options_of_test(recipe), device=device, notify=notify, on_result=on_result
        )


def options_of_test(recipe: Recipe) -> Options:
    """How the test set is evaluated after training."""
    return Options("test", metrics=METRICS if recipe.task == "translate" else ())


def estimate_test(run: Run, decode: DecodeConfig, *, device: str) -> float:
    """Seconds that the evaluation of test takes after training; 0 where the recipe asks for none.

    `run` is a temporary one, and `decode` limits its outputs.
    """
    recipe = run.recipe()
    if not recipe.train.evaluate_test:
        return 0.0
    return estimate_evaluations(run, [options_of_test(recipe)], decode, device=device)
